# SPDX-License-Identifier: Apache-2.0
"""Keys and certificates of a federation: an authority of its own, and one key for each machine.

ca.pem      the certificate that everybody trusts    server.pem, server.key  of the server
NAME.key    of one client, which keeps it            NAME.pub                for the server
NAME.sign   to sign in secure rounds, of one client  NAME.roster             for everybody's roster
"""

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import NameOID

from agnosticfl.errors import BadInput, check

_OPENSSH = (serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH)
_OPENSSH_PUBLIC = (serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)

# What cryptography raises on a file that is no key; TypeError on one that has a password.
UNREADABLE = (ValueError, TypeError, UnsupportedAlgorithm, NotImplementedError)

DAYS = 825  # that a certificate is valid


def make_authority(folder: Path, hosts: Sequence[str], days: int = DAYS) -> None:
    """An authority that signs one certificate, of a server reached by `hosts` (names or addresses).

    The authority's own key is thrown away: there will never be another certificate of it.
    """
    for name in ("ca.pem", "server.pem", "server.key"):
        check(not (folder / name).exists(), f"{folder / name} exists; it is not overwritten")
    folder.mkdir(parents=True, exist_ok=True)
    authority, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = _name("agnosticfl federation")
    root = _certificate(issuer, issuer, authority.public_key(), days)
    root = root.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    leaf = _certificate(_name("agnosticfl server"), issuer, server.public_key(), days)
    leaf = leaf.add_extension(x509.SubjectAlternativeName(list(map(_host, hosts))), critical=False)
    leaf = leaf.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    for name, builder in (("ca.pem", root), ("server.pem", leaf)):
        signed = builder.sign(authority, hashes.SHA256())
        (folder / name).write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    write_secret(
        folder / "server.key",
        server.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def make_node_key(path: Path) -> Path:
    """The key of one client at `path`, and its public half beside it, with the ending .pub."""
    public = path.with_suffix(".pub")
    for file in (path, public):
        check(not file.exists(), f"{file} exists; it is not overwritten")
    path.parent.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())  # what Flower's node authentication takes
    write_secret(
        path,
        key.private_bytes(*_OPENSSH, serialization.NoEncryption()),
    )
    public.write_bytes(key.public_key().public_bytes(*_OPENSSH_PUBLIC))
    return public


def make_signing_key(path: Path) -> Path:
    """The key with which one client signs in secure rounds, and its line of the roster."""
    line = path.with_suffix(".roster")
    for file in (path, line):
        check(not file.exists(), f"{file} exists; it is not overwritten")
    path.parent.mkdir(parents=True, exist_ok=True)
    key = ed25519.Ed25519PrivateKey.generate()
    write_secret(path, key.private_bytes(*_OPENSSH, serialization.NoEncryption()))
    line.write_bytes(key.public_key().public_bytes(*_OPENSSH_PUBLIC) + b"\n")
    return line


def read_signing_key(path: Path) -> ed25519.Ed25519PrivateKey:
    """What `make_signing_key` (or ssh-keygen -t ed25519) made."""
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), None)
    except UNREADABLE as error:
        raise BadInput(f"{path} is no key in OpenSSH's format: {error}") from None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise BadInput(f"{path} is no Ed25519 key")
    return key


def read_roster(path: Path) -> tuple[bytes, ...]:
    """The public signing keys of all clients, one per line as OpenSSH writes them, in order."""
    keys: list[bytes] = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            key = serialization.load_ssh_public_key(line)
        except UNREADABLE:
            key = None
        if not isinstance(key, ed25519.Ed25519PublicKey):
            raise BadInput(f"{path}, line {number}, is no public Ed25519 key")
        keys.append(key.public_bytes_raw())
    return tuple(keys)


def write_secret(path: Path, content: bytes) -> None:
    """A new file that only its owner can read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=days))
    )
