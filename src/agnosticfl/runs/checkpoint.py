# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of the server state: its arrays by name, with a checksum, as models are kept.

    checkpoints/00000100/state.safetensors

A checkpoint is written beside its place and renamed, so it is there whole or not at all; one that
was damaged later does not fit its checksum, and the one before it is used.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from agnosticfl.core import tree
from agnosticfl.core.state import ServerState
from agnosticfl.errors import BadInput, check
from agnosticfl.files import sync
from agnosticfl.runs import kept_models

KEPT = 3  # the newest ones; the others are deleted
STATE = "state.safetensors"


def save(folder: Path, state: ServerState) -> None:
    """Saves `state` as the checkpoint of its round and forgets all but the newest `KEPT`."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{int(state.round):08d}"
    temporary, place = folder / f".{name}.tmp", folder / name
    for leftover in (*folder.glob(".*.tmp"), place):
        shutil.rmtree(leftover, ignore_errors=True)
    kept_models.write_params(temporary / STATE, _by_name(jax.device_get(state)), {})
    temporary.rename(place)
    sync(folder)
    for old in _rounds(folder)[:-KEPT]:
        shutil.rmtree(old)


def restore(folder: Path, like: ServerState, say: Callable[[str], Any]) -> ServerState | None:
    """The newest checkpoint that is whole, or None. `say` is told of each that is not.

    Args:
      like: a state of the same shapes and types.
    """
    found = _rounds(folder)
    for place in reversed(found):
        check(
            not (place / "state").is_dir(),
            f"{place} was written by an older version of agnosticfl, which must end this run;"
            " or begin it anew with --overwrite",
        )
        try:
            return _read(place, like)
        except BadInput as error:
            damage = error
        aside = place.with_name(f"{place.name}.damaged")
        shutil.rmtree(aside, ignore_errors=True)
        place.rename(aside)  # or it would count as newer than those that are to come
        say(f"checkpoint {place.name} is damaged ({damage}); it is kept as {aside.name}")
    if found:
        say(f"{folder} holds no checkpoint that is whole: starting at round 1")
    return None


def has_any(folder: Path) -> bool:
    """Whether there is a checkpoint, whole or not."""
    return bool(_rounds(folder))


# Field of the state -> its name in the files, which are older than the field's name.
_NAMES = {"channel_state": "channel"}
_FIELDS = {name: field for field, name in _NAMES.items()}


def _by_name(state: ServerState) -> dict[str, Any]:
    """Fields by their names in the files; one that a run does not use leaves no trace there."""
    fields = state._asdict().items()
    return {_NAMES.get(field, field): value for field, value in fields if value is not None}


def _read(place: Path, like: ServerState) -> ServerState:
    arrays, fields = kept_models.read_params(place / STATE).arrays, _by_name(like)
    check(tree.shapes(arrays) == tree.shapes(fields), "it is the state of another run")
    found: dict[str, Any] = tree.from_named(arrays, fields)
    return ServerState(**{_FIELDS.get(name, name): value for name, value in found.items()})


def _rounds(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("[0-9]" * 8) if p.is_dir()) if folder.is_dir() else []
