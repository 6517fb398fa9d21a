# SPDX-License-Identifier: Apache-2.0
"""The values of single clients, as a file: one row per run, client and domain."""

import io
import itertools
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from agnosticfl.core.evaluate import Measured, metric_value
from agnosticfl.errors import BadInput, check
from agnosticfl.files import write_bytes
from agnosticfl.report.comparison import Comparison, Row
from agnosticfl.report.intervals import items_of, metric_reading
from agnosticfl.report.runs import Run

WRITERS = {".parquet": pyarrow.parquet.write_table, ".csv": pyarrow.csv.write_csv}


def check_name(path: Path) -> None:
    """Refuses a name that does not say which form is wanted."""
    check(path.suffix in WRITERS, f"{path} must end in {' or '.join(WRITERS)}")


def write_per_client(comparison: Comparison, path: Path) -> None:
    """Writes them to `path`, a Parquet or a CSV file by its name."""
    check_name(path)
    parts = [_values(comparison, row, run) for row in comparison.rows for run in row.runs]
    content = io.BytesIO()
    WRITERS[path.suffix](pa.concat_tables(parts), content)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, content.getvalue())


def _values(comparison: Comparison, row: Row, run: Run) -> pa.Table:
    kept = run.predictions()
    if kept is None:
        public = ": a private run keeps those of public splits alone (dp.public)"
        raise BadInput(
            f"{run.folder} kept no predictions, so it has no values of single clients"
            + ("" if run.config.dp is None else public)
        )
    measured, domains = kept.measured, len(kept.domains)
    pairs, item = np.unique(measured.client * domains + measured.domain, return_inverse=True)
    examples = np.bincount(item, measured.sums["loss"][1], len(pairs))
    values = {
        metric: _metric(comparison, metric, measured, item, len(pairs))
        for metric in comparison.metrics
    }
    return pa.table(
        {
            "algorithm": [row.title] * len(pairs),
            "seed": [run.config.seed] * len(pairs),
            "client": kept.client_ids[pairs // domains].tolist(),
            "domain": np.array(kept.domains, object)[pairs % domains].tolist(),
            "examples": examples.astype(np.int64),
            **{metric: pa.array(found, pa.float64()) for metric, found in values.items()},
        }
    )


def _metric(
    comparison: Comparison, metric: str, measured: Measured, item: np.ndarray, number: int
) -> list[float | None]:
    """Of each client and domain; None where it is not defined, or not finite."""
    how = metric_reading(comparison, metric)
    order = np.argsort(item, kind="stable")
    bounds = np.searchsorted(item[order], np.arange(number + 1))
    found = [
        metric_value(metric, how, items_of(measured, order[start:end]), np.ones(end - start))
        for start, end in itertools.pairwise(bounds.tolist())
    ]
    return [v if v is not None and math.isfinite(v) else None for v in found]
