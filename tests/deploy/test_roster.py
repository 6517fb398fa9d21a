# SPDX-License-Identifier: Apache-2.0
"""Cards and rosters: what is signed, what is refused, and what a member is told of a change."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agnosticfl.deploy.accepted import accept
from agnosticfl.deploy.cards import (
    Card,
    is_vouched,
    read_card,
    signed_card,
    vouched_card,
    write_card,
)
from agnosticfl.deploy.client_keys import make_client_keys, rotate_client_keys
from agnosticfl.deploy.keys import make_node_key, read_signing_key
from agnosticfl.deploy.registered import register_members
from agnosticfl.deploy.roster import (
    Roster,
    changes,
    first_roster,
    next_roster,
    read_roster,
    renewed,
    roster_digest,
    without,
    write_roster,
)
from agnosticfl.errors import BadInput
from agnosticfl.secagg.primitives import signing_key, verify_key
from tests.helpers import fuzz

NODE_KEYS: list[str] = []  # of any member: they take a moment to make


def card(name: str, place: int, key: Any = None, **said: Any) -> Card:
    fields: dict[str, Any] = {"domains": ["a", "b"], "contact": f"{name}@example.org", **said}
    return signed_card(key or signing_key(), name, NODE_KEYS[place], **fields)


@pytest.fixture(autouse=True, scope="module")
def _node_keys(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("keys")
    NODE_KEYS[:] = [make_node_key(folder / f"{place}.key").read_text() for place in range(5)]


class Federation:
    """A keeper, and three members whose keys are known here."""

    def __init__(self) -> None:
        self.keeper = signing_key()
        self.keys = {name: signing_key() for name in ("Basel", "Bern", "Ulm")}
        cards = [card(name, place, key) for place, (name, key) in enumerate(self.keys.items())]
        self.roster = first_roster("hearts", cards, self.keeper)

    def follow(self, members: list[Card]) -> Roster:
        self.roster = next_roster(self.roster, members, self.keeper)
        return self.roster


@pytest.fixture
def hearts() -> Federation:
    return Federation()


def test_a_roster_is_read_as_it_was_written(hearts: Federation, tmp_path: Path):
    write_roster(tmp_path / "roster", hearts.roster)
    assert read_roster(tmp_path / "roster") == hearts.roster
    assert len(roster_digest(hearts.roster)) == 32
    second = hearts.follow(without(hearts.roster, "Bern"))
    write_roster(tmp_path / "roster", second)
    assert read_roster(tmp_path / "roster") == second
    assert [held.name for held in second.members] == ["Basel", "Ulm"]
    assert second.serial == 2


CHANGES: dict[str, Callable[[Roster], Roster]] = {
    "federation": lambda r: r._replace(federation="heart"),
    "serial": lambda r: r._replace(serial=3),
    "previous": lambda r: r._replace(previous=bytes(32)),
    "keeper": lambda r: r._replace(keeper=verify_key(signing_key())),
    "order": lambda r: r._replace(members=r.members[::-1]),
    "fewer": lambda r: r._replace(members=r.members[:-1]),
    "twice": lambda r: r._replace(members=(*r.members, r.members[0])),
    **{
        field: lambda r, f=field, v=value: r._replace(
            members=(r.members[0]._replace(**{f: v}), *r.members[1:])
        )
        for field, value in {
            "name": "Basle",
            "signing_key": verify_key(signing_key()),
            "domains": ("a", "c"),
            "contact": "eve@example.org",
            "signature": bytes(64),
            "vouched": bytes(64),
        }.items()
    },
    "node_key": lambda r: r._replace(
        members=(r.members[0]._replace(node_key=NODE_KEYS[4]), *r.members[1:])
    ),
}


@pytest.mark.attack(
    "a changed roster",
    "signatures of keeper and members",
)
@pytest.mark.parametrize("what", CHANGES)
def test_whoever_changes_anything_in_a_roster_is_found_out(
    hearts: Federation, tmp_path: Path, what: str
):
    roster = hearts.follow([*hearts.roster.members[:2], card("Chur", 3)])
    changed = CHANGES[what](roster)
    assert roster_digest(changed) != roster_digest(roster)
    write_roster(tmp_path / "roster", changed)
    with pytest.raises(BadInput) as refusal:
        read_roster(tmp_path / "roster")
    assert "\n" not in str(refusal.value)


def test_domains_cannot_be_cut_elsewhere(tmp_path: Path):
    """Names run together would sign alike."""
    one = card("Basel", 0, domains=["ab", "c"])
    write_card(tmp_path / "a.card", one._replace(domains=("a", "bc")))
    with pytest.raises(BadInput, match="its signature is not that of its own key"):
        read_card(tmp_path / "a.card")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"name": ""}, "name '' must have 1 to 64 printable characters"),
        ({"name": "x" * 65}, "must have 1 to 64 printable characters"),
        ({"name": "../../etc/cron"}, "without / and"),
        ({"name": "a\\b"}, "without / and"),
        ({"name": ".."}, "not begin with a dot"),
        ({"name": "a\nb"}, "must have 1 to 64 printable characters"),
        ({"name": "a\u202eb"}, "must have 1 to 64 printable characters"),
        ({"name": "😀" * 64}, "must have 1 to 64 printable characters"),
        ({"domains": []}, "it names 0 domains; it must name 1 to"),
        ({"domains": ["a", "a"]}, "it names a domain twice"),
        ({"domains": ["a", ""]}, "domain '' must have 1 to 200 printable characters"),
        ({"domains": [" a"]}, "domain ' a' must have"),
        ({"contact": "a\x1b[2J"}, "contact 'a.x1b.2J' must have"),
    ],
)
def test_what_cannot_stand_on_a_card(said: dict[str, Any], reason: str):
    with pytest.raises(BadInput, match=reason):
        card(said.pop("name", "Basel"), 0, **said)


def test_what_no_keeper_signs(hearts: Federation):
    first, *rest = hearts.roster.members
    for wrong, reason in (
        ([*hearts.roster.members, card("basel", 3)], "'Basel' and 'basel' have the same name"),
        ([*hearts.roster.members, card("Chur", 0)], "'Basel' and 'Chur' have the same node key"),
        ([*rest, first, card("Chur", 3, hearts.keys["Ulm"])], "have the same signing key"),
        ([first, card("Chur", 3, hearts.keeper)], "'Chur' has the keeper's key"),
        ([first._replace(contact="eve"), *rest], "member 1: its signature is not that of its own"),
        ([], "it has 0 members; it must have 1 to"),
        (list(hearts.roster.members), "roster 1 has these members already"),
    ):
        with pytest.raises(BadInput, match=reason):
            next_roster(hearts.roster, wrong, hearts.keeper)
    with pytest.raises(BadInput, match="this key is not that of the keeper of 'hearts'"):
        next_roster(hearts.roster, rest, signing_key())
    with pytest.raises(BadInput, match=r"'Genf' is not a member \(members: Basel, Bern, Ulm\)"):
        without(hearts.roster, "Genf")


def test_new_keys_are_vouched_for_by_the_old_ones(hearts: Federation):
    old = hearts.roster
    new = card("Ulm", 3)
    with pytest.raises(BadInput, match="is not vouched for by its old signing key"):
        renewed(old, new, lost=False)
    with pytest.raises(BadInput, match="is not vouched for by its old signing key"):
        renewed(old, vouched_card(new, hearts.keys["Bern"]), lost=False)
    vouched = vouched_card(new, hearts.keys["Ulm"])
    # For this card and no other.
    assert not is_vouched(vouched._replace(node_key=NODE_KEYS[4]), old.members[2].signing_key)
    after = hearts.follow(renewed(old, vouched, lost=False))
    assert changes(old, after) == ["new keys of Ulm (vouched for by its old key)"]


def test_keys_that_the_keeper_alone_answers_for_are_said_to_be(hearts: Federation):
    old = hearts.roster
    after = hearts.follow(renewed(old, card("Ulm", 3), lost=True))
    assert changes(old, after) == ["new keys of Ulm (NOT by its old key, by the keeper alone)"]


def test_every_change_has_a_line(hearts: Federation):
    old = hearts.roster
    basel, _, ulm = old.members
    moved = card("Ulm", 2, hearts.keys["Ulm"], domains=["c"], contact="x")
    hearts.follow([basel, ulm])
    after = hearts.follow([moved, card("Chur", 3), basel])
    assert changes(old, after) == [
        "1 rosters in between were not seen here",
        "+ Chur (domains a, b; contact Chur@example.org)",
        "− Bern",
        "Ulm holds c; before: a, b",
        "contact of Ulm is x; before: Ulm@example.org",
        "members have other places than before",
    ]


def test_a_client_accepts_what_follows_and_says_what_changed(hearts: Federation, tmp_path: Path):
    file, accepted = tmp_path / "roster", tmp_path / "accepted"
    write_roster(file, hearts.roster)
    said = accept(file, accepted)
    assert said[0] == "roster 1: the first one here, of hearts with 3 members"
    assert len(said[1].partition("words: ")[2].split()) == 12
    assert accept(file, accepted) == []
    write_roster(file, hearts.follow(without(hearts.roster, "Bern")))
    assert accept(file, accepted)[:-1] == ["roster 2: − Bern"]
    assert read_roster(accepted) == hearts.roster
    # Two more at once.
    hearts.follow([*hearts.roster.members, card("Chur", 3)])
    write_roster(file, hearts.follow([*hearts.roster.members, card("Genf", 4)]))
    assert [line.partition(" (")[0] for line in accept(file, accepted)[:-1]] == [
        "roster 4: 1 rosters in between were not seen here",
        "roster 4: + Chur",
        "roster 4: + Genf",
    ]


def refused(hearts: Federation, case: str) -> Roster:
    """A roster, well signed, that does not follow the second one of `hearts`."""
    members = hearts.roster.members
    fewer = list(members[:-1])
    first = first_roster("hearts", members, hearts.keeper)
    if case == "keeper":
        other = signing_key()
        return next_roster(first_roster("hearts", members, other), fewer, other)
    if case == "federation":
        return next_roster(first_roster("lungs", members, hearts.keeper), fewer, hearts.keeper)
    if case == "older":
        return first
    if case == "same number":
        return next_roster(first, fewer, hearts.keeper)
    assert case == "another history"
    second = next_roster(first, fewer, hearts.keeper)
    return next_roster(second, [*members], hearts.keeper)


@pytest.mark.attack(
    "another roster in place of the accepted one",
    "a roster follows the one before, or is refused",
)
@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("keeper", "has another keeper than the accepted roster"),
        ("federation", "is of federation 'lungs', and not of 'hearts'"),
        ("older", "is roster 1, and 2 was accepted already"),
        ("same number", "is roster 2 with another content than the accepted one"),
        ("another history", "follows another roster 2 than the accepted one"),
    ],
)
def test_a_client_refuses_what_does_not_follow(
    hearts: Federation, tmp_path: Path, case: str, reason: str
):
    file, accepted = tmp_path / "roster", tmp_path / "accepted"
    second = hearts.follow([*hearts.roster.members, card("Chur", 3)])
    write_roster(file, second)
    accept(file, accepted)
    wrong = refused(hearts, case)
    write_roster(file, wrong)
    with pytest.raises(BadInput, match=reason) as refusal:
        accept(file, accepted)
    assert "--new-roster" in str(refusal.value)
    assert read_roster(accepted) == second
    # Its operator may take it all the same.
    assert accept(file, accepted, anew=True)
    assert read_roster(accepted) == wrong


def test_a_file_that_is_half_written_is_not_accepted(hearts: Federation, tmp_path: Path):
    file, accepted = tmp_path / "roster", tmp_path / "accepted"
    write_roster(file, hearts.roster)
    accept(file, accepted)
    write_roster(file, hearts.follow(without(hearts.roster, "Bern")))
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(BadInput, match="is no roster of a federation"):
        accept(file, accepted)
    assert read_roster(accepted).serial == 1


def test_a_server_lets_in_the_members_and_nobody_else(hearts: Federation, tmp_path: Path):
    clients = tmp_path / "clients"
    old = hearts.roster
    assert len(register_members(old, clients)) == 3
    assert register_members(old, clients) == []
    assert (clients / "Ulm.pub").read_text() == old.members[2].node_key
    (clients / "Eve.pub").write_text(NODE_KEYS[4])
    kept = [*without(old, "Bern")[:1], vouched_card(card("Ulm", 3), hearts.keys["Ulm"])]
    said = register_members(hearts.follow(kept), clients)
    assert said == [
        "Bern is not in the roster: its key is in removed/",
        "Eve is not in the roster: its key is in removed/",
        "Ulm has the node key of roster 2",
    ]
    assert sorted(path.name for path in clients.glob("*.pub")) == ["Basel.pub", "Ulm.pub"]
    assert (clients / "Ulm.pub").read_text() == NODE_KEYS[3]
    away = [path.read_text() for path in sorted((clients / "removed").iterdir())]
    assert away == [NODE_KEYS[1], NODE_KEYS[4], NODE_KEYS[2]]


def test_the_keys_of_a_client_are_renewed_and_the_old_ones_kept(tmp_path: Path):
    first = read_card(make_client_keys(tmp_path / "ulm.key", ["a"], "x", "Ulm"))
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["ulm.card", "ulm.key", "ulm.pub", "ulm.sign"]
    second = read_card(rotate_client_keys(tmp_path / "ulm.key", ["a", "b"]))
    assert (second.name, second.domains, second.contact) == ("Ulm", ("a", "b"), "x")
    assert is_vouched(second, first.signing_key)
    assert second.node_key == (tmp_path / "ulm.pub").read_text() != first.node_key
    assert verify_key(read_signing_key(tmp_path / "ulm.sign")) == second.signing_key
    assert read_card(tmp_path / "ulm.card.old") == first
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [*files, *(f"{name}.old" for name in files)]
    )
    for secret in ("ulm.key", "ulm.sign"):
        assert (tmp_path / secret).stat().st_mode & 0o777 == 0o600
    with pytest.raises(BadInput, match=r"ulm.key.old exists; it is not overwritten"):
        rotate_client_keys(tmp_path / "ulm.key")
    assert read_card(tmp_path / "ulm.card") == second


def test_nothing_is_left_of_keys_that_could_not_be_made(tmp_path: Path):
    for name, domains in (("a.key", []), ("a.sign", ["a"]), ("a.key", ["a", "a"])):
        with pytest.raises(BadInput):
            make_client_keys(tmp_path / name, domains, "x")
    assert not list(tmp_path.iterdir())


@fuzz.effort
def test_any_bytes_are_the_same_roster_or_one_line_that_says_why(
    hearts: Federation, tmp_path: Path, number: int
):
    file = tmp_path / "roster"
    rotated = vouched_card(card("Ulm", 3), hearts.keys["Ulm"])
    second = hearts.follow(renewed(hearts.roster, rotated, lost=False))
    samples: list[bytes] = []
    for roster in (first_roster("lungs", [card("Genf", 4)], hearts.keeper), second):
        write_roster(file, roster)
        samples.append(file.read_bytes())
    # Without blanks more of what is changed is inside of values.
    samples += [json.dumps(json.loads(sample)).encode() for sample in samples]
    good: set[Roster] = set()

    def parse(content: bytes) -> None:
        file.write_bytes(content)
        good.add(read_roster(file))

    fuzz.survive(parse, samples)
    known = set(good)
    assert len(known) == 2
    fuzz.survive(parse, [*fuzz.damaged(samples, number), *fuzz.bombs(100_000)], BadInput)
    assert good == known


@fuzz.effort
def test_any_bytes_are_the_same_card_or_one_line_that_says_why(tmp_path: Path, number: int):
    file, own = tmp_path / "card", card("Genf", 0)
    cards = {own, vouched_card(own, signing_key())}
    samples: list[bytes] = []
    for each in cards:
        write_card(file, each)
        samples.append(file.read_bytes())
    good: set[Card] = set()

    def parse(content: bytes) -> None:
        file.write_bytes(content)
        good.add(read_card(file)._replace(vouched=b""))  # which only the roster's keeper checks

    fuzz.survive(parse, [*samples, *fuzz.damaged(samples, number)], BadInput)
    fuzz.survive(parse, fuzz.bombs(100_000), BadInput)
    assert good == {own}


@pytest.mark.parametrize("read", [read_roster, read_card])
def test_no_file_makes_much_memory_of_itself(tmp_path: Path, read: Callable[[Path], Any]):
    file = tmp_path / "bomb"
    for bomb in fuzz.bombs(2**17):
        file.write_bytes(bomb)
        assert fuzz.peak_memory(lambda: read(file)) < 4 * 2**20
    with file.open("wb") as sparse:
        sparse.truncate(2**32)
    assert fuzz.peak_memory(lambda: read(file)) < 4 * 2**20
    with pytest.raises(BadInput, match="has more than"):
        read(file)
