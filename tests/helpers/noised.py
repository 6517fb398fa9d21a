# SPDX-License-Identifier: Apache-2.0
"""Contributions, and noise that follows from a number."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from agnosticfl.channels.dp.noise import independent
from agnosticfl.core.contribution import ClientSum
from agnosticfl.privacy.entropy import Secrets, secret_of_a_test
from agnosticfl.privacy.noise_source import noise_source


def noise_of_a_test(shares: int = 1) -> Any:
    return independent(noise_source(Secrets(secret_of_a_test(0))), shares)


def contribution(
    update: list[float], beta: float, loss: list[float], count: list[float]
) -> ClientSum:
    arrays = (jnp.array(update), jnp.float32(beta), jnp.array(loss), jnp.array(count))
    return ClientSum({"w": arrays[0]}, *arrays[1:], jnp.zeros(()))


class Hiding(np.ndarray):
    """Noise that hides whatever it is added to."""

    def __new__(cls, values: np.ndarray) -> "Hiding":
        return np.asarray(values).view(cls)

    def __radd__(self, other: Any) -> np.ndarray:
        del other
        return np.asarray(self)
