# SPDX-License-Identifier: Apache-2.0
"""What runs of one command share, and that it changes no bit."""

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from agnosticfl.engines.helpers import feed
from agnosticfl.engines.helpers.feed import last_kept
from agnosticfl.runs.build import build
from agnosticfl.runs.config import Config
from agnosticfl.runs.resolve import resolve
from agnosticfl.runs.run import run
from agnosticfl.runs.shared import Shared
from tests.helpers.problems import random_federated
from tests.helpers.runs import results

IMAGES = ("data.clients=30", "data.examples=8", "clients_per_round=3", "evaluation_every=1")


def config(kind: str, seed: int) -> Config:
    """The toy, whose rounds come in blocks; or images, with an engine of that name."""
    if kind == "toy":
        return resolve("toy", seed=seed, rounds=3)
    return resolve("synthetic-images", seed=seed, rounds=3, sets=[*IMAGES, f"engine='{kind}'"])


@pytest.mark.parametrize("task", ["toy", "lanes", "steps"])
def test_another_seed_is_compiled_no_more_and_has_the_same_bits(tmp_path: Path, task: str):
    make_built = functools.partial(build, shared=Shared())
    run(config(task, 0), tmp_path / "first", make_built=make_built)
    compiled: list[str] = []

    def note(event: str, duration_secs: float, **kwargs: str | int) -> None:
        del duration_secs
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(str(kwargs.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        run(config(task, 1), tmp_path / "second", make_built=make_built)
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
    assert compiled == []
    run(config(task, 1), tmp_path / "alone")
    assert results(tmp_path / "second") == results(tmp_path / "alone")
    for name in ("models/last.safetensors", "predictions/test-last.npz"):
        assert (tmp_path / "second" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()


def test_a_thing_is_made_once_for_each_table():
    made, shared = list[Any](), Shared()

    def make(table: dict[str, Any], where: str) -> object:
        made.append((table, where))
        return object()

    one = shared.made(make, {"name": "sgd", "rate": 0.1}, "client")
    assert shared.made(make, {"name": "sgd", "rate": 0.1}, "client") is one
    assert shared.made(make, {"name": "sgd", "rate": 0.2}, "client") is not one
    assert shared.made(make, {"name": "sgd", "rate": 0.1}, "server") is not one
    assert len(made) == 3


def test_the_last_data_stays_on_the_device(monkeypatch: pytest.MonkeyPatch):
    pool, data, other = last_kept(), random_federated(1), random_federated(2)
    first = pool(data)
    assert pool(data._replace(client_ids=())) is first
    assert pool(other) is not first
    np.testing.assert_array_equal(pool(other).domain, other.domain)
    put: list[Any] = []
    monkeypatch.setattr(feed, "on_device", lambda data: put.append(data) or first)
    pool(other)
    assert put == []
    pool(data)
    assert put == [data]


def test_a_model_is_found_without_its_siblings():
    code = (
        "import sys\n"
        "from agnosticfl.registry import MODELS\n"
        "from agnosticfl.models import point\n"
        "assert MODELS.get('point') is point\n"
        "print('flax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
