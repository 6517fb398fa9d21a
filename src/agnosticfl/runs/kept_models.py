# SPDX-License-Identifier: Apache-2.0
"""The models that a run keeps: the last, the best by its worst held-out domain, the mean of all.

Each is one file of safetensors, models/last.safetensors and so on, which holds the parameters by
name, the round they are from, and a checksum of them.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import safetensors
import safetensors.numpy

from agnosticfl.core import tree
from agnosticfl.core.evaluate import Results, worst_domain
from agnosticfl.core.metrics import Reading
from agnosticfl.core.model import Params
from agnosticfl.errors import BadInput, check, choose
from agnosticfl.files import write_bytes

FOLDER = "models"  # in a run folder
# A model -> what a run needs to have it.
NEEDS = {
    "last": "",
    "best": "looks at held-out clients (evaluation_every)",
    "mean": "to keep it from its first round on (mean_model)",
}
WHICH = tuple(NEEDS)
ABOUT = "about"  # key of what a file of safetensors says of itself

Keep: TypeAlias = Callable[[int, Params, Results], None]  # (t, w_t, what held-out clients say)
Later: TypeAlias = Callable[[Callable[[], None]], None]  # does it, perhaps in another thread


class Look(NamedTuple):
    """What a look at held-out clients says of the domain that is served worst."""

    round: int
    metric: str
    domain: str
    value: float


class Kept(NamedTuple):
    """Parameters from a file."""

    arrays: dict[str, np.ndarray]  # by name
    about: dict[str, str]  # the round they are from; of the best, the look that made them so


def file_of(folder: Path, which: str) -> Path:
    """Where a run in `folder` keeps that model."""
    return folder / FOLDER / f"{choose(which, WHICH, 'model of a run')}.safetensors"


def write_at_once(job: Callable[[], None]) -> None:
    job()


def best_keeper(
    folder: Path,
    metric: str,
    how: Reading,
    write: Later = write_at_once,
    more: Mapping[str, Any] = {},
) -> Keep:
    """Keeps the parameters whenever the worst domain is served at least as well as ever before.

    Of equals the later one, which was trained longer: shares of few examples are often equal. A run
    that goes on after a crash may meet rounds again that the file already knows of: they have the
    same bits, so none of them beats it, and in the end the file is the same.

    Args:
      write: does what writes the file; of several that wait the last one is enough.
      more: what the file says besides the look.
    """
    best = best_look(folder)

    def keep(t: int, params: Params, results: Results) -> None:
        nonlocal best
        if all(values[metric] is None for values in results.values()):
            return  # noise can hide all of them
        worst = worst_domain(results, metric, how.higher_is_better)
        look = Look(t, metric, worst.domain, worst.value)
        if np.isfinite(look.value) and (best is None or _as_good(how, look, best)):
            best = look
            about = {**look._asdict(), **more}
            write(lambda: write_params(file_of(folder, "best"), params, about))

    return keep


def best_look(folder: Path) -> Look | None:
    """The look that made the best model the best; None without one."""
    file = file_of(folder, "best")
    if not file.exists():
        return None
    about = read_params(file).about
    return Look(int(about["round"]), about["metric"], about["domain"], float(about["value"]))


def _as_good(how: Reading, look: Look, best: Look) -> bool:
    sign = 1 if how.higher_is_better else -1
    return sign * look.value >= sign * best.value


def write_params(path: Path, params: Params, about: Mapping[str, Any]) -> None:
    """Writes parameters by name, with a checksum; whole or not at all."""
    arrays = {name: np.asarray(array, order="C") for name, array in tree.named(params).items()}
    texts = {name: str(value) for name, value in about.items()}
    # One text, because the order of several would be another one every time.
    told = json.dumps({**texts, "sha256": _digest(arrays, texts)})
    path.parent.mkdir(exist_ok=True)
    write_bytes(path, safetensors.numpy.save(arrays, {ABOUT: told}))


def read_params(path: Path) -> Kept:
    """The inverse; a file that is damaged is refused."""
    check(path.is_file(), f"there is no file {path}")
    try:
        with safetensors.safe_open(path, "numpy") as file:
            about: dict[str, str] = json.loads(file.metadata()[ABOUT])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        raise BadInput(f"{path} cannot be read: {error}") from None
    found = about.pop("sha256", None)
    check(found == _digest(arrays, about), f"{path} is damaged: its checksum is another")
    return Kept(arrays, about)


def _digest(arrays: Mapping[str, np.ndarray], about: Mapping[str, str]) -> str:
    """Of names, types, shapes and numbers, and of what is said of them."""
    total = hashlib.sha256(repr(sorted(about.items())).encode())
    for name, array in sorted(arrays.items()):
        total.update(repr((name, array.dtype.str, array.shape)).encode())
        total.update(array.tobytes())
    return total.hexdigest()
