# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's driver and its largest libraries, on their way into memory while Python goes on.

JAX loads them and asks the driver for its cards with all of Python standing still, so that a thread
which starts the device keeps the others waiting. A call through `ctypes` keeps nobody waiting, and
what is there already JAX finds at once. It needs no JAX, and can begin before that is loaded.
"""

import contextlib
import ctypes
import importlib.util
import os
from pathlib import Path

# JAX's plugin -> what it loads first, and longest: package and file.
LIBRARIES = {
    "jax_plugins.xla_cuda12": (
        ("nvidia.cuda_nvrtc", "libnvrtc.so.12"),
        ("nvidia.cublas", "libcublas.so.12"),
    ),
    "jax_plugins.xla_cuda13": (
        ("nvidia.cu13", "libnvrtc.so.13"),
        ("nvidia.cu13", "libcublas.so.13"),
    ),
}
DRIVER = "libcuda.so.1"


def wake_driver() -> None:
    """Loads them as JAX will, if it will; what goes wrong is said when it does."""
    if not _is_wanted():
        return
    with contextlib.suppress(OSError, AttributeError):  # no such library
        load = ctypes.CDLL(None).dlopen
        for file in [*map(str, _libraries()), DRIVER]:
            load(os.fsencode(file), os.RTLD_NOW)
        ctypes.CDLL(DRIVER).cuInit(0)


def _is_wanted() -> bool:
    """Whether JAX will look for cards."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    return not platforms or any(name in platforms.split(",") for name in ("cuda", "gpu"))


def _libraries() -> list[Path]:
    """The files, in the order in which JAX loads them."""
    needed = [each for plugin, several in LIBRARIES.items() if _folder(plugin) for each in several]
    places = [(_folder(package), name) for package, name in needed]
    return [folder / "lib" / name for folder, name in places if folder]


def _folder(package: str) -> Path | None:
    """Where a package is, if it is installed; it is not loaded."""
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:  # nor is the one that it is in
        return None
    found = spec and spec.submodule_search_locations
    return Path(found[0]) if found else None
