# SPDX-License-Identifier: Apache-2.0
"""A rate that is data does what the same rate in the program does."""

from typing import Any

import jax
import msgspec
import numpy as np
import pytest

from agnosticfl.runs.build import Built, assemble, build_engine
from agnosticfl.runs.config import Config
from agnosticfl.runs.rates import FIELDS, rates_among, with_rates
from agnosticfl.runs.resolve import resolve
from agnosticfl.runs.trials import loading
from tests.helpers.rounds import rounds

KEYS = [f"{table}.learning_rate" for table in FIELDS]
TINY = [
    "data.clients=30", "data.examples=8", "clients_per_round=6", "batch_size=4",
    "weight_rule.after=[{name='minimum_weight', lowest=0.1}]",
    "server_optimizer={name='sgd', learning_rate=1.0, momentum=0.5}",
    "algorithms={}",
]  # fmt: skip
LOAD = loading()


def tiny(algorithm: str, engine: str = "padded", **rates: float) -> Config:
    sets = [f"{table}.learning_rate={rate}" for table, rate in rates.items()]
    return resolve("synthetic-points", algorithm, sets=[*TINY, f"engine='{engine}'", *sets])


def built(config: Config, *rates: str) -> Built:
    return assemble(config, *LOAD(config), build_engine(config, None, None), rates)


@pytest.mark.parametrize("engine", ["reference", "padded", "steps", "lanes"])
def test_every_engine_takes_the_rate_that_is_sent(engine: str):
    wanted = tiny("afa", engine, client_optimizer=0.7)
    program = built(tiny("afa", engine, client_optimizer=0.1), "client_optimizer").algorithm
    start = with_rates(program.init(), wanted, ["client_optimizer"])
    expected, _ = rounds(built(wanted).algorithm, 2)
    found, _ = rounds(program._replace(init=lambda: start), 2)
    # The compiler folds a constant rate into other constants, so the last bits may differ.
    assert_close(found.params, expected.params)


@pytest.mark.parametrize("algorithm", ["afa", "drfa", "fedprox", "group-dro"])
def test_all_rates_at_once_do_what_they_do_in_the_program(algorithm: str):
    wanted = tiny(algorithm)
    other = msgspec.structs.replace(
        wanted,
        **{
            table: {**getattr(wanted, table), "learning_rate": 3.0}
            for table in FIELDS
            if "learning_rate" in getattr(wanted, table)
        },
    )
    rates = rates_among(wanted, KEYS)
    assert len(rates) == (2 if algorithm == "fedprox" else 3)  # λ ∝ counts has no rate
    program = built(other, *rates).algorithm
    start = with_rates(program.init(), wanted, rates)
    found, _ = rounds(program._replace(init=lambda: start), 3)
    expected, _ = rounds(built(wanted).algorithm, 3)
    assert_close(found.params, expected.params)
    assert_close(found.domain_weights, expected.domain_weights)


def assert_close(one: Any, other: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), one, other)


def test_a_rate_that_a_formula_of_the_method_has_too_is_no_data():
    assert rates_among(tiny("q-fedavg"), KEYS) == ["server_optimizer"]  # 1/γ_w is its Lipschitz
    assert rates_among(tiny("afa"), ["window_size", KEYS[2]]) == ["weight_rule"]


def test_a_part_that_looks_at_its_rate_gets_a_program_of_its_own():
    config = tiny("afa")
    looks = {"name": "tests.outside.own_parts:careful_sgd", "learning_rate": 0.1}
    config = msgspec.structs.replace(config, client_optimizer=looks)
    assert rates_among(config, KEYS) == ["server_optimizer", "weight_rule"]


def test_without_a_search_the_state_has_no_rate_in_it():
    plain = built(tiny("afa")).algorithm.init()
    assert plain.client_rate is None
    rated = built(tiny("afa"), *FIELDS).algorithm.init()
    more = len(jax.tree.leaves(rated)) - len(jax.tree.leaves(plain))
    assert more == 3  # the server's rate and its count of steps, γ_λ; γ_w only where it is set
