# SPDX-License-Identifier: Apache-2.0
"""Anyone's own data: a raw table whose rows belong to clients and domains.

Single values become one float32 feature `x`: numbers scaled, categories one-hot, missing values
filled and marked. A column of lists (an image, a sentence of token ids) stays a feature of its own.
The label becomes `y`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agnosticfl.core.signature import keywords_of, showing
from agnosticfl.data.formats.tables import frame_table, open_table
from agnosticfl.data.source import Source
from agnosticfl.data.tabular.build import table_source
from agnosticfl.data.tabular.options import Options, listed
from agnosticfl.errors import check
from agnosticfl.registry import LOADERS

FEW = 3  # files that are all named
OF_FILES = ("names", "delimiter")  # options that say nothing of a frame


@LOADERS.add("arrays")
@showing(keywords_of(Options))
def load(sources: Sequence[Path], **given: Any) -> Source:
    """Reads Parquet, CSV, other text tables or .npz files as people have them."""
    check(len(sources) > 0, "no file was given; a .parquet, .csv or .npz is needed, for example")
    options = Options(**given)
    names = None if options.names is None else listed(options.names)
    tables = [open_table(Path(path), names, options.delimiter) for path in sources]
    return table_source(_name([Path(path).name for path in sources]), tables, options)


@showing([p for p in keywords_of(Options) if p.name not in OF_FILES])
def from_frame(frame: Any, *, name: str = "frame", **given: Any) -> Source:
    """The same from a pandas or Polars frame, a `datasets.Dataset`, or a mapping of numpy arrays.

    Options as for `data prepare arrays`; where they are several names, a list will do as well.
    `write_store(source, path)` makes a store of it, `collect(source)` data sets in memory.
    """
    return table_source(name, [frame_table(frame)], Options(**given))


def _name(files: Sequence[str]) -> str:
    few = len(files) <= FEW
    return ", ".join(files) if few else f"{files[0]} and {len(files) - 1} more files"
