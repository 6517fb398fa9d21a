# SPDX-License-Identifier: Apache-2.0
"""Programs are told apart by their parts, and by nothing else: no stale one may ever be found."""

import functools
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agnosticfl.core import tree
from agnosticfl.core.fingerprint import Unknown, fingerprint, is_known
from agnosticfl.core.surroundings import PACKAGE, settings, source_of, surroundings
from agnosticfl.engines.base import compiled
from agnosticfl.registry import MODELS
from agnosticfl.runs.build import build
from agnosticfl.runs.resolve import resolve

SMALL = ("data.clients=20", "data.examples=8", "clients_per_round=3", "lanes=2")
TASKS = {  # and what is set in each
    "toy": ("engine=lanes",),
    "synthetic-images": SMALL,
    "synthetic-sentences": SMALL,
}
OTHERS = {  # setting -> the program that another value must change
    "batch_size=7": "sum",
    "epochs=2": "sum",
    "local_steps=1": "sum",
    "normalisation=unbiased": "sum",
    "lanes=3": "sum",
    "client_optimizer.learning_rate=0.7": "sum",
    "client_optimizer.momentum=0.5": "sum",
    "client_optimizer.l2=0.5": "sum",
    "client_optimizer.proximal=0.5": "sum",
    "model.classes=11": "sum",
    "model.class_weights=[1,1,1,1,1,1,1,1,1,2]": "sum",
    "secure.name=simulate": "sum",
    "compress.bits=8": "sum",
    "server_optimizer.learning_rate=0.7": "server",
    'server_optimizer={name="adam",learning_rate=1.0}': "server",
    "weight_rule.learning_rate=0.7": "server",
    'weight_rule={name="fixed"}': "server",
    "mean_model=true": "state",
    "window_size=3": "state",
}


def programs(task: str, *sets: str, seed: int = 0) -> dict[str, Any]:
    """Fingerprints of what a run would compile, and the shapes of its state."""
    built = build(resolve(task, seed=seed, sets=(*TASKS[task], *sets)))
    closed = dict(
        zip(
            built.algorithm.round.__code__.co_freevars,
            built.algorithm.round.__closure__ or (),
            strict=True,
        )
    )
    round: Any = closed["function"].cell_contents  # in its precision
    inner = {
        name: cell.cell_contents
        for name, cell in zip(round.__code__.co_freevars, round.__closure__, strict=True)
    }
    return {
        "sum": fingerprint(inner["sum_over_clients"]),
        "server": fingerprint(inner["server_half"]),
        "state": str(jax.eval_shape(built.algorithm.init)),
        "model": fingerprint(built.model.per_example_loss, built.model.per_example_metrics),
    }


@pytest.mark.parametrize("task", list(TASKS))
def test_the_same_parts_have_the_same_fingerprint(task: str):
    if task == "toy":
        pytest.skip("its rounds are compiled whole")
    assert programs(task) == programs(task) == programs(task, seed=3)


@pytest.mark.parametrize("setting", list(OTHERS))
def test_another_value_of_a_setting_is_another_program(setting: str):
    before, after = programs("synthetic-images"), programs("synthetic-images", setting)
    assert before[OTHERS[setting]] != after[OTHERS[setting]]


@pytest.mark.parametrize("task", list(TASKS))
def test_the_rounds_and_evaluations_of_built_in_parts_are_known(task: str):
    built = build(resolve(task, sets=TASKS[task]))
    assert is_known(built.model)
    assert is_known(built.algorithm.round)


def test_a_precision_is_one_of_the_settings():
    before = settings()
    with jax.default_matmul_precision("bfloat16"):
        assert settings() != before
        assert settings(but="jax_default_matmul_precision") != before[1:]
    assert settings() == before


def test_another_line_of_the_package_is_another_source(tmp_path: Path):
    whole = source_of(PACKAGE)
    copied = tmp_path / "agnosticfl"
    shutil.copytree(PACKAGE, copied, ignore=shutil.ignore_patterns("__pycache__"))
    assert source_of(copied) == whole
    edited = copied / "core" / "algorithm1.py"
    edited.write_text(edited.read_text() + "\n# another line\n")
    source_of.cache_clear()
    assert source_of(copied) != whole
    source_of.cache_clear()


def test_surroundings_name_versions_and_device():
    text = str(surroundings())
    assert f"jax-{jax.__version__}.dist-info" in text
    assert jax.devices()[0].device_kind in text


def test_an_edited_package_is_noticed_before_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "chex").mkdir()
    (tmp_path / "chex" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "chex", raising=False)
    with pytest.raises(Unknown, match="chex"):
        surroundings.__wrapped__()
    (tmp_path / "chex-1.0.dist-info").mkdir()
    assert "chex-1.0.dist-info" in str(surroundings.__wrapped__())


VALUES: list[Any] = [
    1,
    True,
    1.0,
    -0.0,
    0.0,
    "1",
    b"1",
    None,
    (1,),
    [1],
    {"a": 1},
    {"b": 1},
    {"a": 1, "b": 2},
    {"b": 2, "a": 1},
    frozenset({1}),
    frozenset({2}),
    np.float32(1),
    np.float64(1),
    np.zeros(2),
    np.zeros((2, 1)),
    np.ones(2),
    np.zeros(2, np.float32),
    jnp.zeros(2, jnp.float32),
    jax.random.key(1),
    jax.random.key(2),
    optax.sgd(0.1),
    optax.sgd(0.2),
    optax.adam(0.1),
    functools.partial(tree.add, 2),
    functools.partial(tree.add, 3),
    tree.scale,
    tree.add,
    jnp.log,
    jnp.exp,
    np.add,
]


def test_other_values_have_other_fingerprints():
    found = {}
    for value in VALUES:
        if is_known(value):
            found[fingerprint(value)] = value
    known = [value for value in VALUES if is_known(value)]
    assert len(found) == len(known) >= len(VALUES) - 1


def mine(x: Any) -> Any:
    return x


@functools.wraps(tree.scale)
def disguised(*args: Any) -> Any:
    return args


class Mine:
    pass


@pytest.mark.parametrize(
    "thing",
    [
        mine,
        lambda: None,
        disguised,
        functools.partial(tree.add, mine),
        Mine,
        Mine(),
        optax.sgd(lambda _: 0.1),
        {"a": [mine]},
        jax.jit(mine),
        compiled(mine),
        iter([]),
    ],
)
def test_what_a_user_wrote_has_no_fingerprint(thing: Any):
    with pytest.raises(Unknown):
        fingerprint(thing)


def test_what_is_being_traced_has_none():
    def inside(x: jax.Array) -> jax.Array:
        assert not is_known(x)
        return x

    jax.jit(inside)(1)


def test_a_function_that_names_itself_has_one():
    model = MODELS.build({"name": "cnn", "classes": 3}, "model")
    again: Callable[..., Any] = MODELS.build({"name": "cnn", "classes": 3}, "model")
    assert fingerprint(model) == fingerprint(again)
