# SPDX-License-Identifier: Apache-2.0
"""What a person should know of the data she has prepared, before she trusts what comes out."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from agnosticfl.data.preparation.record import Array, Preparation
from agnosticfl.data.source import SPLITS
from agnosticfl.data.tabular.options import Options

FEW = 30  # rows: what is measured on fewer is mostly noise
SHOWN = 10  # domains that are named


def notes_on(
    options: Options,
    domains: Sequence[str],
    counts: Mapping[str, np.ndarray],
    classes: Counter[tuple[str, int]],
    preparation: Preparation,
) -> list[str]:
    """Notes on splits, classes and names.

    Args:
      options: as they were given.
      domains: their names, [p].
      counts: split -> rows of each domain, [p].
      classes: (split, class) -> rows.
      preparation: what has been learnt.
    """
    return [
        *_thin_domains(options, domains, counts),
        *_thin_classes(preparation, classes),
        *_odd_names(preparation),
    ]


def _thin_domains(
    options: Options, domains: Sequence[str], counts: Mapping[str, np.ndarray]
) -> Iterator[str]:
    asked = {
        "train": True,
        "heldout": options.heldout_fraction > 0,
        "test": options.test_fraction > 0,
    }
    for split in SPLITS:
        if not (asked[split] or split in counts):
            continue
        rows = counts.get(split, np.zeros(len(domains), int)).tolist()
        few = [f"{name!r} ({n})" for name, n in zip(domains, rows, strict=True) if n < FEW]
        if few:
            yield (
                f"{split} has no or very few rows (under {FEW}) of the domain"
                f" {_some(few)}: {_advice(options, split)}"
            )


def _advice(options: Options, split: str) -> str:
    if split == "train":
        return "little can be learnt about it; bring more rows, or merge small domains"
    ways = ["merge small domains"]
    if options.split_by == "clients" and options.split is None:
        ways.insert(0, "split_by rows")
    if options.split is None:
        ways.insert(0, f"a larger {split}_fraction")
    if not options.stratify:
        ways.insert(0, "stratify")
    return f"what is measured there is noise or missing; try {', '.join(ways)}"


def _thin_classes(preparation: Preparation, classes: Counter[tuple[str, int]]) -> Iterator[str]:
    label = preparation.label
    if label is None or label.classes is None:
        return
    absent = [name for i, name in enumerate(label.classes) if not classes["train", i]]
    present = len(label.classes) - len(absent)
    if present == 1:
        yield f"all training rows are of one class of {label.name!r}: nothing is to be told apart"
    elif absent:
        named = [repr(name) for name in absent]
        yield f"no training row is of the class {_some(named)} of {label.name!r}"


def _odd_names(preparation: Preparation) -> Iterator[str]:
    arrays = [c for c in preparation.columns if isinstance(c, Array)]
    if not preparation.x_columns and not {c.feature for c in arrays} & {"x", "tokens"}:
        yield (
            f"the features are called {_some([repr(c.feature) for c in arrays])}, but built-in"
            f" models read 'x' or 'tokens': say which one it is, input = {arrays[0].name}"
        )


def _some(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" … and {more} more" if more > 0 else "")
