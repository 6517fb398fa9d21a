# SPDX-License-Identifier: Apache-2.0
"""The folder of an exported model, whole or not there, every file of it under a checksum.

model.safetensors  the parameters by name     config.json    the task that it was trained by
about.json         how rows become features   README.md      the model card
manifest.json      size and SHA-256 of every other file
"""

import json
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax

from agnosticfl.core import tree
from agnosticfl.core.model import Model, Params
from agnosticfl.data.store.reader import FileInfo, file_info
from agnosticfl.data.store.staging import LOCK, staging
from agnosticfl.errors import BadInput, check
from agnosticfl.export.card import model_card
from agnosticfl.files import read_json, write_json, write_whole
from agnosticfl.registry import MODELS
from agnosticfl.runs import about, kept_models
from agnosticfl.runs.config import Config, from_table
from agnosticfl.runs.resolve import GIVEN

FORMAT, VERSION = "agnosticfl-model", 1
MANIFEST, PARAMS, CONFIG, CARD = "manifest.json", "model.safetensors", "config.json", "README.md"


class Opened(NamedTuple):
    """An exported model, read and checked."""

    config: Config
    facts: about.Facts
    model: Model
    params: Params


def export_run(
    run: Path | str, out: Path | str, which: str | None = None, overwrite: bool = False
) -> str:
    """Writes a model of a finished run to the new folder `out`; returns which one it was.

    Args:
      run: a run folder.
      which: "best", by the worst domain on held-out clients, "last" or "mean"; the best if None, or
        the last of a run that did not look at held-out clients.
      overwrite: replace the exported model that is in `out`.
    """
    run = Path(run)
    _check_run(run)
    which = which or ("best" if kept_models.file_of(run, "best").exists() else "last")
    file = kept_models.file_of(run, which)
    check(file.exists(), f"{run} kept no {which} model{_why_not(which)}")
    params = kept_models.read_params(file)
    facts = about.read_facts(run)
    with staging(Path(out), partial(_check_target, overwrite=overwrite)) as stage:
        kept_models.write_params(stage / PARAMS, params.arrays, {**params.about, "which": which})
        write_json(stage / CONFIG, read_json(run / "config.json"))
        about.write_facts(stage, facts)
        write_whole(stage / CARD, model_card(run, which, facts))
        files = {p.name: file_info(p)._asdict() for p in sorted(stage.iterdir()) if p.name != LOCK}
        write_json(stage / MANIFEST, {"format": FORMAT, "version": VERSION, "files": files})
    return which


def open_exported(folder: Path, model: Model | None = None) -> Opened:
    """Reads what `export_run` wrote; a file that was changed since is refused.

    Args:
      model: if the run got its model from Python, which no task can name.
    """
    for name, info in _manifest(folder).items():
        file = folder / name
        check(file.is_file(), f"{file} is missing from the exported model")
        check(file_info(file) == info, f"{file} was changed: its checksum differs")
    config = from_table(read_json(folder / CONFIG), str(folder / CONFIG))
    params = kept_models.read_params(folder / PARAMS).arrays
    check(
        model is not None or config.model != GIVEN,
        f"the model of {folder} came from Python: afl.load({str(folder)!r}, model=…) needs it",
    )
    built: Model = MODELS.build(config.model, "model") if model is None else model
    like = jax.eval_shape(built.init, jax.random.key(0))
    wanted, found = tree.shapes(like), tree.shapes(params)
    check(found == wanted, f"the parameters in {folder} are {found}, but the model has {wanted}")
    return Opened(config, about.read_facts(folder), built, tree.from_named(params, like))


def _check_run(run: Path) -> None:
    check(run.is_dir(), f"{run} is not a folder")
    if (run / "summary.json").exists() and (run / "config.json").exists():
        return
    inside = sorted(place.name for place in run.iterdir() if (place / "summary.json").exists())
    hint = f"; it holds the runs {', '.join(inside)}" if inside else " (no summary.json)"
    raise BadInput(f"{run} is no finished run{hint}")


def _why_not(which: str) -> str:
    if which == "last":
        return ": a run of an older version; train again"
    return f": that needs {kept_models.NEEDS[which]}"


def _manifest(folder: Path) -> dict[str, FileInfo]:
    file = folder / MANIFEST
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise BadInput(f"{folder} is no exported model: there is no {MANIFEST} in it") from None
    except (ValueError, OSError) as error:
        raise BadInput(f"{file} cannot be read: {error}") from None
    check(_is_ours(raw), f"{file} is not of an exported model")
    check(
        raw.get("version") == VERSION,
        f"{folder} has format version {raw.get('version')}; this program reads version {VERSION}",
    )
    try:
        return {name: FileInfo(**info) for name, info in raw["files"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{file} is damaged: {type(error).__name__} {error}") from None


def _is_ours(raw: Any) -> bool:
    return isinstance(raw, dict) and raw.get("format") == FORMAT


def _check_target(out: Path, overwrite: bool) -> None:
    check(not out.exists() or overwrite, f"{out} exists; --overwrite replaces an exported model")
    if out.exists():
        _manifest(out)  # says so if it is anything else, which stays
