# SPDX-License-Identifier: Apache-2.0
"""Rows, images or sentences as a model takes them: prepared as its training examples were."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from agnosticfl.data.formats.cells import text_of
from agnosticfl.data.formats.tables import Table, batches_of, check_column, frame_table, open_table
from agnosticfl.data.preparation.apply import Notes, Prepared, prepared_rows
from agnosticfl.data.preparation.record import Array, Preparation, from_json
from agnosticfl.data.text import encoded, ids_of, words_of
from agnosticfl.errors import BadInput, check
from agnosticfl.runs.about import Facts

LABEL = "y"
TEXT = "text"  # the column of a table that holds sentences


class Reader(NamedTuple):
    """How rows become what the model takes."""

    rows: Callable[[Table, Sequence[str]], Iterator[Prepared]]  # (table, further columns) -> rows
    label: str | None  # the column that holds what is to be predicted


def reader_of(facts: Facts) -> Reader:
    """The reader for a model that was trained on such data."""
    if facts.data.preparation is not None:
        preparation = from_json(facts.data.preparation, "the exported model")
        label = None if preparation.label is None else preparation.label.name
        return Reader(lambda table, also: prepared_rows(preparation, table, also), label)
    arrays = Preparation(
        tuple(Array(name, name, *form) for name, form in facts.features.items() if name != LABEL)
    )
    words = facts.data.vocabulary
    if words is None or "tokens" not in facts.features:
        return Reader(lambda table, also: prepared_rows(arrays, table, also), LABEL)

    def sentences(table: Table, also: Sequence[str]) -> Iterator[Prepared]:
        if "tokens" in table.columns:
            return prepared_rows(arrays, table, also)
        return _encoded(table, facts, words, also)

    return Reader(sentences, None)


def _encoded(
    table: Table, facts: Facts, words: Sequence[str], also: Sequence[str]
) -> Iterator[Prepared]:
    """Sentences as the ids of their words."""
    dtype, (width,) = facts.features["tokens"]
    ids = ids_of(words)
    for name in (TEXT, *also):
        check_column(table, name)
    for place, batch in batches_of(table, list(dict.fromkeys([TEXT, *also]))):
        texts = text_of(place, batch, TEXT).to_pylist()
        tokens = encoded([words_of(text) for text in texts], ids, width, np.dtype(dtype))
        yield Prepared(place, batch, {"tokens": tokens}, Notes(Counter(), Counter()))


def as_table(rows: Any) -> Table:
    """Rows of any kind: a file's path, a frame, arrays by name, or a list of sentences."""
    if isinstance(rows, str | Path):
        return open_table(Path(rows))
    if isinstance(rows, Sequence) and not isinstance(rows, Mapping):
        return frame_table(_from_list(list(rows)))
    return frame_table(rows)


def _from_list(rows: list[Any]) -> Any:
    """A list of sentences, or of rows as tables name -> value."""
    check(len(rows) > 0, "there are no rows to predict")
    try:
        if isinstance(rows[0], str):
            return pa.table({TEXT: pa.array(rows, pa.string())})
        return pa.Table.from_pylist(rows)
    except (pa.ArrowException, TypeError, AttributeError) as error:
        raise BadInput(f"the rows are neither all texts nor all tables: {error}") from None
