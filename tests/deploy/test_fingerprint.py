# SPDX-License-Identifier: Apache-2.0
"""Words to compare: they are of all that matters, and of nothing else."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from mnemonic import Mnemonic

from agnosticfl.deploy.app import write_app
from agnosticfl.deploy.cards import Card, read_card, vouched_card, write_card
from agnosticfl.deploy.fingerprint import (
    app_words,
    card_words,
    fingerprint,
    key_words,
    roster_words,
    verify_key_words,
    words,
)
from agnosticfl.deploy.keys import make_server_keys, read_verify_key
from agnosticfl.deploy.roster import read_roster
from agnosticfl.errors import BadInput
from agnosticfl.secagg.primitives import signing_key
from tests.deploy.federations import make_federation, toy


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("federation")
    make_server_keys(place / "keys", ["127.0.0.1"])
    make_federation(place, ["ann", "bob", "cleo"])
    write_app(place / "app", toy())
    return place


def test_there_are_twelve_words_of_the_list_that_stand_for_128_bits(place: Path):
    said = fingerprint(place / "roster")[1]
    assert len(said.split()) == 12
    assert Mnemonic("english").check(said)
    # Known for good: words that change with a version cannot be compared.
    assert words("key", b"a", b"b") == (
        "quote caught segment gorilla item rotate talk weasel injury swear merit cave"
    )
    assert words("key", b"ab") != words("key", b"a", b"b") != words("card", b"a", b"b")


def test_everything_that_can_be_compared_has_its_own_words(place: Path):
    files = {
        "roster": "roster",
        "ann.card": "card",
        "bob.card": "card",
        "ann.sign": "key",
        "ann.key": "key",
        "keys/server.verify": "key",
        "keys/ca.pem": "certificate",
        "keys/server.pem": "certificate",
        "app": "app",
    }
    found = {name: fingerprint(place / name) for name in files}
    assert {name: what for name, (what, _) in found.items()} == files
    assert len({said for _, said in found.values()}) == len(files)
    # Both halves of a key, however they are written.
    assert found["ann.key"] == fingerprint(place / "ann.pub")
    assert found["keys/server.verify"] == fingerprint(place / "keys" / "server.sign")
    known = verify_key_words(read_verify_key(place / "keys" / "server.verify"))
    assert known == found["keys/server.verify"][1]


def altered(card: Card) -> Iterator[Card]:
    """The card with another letter or byte, for every one that it has."""
    for name in ("name", "node_key", "contact"):
        text = getattr(card, name)
        for at, letter in enumerate(text):
            yield card._replace(**{name: f"{text[:at]}{chr(ord(letter) ^ 1)}{text[at + 1 :]}"})
    for name in ("signing_key", "signature"):
        content = getattr(card, name)
        for at, byte in enumerate(content):
            yield card._replace(**{name: content[:at] + bytes([byte ^ 1]) + content[at + 1 :]})
    yield card._replace(domains=(*card.domains, "b"))
    yield card._replace(domains=(card.domains[0] + "b",))
    yield card._replace(vouched=b"\0")


def test_the_words_of_a_roster_depend_on_every_letter_of_it(place: Path):
    """Of what is signed; the file does not matter, and a signature follows from the rest."""
    roster = read_roster(place / "roster")
    first, *rest = roster.members
    cards = list(altered(first))
    for card in cards:
        if (card.signature, card.vouched) == (first.signature, first.vouched):
            assert card_words(card) != card_words(first)
    others = [roster._replace(members=(card, *rest)) for card in cards]
    others += [
        roster._replace(federation="locaL"),
        roster._replace(serial=2),
        roster._replace(previous=b"1"),
        roster._replace(keeper=first.signing_key),
        roster._replace(members=roster.members[::-1]),
        roster._replace(members=roster.members[:-1]),
    ]
    assert len(others) > 300
    assert len({roster_words(each) for each in (roster, *others)}) == len(others) + 1


def test_a_card_that_is_vouched_for_has_the_same_words(place: Path, tmp_path: Path):
    """Its owner reads them to the keeper before and after."""
    card = vouched_card(read_card(place / "ann.card"), signing_key())
    write_card(tmp_path / "ann.card", card)
    assert fingerprint(tmp_path / "ann.card") == fingerprint(place / "ann.card")


def test_blanks_and_ends_of_lines_do_not_change_the_words(place: Path, tmp_path: Path):
    for name in ("roster", "ann.card"):
        text = (place / name).read_text()
        (tmp_path / name).write_bytes(text.replace("\n", "\r\n").encode())
        assert fingerprint(tmp_path / name) == fingerprint(place / name)
        (tmp_path / name).write_text(json.dumps(json.loads(text)))
        assert fingerprint(tmp_path / name) == fingerprint(place / name)
    line = (place / "ann.pub").read_text()
    assert key_words(line) == fingerprint(place / "ann.pub")[1]
    (tmp_path / "ann.pub").write_text(f"{line}\r\n")
    assert fingerprint(tmp_path / "ann.pub") == fingerprint(place / "ann.pub")


def test_the_words_of_an_app_depend_on_every_byte_and_name(place: Path, tmp_path: Path):
    app = tmp_path / "app"
    shutil.copytree(place / "app", app)
    seen = [app_words(place / "app")]
    assert app_words(app) == seen[0]
    for file in sorted(path for path in app.rglob("*") if path.is_file()):
        content = file.read_bytes()
        first = bytes([content[0] ^ 1]) if content else b"x"
        for changed in (content + b"\n", first + content[1:]):
            file.write_bytes(changed)
            seen.append(app_words(app))
        file.write_bytes(content)
    (app / "federation" / "__init__.py").rename(app / "federation" / "init.py")
    seen.append(app_words(app))
    assert len(set(seen)) == len(seen) == 2 * 5 + 2


def test_what_an_app_does_not_hold_is_refused(place: Path, tmp_path: Path):
    """Python runs compiled code in place of its source, which nobody would hear in words."""
    app = tmp_path / "app"
    shutil.copytree(place / "app", app)
    cache = app / "federation" / "__pycache__"
    cache.mkdir()
    with pytest.raises(BadInput, match="__pycache__ is no part of an app"):
        app_words(app)
    cache.rmdir()
    (app / "federation" / "more.py").symlink_to(tmp_path / "elsewhere.py")
    with pytest.raises(BadInput, match=r"more.py is no part of an app"):
        app_words(app)
    with pytest.raises(BadInput, match=r"is no app: it has no pyproject\.toml"):
        app_words(app / "federation")


def test_a_second_certificate_is_found(place: Path, tmp_path: Path):
    both = [(place / "keys" / name).read_bytes() for name in ("ca.pem", "server.pem")]
    (tmp_path / "ca.pem").write_bytes(b"".join(both))
    with pytest.raises(BadInput, match="holds 2 certificates, and not one"):
        fingerprint(tmp_path / "ca.pem")
    for content, reason in (
        (b"-----BEGIN CERTIFICATE-----\nnonsense", "is no certificate"),
        (b"nonsense", "is no key in OpenSSH's format"),
        (b"{}", "is no card of a federation"),
    ):
        (tmp_path / "ca.pem").write_bytes(content)
        with pytest.raises(BadInput, match=reason):
            fingerprint(tmp_path / "ca.pem")
