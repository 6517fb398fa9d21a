# SPDX-License-Identifier: Apache-2.0
"""Servers that try to get less noise out of clients than their task says."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import msgspec
import numpy as np
import pytest

from agnosticfl.core.contribution import Broadcast
from agnosticfl.deploy.agree import agreement_of
from agnosticfl.deploy.flower import federation
from agnosticfl.deploy.flower.evaluations import Way
from agnosticfl.deploy.flower.federation import Abandoned, Attempt, NoProgress
from agnosticfl.deploy.flower.secure_strategy import SecureStrategy
from agnosticfl.deploy.flower.server_app import server_data
from agnosticfl.deploy.flower.standing import Standing
from agnosticfl.deploy.node import noised
from agnosticfl.deploy.node.ledger import read
from agnosticfl.deploy.private import planned_sums
from agnosticfl.deploy.roster import read_roster
from agnosticfl.deploy.task import EVALUATION, REPORT
from agnosticfl.runs.config import Config
from agnosticfl.secagg.messages import Refused, Setup, parse
from tests.deploy.clients import numpy_client
from tests.deploy.fake import Fault
from tests.deploy.federations import NODES, POLICY, SERVER
from tests.deploy.private import private_config, private_toy
from tests.deploy.secure import play, silent_at
from tests.secagg.federation import Play, signed
from tests.secagg.federation import federation as members


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(federation, "SHORTEST", 0.01)


@pytest.fixture
def vectors(monkeypatch: pytest.MonkeyPatch) -> list[tuple[np.ndarray, np.ndarray]]:
    """What every client made of its vector, before and after the noise."""
    seen: list[tuple[np.ndarray, np.ndarray]] = []
    real = noised.with_noise

    def spy(message: Any, scale: Any) -> dict[str, np.ndarray]:
        found = real(message, scale)
        seen.append((noised.wire.pack(message)["int32"], found["int32"]))
        return found

    monkeypatch.setattr(noised, "with_noise", spy)
    return seen


def served(**dp: Any) -> Config:
    """What a server plays that has changed its own copy of the task."""
    config = private_config(rounds=1)
    return msgspec.structs.replace(config, dp={**(config.dp or {}), **dp})


@pytest.mark.attack(
    "the server says less noise, or other bounds",
    "z and all bounds are those of the client's own task",
)
@pytest.mark.parametrize(
    "changed",
    [
        {"epsilon": 1e8, "noise_multiplier": 0.01},
        {"clip": 1e-3},
        {"examples": 1.0},
        {"loss": 1e-3},
    ],
)
def test_a_server_that_says_less_noise_gets_no_vector(
    tmp_path: Path,
    keys: Path,
    caplog: pytest.LogCaptureFixture,
    vectors: list[Any],
    changed: dict[str, Any],
):
    """It claims the agreed task, and sends bounds by which a vector of few shows through."""
    with pytest.raises(NoProgress):
        play(tmp_path, keys, task=private_toy(rounds=1), served=served(**changed), attempts=1)
    words = "refused: the server says other bounds or other noise than the task"
    assert caplog.text.count(f"failed: {words}") == NODES
    assert vectors == []


@pytest.mark.attack(
    "attempt after attempt at one round, for a mean over their noise",
    "noise is drawn anew for each vector, each is charged, and the budget ends it",
)
def test_the_same_round_again_and_again_spends_the_budget(
    tmp_path: Path,
    keys: Path,
    caplog: pytest.LogCaptureFixture,
    vectors: list[tuple[np.ndarray, np.ndarray]],
):
    task = private_toy(rounds=1)
    never: dict[int, Fault] = {n: silent_at("Confirmed") for n in range(NODES)}
    with pytest.raises(NoProgress):
        play(tmp_path, keys, task=task, faults=never, attempts=9)
    spent = [read(tmp_path / f"{n}.ledger")[task.run].sums for n in range(NODES)]
    assert max(spent) == planned_sums(task.config) == 3
    assert len(vectors) == sum(spent)
    assert "its privacy budget" in caplog.text
    # Three vectors of a client are the same, and no two noises are.
    noises = {(after - before).tobytes() for before, after in vectors}
    assert len({before.tobytes() for before, _ in vectors}) == NODES
    assert len(noises) == sum(spent)


@pytest.mark.attack(
    "a sum under another name",
    "clients answer what the task has, and each vector is charged whatever it is for",
)
@pytest.mark.parametrize("kind", [EVALUATION, REPORT])
def test_a_vector_for_a_sum_of_another_kind_is_refused(
    tmp_path: Path, keys: Path, caplog: pytest.LogCaptureFixture, vectors: list[Any], kind: str
):
    """The run of one round is over; the server asks for the same vectors once more, as a report."""
    task = private_toy(rounds=1)
    grid = play(tmp_path, keys, task=task)
    before = len(vectors)
    strategy = SecureStrategy(
        task.config,
        tmp_path / "more",
        POLICY._replace(minimum=3, step=0.2),
        server_data(task, {"data": ""}),
        Standing(agreement_of(task, read_roster(keys / "roster"), 3, 1)),
        SERVER,
    )
    other = strategy.for_kind(kind, 1, Way(strategy.channel, strategy.message))
    sent = Broadcast({"w": np.zeros((), np.float32)}, jnp.ones(5), strategy.channel.init())
    with pytest.raises(Abandoned):
        other.attempt(grid, sent, Attempt(1, 1, "token", kind))
    assert caplog.text.count(f"failed: refused: the task has no {kind} 1") == NODES
    assert len(vectors) == before


@pytest.mark.attack(
    "a model that makes a client's numbers infinite, or far too large",
    "the length of a vector is looked at after everything else",
)
@pytest.mark.parametrize("number", [np.nan, np.inf, 3e38])
def test_numbers_that_are_none_add_nothing_but_noise(
    tmp_path: Path, keys: Path, vectors: list[tuple[np.ndarray, np.ndarray]], number: float
):
    """What a cast makes of them could be as large as a word, and show past any noise."""

    def wild(call: Any) -> Any:
        sums = numpy_client(call)
        return sums._replace(weighted_delta=np.float32(number), beta=np.float32(number))

    play(tmp_path, keys, task=private_toy(rounds=1), contribute=wild)
    units = 2**22
    assert len(vectors) == NODES
    for before, _ in vectors:
        assert np.linalg.norm(before.astype(float)) <= units


@pytest.mark.attack(
    "a cohort in which too few add noise",
    "a client counts who is sure to be honest and in the sum, before it sends anything",
)
def test_a_cohort_with_too_few_honest_clients_is_refused():
    """Of 10 clients 7 must be in a sum, of whom one may be dishonest; of 8 only 6."""
    play = Play(members(10, honest=6))
    whole = parse(play.server.requests[0], Setup)
    fewer = signed(whole._replace(cohort=tuple(range(8)), neighbours=7, threshold=6))
    with pytest.raises(Refused, match=r"of a cohort of 8 only 5 are sure .* of 6 is needed"):
        play.answer(0, fewer)
    play.to_the_end()
    assert play.server.total is not None
    # Who reckons with more dishonest clients has fewer to count on.
    wary = Play(members(10, honest=6, dishonest=3))
    with pytest.raises(Refused, match="of a cohort of 10 only 4 are sure"):
        wary.answer(0, wary.server.requests[0])


def test_noise_covers_a_domain_with_one_holder_and_any_weight():
    """What a client shows of a domain that it holds alone is in the vector that is noised."""
    alone = [("own", "shared")] + [("shared",)] * 4
    play = Play(members(5, holdings=alone))
    with pytest.raises(Refused, match="domain 'own' has 1 holders in the cohort"):
        play.answer(0, play.server.requests[0])
    private = Play(members(5, holdings=alone, honest=3))
    private.to_the_end()
    assert private.refusals == {}
    assert private.server.total is not None
