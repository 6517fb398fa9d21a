# SPDX-License-Identifier: Apache-2.0
"""Tables of any kind as streams of Arrow batches: Parquet, text, .npz, and frames in memory."""

import contextlib
import csv
import re
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from agnosticfl.data.arrow import pc
from agnosticfl.data.formats.cells import Place
from agnosticfl.data.formats.text_tables import ENDINGS, open_text, without_header
from agnosticfl.errors import BadInput, check, choose

UNNAMED_INDEX = re.compile(r"__index_level_\d+__")
BATCH = 4096  # rows in memory at a time
BOMB = 1 << 30, 100  # bytes, and how many times those of the file, that no honest .npz unpacks to
# What the readers of Arrow, numpy and zip raise for damaged files.
EXPECTED = (
    *(pa.ArrowException, OSError, ValueError, KeyError, EOFError, RuntimeError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, csv.Error),
)


class Table(NamedTuple):
    """Named columns that can be read again and again, a batch at a time."""

    place: str  # for messages: the name of the file, or what it is
    columns: tuple[str, ...]
    batches: Callable[[Sequence[str]], Iterator[Any]]  # columns -> Arrow batches
    path: Path | None = None  # of its file


def open_table(
    path: Path, names: Sequence[str] | None = None, delimiter: str | None = None
) -> Table:
    """Opens a file by its ending.

    Args:
      path: the file.
      names: the names of the columns of a text file without a header.
      delimiter: of a text file, if it is not the usual one.
    """
    ending = path.name.lower().removesuffix(".gz")
    if ending.endswith(ENDINGS):
        with _file(path):
            text = open_text(path, names, delimiter)
            return _table(str(path), text.columns, text.batches)._replace(path=path)
    for ending, opener in OPENERS.items():
        if path.name.lower().endswith(ending):
            check(names is None, f"{path}: names are for text files; this one has names")
            with _file(path):
                return opener(path)._replace(path=path)
    allowed = ", ".join([*OPENERS, *ENDINGS, *(f"{ending}.gz" for ending in ENDINGS)])
    raise BadInput(f"{path} has an unknown ending (allowed: {allowed})")


def batches_of(table: Table, names: Sequence[str]) -> Iterator[tuple[Place, Any]]:
    """Batches of these columns that are not empty, each with its place."""
    row = 0
    for batch in table.batches(names):
        if len(batch):
            yield Place(table.place, row), batch
        row += len(batch)


def check_column(table: Table, name: str) -> str:
    """Returns `name` if the table has that column; otherwise says which it has."""
    of_a_file = table.path is not None
    if name not in table.columns and of_a_file and without_header(table.columns):
        raise BadInput(
            f"{table.place} has no column {name!r}; its first row looks like values, not names"
            f" ({', '.join(table.columns[:5])}, …): give names for a file without a header"
        )
    return choose(name, table.columns, f"column of {table.place}")


def frame_table(frame: Any) -> Table:
    """A table over a pandas or Polars frame, a Hugging Face dataset, or a mapping of arrays."""
    if isinstance(frame, Mapping):
        with _one_line("the arrays"):
            return _arrow_table("the arrays", _from_arrays(frame))
    if hasattr(frame, "with_format") and hasattr(frame, "iter"):  # datasets.Dataset
        return _dataset_table(frame)
    check(
        hasattr(frame, "__arrow_c_stream__"),
        f"cannot read columns from {type(frame).__name__}: it is no mapping of arrays, no"
        " datasets.Dataset, and has no __arrow_c_stream__ (pandas 2.2 and Polars 1.3 have)",
    )
    with _one_line("the frame"):
        table = pa.table(frame)
    # What pandas calls an index without a name: numbers of rows, and nothing to learn from.
    unnamed = [name for name in table.column_names if UNNAMED_INDEX.fullmatch(name)]
    return _arrow_table("the frame", table.drop_columns(unnamed))


@contextlib.contextmanager
def _file(path: Path) -> Generator[None]:
    check(path.is_file(), f"{path} does not exist or is no file")
    with _one_line(str(path)):
        yield


@contextlib.contextmanager
def _one_line(place: str) -> Generator[None]:
    """Turns what the readers raise into one line that names the file."""
    try:
        yield
    except BadInput:
        raise
    except EXPECTED as error:
        raise BadInput(f"{place}: {' '.join(str(error).split())}") from None


def _table(place: str, columns: Sequence[str], batches: Callable[..., Iterator[Any]]) -> Table:
    """A table whose columns have different names and whose reading errors are one line."""
    twice = {name for name in columns if columns.count(name) > 1}
    check(
        not twice,
        f"{place}: several columns are called {', '.join(sorted(twice))}"
        + "; give names if the file has no header" * without_header(columns),
    )

    def careful(names: Sequence[str]) -> Iterator[Any]:
        with _one_line(place):
            yield from batches(list(names))

    return Table(place, tuple(columns), careful)


def _arrow_table(place: str, table: Any) -> Table:
    return _table(
        place, table.column_names, lambda names: table.select(names).to_batches(max_chunksize=BATCH)
    )


def _dataset_table(dataset: Any) -> Table:
    def batches(names: list[str]) -> Iterator[Any]:
        chosen = dataset.select_columns(names).with_format("arrow")
        for table in chosen.iter(BATCH):
            for batch in table.to_batches():
                yield _with_class_names(batch, dataset.features)

    return _table("the dataset", dataset.column_names, batches)


def _with_class_names(batch: Any, features: Mapping[str, Any]) -> Any:
    """A Hugging Face `ClassLabel` is a number whose names are in the features."""
    for place, name in enumerate(batch.schema.names):
        names = getattr(features[name], "names", None)
        if names is not None:
            number = pc.if_else(pc.less(batch[name], 0), None, batch[name]).cast(pa.int32())
            named = pa.DictionaryArray.from_arrays(number, pa.array(names))
            batch = batch.set_column(place, name, named)
    return batch


def _open_parquet(path: Path) -> Table:
    def batches(names: list[str]) -> Iterator[Any]:
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(BATCH, columns=names)

    return _table(str(path), pq.read_schema(path).names, batches)


def _open_npz(path: Path) -> Table:
    with path.open("rb") as file:  # numpy would leave it open if it is damaged
        arrays = np.load(file, allow_pickle=False)
        check(hasattr(arrays, "files"), f"{path} holds one array; a .npz of named arrays is needed")
        unpacked = sum(member.file_size for member in arrays.zip.infolist())
        check(
            unpacked <= max(BOMB[0], BOMB[1] * path.stat().st_size),
            f"{path} would unpack to {unpacked} bytes, over {BOMB[1]} times its size: a zip bomb?",
        )
        return _arrow_table(str(path), _from_arrays(arrays))


def _from_arrays(arrays: Mapping[str, Any]) -> Any:
    return pa.table({name: _column(np.asarray(arrays[name])) for name in arrays})


def _column(values: np.ndarray) -> Any:
    """An array [n, ...] as a column of n numbers, texts or nested lists of fixed sizes."""
    if values.ndim == 0:
        raise ValueError("an array has no rows; one row per example is needed")
    column = pa.array(values.reshape(-1))
    for size in reversed(values.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return column


OPENERS: dict[str, Callable[[Path], Table]] = {".parquet": _open_parquet, ".npz": _open_npz}
