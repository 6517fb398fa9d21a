# SPDX-License-Identifier: Apache-2.0
"""Keys and certificates of a federation: an authority of its own, and one key for each machine.

ca.pem        the certificate that everybody trusts  ca.key                  with which it renews
server.pem    the server's own certificate           server.key              its key
server.sign   with which the server signs            server.verify           for everybody
NAME.key      of one client, which keeps it          NAME.pub                for the server
NAME.sign     to sign with, of a client or a keeper  NAME.verify             a keeper's public half

A client's public halves stand together on its card (`cards.py`).
"""

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import NameOID

from agnosticfl.errors import BadInput, check
from agnosticfl.files import write_whole

PublicKey = ed25519.Ed25519PublicKey | ec.EllipticCurvePublicKey
Key = TypeVar("Key")

_OPENSSH = (serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH)
_PKCS8 = (
    serialization.Encoding.PEM,
    serialization.PrivateFormat.PKCS8,
    serialization.NoEncryption(),
)
_OPENSSH_PUBLIC = (serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)

DAYS = 825  # that a certificate is valid
AUTHORITY_DAYS = 3653  # and that of an authority that can make another one: ten years
MOST_BYTES = 2**16  # of a file with a key
# What `cryptography` raises for a key that is none; the second if it has a password.
UNREADABLE = (ValueError, TypeError, UnsupportedAlgorithm, NotImplementedError)


def make_authority(
    folder: Path, hosts: Sequence[str], days: int = DAYS, lasting: bool = False
) -> None:
    """An authority, and a certificate of it for a server reached by `hosts` (names or addresses).

    Args:
      lasting: keeps the authority's key, so that the certificate can be renewed; if not, there will
        never be another one of it.
    """
    check_new(*(folder / name for name in ("ca.pem", "ca.key", "server.pem", "server.key")))
    folder.mkdir(parents=True, exist_ok=True)
    authority = ec.generate_private_key(ec.SECP256R1())
    issuer = _name("agnosticfl federation")
    root = _certificate(issuer, issuer, authority.public_key(), AUTHORITY_DAYS if lasting else days)
    root = root.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    root = root.add_extension(_FOR_CERTIFICATES, critical=True)
    root = root.add_extension(_key_id(authority.public_key()), critical=False)
    signed = root.sign(authority, hashes.SHA256())
    (folder / "ca.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    if lasting:
        write_secret(folder / "ca.key", authority.private_bytes(*_PKCS8))
    leaf, key = _server_certificate(authority, issuer, list(map(_host, hosts)), days)
    (folder / "server.pem").write_bytes(leaf)
    write_secret(folder / "server.key", key)


def renew_certificate(
    folder: Path, hosts: Sequence[str] = (), days: int = DAYS
) -> datetime.datetime:
    """Another certificate of the same authority in place of a server's; until when it holds.

    Args:
      hosts: by which the server is reached; by default those of the old one.
    """
    file = folder / "ca.key"
    check(
        file.is_file(),
        f"there is no {file}, so no certificate of this authority can be made; `deploy keys server`"
        " makes keys anew in another folder, and every client needs its ca.pem",
    )
    try:
        authority = serialization.load_pem_private_key(read_small(file, MOST_BYTES), None)
        root, old = (
            x509.load_pem_x509_certificate(read_small(folder / name, MOST_BYTES))
            for name in ("ca.pem", "server.pem")
        )
    except UNREADABLE as error:
        raise BadInput(f"the certificates in {folder} cannot be renewed: {_line(error)}") from None
    if not isinstance(authority, ec.EllipticCurvePrivateKey) or (
        authority.public_key() != root.public_key()
    ):
        raise BadInput(f"{file} is not the key of {folder / 'ca.pem'}")
    names = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    leaf, key = _server_certificate(
        authority, root.subject, list(map(_host, hosts)) or list(names), days
    )
    for name, content in (("server.key", key), ("server.pem", leaf)):
        new = folder / f".{name}.new"
        new.unlink(missing_ok=True)
        write_secret(new, content)
        new.replace(folder / name)
    return x509.load_pem_x509_certificate(leaf).not_valid_after_utc


def _server_certificate(
    authority: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    hosts: Sequence[x509.GeneralName],
    days: int,
) -> tuple[bytes, bytes]:
    """A server's certificate and its key, as PEM."""
    server = ec.generate_private_key(ec.SECP256R1())
    leaf = _certificate(_name("agnosticfl server"), issuer, server.public_key(), days)
    leaf = leaf.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    leaf = leaf.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    of_authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    leaf = leaf.add_extension(of_authority, critical=False)
    leaf = leaf.add_extension(_key_id(server.public_key()), critical=False)
    signed = leaf.sign(authority, hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM), server.private_bytes(*_PKCS8)


def make_server_keys(folder: Path, hosts: Sequence[str], days: int = DAYS) -> None:
    """All keys of a server, and the folder for those of its clients."""
    check_new(folder / "server.sign", folder / "server.verify")
    make_authority(folder, hosts, days, lasting=True)
    write_verify_key(folder / "server.verify", make_signing_key(folder / "server.sign"))
    (folder / "clients").mkdir(exist_ok=True)


def make_node_key(path: Path) -> Path:
    """The key of one client at `path`, and its public half beside it, with the ending .pub."""
    public = path.with_suffix(".pub")
    check_new(path, public)
    path.parent.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())  # what Flower's node authentication takes
    write_secret(
        path,
        key.private_bytes(*_OPENSSH, serialization.NoEncryption()),
    )
    public.write_bytes(key.public_key().public_bytes(*_OPENSSH_PUBLIC))
    return public


def make_signing_key(path: Path) -> ed25519.Ed25519PrivateKey:
    """A new key to sign with, at `path`."""
    check_new(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    key = ed25519.Ed25519PrivateKey.generate()
    write_secret(path, key.private_bytes(*_OPENSSH, serialization.NoEncryption()))
    return key


def write_verify_key(path: Path, key: ed25519.Ed25519PrivateKey) -> None:
    """The public half of `key`, as OpenSSH writes it."""
    write_whole(path, public_line(key.public_key()) + "\n")


def read_signing_key(path: Path) -> ed25519.Ed25519PrivateKey:
    """What `make_signing_key` (or ssh-keygen -t ed25519) made."""
    return _of_kind(path, ed25519.Ed25519PrivateKey, _private_key(path))


def read_node_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """What `make_node_key` made."""
    return _of_kind(path, ec.EllipticCurvePrivateKey, _private_key(path))


def read_verify_key(path: Path) -> bytes:
    """The 32 bytes of a public key to verify with, which `write_verify_key` wrote."""
    return _of_kind(path, ed25519.Ed25519PublicKey, read_public_key(path)).public_bytes_raw()


def read_public_key(path: Path) -> PublicKey:
    """A public key of either kind, in OpenSSH's format, from its file or its secret half's."""
    content = read_small(path, MOST_BYTES)
    if b"PRIVATE KEY" in content:
        return _private_key(path).public_key()
    try:
        return parse_public_line(content.decode().strip())
    except ValueError as error:
        raise BadInput(f"{path} is no key in OpenSSH's format: {_line(error)}") from None


def parse_public_line(line: str) -> PublicKey:
    """A public key of either kind from its line, written as `public_line` does; else ValueError."""
    try:
        key = serialization.load_ssh_public_key(line.encode())
    except UNREADABLE as error:
        raise ValueError(str(error)) from None
    if isinstance(key, ec.EllipticCurvePublicKey):
        if not isinstance(key.curve, ec.SECP384R1):
            raise ValueError(f"its curve is {key.curve.name}, and not secp384r1")
    elif not isinstance(key, ed25519.Ed25519PublicKey):
        raise ValueError("it is of another kind")
    if public_line(key) != line:
        raise ValueError("there is more in it than the key")
    return key


def public_line(key: PublicKey) -> str:
    """A public key as OpenSSH writes it, without a comment."""
    return key.public_bytes(*_OPENSSH_PUBLIC).decode("ascii")


def read_small(path: Path, most: int) -> bytes:
    """The content of a file, which may have `most` bytes."""
    check(path.is_file(), f"there is no file {path}")
    size = path.stat().st_size
    check(size <= most, f"{path} has more than {most} bytes")
    with path.open("rb") as file:
        return file.read(size)


def check_new(*files: Path) -> None:
    """Refuses files that are there already."""
    for file in files:
        check(not file.exists(), f"{file} exists; it is not overwritten")


def _private_key(path: Path) -> ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey:
    content = read_small(path, MOST_BYTES)
    try:
        key = serialization.load_ssh_private_key(content, None)
    except UNREADABLE as error:
        raise BadInput(f"{path} is no key in OpenSSH's format: {_line(error)}") from None
    if not isinstance(key, ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey):
        raise BadInput(f"{path} is a key of another kind than those of a federation")
    return key


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _of_kind(path: Path, kind: type[Key], key: object) -> Key:
    if not isinstance(key, kind):
        what = "Ed25519" if "Ed25519" in kind.__name__ else "node"
        raise BadInput(f"{path} is no {what} key")
    return key


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


# Python 3.13 asks of an authority that its certificate says what its key is for, and of every
# certificate which keys it is about.
_FOR_CERTIFICATES = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


def _key_id(key: ec.EllipticCurvePublicKey) -> x509.SubjectKeyIdentifier:
    return x509.SubjectKeyIdentifier.from_public_key(key)


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
