# SPDX-License-Identifier: Apache-2.0
"""EMNIST by writer, as FedJAX (SQLite), TensorFlow Federated (HDF5) and LEAF (JSON) ship it."""

import re
import string
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np

from agnosticfl.data.formats import fedjax_sqlite, leaf_json, sqlite, tff_hdf5
from agnosticfl.data.formats.files import all_files, reading
from agnosticfl.data.formats.limits import short
from agnosticfl.data.in_memory import in_pieces
from agnosticfl.data.source import SPLITS, Feature, Rows, Source
from agnosticfl.errors import BadInput, check, choose
from agnosticfl.registry import LOADERS

DOMAINS = ("high school", "census")
_CLASSES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
# FedJAX puts a hash before the writer's name.
_WRITER = re.compile(r"(?:[0-9a-f]+:)?(f(\d{4})_\d{2})", re.ASCII)
_SPLIT_WORD = re.compile(r"(?<![a-z])(train|test)(?![a-z])")
_EMPTY = "writers without an example"


class _Format(NamedTuple):
    magic: bytes  # how a file starts
    clients: Callable[[Path], Iterator[tuple[str, dict[str, np.ndarray]]]]
    pixels: str  # names of the two features
    label: str


_FORMATS = (
    _Format(sqlite.MAGIC, fedjax_sqlite.clients, "pixels", "label"),
    _Format(
        tff_hdf5.MAGIC,
        lambda path: tff_hdf5.clients(path, ("pixels", "label")),
        "pixels",
        "label",
    ),
    _Format(b"{", leaf_json.clients, "x", "y"),
)


class _File(NamedTuple):
    path: Path
    split: str
    format: _Format


@LOADERS.add("emnist")
def load(
    sources: Sequence[Path],
    *,
    split: Annotated[
        str | None, "split of all files; by default train or test, from file or folder name"
    ] = None,
) -> Source:
    """Train and test files in any of the three formats; a client is a writer."""
    if split is not None:
        choose(split, SPLITS, "split")
    files = [_File(path, split or _split(path), fmt) for path, fmt in _recognised(sources)]
    left_out: Counter[str] = Counter()
    return Source(
        name="emnist",
        licence="NIST Special Database 19, a work of the US government",
        domains=DOMAINS,
        features={"x": Feature("uint8", (28, 28)), "y": Feature("int32", ())},
        rows=lambda: _rows(files, left_out),
        left_out=left_out,
        labels=_CLASSES,
    )


def _rows(files: Sequence[_File], left_out: Counter[str]) -> Iterator[Rows]:
    left_out.clear()
    seen: dict[tuple[str, str], Path] = {}
    for path, split, fmt in files:
        before = len(seen)
        for client_id, features in fmt.clients(path):
            place = f"{path}: client {short(client_id)}"
            writer, domain = _writer(client_id, place)
            if (split, writer) in seen:
                raise BadInput(f"{place} was in {seen[split, writer]} already; give each part once")
            seen[split, writer] = path
            for name in (fmt.pixels, fmt.label):
                check(name in features, f"{place}: no feature {name!r}")
            images, labels = _examples(features[fmt.pixels], features[fmt.label], place)
            if len(labels) == 0:
                left_out[_EMPTY] += 1
            domains = np.full(len(labels), domain, np.int32)
            yield from in_pieces(split, [writer] * len(labels), domains, {"x": images, "y": labels})
        check(len(seen) > before, f"{path}: holds no writer")


def _recognised(sources: Sequence[Path]) -> list[tuple[Path, _Format]]:
    """The files that are in one of the formats, by how they start; a folder may hold others."""
    found: list[tuple[Path, _Format]] = []
    for path in all_files(sources):
        with reading(path), path.open("rb") as file:
            start = file.read(64).lstrip()
        fmt = next((fmt for fmt in _FORMATS if start.startswith(fmt.magic)), None)
        if fmt is not None:
            found.append((path, fmt))
        check(
            fmt is not None or path not in sources,
            f"{path} is no SQLite file, HDF5 file or JSON object (its first bytes tell)",
        )
    places = ", ".join(map(str, sources))
    check(bool(found), f"no SQLite, HDF5 or JSON file of EMNIST in {places}")
    return found


def _split(path: Path) -> str:
    """train or test: the word is in the file's name, or else in its folder's."""
    for name in (path.name, path.absolute().parent.name):
        words = set(_SPLIT_WORD.findall(name.lower()))
        if len(words) == 1:
            return words.pop()
    raise BadInput(f"{path}: neither name nor folder says train or test; use the option split")


def _writer(client_id: str, place: str) -> tuple[str, int]:
    """The writer's name without FedJAX's hash, and the domain.

    NIST's writers 2100 to 2599 were students of a high school, the others worked for the census.
    """
    match = _WRITER.fullmatch(client_id)
    if match is None:
        raise BadInput(f"{place} is no writer of EMNIST; those are called fNNNN_NN")
    return match[1], DOMAINS.index("high school" if 2100 <= int(match[2]) <= 2599 else "census")


def _examples(pixels: np.ndarray, labels: np.ndarray, place: str) -> tuple[np.ndarray, np.ndarray]:
    """Images [n, 28, 28] uint8 with bright ink on 0, and labels [n] int32."""
    n = labels.size
    check(
        pixels.shape in {(n, 28, 28), (n, 784)} or pixels.size == n == 0,
        f"{place}: pixels have shape {pixels.shape} for {n} labels; 28 × 28 each are needed",
    )
    if n == 0:
        return np.empty((0, 28, 28), np.uint8), np.empty(0, np.int32)
    check(
        labels.shape == (n,) and labels.dtype.kind in "iu",
        f"{place}: labels are {labels.dtype} of shape {labels.shape}; integers [n] are needed",
    )
    bad = np.flatnonzero((labels < 0) | (labels >= len(_CLASSES)))
    if len(bad):
        place = f"{place}, example {bad[0]}"
        raise BadInput(f"{place}: label is {labels[bad[0]]}; allowed: 0 to {len(_CLASSES) - 1}")
    return _bright_ink(pixels.reshape(n, 28, 28), place), labels.astype(np.int32)


def _bright_ink(pixels: np.ndarray, place: str) -> np.ndarray:
    """uint8 images whose background is 0, from floats in [0, 1] of either polarity.

    All three formats are said to have a white background (1.0), but a copy may have been inverted
    already, so the pixels decide. A character stands in the middle of its image: the median of the
    outermost pixels of a writer's images is the background. Where it is bright, they are inverted.
    """
    check(
        pixels.dtype.kind in "fiu" and bool(np.all((pixels >= 0) & (pixels <= 1))),
        f"{place}: pixels must be numbers from 0 to 1",
    )
    edge = np.ones((28, 28), bool)
    edge[1:-1, 1:-1] = False
    ink = 1 - pixels if np.median(pixels[:, edge]) > 0.5 else pixels
    return np.rint(255 * ink).astype(np.uint8)
