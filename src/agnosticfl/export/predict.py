# SPDX-License-Identifier: Apache-2.0
"""Predictions for a table or a store, batch by batch, into a file: `agnosticfl predict`."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from agnosticfl.core.evaluate import Evaluation, full_evaluator
from agnosticfl.core.federated import slices
from agnosticfl.core.precision import model_in_precision
from agnosticfl.data.formats.tables import Table
from agnosticfl.data.preparation.apply import Notes, joined
from agnosticfl.data.store import Store
from agnosticfl.errors import check, choose
from agnosticfl.export.model import TrainedModel, softmax

PIECE = 4096  # examples of a store at a time
MOST_CLASSES = 100  # whose probabilities have a column each
WRITERS: dict[str, Callable[[Path, Any], Any]] = {
    ".parquet": pq.ParquetWriter,
    ".csv": pyarrow.csv.CSVWriter,
}


class Written(NamedTuple):
    """What came of some rows."""

    rows: int
    notes: list[str]  # what they had that no training row had


def predict_table(
    trained: TrainedModel, table: Table, out: Path, keep: Sequence[str] = ()
) -> Written:
    """Writes a prediction for every row; `keep` are columns of the table that go with it."""
    parts = trained.reader.rows(table, keep)
    found: list[Notes] = []

    def batches() -> Iterator[Any]:
        for part in parts:
            found.append(part.notes)
            first, number = part.place.row, len(part.batch)
            kept = {name: part.batch[name] for name in keep}
            numbers = pa.array(range(first, first + number))
            yield pa.record_batch({"row": numbers, **kept, **_columns(trained, part.features)})

    return Written(_write(out, batches()), joined(found).lines())


def predict_store(trained: TrainedModel, store: Store, split: str, out: Path) -> Written:
    """The same for a split of a store, whose examples are prepared already."""
    choose(split, store.splits, f"split of {store.path}")
    data = store.splits[split]
    owner = np.repeat(np.arange(data.num_clients), data.sizes)

    def batches() -> Iterator[Any]:
        for part in slices(data.num_examples, PIECE):
            features = {name: np.asarray(array[part]) for name, array in data.examples.items()}
            who = {
                "client": pa.array([str(data.client_ids[k]) for k in owner[part]]),
                "domain": pa.array([data.domains[i] for i in data.domain[part]]),
            }
            yield pa.record_batch({**who, **_columns(trained, features)})

    return Written(_write(out, batches()), [])


def measure_store(trained: TrainedModel, store: Store, split: str) -> Evaluation:
    """How good the model is on a split of a store: the numbers of a report."""
    choose(split, store.splits, f"split of {store.path}")
    opened = trained.opened
    model = model_in_precision(opened.model, opened.config.precision)
    batch_size = opened.config.evaluation_batch_size
    return full_evaluator(model, store.splits[split], batch_size)(opened.params)


def check_out(out: Path, overwrite: bool) -> None:
    """Refuses a file that cannot or must not be written."""
    choose(out.suffix, WRITERS, f"ending of {out}:")
    check(out.parent.is_dir(), f"the folder of {out} does not exist")
    check(not out.exists() or overwrite, f"{out} exists; --overwrite replaces it")


def _columns(trained: TrainedModel, features: dict[str, np.ndarray]) -> dict[str, Any]:
    """The prediction of each row and, where there are classes, how likely they are."""
    outputs = trained.outputs(features)
    chosen = pa.array(trained.chosen(outputs))
    if trained.opened.model.outputs == "values":
        return {"prediction": chosen}
    likely = softmax(outputs)
    names = trained.labels or tuple(map(str, range(likely.shape[1])))
    columns = {"prediction": chosen, "probability": pa.array(likely.max(axis=1))}
    if trained.opened.model.outputs == "labels" and len(names) <= MOST_CLASSES:
        columns |= {f"probability of {n}": pa.array(likely[:, k]) for k, n in enumerate(names)}
    return columns


def _write(out: Path, batches: Iterator[Any]) -> int:
    """Writes the batches to a file, whole or not at all; gives the number of rows."""
    temporary, rows, writer = out.with_name(f".{out.name}.tmp"), 0, None
    try:
        for batch in batches:
            writer = writer or WRITERS[out.suffix](temporary, batch.schema)
            writer.write_batch(batch)
            rows += len(batch)
        check(writer is not None, "there are no rows to predict")
        assert writer is not None
        writer.close()
        temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)
    return rows
