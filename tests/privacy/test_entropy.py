# SPDX-License-Identifier: Apache-2.0
"""Secret bits: where they come from, that no use shares them, who can get them again."""

import concurrent.futures
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

from agnosticfl.privacy.entropy import Secrets, fresh_secret, secret_of_a_test, stretched
from agnosticfl.privacy.noise_source import PART, noise_source
from agnosticfl.privacy.secret_cohorts import secret_cohorts


def test_two_secrets_are_never_the_same():
    assert len({fresh_secret() for _ in range(100)}) == 100
    assert len(fresh_secret()) == 32


def test_a_stream_goes_on_where_it_stopped_and_is_of_its_own_use():
    whole, parts = stretched(b"s", "a", 1), stretched(b"s", "a", 1)
    once = whole(200_000)
    np.testing.assert_array_equal(once[:150_000], np.concatenate([parts(7), parts(149_993)]))
    assert np.any(stretched(b"s", "a", 2)(32) != once[:32])
    assert np.any(stretched(b"t", "a", 1)(32) != once[:32])


def test_nothing_is_given_twice_but_processes_that_share_a_secret_get_the_same():
    one, other = Secrets(b"s" * 32), Secrets(b"s" * 32)
    first, second = one.bits("noise")(16), one.bits("noise")(16)
    assert np.any(first != second)
    np.testing.assert_array_equal(other.bits("noise")(16), first)


class Slow(str):
    """A use at which a thread lingers wherever it is looked up."""

    __slots__ = ()

    def __hash__(self) -> int:
        time.sleep(0.002)
        return super().__hash__()


def test_threads_that_ask_at_once_never_get_the_same():
    """Those who train and those who report may be noised side by side."""
    own, use = Secrets(b"s" * 32), Slow("noise")
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        drawn = list(threads.map(lambda _: own.bits(use)(16).tobytes(), range(64)))
    assert len(set(drawn)) == 64


@pytest.mark.parametrize("size", [100, 3 * PART + 5])
def test_noise_differs_from_sum_to_sum_and_not_with_the_threads(size: int):
    one, other = (noise_source(Secrets(secret_of_a_test(3))) for _ in range(2))
    first, second = one(1000, 1, size), one(1000, 1, size)
    assert first.dtype == np.int32
    assert first.shape == (size,)
    assert np.mean(first == second) < 0.1
    np.testing.assert_array_equal(other(1000, 1, size), first)
    np.testing.assert_array_equal(other(1000, 1, size), second)


def test_shares_add_up():
    source = noise_source(Secrets(secret_of_a_test(3)))
    drawn = source(100, 25, 10_000)
    assert np.std(drawn) == pytest.approx(500, rel=0.05)


def test_cohorts_follow_from_the_secret_and_not_from_the_seed():
    data = SimpleNamespace(num_clients=50)
    sampler = secret_cohorts(Secrets(b"s" * 32))(data, 10, 0)
    same = secret_cohorts(Secrets(b"s" * 32))(data, 10, 1)
    another = secret_cohorts(Secrets(b"t" * 32))(data, 10, 0)
    drawn = [sampler(t) for t in range(200)]
    assert all(len(set(cohort)) == 10 for cohort in drawn)
    np.testing.assert_array_equal(sampler(7), same(7))
    assert any(set(sampler(t)) != set(another(t)) for t in range(5))
    counts = np.bincount(np.concatenate(drawn), minlength=50)
    assert counts.min() > 15  # 40 on average


def test_noise_and_accounting_need_no_jax():
    code = (
        "import sys, agnosticfl.privacy.noise_source, agnosticfl.privacy.ledger;"
        " print('jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
