# SPDX-License-Identifier: Apache-2.0
"""What the models of a run said, example by example: predictions/<split>-<which>.npz.

Intervals over clients, values of single clients and metrics that no sums tell are computed from it.
"""

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agnosticfl.core.evaluate import Evaluation, Measured
from agnosticfl.errors import BadInput
from agnosticfl.files import write_bytes
from agnosticfl.runs.build import Built

FOLDER = "predictions"  # in a run folder
SUM = "sum of "  # before the name of a metric


class Predictions(NamedTuple):
    """What a model of a run did on one split."""

    measured: Measured
    client_ids: np.ndarray  # of the clients that `measured.client` numbers
    domains: tuple[str, ...]


def write_predictions(
    out: Path, which: str, built: Built, results: Mapping[str, Evaluation]
) -> None:
    """Writes what a model said; `which` it is, last or best."""
    (out / FOLDER).mkdir(exist_ok=True)
    splits = {"heldout": built.data.heldout, "test": built.data.test}
    for split, result in results.items():
        data = splits.get(split)
        if data is None or result.measured is None:  # clients measured, and gave sums only
            continue
        client, domain, sums, outputs, wanted, by_example = result.measured
        arrays: dict[str, Any] = {
            "client": client,
            "domain": domain,
            "by_example": np.array(by_example),
            "client_ids": np.array([str(name) for name in data.client_ids]),
            "domains": np.array(data.domains),
            **{SUM + name: both for name, both in sums.items()},
        }
        if outputs is not None and wanted is not None:
            arrays |= {"outputs": outputs, "wanted": wanted}
        content = io.BytesIO()
        np.savez_compressed(content, **arrays)
        write_bytes(_file(out, split, which), content.getvalue())


def read_predictions(folder: Path, split: str, which: str) -> Predictions | None:
    """What a run in `folder` kept; None if it kept nothing, as runs of version 0.1 did."""
    file = _file(folder, split, which)
    if not file.exists():
        return None
    try:
        with np.load(file, allow_pickle=False) as found:
            arrays = dict(found)
        measured = Measured(
            arrays["client"],
            arrays["domain"],
            {name.removeprefix(SUM): both for name, both in arrays.items() if SUM in name},
            arrays.get("outputs"),
            arrays.get("wanted"),
            bool(arrays["by_example"]),
        )
        return Predictions(measured, arrays["client_ids"], tuple(arrays["domains"].tolist()))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise BadInput(f"{file} cannot be read: {error}") from None


def _file(folder: Path, split: str, which: str) -> Path:
    return folder / FOLDER / f"{split}-{which}.npz"
