# SPDX-License-Identifier: Apache-2.0
"""PhysioNet's challenge of 2012: who dies in hospital, by the kind of intensive care unit."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
from msgspec import Meta

from agnosticfl.data.formats.cells import Place
from agnosticfl.data.formats.icu_stays import SERIES, Stay, read_stays
from agnosticfl.data.in_memory import generator, in_pieces
from agnosticfl.data.preparation.apply import features_of
from agnosticfl.data.preparation.fit import Plan, fit
from agnosticfl.data.preparation.record import (
    Category,
    Label,
    Number,
    Preparation,
    read_preparation,
)
from agnosticfl.data.source import Feature, Rows, Source
from agnosticfl.errors import BadInput
from agnosticfl.registry import LOADERS

DOMAINS = ("coronary", "cardiac surgery", "medical", "surgical")  # ICUType 1 to 4
SPLIT_OF = {"a": "train", "b": "heldout", "c": "test"}
LABEL = Label("In-hospital_death", ("survived", "died"))
STATISTICS: dict[str, Callable[[Sequence[float]], float]] = {
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
    "mean": lambda values: sum(values) / len(values),
    "minimum": min,
    "maximum": max,
}
ALWAYS_ONE = "MechVent"  # while a stay is ventilated: only how often it is said tells something
KNOWN = ("Age", "Gender", "Height")


@LOADERS.add("physionet2012")
def load(
    sources: Sequence[Path],
    *,
    stays_per_client: Annotated[
        int, Meta(ge=1, description="stays of a client, all in one kind of unit, dealt at random")
    ] = 40,
    seed: Annotated[int, Meta(ge=0, description="seed of the random clients")] = 0,
    like: Annotated[
        Path | None, "a preparation.json of public data, instead of learning one from set-a"
    ] = None,
) -> Source:
    """Folders or archives with set-a (train), set-b (heldout), set-c (test) and their outcomes.

    Of each series of the 48 hours: first, last, mean, least and largest value, the number of
    values, and whether there is none at all; and what is known at admission. No hospital is given,
    so a client is a group of stays in one kind of unit.
    """
    files = read_stays(sources)
    stays = sorted(files.stays, key=lambda stay: (stay.part, int(stay.record)))
    parts = np.array([stay.part for stay in stays])
    domain = np.array([_unit(stay) for stay in stays], np.int32)
    y = np.array([files.died[stay.part, stay.record] for stay in stays], np.int32)
    clients = _clients(parts, domain, stays_per_client, seed)
    place, batch = Place("the stays", 0), _table(stays)
    if like is None:
        preparation, notes = fit(_plan(batch.schema.names), [(place, batch, parts == "a")])
        preparation = _one_indicator(preparation)
    else:
        preparation, notes = read_preparation(like), list[str]()
    x, _ = features_of(preparation, place, batch)

    def rows() -> Iterator[Rows]:
        for part in np.unique(parts).tolist():
            own = parts == part
            features = {"x": x["x"][own], "y": y[own]}
            yield from in_pieces(SPLIT_OF[part], clients[own].tolist(), domain[own], features)

    return Source(
        name="physionet2012",
        licence="ODC-By 1.0",
        domains=DOMAINS,
        features={"x": Feature("float32", x["x"].shape[1:]), "y": Feature("int32", ())},
        rows=rows,
        total=len(stays),
        left_out=files.left_out,
        labels=LABEL.classes,
        preparation=preparation,
        notes=tuple(notes),
        given=() if like is None else ("preparation",),
    )


def _unit(stay: Stay) -> int:
    kind = stay.descriptors.get("ICUType", 0)
    if kind not in range(1, len(DOMAINS) + 1):
        raise BadInput(f"stay {stay.record} of set-{stay.part}: ICUType is {kind:g}, not 1 to 4")
    return int(kind) - 1


def _clients(parts: np.ndarray, domain: np.ndarray, size: int, seed: int) -> np.ndarray:
    """The client of each stay, [n]; sizes in one set and unit differ by at most one."""
    clients = np.empty(len(parts), object)
    for part in np.unique(parts).tolist():
        for unit, name in enumerate(DOMAINS):
            own = np.flatnonzero((parts == part) & (domain == unit))
            number = max(1, round(len(own) / size))
            dealt = generator(seed, ord(part), unit).permutation(len(own)) % number
            clients[own] = [f"{part}-{name}-{k:03d}" for k in dealt.tolist()]
    return clients


def _table(stays: Sequence[Stay]) -> pa.RecordBatch:
    """A column of each feature, NaN where nothing was measured."""
    columns = {"Unit": pa.array([DOMAINS[_unit(stay)] for stay in stays])}
    nothing = float("nan")
    for name in KNOWN:
        columns[name] = pa.array([stay.descriptors.get(name, nothing) for stay in stays])
    for name in SERIES:
        series = [stay.series.get(name, ()) for stay in stays]
        for statistic, of in STATISTICS.items() if name != ALWAYS_ONE else ():
            columns[f"{name} {statistic}"] = pa.array([of(s) if s else nothing for s in series])
        columns[f"{name} count"] = pa.array([float(len(s)) for s in series])
    return pa.record_batch(columns)


def _plan(names: Sequence[str]) -> Plan:
    columns = tuple(Category(n, ()) if n == "Unit" else Number(n) for n in names)
    return Plan("physionet2012", columns, LABEL)


def _one_indicator(preparation: Preparation) -> Preparation:
    """The values of a series are missing together: the indicator of the first one says it."""
    others = tuple(f" {statistic}" for statistic in STATISTICS if statistic != "first")
    return preparation._replace(
        columns=tuple(
            column._replace(indicator=False)
            if isinstance(column, Number) and column.name.endswith(others)
            else column
            for column in preparation.columns
        )
    )
