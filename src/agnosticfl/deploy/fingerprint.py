# SPDX-License-Identifier: Apache-2.0
"""Words to compare by telephone: of a roster, a card, a key, a certificate or an app.

Twelve words of the list of BIP-39 stand for 128 bits of a digest. Two files with the same words are
the same; to make another one with the words of a given file takes 2¹²⁸ tries.
"""

from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from mnemonic import Mnemonic

from agnosticfl.deploy import roster
from agnosticfl.deploy.app import PACKAGE
from agnosticfl.deploy.cards import Card, card_digest, read_card
from agnosticfl.deploy.keys import public_line, read_public_key, read_small
from agnosticfl.deploy.roster import Roster, roster_digest
from agnosticfl.deploy.task import FILE
from agnosticfl.errors import BadInput, check
from agnosticfl.secagg.primitives import digest

BYTES = 16  # of the digest, for 12 words


def words(kind: str, *parts: bytes) -> str:
    """The words for something of a kind; no two kinds have words in common."""
    whole = digest(b"agnosticfl fingerprint 1", kind.encode(), *parts)
    return Mnemonic("english").to_mnemonic(whole[:BYTES])


def roster_words(held: Roster) -> str:
    """Of all that its keeper signed."""
    return words("roster", roster_digest(held))


def card_words(card: Card) -> str:
    """Of all that it says; what proves it is left out, so new signatures change nothing."""
    return words("card", card_digest(card))


def key_words(line: str) -> str:
    """Of a public key, as OpenSSH writes it."""
    return words("key", line.encode())


def verify_key_words(key: bytes) -> str:
    """The same for the 32 bytes of an Ed25519 key."""
    return key_words(public_line(Ed25519PublicKey.from_public_bytes(key)))


def app_words(folder: Path) -> str:
    """Of the names and contents of all files in an app's folder."""
    for name in ("pyproject.toml", f"{PACKAGE}/{FILE}"):
        check((folder / name).is_file(), f"{folder} is no app: it has no {name}")
    parts: list[bytes] = []
    for path in sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).as_posix()):
        name = path.relative_to(folder).as_posix()
        # Python would run compiled code in place of its source, unseen; a link leads elsewhere.
        check(
            path.name != "__pycache__" and not path.is_symlink(),
            f"{path} is no part of an app that `init` wrote; delete it",
        )
        if not path.is_dir():
            check(path.is_file(), f"{path} is no file")
            parts += [name.encode(errors="surrogateescape"), path.read_bytes()]
    return words("app", *parts)


def fingerprint(path: Path) -> tuple[str, str]:
    """What is at `path`, and its words."""
    if path.is_dir():
        return "app", app_words(path)
    content = read_small(path, roster.MOST_BYTES)
    if content.lstrip()[:1] == b"{":
        if roster.KIND.encode() in content:
            return "roster", roster_words(roster.read_roster(path))
        return "card", card_words(read_card(path))
    if b"-----BEGIN CERTIFICATE" in content:
        return "certificate", words("certificate", _certificate(path, content))
    return "key", key_words(public_line(read_public_key(path)))


def _certificate(path: Path, content: bytes) -> bytes:
    try:
        certificates = x509.load_pem_x509_certificates(content)
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise BadInput(f"{path} is no certificate: {reason}") from None
    check(len(certificates) == 1, f"{path} holds {len(certificates)} certificates, and not one")
    return certificates[0].public_bytes(serialization.Encoding.DER)
