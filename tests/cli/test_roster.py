# SPDX-License-Identifier: Apache-2.0
"""`agnosticfl deploy keys`, `roster` and `fingerprint` as a keeper and the members meet them."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from agnosticfl.data.source import Feature, Rows, Source
from agnosticfl.data.store import write_store
from agnosticfl.deploy.accepted import FILE
from agnosticfl.deploy.cards import read_card
from agnosticfl.deploy.client_keys import make_client_keys
from agnosticfl.deploy.keys import make_server_keys, make_signing_key
from agnosticfl.deploy.roster import first_roster, read_roster, roster_digest, write_roster
from tests.helpers.command_line import called

pytest.importorskip("flwr")

WORDS = r"(?:[a-z]+ ){11}[a-z]+$"


def said(*words: str | Path) -> str:
    done = called("deploy", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(*words: str | Path) -> str:
    done = called("deploy", *words)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    return done.stderr.removeprefix("error: ").rstrip("\n")


def test_a_federation_is_set_up_and_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    roster, keeper = Path("roster"), ("--keeper", "keeper.sign")
    keeper_words = re.findall(WORDS, said("keys", "keeper", "keeper.sign"), re.MULTILINE)
    told = said("keys", "client", "ann.key", "--domains", "a,b c", "--contact", "by post")
    words = re.findall(WORDS, told, re.MULTILINE)
    assert told.startswith("ann.card: for the keeper of the roster\n")
    assert words == re.findall(WORDS, said("fingerprint", "ann.card"), re.MULTILINE)
    assert read_card(Path("ann.card")).domains == ("a", "b c")
    for name in ("bob", "dora"):
        make_client_keys(Path(f"{name}.key"), ["a", "b c"], "by post")

    new = ("roster", "new", roster, *keeper, "--federation", "hearts")
    shown = said(*new, "ann.card", "bob.card").splitlines()
    assert shown[0].startswith("roster 1 of hearts: ")
    assert shown[1] == f"keeper: {keeper_words[0]}"
    assert shown[3].startswith("bob (domains a, b c; contact by post): ")
    assert all(re.search(WORDS, line) for line in shown)
    assert said("roster", "show", roster).splitlines() == shown
    assert said("fingerprint", roster).split(": ")[1] == shown[0].split(": ")[1] + "\n"
    assert refused(*new, "ann.card") == "roster exists; it is not overwritten"
    first = read_roster(roster)

    added = said("roster", "add", roster, "dora.card", *keeper)
    assert added.startswith(
        "roster 2: + dora (domains a, b c; contact by post)\nroster 2 of hearts"
    )
    said("keys", "rotate", "ann.key")
    rotated = said("roster", "rotate", roster, "ann.card", *keeper)
    assert rotated.startswith("roster 3: new keys of ann (vouched for by its old key)\n")
    removed = said("roster", "remove", roster, "bob", *keeper)
    assert removed.startswith("roster 4: − bob\n")
    last = read_roster(roster)
    assert [card.name for card in last.members] == ["ann", "dora"]
    assert read_roster(Path("roster.1")) == first
    assert last.previous == roster_digest(read_roster(Path("roster.3")))

    # Lost keys: the keeper has to say so.
    Path("lost").mkdir()
    make_client_keys(Path("lost/dora.key"), ["a"], "by post")
    assert "is not vouched for by its old signing key" in refused(
        "roster", "rotate", roster, "lost/dora.card", *keeper
    )
    lost = said("roster", "rotate", roster, "lost/dora.card", "--lost", *keeper)
    assert "roster 5: new keys of dora (NOT by its old key, by the keeper alone)\n" in lost

    content = roster.read_bytes()
    make_signing_key(Path("eve.sign"))
    for words, reason in (
        (("remove", roster, "bob", *keeper), "'bob' is not a member (members: ann, dora)"),
        (("add", roster, "ann.card", *keeper), "'ann' and 'ann' have the same name"),
        (
            ("remove", roster, "ann", "--keeper", "eve.sign"),
            "is not that of the keeper of 'hearts'",
        ),
        (("show", "ann.card"), "ann.card is no roster of a federation: "),
    ):
        assert reason in refused("roster", *words)
    assert roster.read_bytes() == content


def test_keys_are_not_made_by_halves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    client = ("keys", "client", "ann.key", "--contact", "x", "--domains")
    assert refused(*client, "a,,b").startswith("ann.key: domain '' must have 1 to 200 printable")
    assert refused("keys", "keeper", "keeper.key") == "keeper.key must be FILE.sign"
    assert refused("keys", "rotate", "ann.key") == "there is no file ann.card"
    assert refused("fingerprint", "nothing") == "there is no file nothing"
    assert not list(tmp_path.iterdir())


DOMAIN = "centre -1"  # of the toy


def client_words(place: Path) -> list[str | Path]:
    """A client with four examples that calls a server which is not there."""

    def rows() -> Iterator[Rows]:
        examples = {"x": np.ones(4, np.float32)}
        yield Rows("train", ["somebody"] * 4, np.zeros(4, np.int32), examples)

    features = {"x": Feature("float32", ())}
    write_store(Source("toy", "none", (DOMAIN,), features, rows), place / "store")
    words: list[str | Path] = ["client", "--server", "127.0.0.1:9", "--data", place / "store"]
    for name, file in {"ca": "keys/ca.pem", "app": "app", "key": "eve.key"}.items():
        words += [f"--{name}", place / file]
    return [*words, "--roster", place / "roster", "--state", place / "state"]


def test_a_client_says_what_changed_and_refuses_what_does_not_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Eve is no member, so each start ends before anything runs."""
    monkeypatch.chdir(tmp_path)
    make_server_keys(Path("keys"), ["127.0.0.1"])
    said("init", "app", "toy", "--clients", "3", "--secure", "--keys", "keys")
    for name in ("ann", "bob", "eve"):
        make_client_keys(Path(f"{name}.key"), [DOMAIN], "x")
    cards = [read_card(Path(f"{name}.card")) for name in ("ann", "bob")]
    write_roster(Path("roster"), first_roster("hearts", cards, make_signing_key(Path("k.sign"))))
    words = client_words(tmp_path)

    first = called("deploy", *words)
    assert first.stderr == "error: this signing key is not in the roster; register it first\n"
    assert first.stdout.startswith("roster 1: the first one here, of hearts with 2 members\n")
    assert read_roster(Path("state") / FILE) == read_roster(Path("roster"))

    said("roster", "remove", "roster", "bob", "--keeper", "k.sign")
    second = called("deploy", *words)
    assert second.stdout.startswith("roster 2: − bob\nroster 2: to be compared with")
    accepted = read_roster(Path("state") / FILE)

    write_roster(Path("roster"), first_roster("hearts", cards, make_signing_key(Path("m.sign"))))
    assert "has another keeper than the accepted roster; if all" in refused(*words)
    assert read_roster(Path("state") / FILE) == accepted
    anew = called("deploy", *words, "--new-roster")
    assert anew.stdout.startswith("roster 1: another keeper\nroster 1: + bob (")
