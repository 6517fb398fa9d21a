# SPDX-License-Identifier: Apache-2.0
"""The roster of a federation: its members' cards, in one file that its keeper signs.

The keeper is a person whom the members trust with that, and not the server's operator. Each roster
has a number and names the one before it, so that every member can see what changed.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec

from agnosticfl.deploy.cards import (
    Card,
    CardFile,
    card_digest,
    card_from,
    card_table,
    check_card,
    check_name,
    is_vouched,
    read_as,
    same_name,
)
from agnosticfl.errors import BadInput, check
from agnosticfl.files import write_bytes, write_json
from agnosticfl.secagg.primitives import (
    KEY,
    CryptoError,
    Ed25519PrivateKey,
    check_signature,
    digest,
    verify_key,
)

MOST_BYTES = 2**24  # of a roster's file
MOST_MEMBERS = 10_000
LAST = 2**53  # the highest number that every reader of JSON takes

KIND = "agnosticfl roster 1"
_ROSTER, _MEMBER = KIND.encode(), b"agnosticfl member 1"


class Roster(NamedTuple):
    """Who is in a federation."""

    federation: str
    serial: int
    previous: bytes  # digest of the roster with the number before; empty in the first
    members: tuple[Card, ...]  # in the order of their places
    keeper: bytes  # 32 raw, of Ed25519
    signature: bytes  # the keeper's


class RosterFile(msgspec.Struct, forbid_unknown_fields=True):
    """A roster as JSON."""

    kind: Literal["agnosticfl roster 1"]  # KIND
    federation: str
    serial: Annotated[int, msgspec.Meta(ge=1, le=LAST)]
    previous: bytes
    members: list[CardFile]
    keeper: bytes
    signature: bytes


def roster_digest(roster: Roster) -> bytes:
    """32 bytes, of everything that is signed."""
    head = (roster.federation.encode(), str(roster.serial).encode(), roster.previous, roster.keeper)
    members = (
        digest(_MEMBER, card_digest(card), card.signature, card.vouched) for card in roster.members
    )
    return digest(_ROSTER, *head, *members)


def read_roster(path: Path) -> Roster:
    """The roster in a file, with all that it holds verified."""
    file: RosterFile = read_as(path, RosterFile, MOST_BYTES, "roster")
    members = tuple(map(card_from, file.members))
    roster = Roster(
        file.federation, file.serial, file.previous, members, file.keeper, file.signature
    )
    check_members(roster, str(path))
    try:
        check_signature(roster.keeper, roster.signature, _ROSTER + roster_digest(roster))
    except CryptoError:
        raise BadInput(f"{path}: its signature is not that of its keeper") from None
    return roster


def check_members(roster: Roster, where: str) -> None:
    """Refuses a roster that no keeper should sign."""
    check_name(roster.federation, where)
    length = KEY if roster.serial > 1 else 0
    check(
        len(roster.previous) == length,
        f"{where}: the digest of the roster before number {roster.serial} has not {length} bytes",
    )
    number = len(roster.members)
    check(
        1 <= number <= MOST_MEMBERS,
        f"{where}: it has {number} members; it must have 1 to {MOST_MEMBERS}",
    )
    for place, card in enumerate(roster.members, start=1):
        check_card(card, f"{where}, member {place}")
        check(card.signing_key != roster.keeper, f"{where}: {card.name!r} has the keeper's key")
    _check_distinct(roster.members, where, "name", lambda card: same_name(card.name))
    _check_distinct(roster.members, where, "signing key", lambda card: card.signing_key)
    _check_distinct(roster.members, where, "node key", lambda card: card.node_key)


def _check_distinct(
    members: Sequence[Card], where: str, what: str, of: Callable[[Card], object]
) -> None:
    first: dict[object, Card] = {}
    for card in members:
        other = first.setdefault(of(card), card)
        check(other is card, f"{where}: {other.name!r} and {card.name!r} have the same {what}")


def write_roster(path: Path, roster: Roster) -> None:
    members = [card_table(card) for card in roster.members]
    fields = {"kind": KIND, **roster._asdict(), "members": members}
    write_json(path, msgspec.to_builtins(fields))


def first_roster(federation: str, cards: Sequence[Card], keeper: Ed25519PrivateKey) -> Roster:
    """The first roster of a federation."""
    return _signed(Roster(federation, 1, b"", tuple(cards), verify_key(keeper), b""), keeper)


def next_roster(old: Roster, members: Sequence[Card], keeper: Ed25519PrivateKey) -> Roster:
    """The roster that follows `old`, with other members."""
    check(
        verify_key(keeper) == old.keeper,
        f"this key is not that of the keeper of {old.federation!r}",
    )
    check(tuple(members) != old.members, f"roster {old.serial} has these members already")
    new = old._replace(serial=old.serial + 1, previous=roster_digest(old), members=tuple(members))
    return _signed(new, keeper)


def _signed(roster: Roster, keeper: Ed25519PrivateKey) -> Roster:
    check_members(roster, f"roster {roster.serial} of {roster.federation!r}")
    return roster._replace(signature=keeper.sign(_ROSTER + roster_digest(roster)))


def without(roster: Roster, name: str) -> list[Card]:
    """The members but one."""
    _place(roster, name)
    return [card for card in roster.members if card.name != name]


def renewed(roster: Roster, card: Card, lost: bool) -> list[Card]:
    """The members, with another card in place of the one with its name.

    Its old signing key vouches for it; if that is lost, the keeper does alone.
    """
    members, place = list(roster.members), _place(roster, card.name)
    check(
        lost or is_vouched(card, members[place].signing_key),
        f"the card of {card.name!r} is not vouched for by its old signing key (`deploy keys"
        " rotate` makes one that is); if that key is lost and you know whose the card is: --lost",
    )
    members[place] = card
    return members


def _place(roster: Roster, name: str) -> int:
    names = [card.name for card in roster.members]
    check(name in names, f"{name!r} is not a member (members: {', '.join(names)})")
    return names.index(name)


def replace_roster(path: Path, old: Roster, new: Roster) -> None:
    """Writes the next roster; the one before stays beside it, as FILE.NUMBER."""
    kept = path.with_name(f"{path.name}.{old.serial}")
    content = path.read_bytes()
    check(
        not kept.exists() or kept.read_bytes() == content,
        f"{kept} exists with another content; it is not overwritten",
    )
    write_bytes(kept, content)
    write_roster(path, new)


def changes(old: Roster, new: Roster) -> list[str]:
    """What a member should know of a roster that follows another, a line for each thing."""
    before = {card.name: card for card in old.members}
    after = {card.name: card for card in new.members}
    lines: list[str] = []
    if new.federation != old.federation:
        lines.append(f"the federation was {old.federation}, and is {new.federation}")
    if new.keeper != old.keeper:
        lines.append("another keeper")
    if new.serial > old.serial + 1:
        lines.append(f"{new.serial - old.serial - 1} rosters in between were not seen here")
    lines += [
        f"+ {card.name} ({described(card)})" for card in new.members if card.name not in before
    ]
    lines += [f"− {name}" for name in before if name not in after]
    stay = [name for name in before if name in after]
    for name in stay:
        lines += _changes_of(before[name], after[name])
    if stay != [name for name in after if name in before]:
        lines.append("members have other places than before")
    return lines


def _changes_of(old: Card, new: Card) -> list[str]:
    lines: list[str] = []
    if (old.signing_key, old.node_key) != (new.signing_key, new.node_key):
        vouched = is_vouched(new, old.signing_key)
        who = "vouched for by its old key" if vouched else "NOT by its old key, by the keeper alone"
        lines.append(f"new keys of {new.name} ({who})")
    if old.domains != new.domains:
        lines.append(f"{new.name} holds {', '.join(new.domains)}; before: {', '.join(old.domains)}")
    if old.contact != new.contact:
        lines.append(f"contact of {new.name} is {new.contact}; before: {old.contact}")
    return lines


def described(card: Card) -> str:
    """What a card says, but for its keys."""
    return f"domains {', '.join(card.domains)}; contact {card.contact}"
