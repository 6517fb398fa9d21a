# SPDX-License-Identifier: Apache-2.0
"""The data of a task from a store on the disc."""

from pathlib import Path
from typing import Any

from agnosticfl.core.federated import About, Splits, as_splits, no_examples
from agnosticfl.errors import check
from agnosticfl.registry import SOURCES


@SOURCES.add("store")
def stored(
    path: str, made_by: str = "agnosticfl data prepare FORMAT SOURCE… --out STORE"
) -> Splits:
    """The splits of a store.

    Args:
      path: the folder that `agnosticfl data prepare` made.
      made_by: the command to show if it is not there.
    """
    from agnosticfl.data.store import open_store  # here: the other sources need no Arrow

    check(Path(path).exists(), f"there is no store {path}; this makes it: {made_by}")
    store = open_store(path)
    splits = as_splits(store.splits, f"the store {path}", about(store), store.release)
    return splits._replace(digest=store.digest)


def whatever_there_is(path: str) -> Splits:
    """The same of a store that may lack splits; these are then without examples."""
    from agnosticfl.data.store import open_store

    store = open_store(path)
    nothing = no_examples(store.meta.features, store.meta.domains)
    parts = {"train": nothing, "test": nothing, **store.splits}
    return as_splits(parts, f"the store {path}", about(store), store.release)


def about(store: Any) -> About:
    """What a store says of its data."""
    from agnosticfl.data.preparation.record import to_json

    meta, steps = store.meta, store.preparation()
    return About(
        meta.name,
        meta.licence,
        meta.labels,
        store.vocabulary(),
        None if steps is None else to_json(steps),
    )
