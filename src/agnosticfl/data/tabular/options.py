# SPDX-License-Identifier: Apache-2.0
"""What can be said of a raw table: the options of `data prepare arrays` and of `split_frame`."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_type_hints

from msgspec import Meta

from agnosticfl.data.formats.tables import Table, check_column
from agnosticfl.data.splits import Fractions, check_fractions
from agnosticfl.data.tabular.names import FILE, ROW
from agnosticfl.errors import check, choose


class Options(NamedTuple):
    """Lists of names are texts with commas, or from Python also lists."""

    domain: Annotated[str, "column with the domain of a row, or @file"]
    client: Annotated[
        str | None, "column that says whom a row belongs to; or @file; or @row, each by itself"
    ] = None
    rows_per_client: Annotated[
        int | None, Meta(ge=1, description="instead: rows dealt at random to clients of so many")
    ] = None
    label: Annotated[str | None, "column to predict: a number, or a class"] = None
    classes: Annotated[
        str | None,
        "each (every value of the label is a class), none (the label is a number),"
        " a threshold such as >0, or the classes in their order, with commas",
    ] = None
    features: Annotated[str | None, "columns to learn from, with commas; else all others"] = None
    categories: Annotated[
        str | None, "columns, with commas, that are categories though they look like numbers"
    ] = None
    input: Annotated[str | None, "the column of lists (an image) that the model reads"] = None
    missing: Annotated[
        Literal["impute", "refuse"], "what is done with missing values (empty, ?, NA, NaN, null)"
    ] = "impute"
    scale: Annotated[Literal["standard", "none"], "whether numbers get mean 0 and deviation 1"] = (
        "standard"
    )
    like: Annotated[
        str | None,
        "a store, a federation's app or a preparation.json: how its rows were prepared is how"
        " these are; nothing is learnt from them",
    ] = None
    split: Annotated[str | None, "column that says train, heldout or test"] = None
    test_fraction: Annotated[float, "part of the clients, about, kept for the test"] = 0.0
    heldout_fraction: Annotated[float, "part of the clients, about, to hold out"] = 0.0
    split_by: Annotated[
        Literal["clients", "rows"], "whether whole clients are kept apart, or rows of each"
    ] = "clients"
    stratify: Annotated[bool, "give every split its share of every domain"] = True
    seed: Annotated[int, "chooses the clients or rows of the fractions"] = 0
    names: Annotated[str | None, "names of the columns, if a text file has no header"] = None
    delimiter: Annotated[str | None, "between the fields of a text file, if not the usual"] = None
    licence: Annotated[str, "licence of the data, kept in the store"] = "unknown"

    @property
    def fractions(self) -> Fractions:
        return Fractions(self.heldout_fraction, self.test_fraction)

    @property
    def roles(self) -> list[str]:
        """Columns that say something of a row and are not learnt from by themselves."""
        named = (self.client, self.domain, self.label, self.split)
        return [name for name in named if name is not None and name not in (FILE, ROW)]


def listed(names: Any) -> list[str]:
    """Names given as a list, or as a text with commas."""
    parts = names.split(",") if isinstance(names, str) else names
    return [str(name).strip() for name in parts or ()]


def check_table_options(options: Options, tables: Sequence[Table]) -> None:
    """Says which options contradict each other, or name a column that is not there."""
    check(
        (options.client is None) != (options.rows_per_client is None),
        "say whom a row belongs to: give either client or rows_per_client, one of the two",
    )
    for name in ("missing", "scale", "split_by"):
        choose(getattr(options, name), get_args(get_type_hints(Options)[name]), name)
    rows = options.rows_per_client
    check(rows is None or rows >= 1, f"rows_per_client is {rows}; it must be at least 1")
    check_fractions(options.fractions)
    check(
        options.split is None or not any(options.fractions),
        f"give either the split column {options.split!r} or fractions, not both",
    )
    check(
        options.classes is None or options.label is not None,
        f"classes is {options.classes!r}, but there is no label",
    )
    for table in tables:
        for name in (*options.roles, *listed(options.features), *listed(options.categories)):
            check_column(table, name)
    by_file = FILE in (options.client, options.domain)
    check(
        not by_file or all(table.path for table in tables),
        f"{FILE} is for files; name a column of {tables[0].place}",
    )


def feature_columns(options: Options, tables: Sequence[Table]) -> list[str]:
    """The columns to learn from."""
    chosen = listed(options.features)
    if options.input is not None and not chosen:
        chosen = [options.input]
    if not chosen:
        chosen = [name for name in tables[0].columns if name not in options.roles]
    twice = sorted({name for name in chosen if chosen.count(name) > 1})
    check(not twice, f"features has {', '.join(twice)} twice")
    for name in (options.label, options.split):
        check(name not in chosen, f"column {name!r} is the label or the split, and no feature")
    extra = ([options.input] if options.input is not None else []) + listed(options.categories)
    for name in extra:
        check(name in chosen, f"column {name!r} is not among the features ({', '.join(chosen)})")
    for table in tables:
        for name in chosen:
            check_column(table, name)
    check(len(chosen) > 0, f"{tables[0].place} has no column left to learn from")
    return chosen
