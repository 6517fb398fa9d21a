# SPDX-License-Identifier: Apache-2.0
"""Contributions, and noise that follows from a number."""

from typing import Any

import jax.numpy as jnp

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
