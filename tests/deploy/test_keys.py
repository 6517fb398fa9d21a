# SPDX-License-Identifier: Apache-2.0
"""Files of keys and certificates."""

import ssl
from pathlib import Path

import pytest

from agnosticfl.deploy.keys import make_authority, make_signing_key, read_roster, read_signing_key
from agnosticfl.errors import BadInput


def test_the_keys_are_such_that_tls_takes_them(tmp_path: Path):
    make_authority(tmp_path, ["fl.example.org", "127.0.0.1"])
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    assert (tmp_path / "server.key").stat().st_mode & 0o777 == 0o600


def test_files_of_keys_are_private_and_checked(tmp_path: Path):
    line = make_signing_key(tmp_path / "a.sign")
    assert (tmp_path / "a.sign").stat().st_mode & 0o777 == 0o600
    with pytest.raises(BadInput, match="it is not overwritten"):
        make_signing_key(tmp_path / "a.sign")
    (tmp_path / "roster").write_text(f"{line.read_text()}ssh-ed25519 nonsense\n")
    with pytest.raises(BadInput, match="line 2, is no public Ed25519 key"):
        read_roster(tmp_path / "roster")
    with pytest.raises(BadInput, match="is no key in OpenSSH's format"):
        read_signing_key(line)
