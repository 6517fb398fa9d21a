# SPDX-License-Identifier: Apache-2.0
"""The federation that the tests of a strategy play, and the simulation to hold it against."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agnosticfl.data.source import Feature, Rows, Source
from agnosticfl.data.store import write_store
from agnosticfl.deploy.flower.federation import RoundPolicy
from agnosticfl.deploy.node.examples import dealt
from agnosticfl.deploy.supervise.local import make_members
from agnosticfl.deploy.task import FederatedTask, federated_config, new_task
from agnosticfl.runs.build import Built, assemble, build, build_engine
from agnosticfl.runs.config import Config
from agnosticfl.runs.records import read_records
from agnosticfl.runs.resolve import resolve
from agnosticfl.runs.run import run
from agnosticfl.secagg.primitives import verify_key

NODES = 4
SERVER = Ed25519PrivateKey.from_private_bytes(bytes(32))
POLICY = RoundPolicy(clients=NODES, minimum=2, over_selection=1.0, deadline=0.2, wait=0, attempts=3)


def make_federation(folder: Path, names: Sequence[str]) -> Path:
    """Keys NAME.key and NAME.sign for each, and their roster."""
    keys = [folder / f"{name}.key" for name in names]
    make_members(keys, [toy().domains] * len(keys), folder / "roster")
    return folder / "roster"


def toy(rounds: int = 3, nodes: int = NODES) -> FederatedTask:
    """The toy, as so many machines agree on it."""
    config = federated_config(resolve("toy", rounds=rounds), nodes)
    task = new_task(config, build(config).data, verify_key(SERVER).hex())
    return task._replace(run="toy-of-the-tests")


def toy_store(folder: Path, dtype: str = "float32", labels: tuple[str, ...] | None = None) -> Path:
    """A store that fits the toy, if nothing else is said."""

    def rows() -> Iterator[Rows]:
        for split in ("train", "test"):
            yield Rows(split, ["me"] * 5, np.arange(5, dtype=np.int32), {"x": np.ones(5, dtype)})

    source = Source("mine", "none", toy().domains, {"x": Feature(dtype, ())}, rows, labels=labels)
    write_store(source, folder, overwrite=True)
    return folder


def simulate(folder: Path, config: Config, clients: int = NODES) -> list[dict[str, Any]]:
    """A run in the simulator, with the clients of the first nodes."""

    def make(config: Config, *_: Any) -> Built:
        built = build(config)
        model, data = built.model, built.data
        train = dealt(data.train, NODES)
        keep = np.arange(NODES) < clients
        rows = np.repeat(keep, train.sizes)
        train = train._replace(
            examples={"x": train.examples["x"][rows]},
            domain=train.domain[rows],
            offsets=np.concatenate([[0], np.cumsum(train.sizes * keep)]),
        )
        return assemble(config, model, data._replace(train=train), build_engine(config, None, None))

    run(config, folder, make_built=make)
    return read_records(folder)


def assert_same(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    """Number by number, up to the order of float32 sums."""
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert a["count"] == b["count"]
        for name in ("params", "domain_weights", "loss", "alpha", "beta"):
            np.testing.assert_allclose(a[name], b[name], rtol=2e-6, err_msg=name)


def assert_close(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    """Counts are equal, other sums within the fixed point's unit."""
    for a, b in zip(one, other, strict=True):
        assert a["count"] == b["count"]
        for name in ("params", "domain_weights", "loss", "alpha", "beta"):
            np.testing.assert_allclose(a[name], b[name], rtol=1e-5, err_msg=name)
