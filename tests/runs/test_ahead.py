# SPDX-License-Identifier: Apache-2.0
"""Programs that are compiled before the run that needs them."""

import functools
import threading
import types
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import pytest

from agnosticfl.core.evaluate import compile_evaluation, full_evaluator
from agnosticfl.core.state import ServerState
from agnosticfl.engines.helpers.tuning import stopwatch
from agnosticfl.runs import processes
from agnosticfl.runs.ahead import Wait, compile_first_round, compile_rounds
from agnosticfl.runs.build import build
from agnosticfl.runs.compare import compare
from agnosticfl.runs.config import Config
from agnosticfl.runs.resolve import resolve
from agnosticfl.runs.run import run
from agnosticfl.runs.shared import Shared

NO_TUNER = stopwatch(measuring=False)
SMALL = ("data.clients=30", "data.examples=8", "clients_per_round=3", "engine='lanes'", "lanes=2")
ROUNDS = {"toy": "jit(block)", "synthetic-images": "jit(sum_over_clients)"}  # what they are called


def config(task: str) -> Config:
    return resolve(task, rounds=2, sets=() if task == "toy" else SMALL)


@contextmanager
def compilations() -> Generator[list[str]]:
    """What is compiled meanwhile, by name."""
    names: list[str] = []

    def note(event: str, duration_secs: float, **kwargs: str | int) -> None:
        del duration_secs
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(str(kwargs.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        yield names
    finally:
        jax.monitoring.unregister_event_duration_listener(note)


@pytest.mark.parametrize("task", ROUNDS)
def test_a_run_finds_its_rounds_compiled(tmp_path: Path, task: str):
    make_built = functools.partial(build, shared=Shared())
    with compilations() as before:
        compile_rounds(make_built, NO_TUNER, config(task))()
    assert ROUNDS[task] in before
    with compilations() as names:
        run(config(task), tmp_path, make_built=make_built)
    assert ROUNDS[task] not in names


def test_a_run_has_its_round_compiled_while_it_makes_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(processes, "may_work_beside_rounds", lambda: True)
    small, threads = config("synthetic-images"), list[str]()
    built = build(small, None, None)
    init, compiled = built.algorithm.init, threading.Event()

    def when_it_is_compiled() -> ServerState:
        if threading.current_thread() is threading.main_thread():  # the other asks for shapes
            assert compiled.wait(60)
        return init()

    def note(event: str, duration_secs: float, **kwargs: str | int) -> None:
        del duration_secs
        own = kwargs.get("fun_name") == ROUNDS["synthetic-images"]
        if own and event == "/jax/core/compile/backend_compile_duration":
            threads.append(threading.current_thread().name)
            compiled.set()

    slow = built._replace(algorithm=built.algorithm._replace(init=when_it_is_compiled))
    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        run(small, tmp_path, make_built=lambda *_: slow)
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
    assert threads == ["agnosticfl-first-round"]  # and the run itself compiled it no second time


@pytest.mark.parametrize(
    ("settings", "asked"),
    [([], [1]), (["dp.epsilon=8", "dp.delta=1e-3", "dp.clip=1"], []), (["compress.bits=4"], [])],
)
def test_no_round_of_noised_or_compressed_contributions_is_played_before_the_first(
    monkeypatch: pytest.MonkeyPatch, settings: list[str], asked: list[int]
):
    monkeypatch.setattr(processes, "may_work_beside_rounds", lambda: True)
    built, cohorts = build(config("synthetic-images"), None, None), list[int]()
    noted = built.algorithm._replace(cohort=cohorts.append)
    other = resolve("synthetic-images", rounds=2, sets=(*SMALL, *settings))
    compile_first_round(built._replace(config=other, algorithm=noted))()
    assert cohorts == asked


def test_the_next_seed_plays_no_round_before_its_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processes, "may_work_beside_rounds", lambda: True)
    shared, cohorts = Shared(), list[int]()
    for seed in range(2):
        built = build(config("synthetic-images"), None, None, shared)
        built = built._replace(config=resolve("synthetic-images", seed=seed, sets=SMALL))
        noted = built.algorithm._replace(cohort=cohorts.append)
        compile_first_round(built._replace(algorithm=noted))()
    assert cohorts == [1]


def test_a_private_run_is_not_played_ahead():
    private = resolve("toy", rounds=2, sets=["dp.epsilon=8", "dp.delta=1e-3", "dp.clip=1"])
    asked: list[Config] = []

    def make_built(config: Config, *_: Any) -> Any:
        asked.append(config)

    compile_rounds(make_built, NO_TUNER, private)()
    assert asked == []
    compile_rounds(make_built, NO_TUNER, config("toy"))()
    assert asked == [config("toy")]


@pytest.mark.parametrize(("limit", "played"), [(20_000, True), (5_000, False)])
def test_it_is_not_played_beside_another_run_where_there_may_be_no_room(
    monkeypatch: pytest.MonkeyPatch, limit: int, played: bool
):
    """The toy's model has 4 bytes, and is on 50 lanes."""
    card = types.SimpleNamespace(memory_stats=lambda: {"bytes_limit": limit})
    make_built = functools.partial(build, shared=Shared())
    monkeypatch.setattr(
        "agnosticfl.runs.ahead.jax", types.SimpleNamespace(local_devices=lambda: [card])
    )
    with compilations() as names:
        compile_rounds(make_built, NO_TUNER, config("toy"))()
    assert (ROUNDS["toy"] in names) is played


def test_what_goes_wrong_is_left_to_the_run():
    compile_rounds(functools.partial(build, shared=Shared()), NO_TUNER, resolve("mnist-writers"))()


def test_a_comparison_begins_all_that_it_can_and_waits_for_each_at_its_turn(tmp_path: Path):
    """The target of fedavg-target is not known before fedavg has run, so it comes last."""
    told: list[str] = []

    def ahead(config: Config) -> Wait:
        told.append(f"begin {config.algorithm}")
        return lambda: told.append(f"wait {config.algorithm}")

    def play(config: Config, out: Path) -> dict[str, Any]:
        told.append(f"run {config.algorithm}")
        return run(config, out)

    compare("toy", tmp_path, play, seeds=1, rounds=2, ahead=ahead)
    steps = ["begin afa", "run fedavg", "begin fedavg-target", "wait afa", "run afa"]
    assert told == [*steps, "wait fedavg-target", "run fedavg-target"]
    told.clear()
    named = tmp_path / "named"
    compare("toy", named, play, seeds=1, rounds=2, ahead=ahead, target="centre 1")
    assert told[:2] == ["begin fedavg-target", "begin afa"]


def test_a_tuner_that_must_not_measure_takes_what_is_known(tmp_path: Path):
    memory = tmp_path / "lanes.json"
    with pytest.raises(LookupError):
        stopwatch(memory, measuring=False)("case", [1, 2], float)
    measured = stopwatch(memory)("case", [1, 2], float)
    assert stopwatch(memory, measuring=False)("case", [1, 2], float) == measured


def test_an_evaluation_finds_its_program_compiled():
    built = build(config("synthetic-images"))
    params = built.algorithm.init().params
    compile_evaluation(built.model, params, built.data.test, 16)
    with compilations() as names:
        full_evaluator(built.model, built.data.test, 16)(params)
    assert names == []
