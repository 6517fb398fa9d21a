# SPDX-License-Identifier: Apache-2.0
"""Learning rates as data: a part of the server's state, so that another one needs no other program.

`optax.inject_hyperparams` keeps an optimizer's rate in its state, `weights.chaining.Rated` a weight
rule's. A client's optimizer begins anew in every round, so its rate goes down with w and α.
"""

from collections.abc import Collection, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import optax
from jax import Array

from agnosticfl import weights
from agnosticfl.core.state import ServerState
from agnosticfl.core.weight_rule import DomainStats
from agnosticfl.runs.config import Config
from agnosticfl.runs.optimizers import build_optimizer
from agnosticfl.runs.resolve import find_method

NAME = "learning_rate"
# Table of a task -> the field of the server's state that holds its rate.
FIELDS = {
    "client_optimizer": "client_rate",
    "server_optimizer": "opt_state",
    "weight_rule": "rule_state",
}


def rates_among(config: Config, keys: Iterable[str]) -> list[str]:
    """The tables whose rate is one of `keys` and can be data in a run of `config`."""
    asked = [table for table in FIELDS if f"{table}.{NAME}" in keys]
    return [table for table in asked if _can_be_data(config, table)]


def without_rates(config: Config, tables: Collection[str]) -> dict[str, Any]:
    """What a program depends on: the configuration, but for those rates."""
    raw = msgspec.to_builtins(config)
    for table in tables:
        del raw[table][NAME]
    return raw


def with_rates(state: ServerState, config: Config, tables: Collection[str]) -> ServerState:
    """The state with the rates that `config` has in these tables."""
    for table in tables:
        field, rate = FIELDS[table], jnp.float32(getattr(config, table)[NAME])
        before = getattr(state, field)
        state = state._replace(
            **{field: rate if table == "client_optimizer" else _set(before, rate)}
        )
    return state


def _set(state: Any, rate: Array) -> Any:
    return optax.tree_utils.tree_set(state, **{NAME: rate})


def _can_be_data(config: Config, table: str) -> bool:
    """Not where a formula of the method has the rate too, or a part looks at its value."""
    if table == "client_optimizer" and NAME in find_method(config.algorithm).options:
        return False
    take = _rule_step if table == "weight_rule" else _optimizer_step
    try:
        jax.eval_shape(lambda rate: take(config, table, rate), jnp.float32(1))
    except Exception:  # somebody's own part has its own way to ask what the number is
        return False
    return True


def _optimizer_step(config: Config, table: str, rate: Array) -> Any:
    steps, w = build_optimizer(getattr(config, table), table, rate_in_state=True), jnp.zeros(1)
    return steps.update(w, _set(steps.init(w), rate), w)


def _rule_step(config: Config, table: str, rate: Array) -> Any:
    rule, each = weights.from_table(getattr(config, table), rate_in_state=True), jnp.full(2, 0.5)
    return rule.update(_set(rule.init(each), rate), DomainStats(each, each, each))
