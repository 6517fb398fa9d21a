# SPDX-License-Identifier: Apache-2.0
"""Secure rounds over a grid of clients in one process, for the tests that play them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from flwr.app import ConfigRecord, Message

from agnosticfl.deploy.agree import agreement_of
from agnosticfl.deploy.flower.client_app import client_app
from agnosticfl.deploy.flower.records import REQUEST, SECURE, to_record
from agnosticfl.deploy.flower.secure_strategy import SecureStrategy
from agnosticfl.deploy.flower.server_app import first_params, server_data
from agnosticfl.deploy.flower.standing import Standing
from agnosticfl.deploy.node.contribute import Contribute
from agnosticfl.deploy.roster import read_roster
from agnosticfl.deploy.task import FederatedTask, write_task
from agnosticfl.registry import MODELS
from agnosticfl.runs.config import Config
from agnosticfl.secagg.messages import kind_of
from tests.deploy.clients import numpy_client
from tests.deploy.fake import FakeGrid, Fault
from tests.deploy.federations import (
    NODES,
    POLICY,
    SERVER,
    toy,
)


def secure_toy(rounds: int = 2, **more: Any) -> FederatedTask:
    task = toy(rounds)
    secure = msgspec.structs.replace(task.config, secure={"name": "simulate"}, **more)
    return task._replace(config=secure)


def play(
    folder: Path,
    keys: Path,
    rounds: int = 1,
    faults: dict[int, Fault] | None = None,
    contribute: Contribute = numpy_client,
    node_config: Callable[[int], dict[str, Any]] = lambda _: {},
    tamper: Callable[[Message], None] = lambda _: None,
    compress: dict[str, Any] | None = None,
    task: FederatedTask | None = None,
    served: Config | None = None,
    nodes: int = NODES,
    **policy: Any,
) -> FakeGrid:
    """A run in the folder `run`; `served` is what a server of other code plays in its place."""
    task = task or secure_toy(rounds, compress=compress)
    folder.mkdir(exist_ok=True)
    write_task(folder, task)

    def settings(place: int) -> dict[str, Any]:
        own = {"roster": keys / "roster", "signing-key": keys / f"{place}.sign"}
        own |= {"memory": folder / f"{place}.memory", "ledger": folder / f"{place}.ledger"}
        return {**{name: str(path) for name, path in own.items()}, **node_config(place)}

    roster = read_roster(keys / "roster")
    grid = FakeGrid([client_app(folder, contribute)] * nodes, faults, settings, tamper)
    strategy = SecureStrategy(
        served or task.config,
        folder / "run",
        POLICY._replace(**{"minimum": 3, "attempts": 2, "step": 0.2, **policy}),
        server_data(task, {"data": ""}),
        Standing(agreement_of(task, roster, 3, 1)),
        SERVER,
    )
    first = to_record(first_params(task, MODELS.build(task.config.model, "model")))
    strategy.start(grid, first, rounds, POLICY.deadline)
    return grid


def silent_at(kind: str) -> Fault:
    def fault(reply: Message) -> Message | None:
        record = reply.content.config_records.get(SECURE, ConfigRecord())
        answer: Any = record.get(REQUEST)
        return None if answer is not None and kind_of(answer) == kind else reply

    return fault


def silent_twice(kind: str) -> Fault:
    """Two replies of that kind are lost."""
    lost: list[Message] = []

    def fault(reply: Message) -> Message | None:
        if silent_at(kind)(reply) is None and len(lost) < 2:
            lost.append(reply)
            return None
        return reply

    return fault


def asked(message: Message) -> str:
    record = message.content.config_records.get(SECURE, ConfigRecord())
    request: Any = record.get(REQUEST)
    return kind_of(request) if request else ""
