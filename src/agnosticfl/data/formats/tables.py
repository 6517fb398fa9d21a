# SPDX-License-Identifier: Apache-2.0
"""Tables of any kind as streams of Arrow batches: Parquet, CSV, .npz, and frames in memory."""

import contextlib
import zipfile
import zlib
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from agnosticfl.errors import BadInput, check

BATCH = 4096  # rows in memory at a time
BOMB = 1 << 30, 100  # bytes, and how many times those of the file, that no honest .npz unpacks to
# What the readers of Arrow, numpy and zip raise for damaged files.
EXPECTED = (
    *(pa.ArrowException, OSError, ValueError, KeyError, EOFError, RuntimeError, MemoryError),
    *(zipfile.BadZipFile, zlib.error),
)


class Table(NamedTuple):
    """Named columns that can be read again and again, a batch at a time."""

    place: str  # for messages: the name of the file, or what it is
    columns: tuple[str, ...]
    batches: Callable[[Sequence[str]], Iterator[Any]]  # columns -> Arrow batches


def open_table(path: Path, text: Collection[str]) -> Table:
    """Opens a file by its ending. CSV says nothing of types: the columns in `text` are text."""
    for ending, opener in OPENERS.items():
        if path.name.lower().endswith(ending):
            check(path.is_file(), f"{path} does not exist or is no file")
            with _one_line(str(path)):
                return opener(path, text)
    raise BadInput(f"{path} has an unknown ending (allowed: {', '.join(OPENERS)})")


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
    return _arrow_table("the frame", pa.table(frame))


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
    check(not twice, f"{place}: several columns are called {', '.join(sorted(twice))}")

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
        return (batch for table in chosen.iter(BATCH) for batch in table.to_batches())

    return _table("the dataset", dataset.column_names, batches)


def _open_parquet(path: Path, text: Collection[str]) -> Table:
    del text  # Parquet knows its types

    def batches(names: list[str]) -> Iterator[Any]:
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(BATCH, columns=names)

    return _table(str(path), pq.read_schema(path).names, batches)


def _open_csv(path: Path, text: Collection[str]) -> Table:
    # Without threads the parser knows the number of a bad row.
    one_thread = pyarrow.csv.ReadOptions(use_threads=False)

    def batches(names: list[str]) -> Iterator[Any]:
        # All as text: a type guessed from the first block may fail in the second.
        types = pyarrow.csv.ConvertOptions(
            include_columns=names, column_types=dict.fromkeys(names, pa.string())
        )
        row = 0
        with pyarrow.csv.open_csv(path, one_thread, convert_options=types) as reader:
            for batch in reader:
                columns = {
                    name: batch[name] if name in text else _floats(batch[name], name, row)
                    for name in names
                }
                yield pa.record_batch(columns)
                row += len(batch)

    with pyarrow.csv.open_csv(path, one_thread) as reader:
        return _table(str(path), reader.schema.names, batches)


def _floats(column: Any, name: str, first: int) -> Any:
    """Texts as numbers; `first` is the number of the first row."""
    try:
        return column.cast(pa.float64())
    except pa.ArrowInvalid:  # the slow way allows blanks around a number, and finds the bad one
        return pa.array(
            [_float(text, name, first + i) for i, text in enumerate(column.to_pylist())]
        )


def _float(text: str, name: str, row: int) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"row {row}: column {name!r} has {text!r}, which is no number") from None


def _open_npz(path: Path, text: Collection[str]) -> Table:
    del text  # arrays know their types
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


OPENERS: dict[str, Callable[[Path, Collection[str]], Table]] = {
    ".parquet": _open_parquet,
    ".csv": _open_csv,
    ".csv.gz": _open_csv,
    ".npz": _open_npz,
}
