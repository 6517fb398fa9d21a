# SPDX-License-Identifier: Apache-2.0
"""What clients' own examples say of a model, as a sum: the contribution of an evaluation.

As in training, all that is needed of a client is its part in a sum: of losses, of the totals and
weights of metrics that are means, and of tables of counts from which the others follow.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from agnosticfl.core.evaluate import (
    Evaluation,
    Measured,
    Values,
    mean_value,
    metric_readings,
    of_one_example,
    worst_value,
)
from agnosticfl.core.federated import FederatedData
from agnosticfl.core.lazy_jax import jax
from agnosticfl.core.metrics import Reading
from agnosticfl.core.metrics.tables import Summed, Table
from agnosticfl.core.model import Model
from agnosticfl.errors import check
from agnosticfl.registry import METRICS

EXACT = 1e-9  # of a number: what adding many in float64 can be off by


class Tally(NamedTuple):
    """A client's, or the sum of many: it can be added, bounded or masked. All in float64."""

    means: dict[str, np.ndarray]  # metric -> [2, p], Σ total and Σ weight; "loss" counts examples
    tables: dict[str, np.ndarray]  # name of a table -> [p, …]
    left_out: np.ndarray  # clients whose numbers were not finite; they add nothing else


class Form(NamedTuple):
    """What a tally of some model looks like."""

    readings: Mapping[str, Reading]  # metric -> how it is read; loss first
    tables: Mapping[str, Table]  # by name
    summed: Mapping[str, Summed]  # metric that is no mean -> how it follows
    domains: tuple[str, ...]
    classes: int  # K, where there are tables
    longest: int  # the most that an example weighs in a mean: 1, or the tokens of a sentence

    @property
    def zeros(self) -> Tally:
        """The tally of nobody."""
        p = len(self.domains)
        means = {name: np.zeros((2, p)) for name in self.readings if name not in self.summed}
        tables = {n: np.zeros((p, *table.shape(self.classes))) for n, table in self.tables.items()}
        return Tally(means, tables, np.zeros(()))


def form_of(model: Model, data: FederatedData) -> Form:
    """For examples like these, of which there may be none; refuses metrics that no sums tell."""
    summed: dict[str, Summed] = {}
    for name in model.exact:
        how = METRICS.get(name).summed
        check(
            how is not None,
            f"metric {name!r} needs all outputs at once, and no sums over clients tell it; where"
            " clients evaluate (evaluation_by), leave it out of the model's metrics",
        )
        summed[name] = how
    said = _outputs(model, data)
    return Form(
        metric_readings(model, data),
        {how.table.name: how.table for how in summed.values()},
        summed,
        data.domains,
        classes=said[1] if summed else 0,
        longest=said[1] if model.outputs == "tokens" else 1,
    )


def _outputs(model: Model, data: FederatedData) -> tuple[int, ...]:
    if model.forward is None:
        return ()
    return of_one_example(model, model.forward, data).shape


def tally(form: Form, measured: Measured) -> Tally:
    """Of all items together, whoever's they are."""
    total = form.zeros
    for domain, items in _grouped(measured.domain):
        for name, both in total.means.items():
            both[:, domain] = measured.sums[name][:, items].sum(axis=1)
        for name, table in form.tables.items():
            assert measured.outputs is not None
            assert measured.wanted is not None
            outputs = np.asarray(measured.outputs[items], np.float64)
            with np.errstate(all="ignore"):
                once = np.ones(len(items))
                finite = bool(np.isfinite(outputs).all())
                counted = table.add_up(outputs, measured.wanted[items], once) if finite else np.nan
            total.tables[name][domain] = counted
    return total if _finite(total) else form.zeros._replace(left_out=np.ones(()))


def tallies(form: Form, measured: Measured) -> Iterator[tuple[int, Tally]]:
    """Client by client, of those who have any examples: its number, and what it adds."""
    for client, items in _grouped(measured.client):
        own = measured._replace(
            client=measured.client[items],
            domain=measured.domain[items],
            sums={name: both[:, items] for name, both in measured.sums.items()},
            outputs=None if measured.outputs is None else measured.outputs[items],
            wanted=None if measured.wanted is None else measured.wanted[items],
        )
        yield client, tally(form, own)


def added(form: Form, several: Iterator[Tally] | Sequence[Tally]) -> Tally:
    """The sum of tallies, or of nobody's."""
    add: Any = functools.partial(jax.tree.map, np.add)
    return functools.reduce(add, several, form.zeros)


def told(form: Form, total: Tally) -> Evaluation:
    """What a sum of tallies says of a model.

    If clients were left out, a domain of which nothing is left is as bad as can be: a model that
    has diverged is not finite anywhere.
    """
    each = [_values(form, [i], total) for i in range(len(form.domains))]
    overall, off = _values(form, slice(None), total)
    within = {
        name: errors for name, (_, errors) in zip(form.domains, each, strict=True) if errors
    } | ({"": off} if off else {})
    return Evaluation(
        domains={name: values for name, (values, _) in zip(form.domains, each, strict=True)},
        overall=overall,
        clients=None,
        measured=None,
        examples=[round(n) for n in total.means["loss"][1].tolist()],
        within=within,
    )


def wrong(form: Form, total: Tally, rounded: float = 0.0) -> str | None:
    """Why a tally contradicts itself; None if it does not.

    Args:
      rounded: by how much weights and gaps may be off that are not counts, beside what float64
        does.
    """
    count = total.means["loss"][1]
    if not _finite(total):
        return "a number of it is not finite"
    if (count < 0).any() or (count != np.round(count)).any():
        return f"its examples are {count.tolist()}; they must be whole numbers from 0 on"
    for name, (sums, weight) in total.means.items():
        if (weight < -rounded).any():
            return f"the weight of {name} is {weight.tolist()}; it must be from 0 on"
        if ((count == 0) & (sums != 0)).any():
            return f"{name} adds up to {sums.tolist()}, for {count.tolist()} examples"
    for name, table in form.tables.items():
        own = total.tables[name]
        broken = table.whole and ((own < 0).any() or (own != np.round(own)).any())
        room = 0 if table.whole else rounded * own[0].size + EXACT * count
        if broken or any(map(table.wrong, own, count + room)):
            return f"its table of {name} is none of {count.tolist()} examples"
    return None


def _values(form: Form, groups: Any, total: Tally) -> tuple[Values, dict[str, float]]:
    """Metrics of some domains together, and how far off those may be that have an error."""
    diverged = float(total.left_out) > 0
    count = float(total.means["loss"][1][groups].sum())
    values, within = Values(), dict[str, float]()
    for name, how in form.readings.items():
        if count == 0:
            values[name] = worst_value(how) if diverged else None
        elif name in form.summed:
            summed = form.summed[name]
            said = summed.tell(total.tables[summed.table.name][groups].sum(axis=0), count)
            values[name] = said.value
            within |= {name: said.within} if said.within else {}
        else:
            values[name] = mean_value(how, *total.means[name][:, groups].sum(axis=1))
    return values, within


def _grouped(group: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Each number that occurs, and where."""
    order = np.argsort(group, kind="stable")
    numbers, starts = np.unique(group[order], return_index=True)
    yield from zip(numbers.tolist(), np.split(order, starts[1:]), strict=True)


def _finite(total: Tally) -> bool:
    numbers = (*total.means.values(), *total.tables.values(), total.left_out)
    return all(bool(np.isfinite(each).all()) for each in numbers)
