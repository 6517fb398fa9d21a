# SPDX-License-Identifier: Apache-2.0
"""How a rule for λ is put together with what happens before and after it."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
from jax import Array

from agnosticfl.core.tree import PyTree
from agnosticfl.core.weight_rule import DomainStats, RuleState, WeightRule
from agnosticfl.errors import check
from agnosticfl.registry import LOSS_TRANSFORMS, WEIGHT_RULES, WEIGHT_TRANSFORMS


class LossTransform(NamedTuple):
    """What happens to the losses before a rule sees them."""

    init: Callable[[Array], PyTree]  # λ_0 -> state
    update: Callable[[PyTree, DomainStats], tuple[DomainStats, PyTree]]
    fills_absent: bool = False  # whether an absent domain has another loss than 0 after it


class WeightTransform(NamedTuple):
    """What happens to λ after a rule gave it."""

    init: Callable[[Array], PyTree]  # λ_0 -> state
    update: Callable[[PyTree, Array], tuple[Array, PyTree]]  # state, λ -> λ, state
    carried: bool = True  # whether the rule goes on from the new λ, or from its own


Part: TypeAlias = LossTransform | WeightRule | WeightTransform


def chain(*parts: Part) -> WeightRule:
    """One rule from many parts, in the order in which they act.

    `chain(normalised(), exponentiated_gradient(0.1), minimum_weight(0.05))`: transforms of the
    losses, one rule, transforms of λ.
    """
    rank = {LossTransform: 0, WeightRule: 1, WeightTransform: 2}
    ranks = [rank[type(part)] for part in parts]
    check(
        ranks.count(1) == 1 and ranks == sorted(ranks),
        f"a chain of {', '.join(type(part).__name__ for part in parts) or 'nothing'};"
        " it must be transforms of losses, one rule, transforms of weights",
    )
    place = ranks.index(1)
    before: Any = parts[:place]
    rule: Any = parts[place]
    after: Any = parts[place + 1 :]

    def init(weights: Array) -> RuleState:
        return tuple(part.init(weights) for part in parts)

    def update(states: RuleState, stats: DomainStats) -> tuple[Array, RuleState]:
        new = list(states)
        for i, part in enumerate(before):
            stats, new[i] = part.update(states[i], stats)
            # A loss that overflowed is the largest number: an infinity would make 0 · ∞ or ∞ − ∞.
            stats = stats._replace(mean_loss=jnp.nan_to_num(stats.mean_loss))
        weights, new[place] = rule.update(states[place], stats)
        carried = True
        for i, part in enumerate(after, place + 1):
            weights, new[i] = part.update(states[i], weights)
            carried = carried and part.carried
            new[place] = rule.placed(new[place], weights) if carried else new[place]
        return weights, tuple(new)

    def placed(states: RuleState, weights: Array) -> RuleState:
        return (*states[:place], rule.placed(states[place], weights), *states[place + 1 :])

    sinks = rule.sinks_absent and not any(part.fills_absent for part in before)
    return rule._replace(init=init, update=update, placed=placed, sinks_absent=sinks)


class Rated(NamedTuple):
    """The state of a rule whose rate is data."""

    learning_rate: Array  # γ_λ
    own: RuleState  # of the rule


def from_table(table: Mapping[str, Any], rate_in_state: bool = False) -> WeightRule:
    """The rule that a task's `[weight_rule]` names, in a chain with its `before` and `after`.

    Both are lists of names, or of tables with a name and options.

    Args:
      rate_in_state: whether the rule's learning_rate is a part of its state (`Rated`): then it is
        data, and another one needs no other program.
    """
    check_table(table)
    rule, before, after = _parts(table)
    transforms = [
        [registry.build(part, f"weight_rule.{key}") for part in parts]
        for key, registry, parts in (
            ("before", LOSS_TRANSFORMS, before),
            ("after", WEIGHT_TRANSFORMS, after),
        )
    ]
    built = _rated(rule) if rate_in_state else WEIGHT_RULES.build(rule, "weight_rule")
    return chain(*transforms[0], built, *transforms[1]) if before or after else built


def _rated(table: Mapping[str, Any]) -> WeightRule:
    make = WEIGHT_RULES.get(table["name"])
    options = {key: value for key, value in table.items() if key != "name"}
    first: WeightRule = make(**options)

    def of(state: Rated) -> WeightRule:
        return make(**{**options, "learning_rate": state.learning_rate})

    def init(weights: Array) -> Rated:
        return Rated(jnp.float32(options["learning_rate"]), first.init(weights))

    def update(state: Rated, stats: DomainStats) -> tuple[Array, Rated]:
        weights, own = of(state).update(state.own, stats)
        return weights, state._replace(own=own)

    def placed(state: Rated, weights: Array) -> Rated:
        return state._replace(own=of(state).placed(state.own, weights))

    return first._replace(init=init, update=update, placed=placed)


def check_table(table: Mapping[str, Any]) -> None:
    """Says what of a `[weight_rule]` is not allowed."""
    rule, before, after = _parts(table)
    WEIGHT_RULES.check(rule, "weight_rule")
    for part in before:
        LOSS_TRANSFORMS.check(part, "weight_rule.before")
    for part in after:
        WEIGHT_TRANSFORMS.check(part, "weight_rule.after")


def _parts(table: Mapping[str, Any]) -> tuple[dict[str, Any], list[Any], list[Any]]:
    own = {key: value for key, value in table.items() if key not in ("before", "after")}
    before, after = (
        [_named(part, f"weight_rule.{key}") for part in _list(table, key)]
        for key in ("before", "after")
    )
    return own, before, after


def _list(table: Mapping[str, Any], key: str) -> list[Any]:
    value = table.get(key, [])
    check(isinstance(value, list), f"weight_rule.{key} is {value!r}; it must be a list")
    return value


def _named(part: Any, where: str) -> dict[str, Any]:
    named = {"name": part} if isinstance(part, str) else part
    check(isinstance(named, dict), f"{where} has {part!r}; it must be a name or a table")
    return named
