# SPDX-License-Identifier: Apache-2.0
"""Verifies a store: every checksum and every promise that readers rely on."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from agnosticfl.core.federated import FederatedData, slices
from agnosticfl.data.arrow import pc
from agnosticfl.data.store.reader import META, ClientIds, Store, file_info, open_store
from agnosticfl.data.store.rows import LONGEST_ID


def check_store(path: Path | str) -> list[str]:
    """What is wrong with a store, a line each; an empty list if it is sound.

    Raises `BadInput` if the store does not even open. Reads every byte, a piece at a time.
    """
    store = open_store(path)
    changed = [
        name for name, info in store.meta.files.items() if file_info(store.path / name) != info
    ]
    problems = [f"{name}: the checksum differs from the one in {META}" for name in changed]
    problems += _unlisted(store)
    if changed:  # it is not safe to look into changed files
        return problems
    for split, data in store.splits.items():
        problems += [f"{split}: {problem}" for problem in _split_problems(data)]
    return problems + list(_train_problems(store))


def _unlisted(store: Store) -> Iterator[str]:
    present = {
        file.relative_to(store.path).as_posix() for file in store.path.rglob("*") if file.is_file()
    }
    for name in sorted(present - store.meta.files.keys() - {META}):
        yield f"{name}: the file is not listed in {META}"


def _split_problems(data: FederatedData) -> Iterator[str]:
    yield from _offset_problems(data)
    yield from _domain_problems(data)
    yield from _id_problems(data)
    for name, values in data.examples.items():
        if values.dtype.kind == "f":
            yield from _number_problems(name, values)


def _offset_problems(data: FederatedData) -> Iterator[str]:
    if data.offsets[0] != 0 or data.offsets[-1] != data.num_examples:
        yield f"offsets do not run from 0 to the number of examples, {data.num_examples}"
    for part in slices(data.num_clients):
        sizes = np.diff(data.offsets[part.start : part.stop + 1])
        for k in part.start + np.flatnonzero(sizes <= 0)[:1]:
            yield f"client {k} has no examples"


def _domain_problems(data: FederatedData) -> Iterator[str]:
    for part in slices(data.num_examples):
        domain = data.domain[part]
        for row in np.flatnonzero((domain < 0) | (domain >= data.num_domains))[:1]:
            yield f"row {part.start + row}: domain {domain[row]} is not one of {data.num_domains}"


def _id_problems(data: FederatedData) -> Iterator[str]:
    assert isinstance(data.client_ids, ClientIds)
    ids = data.client_ids.column
    try:
        ids.validate(full=True)
    except pa.ArrowInvalid as error:
        yield f"client ids: {' '.join(str(error).split())}"
        return
    for part in slices(len(ids)):
        piece = ids[max(part.start - 1, 0) : part.stop]  # with the last id of the piece before
        length = pc.binary_length(piece).to_numpy()
        if length.min() < 1 or length.max() > LONGEST_ID:
            yield f"a client id has {length.min()} or {length.max()} bytes"
        if pc.any(pc.greater_equal(piece[:-1], piece[1:])).as_py():
            yield f"client ids are not different and in order, from client {part.start} on"


def _number_problems(name: str, values: np.ndarray) -> Iterator[str]:
    for part in slices(len(values)):
        for place in np.argwhere(~np.isfinite(values[part]))[:1]:
            yield f"feature {name!r}, row {part.start + place[0]}: no finite number"


def _train_problems(store: Store) -> Iterator[str]:
    train = store.splits.get("train")
    if train is None:  # it is there to test on
        return
    seen = np.zeros(len(store.meta.domains), int)
    for part in slices(train.num_examples):
        known = train.domain[part].clip(0, len(seen) - 1)
        seen += np.bincount(known, minlength=len(seen))
    for name in (name for name, count in zip(store.meta.domains, seen, strict=True) if not count):
        yield f"no example in train of domain {name}"
