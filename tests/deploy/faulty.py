# SPDX-License-Identifier: Apache-2.0
"""The two sides of a live federation's app in which one thing goes wrong, as its run says.

The option `fault` of a run is "PLACE:WHAT": the node in that place (or "server", or "all" nodes)
does WHAT; there may be several, with commas.
"""

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from agnosticfl.core.contribution import ClientSum
from agnosticfl.deploy.app import PACKAGE
from agnosticfl.deploy.flower import client_app as client
from agnosticfl.deploy.flower.client_app import client_app
from agnosticfl.deploy.flower.records import AHEAD, REQUEST, ROUND, SECURE, SUM, to_record
from agnosticfl.deploy.flower.server_app import play
from agnosticfl.deploy.node.contribute import Call, Contribute
from agnosticfl.deploy.node.pytorch import torch_client
from agnosticfl.deploy.task import read_task
from agnosticfl.secagg.messages import Refused, Unmask, kind_of, pack, parse
from tests.deploy.clients import numpy_client


class FaultyNode(ClientApp):
    """The app of a node that plays many runs, each with a task and a fault of its own."""

    def __init__(self, apps: Path):
        super().__init__()
        self.apps, self.known = apps, dict[str, FaultyClient]()

    def __call__(self, message: Message, context: Context) -> Message:
        name = Path(str(context.run_config["out"])).name
        if name not in self.known:
            self.known[name] = FaultyClient(self.apps / name / PACKAGE)
        return self.known[name](message, context)


class FaultyClient(ClientApp):
    """The client's app, but for nodes that have a fault."""

    def __init__(self, folder: Path):
        super().__init__()
        self.folder, self.app = folder, client_app(folder, numpy_client)
        self.secure = read_task(folder).config.secure is not None

    def __call__(self, message: Message, context: Context) -> Message:
        if not self.secure:  # the same nodes play in both kinds of federation
            context.node_config.pop("roster", None)
        faults = [fault.split(":") for fault in str(context.run_config["fault"]).split(",")]
        places = ("all", str(context.node_config["partition-id"]))
        whats = [what for place, what in faults if place in places]
        if "hang" in whats and message.metadata.message_type == "train":
            time.sleep(600)
        app: Callable[[Message, Context], Message] = self.app
        if "torch" in whats:  # no fault: a client of another framework beside the others
            app = client_app(self.folder, torch_toy())
        if "plant" in whats:
            app = self.witnessed
        reply = app(message, context)
        if f"drop {kind(reply)}" in whats:
            raise RuntimeError("lost")
        if f"garble {kind(reply)}" in whats:
            reply.content.config_records[SECURE][REQUEST] = b"nonsense"
        for place in (REQUEST, AHEAD):  # of this round, and of the next one beside it
            if f"replay {kind(reply, place)}" in whats:
                secure = reply.content.config_records[SECURE]
                kept = context.state.config_records.setdefault(
                    SECURE, ConfigRecord({REQUEST: secure[place]})
                )
                secure[place] = kept[REQUEST]
        if reply.has_content() and SUM in reply.content:
            for what in whats:
                SUMS.get(what, lambda _reply, _context: None)(reply, context)
        return reply

    def witnessed(self, message: Message, context: Context) -> Message:
        """Contributes a pattern, and keeps on the node what must not leave it."""
        memory = Path(str(context.node_config["memory"]))
        kept = memory.with_name(f"witness-{context.run_id}")
        kept.mkdir(exist_ok=True)
        theirs = client.answer

        def noted(*args: Any) -> dict[str, np.ndarray]:
            vectors = theirs(*args)
            for vector in vectors.values():
                (kept / f"{time.time_ns()}.vector").write_bytes(vector.tobytes())
            return vectors

        client.answer = noted
        try:
            reply = client_app(self.folder, planted)(message, context)
        finally:
            client.answer = theirs
        if memory.exists():
            (kept / f"{time.time_ns()}.state").write_bytes(memory.read_bytes())
        return reply


def planted(call: Call) -> ClientSum:
    """A client whose update and losses are a pattern that a search can find."""
    update, losses = pattern(call.client)
    return numpy_client(call)._replace(weighted_delta=update, domain_loss=losses)  # type: ignore[arg-type]


def pattern(place: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([place, 7])
    return rng.uniform(0.1, 0.9, ()).astype(np.float32), rng.uniform(1, 9, 5).astype(np.float32)


def torch_toy() -> Contribute:
    """The toy's client in PyTorch."""
    import torch  # pyright: ignore[reportMissingImports]

    class Point(torch.nn.Module):  # pyright: ignore[reportUntypedBaseClass]
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(()))

    return torch_client(Point, lambda module, e: (e["x"] - module.w) ** 2)


def kind(message: Message, place: str = REQUEST) -> str:
    """The kind of a message of the secure protocol; "" if it is none."""
    records = message.content.config_records if message.has_content() else {}
    content: Any = records.get(SECURE, ConfigRecord()).get(place, b"")
    try:
        return kind_of(content) if isinstance(content, bytes) else ""
    except Refused:
        return ""


def _nan(reply: Message, _: Context) -> None:
    reply.content[SUM] = to_record({"float32": np.full(13, np.nan, np.float32)})


def _shape(reply: Message, _: Context) -> None:
    reply.content[SUM] = to_record({"float32": np.ones(99, np.float32)})


def _replay(reply: Message, context: Context) -> None:
    """Sends what it sent in its first round, word for word."""
    if "first" in context.state:
        first = context.state.config_records["first"]
        reply.content[ROUND] = ConfigRecord({"token": first["token"]})
    else:
        context.state["first"] = ConfigRecord(dict(reply.content.config_records[ROUND]))


SUMS: dict[str, Callable[[Message, Context], None]] = {
    "nan": _nan,
    "shape": _shape,
    "replay": _replay,
}


class Watched(Grid):
    """The real grid; writes down all that comes from clients, and may change what goes to them."""

    def __init__(self, grid: Grid, received: Path, fault: str):
        self.grid, self.received, self.fault = grid, received, fault

    def set_run(self, run: Any) -> None:
        self.grid.set_run(run)

    @property
    def run(self) -> Any:
        return self.grid.run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        return self.grid.create_message(*args, **kwargs)

    def get_node_ids(self) -> Iterable[int]:
        return self.grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        for message in messages:
            if self.fault == "server:both shares" and kind(message) == "Unmask":
                record = message.content.config_records[SECURE]
                unmask = parse(record[REQUEST], Unmask)  # type: ignore[arg-type]
                record[REQUEST] = pack(unmask._replace(dead=unmask.alive))
        return self.grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        found = list(self.grid.pull_messages(message_ids))
        for message in found:
            late = kind(message) == "Revealed"  # what clients give at the end of a secure round
            with self.received.with_suffix(".revealed" if late else ".received").open("ab") as file:
                file.write(everything(message))
        return found

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.grid.send_and_receive(messages, timeout=timeout)


def everything(message: Message) -> bytes:
    """All bytes of a message that reach the server."""
    parts = [json.dumps(message.metadata.__dict__, default=str).encode()]
    if message.has_error():
        return b"".join([*parts, (message.error.reason or "").encode()])
    parts.append(repr(message.content).encode())
    for record in message.content.values():
        for value in record.values():
            parts.append(value if isinstance(value, bytes) else getattr(value, "data", b""))
    return b"".join(parts)


def faulty_server(folder: Path) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:  # pyright: ignore[reportUnusedFunction]
        options = context.run_config
        received = Path(f"{options['out']}.received")
        play(read_task(folder), options, Watched(grid, received, str(options["fault"])))

    return app
