# SPDX-License-Identifier: Apache-2.0
"""A federation in one process: Flower's Grid interface over ClientApps that are called directly."""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

# What happens to a client's reply on its way: it may be changed, or lost (None).
Fault = Callable[[Message], Message | None]


class FakeGrid(Grid):
    """Calls the app of each node when it is sent a message; replies wait to be pulled.

    `tamper` is what a server with other code than ours does to its messages.

    Node numbers are such that they do not survive a way through floating point.
    """

    def __init__(
        self,
        apps: list[ClientApp],
        faults: dict[int, Fault] | None = None,
        node_config: Callable[[int], dict[str, Any]] = lambda _: {},
        tamper: Callable[[Message], None] = lambda _: None,
    ):
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 2, 1
        self.nodes = [2**63 + 2 * place + 1 for place in range(len(apps))]
        self.apps = dict(zip(self.nodes, apps, strict=True))
        self.contexts = {
            node: Context(
                run_id=1,
                node_id=node,
                node_config={
                    "partition-id": place,
                    "num-partitions": len(apps),
                    **node_config(place),
                },
                state=RecordDict(),
                run_config={},
            )
            for place, node in enumerate(self.nodes)
        }
        self.faults = {self.nodes[place]: fault for place, fault in (faults or {}).items()}
        self.tamper = tamper
        self.sent: list[Message] = []  # to clients
        self.received: list[Message] = []  # from clients
        self._replies: dict[str, Message] = {}
        self._numbers = itertools.count(1)

    def set_run(self, run: Any) -> None:
        del run

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return [self._deliver(message) for message in messages]

    def _deliver(self, message: Message) -> str:
        number = f"message-{next(self._numbers)}"
        message.metadata.__dict__["_message_id"] = number
        node = message.metadata.dst_node_id
        self.tamper(message)
        self.sent.append(message)
        try:
            reply = self.apps[node](message, self.contexts[node])
        except Exception as error:
            reply = Message(Error(code=4, reason=f"{type(error)}:<'{error}'>"), reply_to=message)
        reply = self.faults.get(node, lambda same: same)(reply)
        if reply is not None:
            self._replies[number] = reply
        return number

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        found = [self._replies.pop(n) for n in message_ids if n in self._replies]
        self.received += found
        return found

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        del timeout
        return self.pull_messages(self.push_messages(messages))
