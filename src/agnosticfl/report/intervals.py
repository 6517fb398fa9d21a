# SPDX-License-Identifier: Apache-2.0
"""95 % intervals by bootstrap over test clients: what would it be, had others been asked?

Clients are drawn again, with replacement, the same for all runs of a comparison, which were tested
on the same ones. In each resample everything is computed anew and averaged over the seeds.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from agnosticfl.core.evaluate import Measured, metric_value
from agnosticfl.core.metrics import Reading, reading
from agnosticfl.errors import BadInput
from agnosticfl.report.comparison import Against, Bootstrap, Cell, Comparison, Interval, Row
from agnosticfl.report.runs import Run
from agnosticfl.runs.predictions import Predictions

RESAMPLES = 1000
FEWEST = 100  # resamples, however much there is to compute
FEW = 10  # clients of a domain; of fewer, the examples are resampled
PRODUCTS = 5e9  # multiplications of sums that are done in seconds
DRAWING = 100  # multiplications that drawing one client takes as long as
RANKED = 5e7  # examples of metrics that no sums tell that are done in seconds
CHUNK = 1 << 22  # weights in memory at a time
ENDS = (2.5, 97.5)  # per cent

Said: TypeAlias = Callable[[Run], Predictions | None]  # what a run's model said of test examples


class Pool(NamedTuple):
    """What is drawn from for one domain: its clients or, of few clients, its examples."""

    items: np.ndarray  # [m] numbers of the domain's items
    unit: np.ndarray  # [m] which of its units each belongs to
    clients: np.ndarray | None  # [units] their places among all clients; None if not clients
    few: bool  # clients

    @property
    def size(self) -> int:
        return int(self.unit.max(initial=-1)) + 1


class Draws(NamedTuple):
    """A metric in all resamples; NaN where nothing was drawn that it is defined on."""

    domains: np.ndarray  # [p, runs, resamples]
    overall: np.ndarray  # [runs, resamples]


class Statistics(NamedTuple):
    """A row's means over seeds in all resamples, [resamples]."""

    domains: np.ndarray  # [p, resamples]
    worst: np.ndarray
    difference: np.ndarray
    overall: np.ndarray


def with_intervals(comparison: Comparison, said: Said = Run.predictions) -> Comparison:
    """The same comparison, with an interval at every number for which the runs kept enough."""
    found = [said(run) for run in comparison.runs]
    kept = [each for each in found if each is not None]
    if len(kept) < len(found):
        return _without(
            comparison, f"{len(found) - len(kept)} of {len(found)} runs kept no predictions"
        )
    if not _same_clients(kept):
        return _without(comparison, "the runs were not tested on the same clients")
    return _resampled(comparison, [each.measured for each in kept])


def _without(comparison: Comparison, why: str) -> Comparison:
    missing = dict.fromkeys(comparison.metrics, why)
    return comparison._replace(bootstrap=Bootstrap({}, [], [], missing))


def _resampled(comparison: Comparison, measured: Sequence[Measured]) -> Comparison:
    number, pools = _pools(measured[0], len(comparison.domains))
    few = [d for d, pool in zip(comparison.domains, pools, strict=True) if pool.few]
    over = (few, []) if measured[0].by_example else ([], few)
    how = Bootstrap({}, *over, missing={}, clients=number)
    rows = comparison.rows
    for metric in comparison.metrics:
        read = metric_reading(comparison, metric)
        why = _unfit(metric, read, comparison.runs, measured)
        if why is not None:
            how.missing[metric] = why
            continue
        draws = _draws(metric, read, measured, number, pools)
        how.resamples[metric] = draws.overall.shape[-1]
        single = [d for d, pool in zip(comparison.domains, pools, strict=True) if pool.size < 2]
        rows = _filled(comparison._replace(rows=rows), metric, draws, single)
    return comparison._replace(rows=rows, bootstrap=how)


def _same_clients(kept: Sequence[Predictions]) -> bool:
    """Whether all runs were tested on the same examples of the same clients."""
    first = kept[0]
    return all(
        np.array_equal(first.client_ids, other.client_ids)
        and np.array_equal(first.measured.client, other.measured.client)
        and np.array_equal(first.measured.domain, other.measured.domain)
        for other in kept[1:]
    )


def metric_reading(comparison: Comparison, metric: str) -> Reading:
    """A metric of somebody's own that this machine lacks is taken to be a plain mean."""
    try:
        return reading(metric)
    except BadInput:
        return Reading(comparison.higher_is_better[metric])


def _unfit(
    metric: str, how: Reading, runs: Sequence[Run], measured: Sequence[Measured]
) -> str | None:
    """Why there can be no interval; None if there can."""
    if any(metric not in each.sums and each.outputs is None for each in measured):
        return "what the models said was not kept"
    for run, each in zip(runs, measured, strict=True):
        wanted = run.summary["overall"]["test"][metric]  # null: diverged, or undefined
        try:
            value = metric_value(metric, how, each, np.ones(len(each.client)))
        except BadInput:
            return f"{metric} is not known on this machine"
        if wanted is not None and not math.isclose(
            value or 0.0, wanted, rel_tol=1e-3, abs_tol=1e-6
        ):
            return f"what was kept gives another {metric}"
    return None


def _pools(measured: Measured, domains: int) -> tuple[int, list[Pool]]:
    """The number of clients with test examples, and a pool for each domain."""
    everybody, client = np.unique(measured.client, return_inverse=True)
    return len(everybody), [
        _pool(np.flatnonzero(measured.domain == d), client, measured.by_example)
        for d in range(domains)
    ]


def _pool(items: np.ndarray, client: np.ndarray, by_example: bool) -> Pool:
    clients, unit = np.unique(client[items], return_inverse=True)
    few = 0 < len(clients) < FEW
    if few and by_example:
        return Pool(items, np.arange(len(items)), None, few)
    return Pool(items, unit, clients, few)


def _draws(
    metric: str, how: Reading, measured: Sequence[Measured], clients: int, pools: Sequence[Pool]
) -> Draws:
    """A metric in all resamples."""
    compute = _from_sums if metric in measured[0].sums else _from_outputs
    sizes, runs = sum(pool.size for pool in pools), len(measured)
    work = {
        _from_sums: PRODUCTS / (DRAWING * clients + 2 * runs * sizes),
        _from_outputs: RANKED / (2 * runs * len(measured[0].client)),
    }
    number = int(min(max(work[compute], FEWEST), RESAMPLES))
    draw = compute(metric, how, measured, pools)
    parts = [draw(weights) for weights in _resamples(clients, pools, number)]
    return Draws(*(np.concatenate(part, axis=-1) for part in zip(*parts, strict=True)))


def _resamples(clients: int, pools: Sequence[Pool], number: int) -> Iterator[list[np.ndarray]]:
    """How often each unit of each pool was drawn, [resamples, units], a few resamples at a time."""
    rng = np.random.default_rng(0)  # the same report every time
    most = max([clients, *(pool.size for pool in pools)])
    at_once = max(1, CHUNK // most)
    for start in range(0, number, at_once):
        some = min(at_once, number - start)
        everybody = _drawn(rng, clients, some)
        yield [
            _drawn(rng, pool.size, some) if pool.clients is None else everybody[:, pool.clients]
            for pool in pools
        ]


def _drawn(rng: np.random.Generator, size: int, number: int) -> np.ndarray:
    """How often each of `size` things is among as many that are drawn with replacement."""
    drawn = rng.integers(size, size=(number, size)) + size * np.arange(number)[:, None]
    return np.bincount(drawn.ravel(), minlength=size * number).reshape(number, size).astype(float)


def _from_sums(
    metric: str, how: Reading, measured: Sequence[Measured], pools: Sequence[Pool]
) -> Callable[[list[np.ndarray]], Draws]:
    """A metric that is a quotient of sums: one matrix product for each domain."""
    tables = [  # [units, runs · 2]
        np.stack(
            [
                np.bincount(pool.unit, values[pool.items], pool.size)
                for each in measured
                for values in each.sums[metric]
            ],
            axis=1,
        )
        for pool in pools
    ]

    def draw(weights: list[np.ndarray]) -> Draws:
        with np.errstate(invalid="ignore"):  # a sum may be infinite, and is not drawn: 0 · ∞
            sums = np.stack([w @ table for w, table in zip(weights, tables, strict=True)])
        totals = np.moveaxis(sums.reshape(*sums.shape[:2], len(measured), 2), 1, -1)
        return Draws(_quotient(how, totals), _quotient(how, totals.sum(axis=0)))

    return draw


def _quotient(how: Reading, sums: np.ndarray) -> np.ndarray:
    """[…, 2, resamples] -> […, resamples]."""
    total, weight = np.moveaxis(sums, -2, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(weight > 0, total / weight, np.nan)
    if how.finish is float:
        return mean
    return np.vectorize(lambda x: x if np.isnan(x) else how.finish(x), otypes=[float])(mean)


def _from_outputs(
    metric: str, how: Reading, measured: Sequence[Measured], pools: Sequence[Pool]
) -> Callable[[list[np.ndarray]], Draws]:
    """A metric of all outputs at once: resample by resample."""
    parts = [[items_of(each, pool.items) for each in measured] for pool in pools]

    def one(weights: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """One resample: [p, runs] and [runs]."""
        by_item = [w[pool.unit] for w, pool in zip(weights, pools, strict=True)]
        domains = [
            [_value(metric, how, part, weight) for part in own]
            for own, weight in zip(parts, by_item, strict=True)
        ]
        whole = np.zeros(len(measured[0].client))
        for pool, weight in zip(pools, by_item, strict=True):
            whole[pool.items] = weight
        overall = [_value(metric, how, each, whole) for each in measured]
        return np.array(domains), np.array(overall)

    def draw(weights: list[np.ndarray]) -> Draws:
        resamples = [one(each) for each in zip(*weights, strict=True)]
        return Draws(*(np.stack(part, axis=-1) for part in zip(*resamples, strict=True)))

    return draw


def items_of(measured: Measured, items: np.ndarray) -> Measured:
    """Some of the items."""
    return measured._replace(
        client=measured.client[items],
        domain=measured.domain[items],
        sums={name: both[:, items] for name, both in measured.sums.items()},
        outputs=None if measured.outputs is None else measured.outputs[items],
        wanted=None if measured.wanted is None else measured.wanted[items],
    )


def _value(metric: str, how: Reading, measured: Measured, weight: np.ndarray) -> float:
    value = metric_value(metric, how, measured, weight) if weight.any() else None
    return math.nan if value is None else value


def _filled(comparison: Comparison, metric: str, draws: Draws, single: Sequence[str]) -> list[Row]:
    """The rows with the intervals of one metric; a domain of a `single` example has none."""
    ends = np.cumsum([len(row.runs) for row in comparison.rows])[:-1]
    parts = zip(np.split(draws.domains, ends, axis=1), np.split(draws.overall, ends), strict=True)
    higher = comparison.higher_is_better[metric]
    drawn = [_statistics(*part, higher) for part in parts]
    place = comparison.rows.index(comparison.reference)
    rows = [
        _with_cells(row, metric, comparison.domains, own, single)
        for row, own in zip(comparison.rows, drawn, strict=True)
    ]
    finite = [metric in row.worst and math.isfinite(row.worst[metric].mean) for row in rows]
    return [
        row._replace(against=row.against | {metric: _against(drawn[i], drawn[place])})
        if i != place and finite[i] and finite[place]
        else row
        for i, row in enumerate(rows)
    ]


def _statistics(domains: np.ndarray, overall: np.ndarray, higher: bool) -> Statistics:
    lowest, highest = np.fmin.reduce(domains, axis=0), np.fmax.reduce(domains, axis=0)
    with np.errstate(invalid="ignore"):  # of a run that diverged
        return Statistics(
            domains.mean(axis=1),
            (lowest if higher else highest).mean(axis=0),
            (highest - lowest).mean(axis=0),
            overall.mean(axis=0),
        )


def _with_cells(
    row: Row, metric: str, domains: Sequence[str], own: Statistics, single: Sequence[str]
) -> Row:
    cells = row.cells[metric]
    drawn = dict(zip(domains, own.domains, strict=True))
    filled = {
        domain: cell if domain in single else _with(cell, drawn[domain])
        for domain, cell in cells.items()
    }
    return row._replace(
        cells=row.cells | {metric: filled},
        worst=_replaced(row.worst, metric, own.worst),
        difference=_replaced(row.difference, metric, own.difference),
        overall=_replaced(row.overall, metric, own.overall),
    )


def _replaced(cells: dict[str, Cell], metric: str, drawn: np.ndarray) -> dict[str, Cell]:
    return cells | {m: _with(cell, drawn) for m, cell in cells.items() if m == metric}


def _with(cell: Cell, drawn: np.ndarray) -> Cell:
    return cell._replace(interval=_interval(drawn)) if math.isfinite(cell.mean) else cell


def _against(own: Statistics, reference: Statistics) -> Against:
    return Against(
        _interval(own.worst - reference.worst), _interval(own.difference - reference.difference)
    )


def _interval(drawn: np.ndarray) -> Interval | None:
    """Of the resamples that have a value; None if none has, or a run diverged."""
    known = drawn[~np.isnan(drawn)]
    if not len(known) or not np.isfinite(known).all():
        return None
    low, high = np.percentile(known, ENDS)
    return float(low), float(high)
