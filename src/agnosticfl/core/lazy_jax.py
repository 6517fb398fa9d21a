# SPDX-License-Identifier: Apache-2.0
"""JAX, loaded when it is first used.

Modules on the way of a client that trains with PyTorch take it from here: that client needs none.
"""

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import jax as jax
    import jax.numpy as jnp
    from jax import Array as Array
else:

    class _Later:
        """A module that is imported when something of it is wanted."""

        def __init__(self, name: str) -> None:
            self.__name__ = name

        def __getattr__(self, attribute: str) -> Any:
            if attribute.startswith("__"):  # who looks what this is wants no JAX
                raise AttributeError(attribute)
            return getattr(importlib.import_module(self.__name__), attribute)

    jax, jnp, Array = _Later("jax"), _Later("jax.numpy"), Any

__all__ = ["Array", "jax", "jnp", "numpy_of"]


def numpy_of(array: Any) -> Any:
    """The functions for an array: NumPy's for one of NumPy, JAX's for all others."""
    return np if isinstance(array, np.ndarray) else jnp
