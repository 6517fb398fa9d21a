# SPDX-License-Identifier: Apache-2.0
"""The data of a task from a store on the disc."""

from pathlib import Path

from agnosticfl.data.federated import Splits, as_splits
from agnosticfl.errors import check


def stored(
    path: str, made_by: str = "agnosticfl data prepare FORMAT SOURCE… --out STORE"
) -> Splits:
    """The splits of the store at `path`; `made_by` is the command to show if it is not there."""
    from agnosticfl.data.store import open_store  # here: the other sources need no Arrow

    check(Path(path).exists(), f"there is no store {path}; this makes it: {made_by}")
    store = open_store(path)
    return as_splits(store.splits, f"the store {path}", store.vocabulary(), store.release)
