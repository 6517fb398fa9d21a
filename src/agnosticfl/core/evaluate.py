# SPDX-License-Identifier: Apache-2.0
"""How good a model is for each domain, for the worst one, over all, and from client to client."""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from agnosticfl.core import sampling
from agnosticfl.core.federated import FederatedData
from agnosticfl.core.metrics import Mean, Reading, reading
from agnosticfl.core.model import Examples, Model, Params
from agnosticfl.core.work import take
from agnosticfl.errors import check, choose

Values: TypeAlias = dict[str, float | None]  # metric -> value; None without examples
Results: TypeAlias = dict[str, Values]  # domain -> metric -> value
# metric -> [2, groups], Σ total and Σ weight, in double precision: millions of losses keep digits
_Sums: TypeAlias = dict[str, np.ndarray]


class Worst(NamedTuple):
    """The domain that is served worst, and how far the others are from it."""

    domain: str
    loss: float
    gap: float  # between the worst and the best domain, in the metric that was asked for
    value: float  # of that metric


class Spread(NamedTuple):
    """How a metric differs between clients, each of which counts the same."""

    variance: float
    worst_tenth: float  # mean over the tenth of the clients that is served worst


class Evaluation(NamedTuple):
    """Everything there is to say of one vector of parameters."""

    domains: Results
    overall: Values  # over all examples
    clients: dict[str, Spread] | None  # metric -> spread over clients, if asked for


def evaluator(
    model: Model,
    data: FederatedData,
    batch_size: int = 512,
    clients: np.ndarray | None = None,
) -> Callable[[Params], Results]:
    """A function that measures parameters on `data`, domain by domain; see `full_evaluator`."""
    run = full_evaluator(model, data, batch_size, clients)
    return lambda params: run(params).domains


def full_evaluator(
    model: Model,
    data: FederatedData,
    batch_size: int = 512,
    clients: np.ndarray | None = None,
    spread: bool = False,
) -> Callable[[Params], Evaluation]:
    """A function that measures parameters by domain, over all and, with `spread`, by client.

    Each metric is summed over the examples and divided once, so the size of the batches does not
    matter. A domain without examples has the value None.

    Args:
      clients: numbers of the clients whose examples are used (`some_clients`); default all.
    """
    check(batch_size >= 1, f"evaluation batch size is {batch_size}; it must be at least 1")
    rows = range(data.num_examples) if clients is None else rows_of(data, clients)
    check(len(rows) > 0, "there is no example to evaluate on")
    readings = metric_readings(model, data)

    def run(params: Params) -> Evaluation:
        by_domain: _Sums = {}
        by_client: _Sums = {}
        batches = _batches(rows, batch_size)
        measured = (
            (part, _per_example(model, params, _examples(data, part, batch_size)))
            for part in batches
        )
        for part, values in _one_ahead(measured):
            _add(by_domain, values, data.domain[part], data.num_domains)
            if spread:
                _add(by_client, values, _owner(data, part), data.num_clients)
        return Evaluation(
            {domain: _values(readings, by_domain, [i]) for i, domain in enumerate(data.domains)},
            _values(readings, by_domain, slice(None)),
            _spreads(readings, by_client) if spread else None,
        )

    return run


def metric_readings(model: Model, data: FederatedData) -> dict[str, Reading]:
    """All that is measured of `model` on examples like these, and how it is read; loss first."""
    one = {name: array[:1] for name, array in data.examples.items()}
    params = jax.eval_shape(model.init, jax.random.key(0))
    names = jax.eval_shape(model.per_example_metrics, params, one)
    return {name: reading(name, model.readings) for name in ("loss", *names)}


def some_clients(data: FederatedData, number: int, seed: int) -> np.ndarray:
    """`number` clients at random, the same for the same seed (all, if there are fewer).

    Enough to watch a training with; the final results should be of everybody.
    """
    check(number >= 1, f"clients to evaluate on is {number}; it must be at least 1")
    number = min(number, data.num_clients)
    return np.sort(sampling.uniform(data.num_clients, number, seed)(0))


def worst_domain(
    results: Results, metric: str = "loss", higher_is_better: bool | None = None
) -> Worst:
    """The domain that is served worst by a metric.

    Args:
      higher_is_better: which way is better; needed for a metric that the program does not know.
    """
    for values in results.values():
        choose(metric, values, "metric")
    higher = reading(metric).higher_is_better if higher_is_better is None else higher_is_better
    known = {domain: v for domain, values in results.items() if (v := values[metric]) is not None}
    check(bool(known), f"no domain has a value of {metric!r}")
    order = sorted(known, key=lambda d: known[d], reverse=not higher)
    domain, best, loss = order[0], order[-1], results[order[0]]["loss"]
    assert loss is not None  # a domain with a metric has examples
    return Worst(domain, loss, abs(known[domain] - known[best]), known[domain])


@functools.partial(jax.jit, static_argnums=0)  # once for a model, whoever evaluates it
def _per_example(model: Model, params: Params, examples: Examples) -> Mapping[str, Mean]:
    loss = model.per_example_loss(params, examples, None)
    metrics = model.per_example_metrics(params, examples)
    return {"loss": Mean(loss, jnp.ones_like(loss)), **metrics}


def rows_of(data: FederatedData, clients: np.ndarray) -> np.ndarray:
    """The numbers of these clients' examples."""
    ranges = [np.arange(int(data.offsets[k]), int(data.offsets[k + 1])) for k in clients]
    return np.concatenate([np.zeros(0, np.int64), *ranges])


def _owner(data: FederatedData, rows: np.ndarray) -> np.ndarray:
    return np.searchsorted(data.offsets, rows, side="right") - 1


def _batches(rows: range | np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    for start in range(0, len(rows), batch_size):
        yield np.asarray(rows[start : start + batch_size])


def _examples(data: FederatedData, rows: np.ndarray, batch_size: int) -> Examples:
    """The last batch is padded with its last example, so that all have one shape."""
    rows = np.pad(rows, (0, batch_size - len(rows)), mode="edge")
    return take(data, rows, np.ones(batch_size, np.float32)).examples


def _one_ahead(results: Iterable[Any]) -> Iterator[Any]:
    """Gives a result when the next one is under way, so that device and host work together."""
    for earlier, _ in itertools.pairwise(itertools.chain(results, [None])):
        yield jax.device_get(earlier)


def _add(sums: _Sums, values: Mapping[str, Mean], group: np.ndarray, number: int) -> None:
    """Adds the examples' values to the sums of their groups; a batch's padding has no group."""
    for name, mean in values.items():
        into = sums.setdefault(name, np.zeros((2, number)))
        for total, value in zip(into, mean, strict=True):
            np.add.at(total, group, np.asarray(value)[: len(group)])


def _values(readings: Mapping[str, Reading], sums: _Sums, groups: Any) -> Values:
    """The metrics of some groups together."""
    return {
        name: _value(readings[name], *both[:, groups].sum(axis=1)) for name, both in sums.items()
    }


def _value(how: Reading, total: float, weight: float) -> float | None:
    if not weight > 0:
        return None
    mean = float(total / weight)
    if math.isnan(mean):  # worse than any number
        return -math.inf if how.higher_is_better else math.inf
    return how.finish(mean)


def _spreads(readings: Mapping[str, Reading], by_client: _Sums) -> dict[str, Spread]:
    """Clients without examples are left out, and so is a metric that no client has."""
    values = {
        name: [v for pair in both.T if (v := _value(readings[name], *pair)) is not None]
        for name, both in by_client.items()
    }
    return {name: _spread(v, readings[name].higher_is_better) for name, v in values.items() if v}


def _spread(values: list[float], higher_is_better: bool) -> Spread:
    worst = sorted(values, reverse=not higher_is_better)[: math.ceil(len(values) / 10)]
    return Spread(float(np.var(values)), float(np.mean(worst)))
