# SPDX-License-Identifier: Apache-2.0
from typing import Any

import numpy as np
import pytest

from agnosticfl.core.federated import from_arrays, only_domain
from agnosticfl.errors import BadInput

X = np.array([10, 20, 30, 40, 50])
CLIENTS = ["b", "a", "b", "a", "c"]
DOMAINS = ["q", "a", "a", "q", "q"]


def test_rows_are_grouped_by_client_and_keep_their_order():
    data = from_arrays({"x": X}, CLIENTS, DOMAINS)
    assert list(data.client_ids) == ["a", "b", "c"]
    assert data.domains == ("a", "q")
    np.testing.assert_array_equal(data.examples["x"], [20, 40, 10, 30, 50])
    np.testing.assert_array_equal(data.domain, [0, 1, 1, 0, 1])
    np.testing.assert_array_equal(data.offsets, [0, 2, 4, 5])
    assert (data.num_clients, data.num_domains, data.num_examples) == (3, 2, 5)


def test_numbered_domains_can_be_named_and_need_not_all_occur():
    data = from_arrays({"x": X}, CLIENTS, [0, 1, 1, 0, 0], domain_names=["q", "a", "comment"])
    assert data.num_domains == 3
    np.testing.assert_array_equal(data.domain, [1, 0, 0, 1, 0])


def test_one_domain_of_a_data_set():
    part = only_domain(from_arrays({"x": X}, CLIENTS, DOMAINS), "a")
    assert list(part.client_ids) == ["a", "b"]
    np.testing.assert_array_equal(part.examples["x"], [20, 30])
    np.testing.assert_array_equal(part.offsets, [0, 1, 2])
    assert part.domains == ("a", "q")


@pytest.mark.parametrize(
    ("examples", "clients", "domains", "names", "message"),
    [
        (
            {"x": X},
            CLIENTS,
            [0, 1, 2, 1, 0],
            ["q", "a"],
            "example 2 has unknown domain .*2.*0 to",
        ),
        ({"x": X}, CLIENTS, [0, -1, 0, 1, 0], None, "example 1 has unknown domain .*-1"),
        ({"x": X}, CLIENTS, [*DOMAINS[:4], "z"], ["a", "q"], "example 4 has unknown domain .*'z'"),
        ({"x": X[:4]}, CLIENTS, DOMAINS, None, r"'x' has shape \(4,\), but there are 5 client"),
        ({"x": X}, CLIENTS, DOMAINS[:2], None, r"'domains' has shape \(2,\)"),
        ({"x": X[:0]}, [], [], None, "the data has no examples"),
        ({}, CLIENTS, DOMAINS, None, "no feature was given"),
    ],
)
def test_bad_arrays_are_refused(
    examples: Any, clients: Any, domains: Any, names: Any, message: str
):
    with pytest.raises(BadInput, match=message):
        from_arrays(examples, clients, domains, names)


def test_an_unknown_or_empty_domain_is_refused():
    data = from_arrays({"x": X}, CLIENTS, [0, 1, 1, 0, 0], domain_names=["q", "a", "comment"])
    with pytest.raises(BadInput, match=r"unknown domain 'answer' \(allowed: q, a, comment\)"):
        only_domain(data, "answer")
    with pytest.raises(BadInput, match="domain 'comment' has no example"):
        only_domain(data, "comment")
