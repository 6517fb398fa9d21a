# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of the server state: Orbax arrays under a manifest of checksums.

    checkpoints/00000100/state/…        written by Orbax (no pickle)
    checkpoints/00000100/manifest.json  SHA-256 of every file of state/

A checkpoint is written beside its place and renamed, so it is there whole or not at all; one that
was damaged later does not fit its manifest, and the one before it is used. Orbax is loaded by the
first one: the thread that writes it has the time.
"""

import errno
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from agnosticfl.core import tree
from agnosticfl.core.state import ServerState
from agnosticfl.files import read_json, sync, write_json

if TYPE_CHECKING:
    import orbax.checkpoint as ocp

KEPT = 3  # the newest ones; the others are deleted
SPARE = 2**18  # bytes that must be free beside a checkpoint's own


def save(folder: Path, state: ServerState) -> None:
    """Saves `state` as the checkpoint of its round and forgets all but the newest `KEPT`."""
    import orbax.checkpoint as ocp

    folder.mkdir(parents=True, exist_ok=True)
    name = f"{int(state.round):08d}"
    temporary, place = folder / f".{name}.tmp", folder / name
    for leftover in (*folder.glob(".*.tmp"), place):
        shutil.rmtree(leftover, ignore_errors=True)
    _check_room(folder, state)
    with _checkpointer() as checkpointer:
        target = (temporary / "state").resolve()  # Orbax wants it absolute
        arrays = _by_name(jax.device_get(state))
        checkpointer.save(target, args=ocp.args.StandardSave(arrays))
    write_json(temporary / "manifest.json", _checksums(temporary / "state"))
    temporary.rename(place)
    sync(folder)
    for old in _rounds(folder)[:-KEPT]:
        shutil.rmtree(old)


def _check_room(folder: Path, state: ServerState) -> None:
    """Orbax says in many words of many threads that a disk is full: it is not let get that far."""
    needed = 2 * tree.num_bytes(state) + SPARE
    if shutil.disk_usage(folder).free < needed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def restore(folder: Path, like: ServerState, say: Callable[[str], Any]) -> ServerState | None:
    """The newest checkpoint that is whole, or None. `say` is told of each that is not.

    Args:
      like: a state of the same shapes and types.
    """
    found = _rounds(folder)
    for place in reversed(found):
        try:
            damage = _damage(place)
            if damage is None:
                return _read(place, like)
        except Exception as error:  # Orbax raises what its storage raises
            damage = f"{type(error).__name__}: {error}".splitlines()[0]
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
    import orbax.checkpoint as ocp

    shapes = jax.tree.map(ocp.utils.to_shape_dtype_struct, _by_name(like))
    with _checkpointer() as checkpointer:
        path = (place / "state").resolve()
        found: dict[str, Any] = checkpointer.restore(path, args=ocp.args.StandardRestore(shapes))
    # As a run begins: what is held on the device that it was saved from has programs of its own.
    free: dict[str, Any] = jax.tree.map(lambda leaf: jnp.array(np.asarray(leaf)), found)
    return ServerState(**{_FIELDS.get(name, name): value for name, value in free.items()})


def _checkpointer() -> "ocp.Checkpointer":
    """Of this process alone: it does not wait for the others of its run."""
    import orbax.checkpoint as ocp

    alone = ocp.options.MultiprocessingOptions(
        primary_host=jax.process_index(), active_processes={jax.process_index()}
    )
    handler = ocp.StandardCheckpointHandler(multiprocessing_options=alone)
    return ocp.Checkpointer(handler, multiprocessing_options=alone)


def _rounds(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("[0-9]" * 8) if p.is_dir()) if folder.is_dir() else []


def _damage(place: Path) -> str | None:
    if not (place / "manifest.json").is_file():
        return "no manifest"
    expected, found = read_json(place / "manifest.json"), _checksums(place / "state")
    wrong = [name for name in sorted({*expected, *found}) if expected.get(name) != found.get(name)]
    return f"{wrong[0]} does not match its checksum" if wrong else None


def _checksums(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }
