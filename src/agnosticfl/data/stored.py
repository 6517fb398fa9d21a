# SPDX-License-Identifier: Apache-2.0
"""The data of a task from a store on the disc."""

from pathlib import Path

from agnosticfl.data.federated import Splits
from agnosticfl.errors import check


def stored(
    path: str, made_by: str = "agnosticfl data prepare FORMAT SOURCE… --out STORE"
) -> Splits:
    """The splits of the store at `path`; `made_by` is the command to show if it is not there."""
    from agnosticfl.data.store import open_store  # here: the other sources need no Arrow

    check(Path(path).exists(), f"there is no store {path}; this makes it: {made_by}")
    store = open_store(path)
    for split in ("train", "test"):
        check(split in store.splits, f"the store {path} has no split {split!r}")
    vocabulary = store.vocabulary()
    return Splits(
        train=store.splits["train"],
        test=store.splits["test"],
        heldout=store.splits.get("heldout"),
        vocabulary_size=None if vocabulary is None else len(vocabulary),
        release=store.release,
    )
