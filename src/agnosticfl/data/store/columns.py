# SPDX-License-Identifier: Apache-2.0
"""From rows sorted by client to the Arrow files of a split.

An Arrow file that maps to one array a column has a single record batch, which pyarrow writes in one
call. So the columns are streamed to plain files first, and the batch is made over their mapped
memory, whose pages are let go as they are written: no column has to fit in memory.
"""

import contextlib
import io
import mmap
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from agnosticfl.core.federated import slices
from agnosticfl.data.arrow import array_over, arrow_type, mapped, pc
from agnosticfl.data.source import Feature
from agnosticfl.data.store.reader import Counts
from agnosticfl.data.store.spool import PIECE, Spool


def write_split(
    spool: Spool,
    folder: Path,
    features: Mapping[str, Feature],
    progress: Callable[[int, int], None],
) -> Counts:
    """Writes the four files of a split to `folder`, and removes the spool."""
    folder.mkdir()
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        raw = Path(temporary)
        counts = _cut(spool, raw, list(features), progress)
        shutil.rmtree(spool.folder)
        maps = {file.name: mapped(file) for file in raw.iterdir()}
        for name, columns in _columns(maps, features, counts).items():
            _write_arrow(folder / f"{name}.arrow", columns, maps.values())
    return counts


def _cut(spool: Spool, raw: Path, names: list[str], progress: Callable[[int, int], None]) -> Counts:
    """Streams the sorted rows into one plain file a column."""
    rows, clients, last = 0, 0, None
    with contextlib.ExitStack() as stack:

        def create(name: str) -> BinaryIO:
            return stack.enter_context((raw / name).open("wb"))

        # Numbered, because the name of a feature may not do for a file.
        features = [create(f"feature{i}") for i in range(len(names))]
        domain, offsets, ids, ends = map(create, ("domain", "offsets", "ids", "id_ends"))
        ends.write(np.int64(0).tobytes())
        for owner, records in spool.in_order():
            domain.write(records["domain"].tobytes())
            for name, file in zip(names, features, strict=True):
                file.write(records["features"][name].tobytes())
            first = _first_rows(owner, last)
            new = owner.take(pa.array(first)).cast(pa.binary()).to_pylist()
            offsets.write((rows + first).tobytes())
            ends.write((ids.tell() + np.cumsum([len(name) for name in new], dtype=int)).tobytes())
            ids.write(b"".join(new))
            rows, clients, last = rows + len(owner), clients + len(first), owner[-1]
            progress(rows, spool.rows)
        offsets.write(np.int64(rows).tobytes())
    return Counts(clients, rows)


def _first_rows(clients: Any, last: Any) -> np.ndarray:
    """The rows at which another client begins; `last` is the client before the first row."""
    change = pc.not_equal(clients[1:], clients[:-1]).to_numpy(zero_copy_only=False)
    return np.flatnonzero(np.concatenate([[clients[0] != last], change]))


def _columns(
    maps: Mapping[str, mmap.mmap], features: Mapping[str, Feature], counts: Counts
) -> dict[str, Any]:
    """File name -> columns, over the mapped memory of the plain files."""
    clients, rows = counts
    return {
        "examples": {
            name: _feature_column(maps[f"feature{i}"], feature, rows)
            for i, (name, feature) in enumerate(features.items())
        },
        "domain": {"domain": array_over(pa.int32(), rows, maps["domain"])},
        "offsets": {"offset": array_over(pa.int64(), clients + 1, maps["offsets"])},
        "clients": {"id": array_over(pa.large_string(), clients, maps["id_ends"], maps["ids"])},
    }


def _feature_column(memory: mmap.mmap, feature: Feature, rows: int) -> Any:
    kind = arrow_type(feature)
    if not feature.shape:
        return array_over(kind, rows, memory)
    items = array_over(kind.value_type, rows * kind.list_size, memory)
    return pa.FixedSizeListArray.from_arrays(items, kind.list_size)


class _PiecewiseFile(io.FileIO):
    """A file that takes long buffers in pieces and lets their mapped pages go after each."""

    def __init__(self, file: Path, sources: Collection[mmap.mmap]):
        super().__init__(file, "wb")
        self.sources = sources

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for part in slices(len(view), PIECE):
            rest = view[part]
            while rest:  # the system may take less than it is given
                rest = rest[super().write(rest) :]
            for memory in self.sources:
                memory.madvise(mmap.MADV_DONTNEED)
        return len(view)


def _write_arrow(file: Path, columns: Mapping[str, Any], sources: Collection[mmap.mmap]) -> None:
    batch = pa.record_batch(dict(columns))
    long = pyarrow.ipc.IpcWriteOptions(allow_64bit=True)  # 2³¹ numbers are 107 million sentences
    with (
        _PiecewiseFile(file, sources) as sink,
        pyarrow.ipc.new_file(sink, batch.schema, options=long) as writer,
    ):
        writer.write_batch(batch)
