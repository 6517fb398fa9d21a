# SPDX-License-Identifier: Apache-2.0
"""Which α a client takes, which examples it works on, and what tells two messages apart."""

from typing import Any

import numpy as np
import pytest

from agnosticfl.deploy import wire
from agnosticfl.deploy.node.consent import check_stated, weighty
from agnosticfl.errors import BadInput
from agnosticfl.secagg.messages import Refused

DOMAINS = ("a", "b", "c")


def alpha(*values: float, dtype: str = "<f4") -> np.ndarray:
    return np.array(values, dtype)


@pytest.mark.parametrize(
    ("values", "least", "heavy"),
    [
        ((1, 1, 1), 0.0, "abc"),
        ((1, 0.01, 0.0099), 0.0, "ab"),  # a hundredth of the largest is the least weight
        ((0, 1, 0), 0.0, "b"),
        ((0.2, 1, 0.1), 0.1, "abc"),
    ],
)
def test_domains_with_weight(values: tuple[float, ...], least: float, heavy: str):
    assert weighty(alpha(*values), DOMAINS, least) == tuple(heavy)


@pytest.mark.attack("an α beyond what was agreed on", "clients hold α to the bounds of the task")
@pytest.mark.parametrize(
    ("sent", "least", "why"),
    [
        (alpha(1, 1), 0.0, "α is not 3 finite numbers of 32 bits, one for each domain"),
        (alpha(1, 1, 1, dtype=">f4"), 0.0, "α is not 3 finite numbers"),
        (alpha(1, 1, 1, dtype="<f8"), 0.0, "α is not 3 finite numbers"),
        (alpha(1, np.nan, 1), 0.0, "α is not 3 finite numbers"),
        (alpha(1, np.inf, 1), 0.0, "α is not 3 finite numbers"),
        (alpha(0, 0, 0), 0.0, "the largest α is 0, not 1"),
        (alpha(1e6, 1, 1), 0.0, r"the largest α is 1e\+06, not 1"),
        (alpha(1, 0, 0), 0.1, "α of domain 'b' is 0; the task allows no less than 0.1"),
        (alpha(1, 0.5, 0.099), 0.1, "α of domain 'c' is 0.099; the task allows no less"),
        (alpha(1, -0.5, 1), 0.0, "α of domain 'b' is -0.5; the task allows no less than 0.0"),
    ],
)
def test_an_alpha_that_was_not_agreed_on_is_refused(sent: Any, least: float, why: str):
    with pytest.raises(Refused, match=why):
        weighty(sent, DOMAINS, least)


def test_examples_of_a_domain_that_the_roster_does_not_state():
    check_stated(["a"], ["a", "b"])
    with pytest.raises(BadInput, match="examples of domain 'c'; its entry in the roster states"):
        check_stated(["a", "c"], ["a", "b"])


def test_what_is_sent_differs_if_anything_of_it_does():
    first = {"alpha": alpha(1, 0.5), "params.w": np.zeros((2, 3), "<f4")}
    others = [
        (2, first),
        (1, {**first, "alpha": alpha(1, 0.5).astype(">f4")}),
        (1, {**first, "alpha": alpha(1, 0.5).view(">f4")}),
        (1, {**first, "alpha": alpha(1, 0.5).view("<i4")}),
        (1, {**first, "params.w": np.zeros((3, 2), "<f4")}),
        (1, {"alpha": first["alpha"], "params.v": first["params.w"]}),
        (1, {"alpha": first["alpha"]}),
    ]
    digests = {wire.digest(t, arrays) for t, arrays in [(1, first), *others]}
    assert len(digests) == len(others) + 1
