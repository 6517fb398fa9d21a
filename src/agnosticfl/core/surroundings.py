# SPDX-License-Identifier: Apache-2.0
"""What decides what a program does, beside the functions that it is traced from."""

import functools
import hashlib
import importlib.util
import os
import platform
import sys
from pathlib import Path
from typing import Any

from agnosticfl.core.fingerprint import PACKAGES, Unknown
from agnosticfl.core.lazy_jax import jax

PACKAGE = Path(__file__).parent.parent  # ours
# Of variables that decide how programs are made.
PREFIXES = ("JAX_", "XLA_", "LIBTPU_", "TRITON_", "TF_", "NVIDIA_TF32")


@functools.cache
def surroundings() -> tuple[Any, ...]:
    """Versions, device, and what the compiler was told.

    Raises:
      Unknown: if it is not known, or if there are several processes.
    """
    if jax.process_count() > 1:
        raise Unknown("several processes")
    device = jax.local_devices()[0]
    there = (device.device_kind, device.client.platform_version, jax.local_device_count())
    variables = sorted(item for item in os.environ.items() if item[0].startswith(PREFIXES))
    return sys.version, platform.machine(), _processor(), _installed(), there, variables


@functools.cache
def source_of(folder: Path) -> str:
    """A checksum of all code in a folder."""
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(folder)} {len(content)} ".encode() + content)
    return digest.hexdigest()


def settings(*, but: str = "") -> list[Any]:
    """JAX's own, those of this thread and moment included."""
    config: Any = jax.config
    return [getattr(config, name, None) for name in config.values if name != but]


def _installed() -> list[str]:
    """Name and version of every package. Those that a program comes from may not be edited ones."""
    for name in PACKAGES - {"agnosticfl"}:
        # Loaded or not: a program that is found loads less than where it was made.
        spec = importlib.util.find_spec(name)
        file = spec and spec.origin
        if file and not any(Path(file).parent.parent.glob(f"{name}-*.dist-info")):
            raise Unknown(f"which version of {name} this is")
    folders = [place for place in map(Path, sys.path) if place.is_dir()]
    kinds = ("*.dist-info", "*.egg-info")
    return sorted({one.name for place in folders for kind in kinds for one in place.glob(kind)})


def _processor() -> list[str]:
    """What a CPU can do: its programs are for this machine alone."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return [platform.processor(), platform.node()]
    return sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})
