# SPDX-License-Identifier: Apache-2.0
"""Members come and go while a run goes on: a server follows the keeper's roster."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agnosticfl.deploy import served
from agnosticfl.deploy.agree import agreement_of
from agnosticfl.deploy.app import write_app
from agnosticfl.deploy.blame import Blame
from agnosticfl.deploy.cards import read_card
from agnosticfl.deploy.flower import federation
from agnosticfl.deploy.flower.client_app import client_app
from agnosticfl.deploy.flower.evaluations import Way
from agnosticfl.deploy.flower.federation import Attempt
from agnosticfl.deploy.flower.records import to_record
from agnosticfl.deploy.flower.secure_strategy import SecureStrategy
from agnosticfl.deploy.flower.server_app import first_params, make_strategy, server_data
from agnosticfl.deploy.flower.standing import Standing
from agnosticfl.deploy.keys import read_signing_key
from agnosticfl.deploy.roster import first_roster, next_roster, read_roster, write_roster
from agnosticfl.deploy.supervise.supervisor import Service, Supervisor
from agnosticfl.deploy.task import EVALUATION, write_task
from agnosticfl.runs.build import build
from agnosticfl.runs.records import read_records
from tests.deploy.clients import numpy_client
from tests.deploy.fake import FakeGrid
from tests.deploy.federations import NODES, POLICY, SERVER
from tests.deploy.secure import secure_toy

ALL = tuple(range(NODES))


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(federation, "SHORTEST", 0.01)
    monkeypatch.setattr(federation.LOG, "propagate", True)


class Place:
    """Keys of four members, and rosters of some of them."""

    def __init__(self, folder: Path, keys: Path):
        self.folder, self.roster = folder, folder / "roster"
        shutil.copytree(keys, folder / "keys")
        self.keys = folder / "keys"
        self.keeper = read_signing_key(self.keys / "roster.sign")

    def sign(self, members: Sequence[int]) -> None:
        """The first roster, or the next one."""
        cards = [read_card(self.keys / f"{number}.card") for number in members]
        if self.roster.exists():
            roster = next_roster(read_roster(self.roster), cards, self.keeper)
        else:
            roster = first_roster("toys", cards, self.keeper)
        write_roster(self.roster, roster)


@pytest.fixture
def place(tmp_path: Path, keys: Path) -> Place:
    return Place(tmp_path, keys)


def play(place: Place, before: Sequence[int], after: Sequence[int]) -> None:
    """Two rounds, with another roster from the second on."""
    folder, task = place.folder, secure_toy(2)
    write_task(folder, task)
    place.sign(before)

    def node(number: int) -> dict[str, Any]:
        files = {"roster": place.roster, "signing-key": place.keys / f"{number}.sign"}
        files["memory"] = folder / f"{number}.memory"
        return {name: str(path) for name, path in files.items()}

    grid = FakeGrid([client_app(folder, numpy_client)] * NODES, None, node)
    policy = POLICY._replace(minimum=3, attempts=1, step=0.2)

    def agreement() -> Any:
        if read_roster(place.roster).serial == 1 and len(read_records(folder / "run")) == 1:
            place.sign(after)
        roster = read_roster(place.roster)
        return agreement_of(task, roster, 3, 1), [card.name for card in roster.members]

    held = server_data(task, {"data": ""})
    standing = Standing(*agreement(), latest=agreement)
    strategy = SecureStrategy(task.config, folder / "run", policy, held, standing, SERVER)
    strategy.start(grid, to_record(first_params(task, build(task.config).model)), 2, 0.2)


@pytest.mark.parametrize(("before", "after"), [((0, 1, 2), ALL), (ALL, (1, 2, 3))])
def test_a_member_comes_or_goes_between_two_rounds(
    place: Place, caplog: pytest.LogCaptureFixture, before: Any, after: Any
):
    caplog.set_level("INFO", "flwr")
    play(place, before, after)
    first, second = (sum(record["count"]) for record in read_records(place.folder / "run"))
    assert (first < second) == (len(before) < len(after))
    assert first != second
    assert "round 2: from now on with the roster number 2, " in caplog.text
    assert "abandoned" not in caplog.text


def options(place: Place) -> dict[str, Any]:
    from cryptography.hazmat.primitives import serialization as forms

    file = place.folder / "server.sign"
    file.write_bytes(
        SERVER.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.OpenSSH, forms.NoEncryption())
    )
    return {"data": "", "roster": str(place.roster), "signing-key": str(file)}


def test_who_cheated_stays_left_out_wherever_it_stands_now(place: Place):
    """And a roster that cannot be read changes nothing."""
    place.sign(ALL)
    task = secure_toy(2)
    strategy: Any = make_strategy(
        task, options(place), POLICY._replace(minimum=3), place.folder / "run", None
    )
    standing: Standing = strategy.standing
    standing.cheats = Blame(named={0: "it lied", 3: "it lied too"})
    old = standing.agreement
    standing.follow(Attempt(1, 1, ""))
    assert standing.agreement is old
    place.sign((1, 2, 3))  # the first has left
    standing.follow(Attempt(1, 1, ""))
    assert standing.agreement.roster == old.roster[1:]
    assert standing.cheats.named == {2: "it lied too"}
    assert standing.members == ("1", "2", "3")
    new = standing.agreement
    place.roster.write_text("{")
    standing.follow(Attempt(1, 1, ""))
    assert standing.agreement is new


def test_sums_of_another_kind_follow_the_roster_with_those_of_training(place: Place):
    """Their agreement stays one of their kind; who cheated in them is known by its new place."""
    place.sign(ALL)
    task = secure_toy(2)
    strategy: Any = make_strategy(
        task, options(place), POLICY._replace(minimum=3), place.folder / "run", None
    )
    way = Way(strategy.channel, strategy.message)
    other: Any = strategy.for_kind(EVALUATION, 1, way)
    own = other.agreement
    assert own.run != strategy.agreement.run
    assert own.roster == strategy.agreement.roster
    other.standing.cheats = Blame(named={3: "it lied"})
    place.sign((1, 2, 3))
    other.standing.follow(Attempt(1, 1, ""))
    assert (other.agreement.run, other.agreement.roster) == (own.run, own.roster[1:])
    assert strategy.agreement.roster == own.roster[1:]
    assert strategy.standing.members == ("1", "2", "3")
    assert strategy.standing.cheats.named == {2: "it lied"}


def test_a_server_takes_over_a_roster_that_follows_and_no_other(place: Place, tmp_path: Path):
    """Members are registered, others taken out; what is served is told anew."""
    place.sign((0, 1, 2))
    write_app(tmp_path / "app", secure_toy())
    own, state, clients = tmp_path / "own.roster", tmp_path / "state", tmp_path / "server/clients"
    state.mkdir()
    said: list[str] = []
    service = Service(
        tmp_path / "app",
        tmp_path / "server",
        state,
        tmp_path / "run",
        "127.0.0.1",
        1,
        {"roster": str(own)},
        roster=place.roster,
    )
    supervisor = Supervisor(service, said.append)
    supervisor.follow()
    assert {path.stem for path in clients.glob("*.pub")} == {"0", "1", "2"}
    place.sign((1, 2, 3))
    before = len(said)
    supervisor.follow()
    assert {path.stem for path in clients.glob("*.pub")} == {"1", "2", "3"}
    assert any("roster 2: + 3 (" in line for line in said[before:])
    assert "roster 2: − 0" in said[before:]
    told = served.parse_served((state / served.FILE).read_bytes())
    assert told.terms["roster"].startswith("number 2, ")
    before = len(said)
    supervisor.follow()
    assert said[before:] == []
    cards = [read_card(place.keys / f"{number}.card") for number in (0, 1, 2)]
    write_roster(place.roster, first_roster("toys", cards, place.keeper))  # an old one
    for _ in range(2):
        supervisor.follow()
    assert len(said) == before + 1
    assert "is not taken over: " in said[-1]
    assert "is roster 1, and 2 was accepted already" in said[-1]
    assert read_roster(own).serial == 2
