# SPDX-License-Identifier: Apache-2.0
"""What the command-line program remembers between runs: compiled programs, numbers of lanes.

All of it can be made again: the folder may be deleted at any time. Library use has no such memory
unless it sets one up (`jax_compilation_cache_dir`).
"""

import os
from pathlib import Path
from typing import Any

import jax

from agnosticfl.core import programs

VARIABLE = "AGNOSTICFL_CACHE"  # a folder, or "off"


def cache_folder(wanted: bool = True) -> Path | None:
    """The folder, or None if there shall be no memory."""
    setting = os.environ.get(VARIABLE, "")
    if not wanted or setting == "off":
        return None
    system = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(setting) if setting else Path(system) / "agnosticfl"


def remember_compilations(folder: Path | None) -> None:
    """Keeps compiled computations below `folder`, unless the user has told JAX where to."""
    config: Any = jax.config
    programs.keep_in(None if folder is None else folder / "programs")
    if folder is None or config.jax_compilation_cache_dir is not None:
        return
    jax.config.update("jax_compilation_cache_dir", str(folder / "compiled"))
    # However short: a run has dozens of small programs, and together they take an accelerator's
    # compiler a second.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
