# SPDX-License-Identifier: Apache-2.0
"""Compiled programs that are kept: found again, and never more than that."""

import json
import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from agnosticfl import registry
from agnosticfl.core import kept, programs
from agnosticfl.core.programs import Program, learned, program_of, shapes_of
from agnosticfl.core.random import any_key
from agnosticfl.registry import MODELS
from agnosticfl.runs.resolve import resolve
from agnosticfl.runs.run import run

SMALL = ("data.clients=30", "data.examples=8", "clients_per_round=3", "engine=lanes", "lanes=2")
PLAIN = 'server_optimizer={name="sgd",learning_rate=1.0}'  # Optax's Adam mixes types
TASKS = {"toy": (), "synthetic-images": SMALL, "synthetic-sentences": (*SMALL, PLAIN)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Where programs are kept in a process that has loaded nobody's code.

    What JAX's own cache has is not kept again, so that is empty, too.
    """
    monkeypatch.setattr(registry, "_foreign", [])
    monkeypatch.setattr(programs, "_folder", tmp_path / "programs")
    config: Any = jax.config
    usual = config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "compiled"))
    compilation_cache.reset_cache()
    yield tmp_path / "programs"
    jax.config.update("jax_compilation_cache_dir", usual)
    compilation_cache.reset_cache()


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The programs that were traced meanwhile."""
    names: list[str] = []
    usual = Program._compiled  # pyright: ignore[reportPrivateUsage]

    def noted(self: Program, *args: Any) -> Callable[..., Any]:
        names.append(str(getattr(self, "__name__", "")))
        return usual(self, *args)

    monkeypatch.setattr(Program, "_compiled", noted)
    return names


def model() -> Any:
    """The same model as if in another process: nothing that was made for one serves the other."""
    return MODELS.build({"name": "logistic", "features": 5, "classes": 3}, "model")


def first_params() -> Any:
    return jax.device_get(program_of(model().init)(jax.random.key(1)))


def test_another_process_finds_the_program(folder: Path, traced: list[str]):
    first = first_params()
    assert traced == ["init"]
    assert sorted(file.suffix for file in folder.iterdir()) == [".compiled", ".learned", ".traced"]
    again = first_params()
    assert traced == ["init"]
    assert jax.tree.all(jax.tree.map(np.array_equal, first, again))


def test_other_arguments_are_another_program(folder: Path, traced: list[str]):
    del folder
    own = model()
    evaluate = Program(own.per_example_metrics)
    params = own.init(jax.random.key(0))
    for number in (2, 2, 3):
        examples = {"x": np.zeros((number, 5), np.float32), "y": np.zeros(number, np.int32)}
        evaluate(params, examples)
    with jax.default_matmul_precision("bfloat16"):
        evaluate(params, examples)
    assert len(traced) == 3


def test_without_a_folder_nothing_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(programs, "_folder", None)
    first_params()
    assert not folder.exists()


def test_nothing_is_kept_where_somebody_s_code_was_loaded(folder: Path, traced: list[str]):
    registry.imported("json:dumps", "metric")
    first_params()
    assert (traced, folder.exists()) == ([], False)


def test_a_user_s_function_is_traced(folder: Path, traced: list[str]):
    assert Program(lambda x: x + 1)(1) == 2  # type: ignore[no-any-return]
    assert (traced, folder.exists()) == ([], False)


def test_a_program_in_another_one_is_a_part_of_it(folder: Path):
    del folder
    init = program_of(model().init)
    assert jax.eval_shape(init, any_key()) == shapes_of(model().init, any_key())


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "cut off": lambda whole: whole[: len(whole) // 2],
    "another byte": lambda whole: whole[:-1] + bytes([whole[-1] ^ 1]),
    "a pickle of nothing": lambda _: pickle.dumps(None),
}


@pytest.mark.parametrize("what", list(DAMAGE))
@pytest.mark.parametrize("suffix", [".compiled", ".learned", ".traced"])
def test_a_damaged_file_is_made_again(folder: Path, what: str, suffix: str):
    first = first_params()
    for file in folder.glob(f"*{suffix}"):
        file.write_bytes(DAMAGE[what](file.read_bytes()))
    assert jax.tree.all(jax.tree.map(np.array_equal, first, first_params()))


def test_a_whole_file_with_something_else_in_it_is_made_again(folder: Path):
    first = first_params()
    for file in folder.glob("*.compiled"):
        kept.write(file, lambda: b"no program")
    assert jax.tree.all(jax.tree.map(np.array_equal, first, first_params()))


def test_a_program_that_does_not_run_is_traced_after_all(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    def loads_and_fails(*_: Any) -> Callable[..., Any]:
        def fail(*_: Any) -> Any:
            raise RuntimeError("a function was not found")

        return fail

    first = first_params()
    monkeypatch.setattr(programs, "_loaded", loads_and_fails)
    assert jax.tree.all(jax.tree.map(np.array_equal, first, first_params()))
    assert not list(folder.glob("*.traced"))


def test_what_jax_had_is_not_kept_again(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(programs, "_folder", None)
    first_params()
    monkeypatch.setattr(programs, "_folder", folder)
    first_params()
    assert not list(folder.glob("*.traced"))


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_what_others_may_write_is_not_read(tmp_path: Path, mode: int):
    file = tmp_path / "file"
    kept.write(file, lambda: [1])
    assert (kept.read(file), file.stat().st_mode & 0o777) == ([1], 0o600)
    file.chmod(mode)
    assert kept.read(file) is None


def test_what_belongs_to_another_user_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    kept.write(tmp_path / "file", lambda: [1])
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert kept.read(tmp_path / "file") is None


def test_what_cannot_be_written_is_left(tmp_path: Path):
    (tmp_path / "file").write_text("no folder")
    kept.write(tmp_path / "file" / "below", lambda: 1)
    kept.write(tmp_path / "other", lambda: lambda: None)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file"]


def test_files_long_unused_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kept, "MOST", 2)
    for number in range(3):
        file = tmp_path / str(number)
        kept.write(file, lambda n=number: n)
        os.utime(file, (number, number))
        if number == 1:
            assert kept.read(tmp_path / "0") == 0  # it was used
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0", "2"]


def test_whoever_reads_while_others_write_has_something_whole(tmp_path: Path):
    file, values = tmp_path / "file", [[number] * 1000 for number in range(4)]

    def write(value: Any) -> None:
        for _ in range(50):
            kept.write(file, lambda: value)

    threads = [threading.Thread(target=write, args=(value,)) for value in values]
    kept.write(file, lambda: values[0])
    for thread in threads:
        thread.start()
    seen = [kept.read(file) for _ in range(200)]
    for thread in threads:
        thread.join()
    assert all(value in values for value in seen)
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_what_needs_a_library_to_be_made_ready_is_not_kept(folder: Path, traced: list[str]):
    lstm = MODELS.build({"name": "lstm", "words": 9, "embedding": 4, "hidden": 4}, "model")
    program_of(lstm.init)(jax.random.key(0))  # its first weights are orthogonal, by LAPACK
    assert traced == ["init"]
    assert not list(folder.glob("*.traced"))


def shape_of_leaf(function: Callable[..., Any], x: Any) -> tuple[int, ...]:
    return jax.eval_shape(function, x).shape


def test_a_question_about_shapes_is_asked_once():
    asked: list[int] = []

    def ask(function: Callable[..., Any], x: Any) -> tuple[int, ...]:
        asked.append(1)
        return shape_of_leaf(function, x)

    def double(x: Any) -> Any:
        return x * 2

    assert learned(ask, double, np.zeros(3)) == learned(ask, double, np.ones(3)) == (3,)
    assert learned(ask, double, np.zeros(4)) == (4,)
    assert len(asked) == 2


def played(task: str, out: Path) -> dict[str, Any]:
    """Everything that a run leaves behind but for its times."""
    run(resolve(task, rounds=3, sets=TASKS[task]), out)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    untimed = [{k: v for k, v in line.items() if k not in ("seconds", "time")} for line in lines]
    return {"metrics": untimed, "model": (out / "models" / "last.safetensors").read_bytes()}


@pytest.mark.parametrize("task", list(TASKS))
def test_a_run_has_the_same_bits_with_kept_programs_and_without(
    folder: Path, tmp_path: Path, traced: list[str], task: str, monkeypatch: pytest.MonkeyPatch
):
    first, before = played(task, tmp_path / "first"), len(traced)
    assert first == played(task, tmp_path / "second")
    assert list(folder.glob("*.traced"))
    assert not {"sum_over_clients", "server_half", "block"} & {*traced[before:]}
    monkeypatch.setattr(programs, "_folder", None)
    assert first == played(task, tmp_path / "without")
