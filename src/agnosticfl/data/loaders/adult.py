# SPDX-License-Identifier: Apache-2.0
"""UCI Adult as in the AFL paper: people with a doctorate and the others, random clients."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np

from agnosticfl.data.formats.files import find_file, reading
from agnosticfl.data.formats.limits import short
from agnosticfl.data.in_memory import HeldoutOfTraining, check_heldout, random_clients, with_heldout
from agnosticfl.data.preparation.record import (
    ABSENT,
    Category,
    Label,
    Number,
    Preparation,
    read_fitting,
)
from agnosticfl.data.source import Feature, Rows, Source
from agnosticfl.errors import BadInput, check
from agnosticfl.registry import LOADERS

DOMAINS = ("doctorate", "others")
_COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation"),
    *("relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week"),
    "native-country",
)
_NUMERIC = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")
_CATEGORIES = tuple(name for name in _COLUMNS if name not in _NUMERIC)
_LABELS = {"<=50K": 0, ">50K": 1}


class _Table(NamedTuple):
    """One file: the columns as read, and the label."""

    columns: dict[str, list[str]]
    numbers: np.ndarray  # [n, numeric columns] float64
    y: np.ndarray  # [n] int32


class _Encoder(NamedTuple):
    """What is learnt from the training file, or given."""

    mean: np.ndarray
    scale: np.ndarray
    categories: dict[str, list[str]]  # column -> its values, sorted; "?" is one of them


@LOADERS.add("adult")
def load(
    sources: Sequence[Path],
    *,
    clients: Annotated[int, "clients of each split; examples are spread evenly at random"] = 100,
    heldout_fraction: HeldoutOfTraining = 0.0,
    seed: Annotated[int, "seed of the random clients"] = 0,
    like: Annotated[
        Path | None, "a preparation.json of public data, instead of learning one from adult.data"
    ] = None,
) -> Source:
    """adult.data and adult.test: numbers standardised, categories one-hot, y = 1 for over 50K."""
    check_heldout(heldout_fraction, clients)
    tables = {
        "train": _read(find_file(sources, "adult.data")),
        "test": _read(find_file(sources, "adult.test")),
    }
    encoder = _fit(tables["train"]) if like is None else _given(like)
    owners = {s: random_clients(s, len(table.y), clients, seed) for s, table in tables.items()}

    def rows() -> Iterator[Rows]:
        for split, table in tables.items():
            doctorate = np.array(table.columns["education"]) == "Doctorate"
            domain = np.where(doctorate, 0, 1).astype(np.int32)
            features = {"x": _encode(encoder, table), "y": table.y}
            yield from with_heldout(split, owners[split], domain, features, heldout_fraction)

    width = len(_NUMERIC) + sum(map(len, encoder.categories.values()))
    return Source(
        name="adult",
        licence="CC BY 4.0 (UCI)",
        domains=DOMAINS,
        features={"x": Feature("float32", (width,)), "y": Feature("int32", ())},
        rows=rows,
        total=sum(len(table.y) for table in tables.values()),
        labels=tuple(_LABELS),
        preparation=_preparation(encoder),
        given=() if like is None else ("preparation",),
    )


def _read(path: Path) -> _Table:
    people = list(_people(path))
    check(bool(people), f"{path}: holds no row")
    columns = {name: [p[i] for p in people] for i, name in enumerate(_COLUMNS)}
    numbers = [[float(value) for value in columns[name]] for name in _NUMERIC]
    y = [_LABELS[p[-1]] for p in people]
    return _Table(columns, np.array(numbers).T, np.array(y, np.int32))


def _people(path: Path) -> Iterator[list[str]]:
    """The checked fields of each row; column names, comments and blank lines are passed over."""
    for number, line in enumerate(_lines(path), 1):
        # UCI's adult.test begins with a comment ("|1x3 Cross validator"), some copies with names.
        if not line.strip() or line.startswith("|") or (number == 1 and line.startswith("age,")):
            continue
        fields = [field.strip() for field in line.split(",")]
        fields[-1] = fields[-1].removesuffix(".")  # adult.test ends its labels with a dot
        _check_fields(fields, f"{path}: line {number}")
        yield fields


def _lines(path: Path) -> list[str]:
    with reading(path):
        data = path.read_bytes()
    try:
        return data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: no UTF-8 text at offset {error.start}") from error


def _check_fields(fields: list[str], place: str) -> None:
    wanted = len(_COLUMNS) + 1
    check(len(fields) == wanted, f"{place} has {len(fields)} fields; {wanted} are needed")
    check(
        fields[-1] in _LABELS,
        f"{place} has label {short(fields[-1])}; allowed: {', '.join(_LABELS)}",
    )
    for name, value in zip(_COLUMNS, fields, strict=False):
        check(value != "", f"{place} has no {name}; unknown is written ?")
        if name in _NUMERIC:
            check(
                value.isdecimal() and len(value) < 16,
                f"{place} has {name} {short(value)}; it must be a whole number",
            )


def _fit(train: _Table) -> _Encoder:
    spread = train.numbers.std(axis=0)
    return _Encoder(
        mean=train.numbers.mean(axis=0),
        scale=np.where(spread > 0, spread, 1.0),  # a constant column becomes 0
        categories={c: sorted(set(train.columns[c])) for c in _CATEGORIES},
    )


def _preparation(encoder: _Encoder) -> Preparation:
    """The same in the words that any table has; "?" is what is missing."""
    numbers = zip(_NUMERIC, encoder.mean.tolist(), encoder.scale.tolist(), strict=True)
    return Preparation(
        (
            *(Number(name, mean, scale, fill=mean) for name, mean, scale in numbers),
            *(
                Category(name, tuple(ABSENT if value == "?" else value for value in values))
                for name, values in encoder.categories.items()
            ),
        ),
        Label("income", tuple(_LABELS)),
    )


def _given(like: Path) -> _Encoder:
    """The inverse, from a file."""
    kinds = (Number(c) if c in _NUMERIC else Category(c, ()) for c in (*_NUMERIC, *_CATEGORIES))
    columns = read_fitting(like, tuple(kinds)).columns
    numbers = [column for column in columns if isinstance(column, Number)]
    return _Encoder(
        mean=np.array([column.mean for column in numbers]),
        scale=np.array([column.deviation for column in numbers]),
        categories={
            column.name: ["?" if value == ABSENT else value for value in column.categories]
            for column in columns
            if isinstance(column, Category)
        },
    )


def _encode(encoder: _Encoder, table: _Table) -> np.ndarray:
    """[n, width] float32; a category that is not known is all zeros."""
    numbers = (table.numbers - encoder.mean) / encoder.scale
    one_hot = [
        np.array(table.columns[name])[:, None] == np.array(values)
        for name, values in encoder.categories.items()
    ]
    return np.concatenate([numbers, *one_hot], axis=1).astype(np.float32)
