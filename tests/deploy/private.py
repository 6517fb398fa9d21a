# SPDX-License-Identifier: Apache-2.0
"""Private federations in one process, for the tests that play them."""

from typing import Any

import msgspec
import numpy as np
import pytest

from agnosticfl.deploy.node import noised
from agnosticfl.deploy.task import FederatedTask, federated_config
from agnosticfl.privacy import noise_source
from agnosticfl.runs.config import Config
from tests.deploy.federations import NODES
from tests.deploy.secure import secure_toy

BUDGET = {"epsilon": 8.0, "delta": 1e-6}


def private_config(rounds: int = 2, dp: dict[str, Any] | None = None, **more: Any) -> Config:
    """The toy's, as it is deployed with this table `dp`."""
    config = secure_toy(rounds, dp={**BUDGET, **(dp or {})}).config
    return federated_config(msgspec.structs.replace(config, **more), NODES)


def private_toy(rounds: int = 2, dp: dict[str, Any] | None = None, **more: Any) -> FederatedTask:
    return secure_toy(rounds)._replace(config=private_config(rounds, dp, **more))


def with_known_noise(monkeypatch: pytest.MonkeyPatch, each: int) -> None:
    """Every share of noise, of clients and in the simulator, is the same number everywhere."""

    def known(sigma: int, size: int, bits: Any) -> np.ndarray:
        del sigma, bits
        return np.full(size, each, np.int64)

    for module in (noised, noise_source):
        monkeypatch.setattr(module, "discrete_gaussian", known)
