# SPDX-License-Identifier: Apache-2.0
"""What the compiler is told beyond the program."""

from agnosticfl.core.lazy_jax import jax


def for_nvidia(**options: str | bool) -> dict[str, str | bool] | None:
    """These options where the device is an NVIDIA card, and None elsewhere: nobody else knows them.

    They come from XLA's own list; what is not in it is refused when something is compiled.
    """
    return options if on_nvidia() else None


def on_nvidia() -> bool:
    """Whether programs are for an NVIDIA card: some are written for it alone."""
    return "cuda" in jax.local_devices()[0].client.platform_version
