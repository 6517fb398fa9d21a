# SPDX-License-Identifier: Apache-2.0
"""An audit in one run finds much, and no more than was claimed."""

import pytest

from agnosticfl.runs.audit import audit

pytest.importorskip("dp_accounting")
pytest.importorskip("jax_privacy")


def test_an_audit_of_few_canaries_finds_something():
    found = audit(canaries=600, epsilon=8.0, delta=1e-5, rounds=2)
    assert 0.5 < found.one_run < found.claimed <= 8.0
    assert found.gaussian < found.claimed


@pytest.mark.slow
def test_at_epsilon_eight_at_least_two_is_found():
    found = audit(canaries=10_000, epsilon=8.0, delta=1e-5, rounds=2)
    assert 2.0 < found.one_run < found.claimed <= 8.0
    assert 2.0 < found.gaussian < found.claimed
