# SPDX-License-Identifier: Apache-2.0
"""A client that trains with PyTorch needs no JAX, and nothing else that is not on its list."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import msgspec
import numpy as np
import pytest

from agnosticfl.channels.dp.in_numpy import named_state, whole_numbers
from agnosticfl.channels.in_numpy import Sums
from agnosticfl.core import tree
from agnosticfl.core.contribution import ClientSum
from agnosticfl.core.federated import from_arrays
from agnosticfl.deploy import wire
from agnosticfl.deploy.node.contribute import Call, answer
from agnosticfl.deploy.private import privacy_of
from agnosticfl.deploy.task import federated_config
from agnosticfl.runs.config import Config, as_table, from_table
from agnosticfl.runs.resolve import resolve
from tests.deploy.without_jax import (
    ROOT,
    blocked,
    listed,
    messages,
    no_noise,
    of_project,
    on_the_way,
    write_blocker,
)

pytest.importorskip("torch", reason="the extra 'torch' is not installed")

SETS = (
    ("evaluation_by=clients", "evaluation_share=0.5", "weights_follow=heldout"),
    ("secure.name=simulate", "secure.examples=500"),
)


def configs() -> list[Config]:
    table = {"name": "sgd", "learning_rate": 0.5}
    base, secure = SETS
    found = [resolve("toy", sets=list(sets)) for sets in (base, (*base, *secure))]
    private = msgspec.structs.replace(found[1], dp={"epsilon": 8.0, "delta": 1e-6})
    found.append(federated_config(private, 5))
    return [msgspec.structs.replace(c, client_optimizer=table, batch_size=9) for c in found]


def in_a_process(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """What Python says where only that can be imported which such a client installs."""
    path = os.pathsep.join([str(write_blocker(tmp_path / "nothing")), str(ROOT / "src"), str(ROOT)])
    return subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_list_is_a_part_of_what_the_project_needs():
    """With the same versions; what is left away is what trains and draws in a simulation."""
    needed = of_project("secure", "deploy", "torch")
    assert listed().items() <= needed.items()
    left_away = {"jax", "jaxlib", "optax", "flax", "matplotlib", "tensorboard"}
    assert left_away | {"safetensors"} == set(blocked())


def test_its_messages_are_those_that_it_would_send_with_jax(tmp_path: Path):
    with no_noise():
        expected = dict(messages(configs()))
    script = (
        "import json, sys\n"
        "from agnosticfl.runs.config import from_table\n"
        "from tests.deploy.without_jax import messages, no_noise\n"
        "tables = [from_table(table, 'here') for table in json.loads(sys.argv[1])]\n"
        "with no_noise():\n"
        "    print(json.dumps(dict(messages(tables))))\n"
        "assert 'jax' not in sys.modules\n"
    )
    tables = json.dumps([as_table(config) for config in configs()])
    done = in_a_process(tmp_path, "-c", script, tables)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.keys() == expected.keys()
    assert {name.split()[2] for name in found} == {"float32", "float64", "int32"}
    for name, vector in expected.items():
        assert found[name] == vector, name
    assert from_table(json.loads(tables)[1], "here") == configs()[1]


@pytest.mark.parametrize("large", [1e-4, 1.0, 1e6, 1e30])
@pytest.mark.parametrize("reports", [False, True])
def test_a_private_vector_is_the_one_that_jax_makes(large: float, reports: bool):
    """In whole numbers the same, but for the last bits of float32 where it is clipped."""
    config, rng = configs()[2], np.random.default_rng(1)

    def numbers(*shape: int) -> np.ndarray:
        return (large * rng.uniform(0.1, 1, shape)).astype(np.float32)

    update = [] if reports else [numbers(7, 3), numbers(3)]
    own = Sums(update, numbers() * (not reports), numbers(3), numbers(3), np.zeros((), np.float32))
    privacy = privacy_of(config, own)
    channel = privacy.channel(own)  # type: ignore[arg-type]
    state = channel.init()
    made = channel.encode(state, ClientSum(*own), jax.random.key(0))  # type: ignore[arg-type]
    expected = wire.pack(jax.device_get(made))["int32"]
    found = wire.pack(whole_numbers(privacy.clip, privacy.scale, own))["int32"]
    unit = 0 if large < 1e-3 else 4 + 1e-6 * np.abs(expected).max()
    assert np.abs(found.astype(np.int64) - expected).max() <= unit
    assert np.linalg.norm(found.astype(float)) <= privacy.scale.units
    assert expected.any() or large < 1e-3
    named = named_state(privacy.clip, privacy.scale)
    assert named.keys() == tree.named(state).keys()
    for name, value in tree.named(state).items():
        assert (named[name].dtype, named[name].shape) == (value.dtype, value.shape)
        np.testing.assert_array_equal(named[name], value)


def test_numbers_come_in_the_order_of_the_server_s_parameters():
    """Which is not that of their names, where a model of JAX has a list of layers."""
    names = ["layers.2", "layers.10", "bias"]
    params = {name: np.full(2, number, np.float32) for number, name in enumerate(names)}
    none, data = np.zeros(1, np.float32), from_arrays({"x": [0.0]}, [0], [0], ["a"])
    call = Call(resolve("toy"), data, 0, 0, 1, params, none)
    update = {name: params[name] for name in sorted(names)}
    sums = ClientSum(update, np.zeros((), np.float32), none, none, np.zeros((), np.float32))  # type: ignore[arg-type]
    assert answer(call, sums, {})["float32"][:6].tolist() == [0, 0, 1, 1, 2, 2]


def test_an_app_that_trains_with_jax_says_at_once_that_it_needs_it(tmp_path: Path):
    made = "from agnosticfl.deploy.flower.client_app import client_app; client_app('.')"
    done = in_a_process(tmp_path, "-c", made)
    line = "a client whose client_app.py has no torch_client needs jax: pip install 'agnosticfl"
    assert f"BadInput: {line}" in done.stderr


def test_all_that_is_on_its_way_can_be_imported(tmp_path: Path):
    modules = list(on_the_way())
    assert {f"agnosticfl.{name}" for name in ("cli.deploy", "deploy.flower.warm")} <= set(modules)
    script = f"import importlib, sys\nfor name in {modules!r}:\n    importlib.import_module(name)\n"
    done = in_a_process(tmp_path, "-c", script + "assert 'jax' not in sys.modules\n")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["jax", "flax.linen"])
def test_the_test_itself_can_fail(tmp_path: Path, name: str):
    done = in_a_process(tmp_path, "-c", f"import {name}")
    assert "is not to be had here" in done.stderr
