# SPDX-License-Identifier: Apache-2.0
"""A member's card: who it is, its public keys and the domains it holds, signed by itself.

It goes to the keeper of the roster (`roster.py`). Nobody makes a card of a key that he does not
have; and new keys are vouched for by the signing key that they replace.
"""

import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

from agnosticfl.deploy.keys import parse_public_line, read_small
from agnosticfl.errors import BadInput, check
from agnosticfl.files import write_json
from agnosticfl.secagg.primitives import (
    KEY,
    CryptoError,
    Ed25519PrivateKey,
    check_signature,
    digest,
    verify_key,
)

MOST_BYTES = 2**18  # of a card's file
LONGEST = 64  # characters of a name
LONGEST_TEXT = 200  # of a domain or a contact
LONGEST_FILE = 200  # bytes of a name: those of a file's have a limit
MOST_DOMAINS = 1000

KIND = "agnosticfl card 1"
_CARD, _VOUCH = KIND.encode(), b"agnosticfl new keys 1"


class Card(NamedTuple):
    """What a federation knows of a member."""

    name: str
    signing_key: bytes  # 32 raw, of Ed25519
    node_key: str  # a line as OpenSSH writes it
    domains: tuple[str, ...]
    contact: str
    signature: bytes
    vouched: bytes = b""  # a signature by the key that this one replaces


class CardFile(msgspec.Struct, forbid_unknown_fields=True):
    """A card as JSON."""

    kind: Literal["agnosticfl card 1"]  # KIND
    name: str
    signing_key: bytes
    node_key: str
    domains: list[str]
    contact: str
    signature: bytes
    vouched: bytes


def card_digest(card: Card) -> bytes:
    """Of everything that a card says, and nothing that proves it."""
    texts = (card.name, card.node_key, card.contact, *card.domains)
    return digest(_CARD, card.signing_key, *(text.encode() for text in texts))


def signed_card(
    key: Ed25519PrivateKey, name: str, node_key: str, domains: Sequence[str], contact: str
) -> Card:
    """The card of the member that has this key."""
    card = Card(name, verify_key(key), node_key, tuple(domains), contact, b"")
    check_said(card, "the card")
    return card._replace(signature=key.sign(_CARD + card_digest(card)))


def vouched_card(card: Card, old: Ed25519PrivateKey) -> Card:
    """The card with new keys, vouched for by the signing key before."""
    return card._replace(vouched=old.sign(_VOUCH + card_digest(card)))


def is_vouched(card: Card, old: bytes) -> bool:
    """Whether `old`, the signing key before, vouches for a card or is still the same."""
    if card.signing_key == old:
        return True
    try:
        check_signature(old, card.vouched, _VOUCH + card_digest(card))
    except CryptoError:
        return False
    return True


def check_card(card: Card, where: str) -> None:
    """Refuses a card that says what is not allowed, or that its own key did not sign."""
    check_said(card, where)
    try:
        check_signature(card.signing_key, card.signature, _CARD + card_digest(card))
    except CryptoError:
        raise BadInput(f"{where}: its signature is not that of its own key") from None


def check_said(card: Card, where: str) -> None:
    """Refuses what cannot stand on a card."""
    check_texts(card.name, card.domains, card.contact, where)
    check(len(card.signing_key) == KEY, f"{where}: its signing key has not {KEY} bytes")
    try:
        node = parse_public_line(card.node_key)
    except ValueError:
        node = None
    check(
        isinstance(node, EllipticCurvePublicKey),
        f"{where}: its node key is not a line as `keys client` writes it",
    )


def check_texts(name: str, domains: Sequence[str], contact: str, where: str) -> None:
    """The same for what a person writes on it."""
    check_name(name, where)
    for text, what in ((contact, "contact"), *((domain, "domain") for domain in domains)):
        check(
            _is_plain(text, LONGEST_TEXT), f"{where}: {what} {_shown(text)} {_rule(LONGEST_TEXT)}"
        )
    number = len(domains)
    check(
        0 < number <= MOST_DOMAINS,
        f"{where}: it names {number} domains; it must name 1 to {MOST_DOMAINS}",
    )
    check(len(set(domains)) == number, f"{where}: it names a domain twice")


def check_name(name: str, where: str) -> None:
    """Refuses what is no name of a member or a federation: it becomes the name of a file."""
    plain = _is_plain(name, LONGEST) and not set(name) & set("/\\") and name[0] != "."
    plain = plain and len(name.encode()) <= LONGEST_FILE
    rule = f"{_rule(LONGEST)}, without / and \\, and not begin with a dot"
    check(plain, f"{where}: name {_shown(name)} {rule}")


def same_name(name: str) -> str:
    """What two names have in common that one could take for each other, or for one file."""
    return unicodedata.normalize("NFKC", name).casefold()


def _is_plain(text: str, longest: int) -> bool:
    return 0 < len(text) <= longest and text.isprintable() and text == text.strip()


def _rule(longest: int) -> str:
    return f"must have 1 to {longest} printable characters, no blanks around them"


def _shown(text: str) -> str:
    return ascii(text if len(text) <= LONGEST_TEXT else f"{text[:20]}…")


def card_from(file: CardFile) -> Card:
    """A card as it was read; not verified."""
    fields: dict[str, Any] = {name: getattr(file, name) for name in Card._fields}
    return Card(**fields)._replace(domains=tuple(file.domains))


def card_table(card: Card) -> dict[str, Any]:
    """A card as JSON has it."""
    return msgspec.to_builtins({"kind": KIND, **card._asdict()})


def read_card(path: Path) -> Card:
    """The card in a file, which is what it says it is."""
    card = card_from(read_as(path, CardFile, MOST_BYTES, "card"))
    check_card(card, str(path))
    return card


def write_card(path: Path, card: Card) -> None:
    write_json(path, card_table(card))


def read_as(path: Path, kind: Any, most: int, what: str) -> Any:
    """The JSON of a file of at most so many bytes, read strictly."""
    try:
        return msgspec.json.decode(read_small(path, most), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        reason = ascii(str(error))[1:-1]
        raise BadInput(f"{path} is no {what} of a federation: {reason}") from None
