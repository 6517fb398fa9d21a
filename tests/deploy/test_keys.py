# SPDX-License-Identifier: Apache-2.0
"""Files of keys and certificates."""

import ssl
from base64 import b64encode
from pathlib import Path

import pytest
from cryptography import x509

from agnosticfl.deploy.gate.members import read_member
from agnosticfl.deploy.keys import (
    make_node_key,
    make_server_keys,
    make_signing_key,
    read_node_key,
    read_public_key,
    read_signing_key,
    read_verify_key,
    renew_certificate,
    write_verify_key,
)
from agnosticfl.errors import BadInput
from agnosticfl.secagg.primitives import check_signature
from tests.helpers import fuzz


def test_the_keys_of_a_server_are_such_that_tls_takes_them(tmp_path: Path):
    make_server_keys(tmp_path, ["fl.example.org", "127.0.0.1"])
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    for secret in ("server.key", "server.sign"):
        assert (tmp_path / secret).stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "clients").is_dir()


def test_a_certificate_is_renewed_under_the_same_authority(tmp_path: Path):
    """Names stay, or are others; key and certificate are new ones that fit."""
    make_server_keys(tmp_path, ["fl.example.org", "127.0.0.1"], days=1)
    authority, old = ((tmp_path / name).read_bytes() for name in ("ca.pem", "server.pem"))
    until = renew_certificate(tmp_path)
    assert (tmp_path / "ca.pem").read_bytes() == authority
    assert (tmp_path / "server.pem").read_bytes() != old
    root, leaf = (
        x509.load_pem_x509_certificate((tmp_path / name).read_bytes())
        for name in ("ca.pem", "server.pem")
    )
    leaf.verify_directly_issued_by(root)
    assert leaf.not_valid_after_utc == until
    assert (until - leaf.not_valid_before_utc).days == 825
    assert (root.not_valid_after_utc - root.not_valid_before_utc).days >= 3650
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == ["fl.example.org", "127.0.0.1"]
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    for secret in ("server.key", "ca.key"):
        assert (tmp_path / secret).stat().st_mode & 0o777 == 0o600
    renew_certificate(tmp_path, ["new.example.org"])
    leaf = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes())
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == ["new.example.org"]


def test_without_the_key_of_its_authority_no_certificate_is_renewed(tmp_path: Path):
    make_server_keys(tmp_path / "a", ["127.0.0.1"])
    make_server_keys(tmp_path / "b", ["127.0.0.1"])
    (tmp_path / "a" / "ca.key").write_bytes((tmp_path / "b" / "ca.key").read_bytes())
    with pytest.raises(BadInput, match="is not the key of"):
        renew_certificate(tmp_path / "a")
    (tmp_path / "a" / "ca.key").write_text("nonsense")
    with pytest.raises(BadInput, match="cannot be renewed"):
        renew_certificate(tmp_path / "a")
    (tmp_path / "a" / "ca.key").unlink()
    with pytest.raises(BadInput, match=r"there is no .*ca\.key"):
        renew_certificate(tmp_path / "a")


def test_everybody_can_verify_what_the_server_signed(tmp_path: Path):
    make_server_keys(tmp_path, ["127.0.0.1"])
    signature = read_signing_key(tmp_path / "server.sign").sign(b"a round")
    check_signature(read_verify_key(tmp_path / "server.verify"), signature, b"a round")
    assert (tmp_path / "server.verify").read_text().startswith("ssh-ed25519 ")
    before = {path: path.read_bytes() for path in tmp_path.glob("*.*")}
    (tmp_path / "ca.pem").unlink()
    with pytest.raises(BadInput, match=r"server.sign exists; it is not overwritten"):
        make_server_keys(tmp_path, ["127.0.0.1"])
    assert all(path.read_bytes() == before[path] for path in tmp_path.glob("*.*"))


def test_files_of_keys_are_private_and_checked(tmp_path: Path):
    write_verify_key(tmp_path / "a.verify", make_signing_key(tmp_path / "a.sign"))
    node = make_node_key(tmp_path / "a.key")
    for secret in ("a.sign", "a.key"):
        assert (tmp_path / secret).stat().st_mode & 0o777 == 0o600
    with pytest.raises(BadInput, match="it is not overwritten"):
        make_signing_key(tmp_path / "a.sign")
    for read, wrong, reason in (
        (read_signing_key, tmp_path / "a.verify", "is no key in OpenSSH's format"),
        (read_signing_key, tmp_path / "a.key", "is no Ed25519 key"),
        (read_node_key, tmp_path / "a.sign", "is no node key"),
        (read_verify_key, node, "is no Ed25519 key"),
        (read_verify_key, tmp_path / "none", "^there is no file"),
        (read_signing_key, tmp_path / "none", "^there is no file"),
    ):
        with pytest.raises(BadInput, match=reason):
            read(wrong)


def test_a_key_in_a_form_that_nobody_writes_is_no_key(tmp_path: Path):
    """The library says of a compressed point that it is not implemented."""
    kind, curve, point = b"ecdsa-sha2-nistp384", b"nistp384", b"\x02" + bytes(47) + b"\x01"
    blob = b"".join(len(part).to_bytes(4, "big") + part for part in (kind, curve, point))
    (tmp_path / "a.pub").write_text(f"{kind.decode()} {b64encode(blob).decode()}")
    with pytest.raises(BadInput, match="is no key in OpenSSH's format"):
        read_public_key(tmp_path / "a.pub")
    assert read_member(tmp_path / "a.pub") is None


@fuzz.effort
def test_any_bytes_are_a_key_or_one_line_that_says_why(tmp_path: Path, number: int):
    write_verify_key(tmp_path / "a.verify", make_signing_key(tmp_path / "a.sign"))
    make_node_key(tmp_path / "a.key")
    names = ("a.verify", "a.sign", "a.key", "a.pub")
    samples = [(tmp_path / name).read_bytes() for name in names]
    file = tmp_path / "damaged"

    def parse(content: bytes) -> None:
        file.write_bytes(content)
        read_public_key(file)

    fuzz.survive(parse, [*fuzz.damaged(samples, number), *fuzz.bombs(100_000)], BadInput)
    file.write_bytes(b"ssh-ed25519 " + b"A" * 10_000_000)
    with pytest.raises(BadInput, match="has more than 65536 bytes"):
        read_public_key(file)
