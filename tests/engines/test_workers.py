# SPDX-License-Identifier: Apache-2.0
"""Clients side by side on a CPU's cores: in order, as JAX is set for the caller, the same bits."""

import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agnosticfl.core.work import ClientWork
from agnosticfl.engines import steps_engine
from agnosticfl.engines.helpers import workers
from agnosticfl.engines.helpers.workers import in_order
from tests.engines.sums import sums, with_dropout
from tests.helpers.problems import SGD, random_federated

WAIT = 60  # seconds, for what takes none


def threads(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(workers, "num_threads", lambda: number)


def test_jobs_are_done_side_by_side_and_come_in_their_order(monkeypatch: pytest.MonkeyPatch):
    threads(monkeypatch, 2)
    both = threading.Barrier(2, timeout=WAIT)  # whoever is alone here does not get by
    second = threading.Event()

    def job(k: int) -> int:
        if k < 2:
            both.wait()
        if k == 0:
            assert second.wait(WAIT)  # job 1 is done first
        if k == 1:
            second.set()
        return k

    assert list(in_order(job, 20)) == list(range(20))


def test_few_are_done_before_they_are_asked_for(monkeypatch: pytest.MonkeyPatch):
    threads(monkeypatch, 2)
    begun: list[int] = []
    first = in_order(lambda k: begun.append(k), 100)
    next(first)
    assert len(begun) <= 2 * workers.AHEAD + 1
    assert len(list(first)) == 99


@pytest.mark.parametrize("number", [1, 2])
def test_a_job_s_settings_are_its_caller_s(monkeypatch: pytest.MonkeyPatch, number: int):
    threads(monkeypatch, number)
    config: Any = jax.config

    def job(_: int) -> tuple[str, bool]:
        return config.jax_default_matmul_precision, config.jax_debug_nans

    for precision, nans in (("bfloat16", True), ("float32", False)):
        with jax.default_matmul_precision(precision), jax.debug_nans(nans):
            assert set(in_order(job, 4)) == {(precision, nans)}


def test_what_goes_wrong_in_a_thread_is_said(monkeypatch: pytest.MonkeyPatch):
    threads(monkeypatch, 2)
    with pytest.raises(ZeroDivisionError):
        list(in_order(lambda k: 1 // (k - 1), 3))


def test_any_number_of_threads_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch):
    data = random_federated(2, clients=9)
    work = ClientWork(with_dropout(), SGD, data.num_domains, batch_size=4, epochs=2)

    def summed(number: int) -> Any:
        threads(monkeypatch, number)
        return sums(steps_engine, work, data, 7, 3)

    alone = summed(1)
    jax.tree.map(np.testing.assert_array_equal, summed(2), alone)
    jax.tree.map(np.testing.assert_array_equal, summed(3), alone)


def test_an_accelerator_has_one_thread(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert workers.num_threads() == 1
    assert [float(x) for x in in_order(lambda k: jnp.float32(k), 3)] == [0, 1, 2]
