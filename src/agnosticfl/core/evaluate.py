# SPDX-License-Identifier: Apache-2.0
"""How good a model is for each domain, for the worst one, over all, and from client to client."""

import functools
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from agnosticfl.core import sampling
from agnosticfl.core.compiling import for_nvidia
from agnosticfl.core.federated import FederatedData, slices
from agnosticfl.core.lazy_jax import jax, numpy_of
from agnosticfl.core.metrics import Mean, Reading, reading
from agnosticfl.core.model import Examples, Model, Params
from agnosticfl.core.programs import Program, shapes_of
from agnosticfl.core.random import any_key
from agnosticfl.errors import check, choose
from agnosticfl.registry import METRICS

if TYPE_CHECKING:
    from agnosticfl.core.ledger import Bytes  # its module needs JAX

Values: TypeAlias = dict[str, float | None]  # metric -> value; None without examples
Results: TypeAlias = dict[str, Values]  # domain -> metric -> value
# metric -> [2, groups], Σ total and Σ weight, in double precision: millions of losses keep digits
_Sums: TypeAlias = dict[str, np.ndarray]

MOST_ITEMS = 1 << 18  # examples that are kept one by one; of more, the sums of each client


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


class Measured(NamedTuple):
    """What a model did, item by item.

    An item is an example or, where there are too many to keep, all examples that a client has of
    one domain.
    """

    client: np.ndarray  # [m] number of the client that an item belongs to
    domain: np.ndarray  # [m] number of its domain
    sums: Mapping[str, np.ndarray]  # metric made of sums -> [2, m], Σ total and Σ weight
    outputs: np.ndarray | None = None  # [m, …] what the model said, if items are examples
    wanted: np.ndarray | None = None  # [m, …] what it should have said
    by_example: bool = True  # whether items are single examples


class Evaluation(NamedTuple):
    """Everything there is to say of one vector of parameters."""

    domains: Results
    overall: Values  # over all examples
    clients: dict[str, Spread] | None  # metric -> spread over clients, if asked for
    measured: Measured | None  # None if all there is are sums over clients
    examples: Sequence[int]  # [p] how many there are
    # Domain, or "" for all of them -> metric -> how far from it the exact one is at most.
    within: Mapping[str, Mapping[str, float]] = MappingProxyType({})
    sent: "Bytes | None" = None  # what went over the network for it, if clients were asked


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

    A metric made of sums is summed over the examples and divided once, so the size of the batches
    does not matter; an exact one, such as AUROC, is computed from what the model said of all of
    them. The value is None where there is no example, or where the examples leave it undefined.

    Args:
      clients: numbers of the clients whose examples are used (`some_clients`); default all.
    """
    begin = beginner(model, data, batch_size, clients, spread)
    return lambda params: begin(params, 1)()


def beginner(
    model: Model,
    data: FederatedData,
    batch_size: int = 512,
    clients: np.ndarray | None = None,
    spread: bool = False,
) -> Callable[[Params, int], Callable[[], Evaluation]]:
    """A function that begins what `full_evaluator` does, and gives what waits for it.

    It lets the device measure a number of batches; the others come when these are waited for.
    """
    begin, readings = _measuring(model, data, batch_size, clients), metric_readings(model, data)

    def told(measured: Measured) -> Evaluation:
        by_domain = _by_group(measured, measured.domain, data.num_domains)
        exact = functools.partial(_exact, model, readings, measured)
        domains = {
            domain: _values(readings, by_domain, [i]) | exact(measured.domain == i)
            for i, domain in enumerate(data.domains)
        }
        everywhere = np.ones(len(measured.domain), bool)
        overall = _values(readings, by_domain, slice(None)) | exact(everywhere)
        spreads = _spreads(readings, measured, data.num_clients) if spread else None
        examples = by_domain["loss"][1].astype(int).tolist()
        return Evaluation(domains, overall, spreads, measured, examples)

    def begun(params: Params, batches: int) -> Callable[[], Evaluation]:
        wait = begin(params, batches)
        return lambda: told(wait())

    return begun


def measurer(
    model: Model, data: FederatedData, batch_size: int = 512, clients: np.ndarray | None = None
) -> Callable[[Params], Measured]:
    """A function that says what parameters do on `data`, item by item; see `full_evaluator`."""
    begin = _measuring(model, data, batch_size, clients)
    return lambda params: begin(params, 1)()


def _measuring(
    model: Model, data: FederatedData, batch_size: int, clients: np.ndarray | None
) -> Callable[[Params, int], Callable[[], Measured]]:
    """A function that begins to measure parameters, with so many batches, and gives the rest."""
    check(batch_size >= 1, f"evaluation batch size is {batch_size}; it must be at least 1")
    rows = range(data.num_examples) if clients is None else rows_of(data, clients)
    check(len(rows) > 0, "there is no example to evaluate on")
    by_example = _by_example(model, len(rows))
    keeping = _keeping(model, by_example)

    def begin(params: Params, batches: int) -> Callable[[], Measured]:
        results = (
            (part, _found(model, params, _examples(data, part, batch_size), keeping))
            for part in _batches(rows, batch_size)
        )
        if not model.eager:
            results = _fetched(deque(itertools.islice(results, batches)), results)
        return lambda: _measured(data, results, by_example)

    return begin


def compile_evaluation(
    model: Model, params: Params, data: FederatedData, batch_size: int = 512
) -> None:
    """Compiles what measures parameters like these on `data`: whoever does finds it there."""
    if model.eager or data.num_examples == 0:
        return
    keeping = _keeping(model, _by_example(model, data.num_examples))
    examples = {
        name: jax.ShapeDtypeStruct(
            (batch_size, *array.shape[1:]), jax.dtypes.canonicalize_dtype(array.dtype)
        )
        for name, array in data.examples.items()
    }
    _compiled(model, keeping).compile(params, examples)


def _by_example(model: Model, number: int) -> bool:
    """Whether so many examples are kept one by one."""
    return number <= MOST_ITEMS or bool(model.exact)


def _keeping(model: Model, by_example: bool) -> bool:
    """Whether what the model says of each is kept, too."""
    return by_example and model.outputs in ("labels", "values")


def metric_value(name: str, how: Reading, measured: Measured, weight: np.ndarray) -> float | None:
    """A metric over the items, each of them counted `weight` times.

    Args:
      name: of one that is made of sums, or of an exact one that the program knows.
    """
    used = weight > 0
    if name in measured.sums:
        return mean_value(how, *(measured.sums[name][:, used] * weight[used]).sum(axis=1))
    assert measured.outputs is not None
    assert measured.wanted is not None
    return _from_outputs(name, measured.outputs[used], measured.wanted[used], weight[used])


def metric_readings(model: Model, data: FederatedData) -> dict[str, Reading]:
    """All that is measured of `model` on examples like these, and how it is read; loss first."""
    names = of_one_example(model, model.per_example_metrics, data)
    return {name: reading(name, model.readings) for name in ("loss", *names, *model.exact)}


def of_one_example(
    model: Model, function: Callable[[Params, Examples], Any], data: FederatedData
) -> Any:
    """What a function of the model gives for one example, which need not be there: its shapes."""
    forms = {name: ((1, *a.shape[1:]), a.dtype) for name, a in data.examples.items()}
    if model.eager:
        zeros: Any = {name: np.zeros(*form) for name, form in forms.items()}
        return function(model.init(None), zeros)  # type: ignore[arg-type]
    params = shapes_of(model.init, any_key())
    example: Any = {
        name: jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(dtype))
        for name, (shape, dtype) in forms.items()
    }
    return shapes_of(function, params, example)


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


def _found(model: Model, params: Params, examples: Examples, keeping: bool) -> Any:
    if model.eager:
        return _per_example(model, keeping, params, examples)
    return _compiled(model, keeping)(params, examples)


@functools.lru_cache(16)  # once for a model, whoever evaluates it
def _compiled(model: Model, keeping: bool) -> Program:
    # To write products of its own and time them takes this compiler twenty times as long as all
    # else here. It pays for the hundreds of rounds of a run, and not for its few evaluations.
    options = for_nvidia(xla_gpu_enable_triton_gemm=False)
    return Program(functools.partial(_per_example, model, keeping), compiler_options=options)


def _per_example(
    model: Model, keeping: bool, params: Params, examples: Examples
) -> tuple[Mapping[str, Mean], tuple[Any, Any]]:
    """The metrics made of sums and, if they are to be kept, what the model said and should have."""
    loss = model.per_example_loss(params, examples, None)
    metrics = model.per_example_metrics(params, examples)
    said = None
    if keeping and model.forward is not None and model.wanted is not None:
        said = model.forward(params, examples), model.wanted(examples)
    return {"loss": Mean(loss, numpy_of(loss).ones_like(loss)), **metrics}, said or (None, None)


def rows_of(data: FederatedData, clients: np.ndarray) -> np.ndarray:
    """The numbers of these clients' examples."""
    ranges = [np.arange(int(data.offsets[k]), int(data.offsets[k + 1])) for k in clients]
    return np.concatenate([np.zeros(0, np.int64), *ranges])


def _owner(data: FederatedData, rows: np.ndarray) -> np.ndarray:
    return np.searchsorted(data.offsets, rows, side="right") - 1


def _batches(rows: range | np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    for part in slices(len(rows), batch_size):
        yield np.asarray(rows[part])


def _examples(data: FederatedData, rows: np.ndarray, batch_size: int) -> Examples:
    """The last batch is padded with its last example, so that all have one shape."""
    rows = np.pad(rows, (0, batch_size - len(rows)), mode="edge")
    examples: Any = {name: array[rows] for name, array in data.examples.items()}
    return examples


def _fetched(under_way: deque[Any], others: Iterator[Any]) -> Iterator[Any]:
    """Gives a result when one more is under way, so that device and host work together."""
    while under_way:
        earliest = under_way.popleft()
        under_way.extend(itertools.islice(others, 1))
        yield jax.device_get(earliest)


def _measured(data: FederatedData, results: Iterable[Any], by_example: bool) -> Measured:
    """What batches gave, put together."""
    parts = [_part(data, rows, by_example, *found) for rows, found in results]
    clients, domains, sums, said = zip(*parts, strict=True)
    return Measured(
        np.concatenate(clients),
        np.concatenate(domains),
        {name: np.concatenate([own[name] for own in sums], axis=-1) for name in sums[0]},
        *(None if own[0] is None else np.concatenate(own) for own in zip(*said, strict=True)),
        by_example=by_example,
    )


def _part(
    data: FederatedData,
    rows: np.ndarray,
    by_example: bool,
    values: Mapping[str, Mean],
    said: tuple[Any, Any],
) -> tuple[np.ndarray, np.ndarray, _Sums, tuple[Any, Any]]:
    """The items of one batch, whose padding is left out."""
    client, domain = _owner(data, rows), data.domain[rows]
    sums = {name: np.array(mean, np.float64)[:, : len(rows)] for name, mean in values.items()}
    outputs, wanted = (None if array is None else array[: len(rows)] for array in said)
    if by_example:
        return client, domain, sums, (outputs, wanted)
    pairs, item = np.unique(client * data.num_domains + domain, return_inverse=True)
    sums = {name: _grouped(both, item, len(pairs)) for name, both in sums.items()}
    return pairs // data.num_domains, pairs % data.num_domains, sums, (outputs, wanted)


def _grouped(both: np.ndarray, group: np.ndarray, number: int) -> np.ndarray:
    """Σ over the items of each group, [2, number]."""
    return np.stack([np.bincount(group, weights, number) for weights in both])


def _by_group(measured: Measured, group: np.ndarray, number: int) -> _Sums:
    return {name: _grouped(both, group, number) for name, both in measured.sums.items()}


def _values(readings: Mapping[str, Reading], sums: _Sums, groups: Any) -> Values:
    """The metrics of some groups together."""
    return {
        name: mean_value(readings[name], *both[:, groups].sum(axis=1))
        for name, both in sums.items()
    }


def _exact(
    model: Model, readings: Mapping[str, Reading], measured: Measured, where: np.ndarray
) -> Values:
    """The metrics of some items that no sums tell."""
    if not model.exact or not where.any():
        return dict.fromkeys(model.exact)
    assert measured.outputs is not None
    assert measured.wanted is not None
    outputs, wanted = measured.outputs[where], measured.wanted[where]
    if not np.isfinite(outputs).all():
        return {name: worst_value(readings[name]) for name in model.exact}
    once = np.ones(len(wanted))
    return {name: _from_outputs(name, outputs, wanted, once) for name in model.exact}


def _from_outputs(
    name: str, outputs: np.ndarray, wanted: np.ndarray, weight: np.ndarray
) -> float | None:
    return METRICS.get(name).exact(outputs.astype(np.float64), wanted, weight)


def mean_value(how: Reading, total: float, weight: float) -> float | None:
    """A metric made of sums; None without any weight."""
    if not weight > 0:
        return None
    mean = float(total / weight)
    return worst_value(how) if math.isnan(mean) else how.finish(mean)


def worst_value(how: Reading) -> float:
    """Worse than any number: what a model that has diverged is worth."""
    return -math.inf if how.higher_is_better else math.inf


def _spreads(
    readings: Mapping[str, Reading], measured: Measured, num_clients: int
) -> dict[str, Spread]:
    """Clients without examples are left out, and so is a metric that no client has."""
    by_client = _by_group(measured, measured.client, num_clients)
    values = {
        name: [v for pair in both.T if (v := mean_value(readings[name], *pair)) is not None]
        for name, both in by_client.items()
    }
    return {name: _spread(v, readings[name].higher_is_better) for name, v in values.items() if v}


def _spread(values: list[float], higher_is_better: bool) -> Spread:
    worst = sorted(values, reverse=not higher_is_better)[: math.ceil(len(values) / 10)]
    return Spread(float(np.var(values)), float(np.mean(worst)))
