# SPDX-License-Identifier: Apache-2.0
"""Federations are tested where the extra `deploy` is installed."""

import importlib
import importlib.util
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

installed = importlib.util.find_spec("flwr") is not None
collect_ignore_glob = [] if installed else ["test_*.py"]

if installed:
    with warnings.catch_warnings():  # of libraries that Flower's first import loads
        warnings.simplefilter("ignore")
        importlib.import_module("flwr.serverapp")
        importlib.import_module("flwr.clientapp")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A signing key for every node, and one that nobody registered."""
    from agnosticfl.deploy.client_keys import make_client_keys
    from tests.deploy.federations import NODES, make_federation, toy

    folder = tmp_path_factory.mktemp("keys")
    make_federation(folder, [str(node) for node in range(NODES)])
    make_client_keys(folder / "stranger.key", list(toy().domains), "nobody")
    return folder


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[dict[str, Any]]]:
    """Number of clients -> records of the simulation of two rounds with the first of them."""
    from tests.deploy.federations import simulate, toy

    done: dict[int, list[dict[str, Any]]] = {}

    def get(clients: int, rounds: int = 2) -> list[dict[str, Any]]:
        if clients not in done:
            folder = tmp_path_factory.mktemp("simulated") / "run"
            done[clients] = simulate(folder, toy(2).config, clients)
        return done[clients][:rounds]

    return get
