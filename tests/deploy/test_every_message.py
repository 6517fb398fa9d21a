# SPDX-License-Identifier: Apache-2.0
"""All that clients of a private federation send, byte by byte: nothing follows from their data."""

import hashlib
import itertools
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from Crypto.Protocol import SecretSharing
from flwr.app import Message

from agnosticfl.data.source import Feature, Rows, Source
from agnosticfl.data.store import write_store
from agnosticfl.deploy.flower import federation
from agnosticfl.deploy.node import noised
from agnosticfl.secagg import primitives
from tests.deploy.federations import NODES, toy
from tests.deploy.private import private_toy
from tests.deploy.secure import asked, play
from tests.helpers.noised import Hiding

pytest.importorskip("dp_accounting")

BY_CLIENTS: dict[str, Any] = {
    "evaluation_by": "clients",
    "evaluation_every": 1,
    "evaluation_share": 0.4,
}


def known_randomness(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys, masks, names and a clock that are the same each time; noise that hides all else."""
    numbers = itertools.count()

    def drawn(size: int) -> bytes:
        return hashlib.shake_256(next(numbers).to_bytes(8, "big")).digest(size)

    def hiding(sigma: int, size: int, _: Any) -> Hiding:
        return Hiding(sigma * (np.arange(size) % 3 - 1))

    monkeypatch.setattr(federation, "SHORTEST", 0.01)
    monkeypatch.setattr(primitives, "random_bytes", drawn)
    monkeypatch.setattr("agnosticfl.secagg.member.random_bytes", drawn)
    monkeypatch.setattr(SecretSharing, "rng", drawn)
    monkeypatch.setattr(random, "_urandom", drawn)  # of the module `secrets`
    monkeypatch.setattr(time, "time_ns", lambda: 10**18)  # the number of a secure round
    monkeypatch.setattr(noised, "discrete_gaussian", hiding)


def store(folder: Path, seed: int) -> Path:
    """The examples of one client: others for each seed, and not as many."""
    rng = np.random.default_rng(seed)
    size = 20 + 7 * seed
    domain = rng.integers(len(toy().domains), size=size).astype(np.int32)
    x = rng.normal(size=size).astype(np.float32)

    def rows() -> Iterator[Rows]:
        yield Rows("train", ["me"] * size, domain, {"x": x})

    write_store(Source("mine", "none", toy().domains, {"x": Feature("float32", ())}, rows), folder)
    return folder


def sent(
    folder: Path, keys: Path, first: int, monkeypatch: pytest.MonkeyPatch, **more: Any
) -> list[tuple[str, bytes]]:
    """What clients say in two rounds, kind by kind; their data is of seeds from `first` on."""
    folder.mkdir()
    data = [{"data": str(store(folder / f"store-{n}", first + n))} for n in range(NODES)]
    with monkeypatch.context() as patched:
        known_randomness(patched)
        grid = play(
            folder, keys, rounds=2, task=private_toy(**more), node_config=lambda place: data[place]
        )
    return [(asked(message), everything(message)) for message in grid.received]


def everything(message: Message) -> bytes:
    """What a client says, without the times and numbers that Flower gives a message."""
    assert not message.has_error()
    return b"".join(
        f"{place}.{name}: ".encode() + (value if isinstance(value, bytes) else told(value))
        for place, record in message.content.items()
        for name, value in record.items()
    )


def told(value: Any) -> bytes:
    return getattr(value, "data", b"") + repr(value).encode()


def different(one: list[tuple[str, bytes]], other: list[tuple[str, bytes]]) -> list[str]:
    """The kinds of those messages that are not the same, in their order."""
    return [kind for (kind, mine), (_, theirs) in zip(one, other, strict=True) if mine != theirs]


@pytest.mark.parametrize("more", [pytest.param({}, marks=pytest.mark.slow), BY_CLIENTS])
def test_every_message_is_the_same_whatever_clients_hold(
    tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
):
    one = sent(tmp_path / "one", keys, 0, monkeypatch, **more)
    other = sent(tmp_path / "other", keys, NODES, monkeypatch, **more)
    kinds = {"Joined", "Keys", "Shares", "Masked", "Confirmed", "Revealed"}
    assert {kind for kind, _ in one} == kinds
    assert different(one, other) == []


@pytest.mark.slow
def test_that_test_sees_a_vector_that_was_not_noised(
    tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(noised, "with_noise", noised.within_length)
    one = sent(tmp_path / "one", keys, 0, monkeypatch)
    other = sent(tmp_path / "other", keys, NODES, monkeypatch)
    assert different(one, other)[:NODES] == ["Masked"] * NODES
