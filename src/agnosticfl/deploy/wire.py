# SPDX-License-Identifier: Apache-2.0
"""What travels: w, α and the channel's state down, and one vector up. No transport is known here.

    up    [β^k Δ^k …, β^k, L^k_1 … L^k_p, N^k_1 … N^k_p, left out]

Everything a client says is in that one vector, so that whatever adds vectors (a loop, a secure sum)
adds contributions. A channel may make other numbers of it: then there is one vector for each type.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from agnosticfl.core import tree
from agnosticfl.core.lazy_jax import jax, jnp
from agnosticfl.errors import quoted
from agnosticfl.secagg import primitives


def digest(t: int, arrays: Mapping[str, np.ndarray]) -> bytes:
    """Of what is sent down in round t: names, types with their byte order, shapes and bytes."""
    parts = [t.to_bytes(8, "big")]
    for name, array in sorted(arrays.items()):
        parts += [repr((name, array.dtype.str, array.shape)).encode(), array.tobytes()]
    return primitives.digest(*parts)


def pack(message: Any) -> dict[str, np.ndarray]:
    """A client's message, a pytree, as one vector for each type of number in it."""
    parts: dict[str, list[np.ndarray]] = {}
    for leaf in map(np.asarray, tree.leaves(message)):
        parts.setdefault(leaf.dtype.name, []).append(leaf.ravel())
    return {dtype: np.concatenate(vectors) for dtype, vectors in parts.items()}


def unpack(vectors: Mapping[str, np.ndarray], like: Any) -> Any:
    """The inverse of `pack`, for a message with the shapes and types of `like`."""
    leaves, structure = jax.tree.flatten(like)
    used = dict.fromkeys(vectors, 0)
    arrays: list[Any] = []
    for leaf in leaves:
        name, size = np.dtype(leaf.dtype).name, math.prod(leaf.shape)
        part = vectors[name][used[name] : used[name] + size]
        shaped = part.reshape(leaf.shape)
        # JAX would halve numbers of 64 bits, which evaluations have.
        arrays.append(shaped if shaped.dtype.itemsize == 8 else jnp.asarray(shaped))
        used[name] += size
    return jax.tree.unflatten(structure, arrays)


def sizes(like: Any) -> dict[str, int]:
    """How many numbers of each type a message like `like` has."""
    total: dict[str, int] = {}
    for leaf in jax.tree.leaves(like):
        name = np.dtype(leaf.dtype).name
        total[name] = total.get(name, 0) + math.prod(leaf.shape)
    return total


def refusal(vectors: Mapping[str, np.ndarray], like: Any) -> str | None:
    """Why vectors that came from outside cannot be a message like `like`; None if they can."""
    expected = sizes(like)
    found = {name: (vector.dtype.str, vector.shape) for name, vector in vectors.items()}
    if found != {name: (np.dtype(name).str, (size,)) for name, size in expected.items()}:
        return f"its vectors are {quoted(found)}, where {expected} is the right size"
    if not all(np.isfinite(vector).all() for vector in vectors.values()):
        return "a number in its vector is not finite"
    return None
