# SPDX-License-Identifier: Apache-2.0
"""A client with a server that sends code: a decoy, to see whether it is run.

    python -m agnosticfl.deploy.flower.decoy FOLDER COMMAND

COMMAND is a client's: `flower-supernode OPTIONS`, or a warm process. All is as usual, Flower's own
programs too, but for the connection to the server. Two messages come from there, with a bundle
whose app leaves a mark in FOLDER when it is loaded: one for a client app, one for what Flower calls
an agent app. Answers leave marks, too.
"""

import contextlib
import hashlib
import importlib
import os
import sys
import traceback
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict

from agnosticfl.deploy.app import PACKAGE, PYPROJECT
from agnosticfl.deploy.flower import warm
from agnosticfl.deploy.flower.pinned import SUPERNODE
from agnosticfl.deploy.task import FILE

OWN, DECOY, ANSWER = "own-app-was-loaded", "decoy-was-loaded", "answer-to-{}"  # marks
OVER = "no-message-is-left"

APP = """\
from pathlib import Path

from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp

Path({mark!r}).touch()
app = ClientApp()


@app.query()
def answer(message, context):
    return Message(RecordDict(), reply_to=message)
"""
SERVER, NODE = 1, 2  # their numbers


def app_files(mark: Path) -> dict[str, str]:
    """An app that leaves a mark when it is loaded, as a client app or as an agent app."""
    pyproject = PYPROJECT.format(name="trial", package=PACKAGE)
    components = "[tool.flwr.app.components]\n"
    agent = f'{components}agentapp = "{PACKAGE}.client_app:app"\n'
    return {
        "pyproject.toml": pyproject.replace(components, agent),
        f"{PACKAGE}/__init__.py": "",
        f"{PACKAGE}/client_app.py": APP.format(mark=str(mark)),
        f"{PACKAGE}/server_app.py": "",
        f"{PACKAGE}/{FILE}": "{}",
    }


def bundle(files: Mapping[str, str]) -> Any:
    """An app as a server sends it."""
    build: Any = importlib.import_module("flwr.cli.build")
    fab: Any = importlib.import_module("flwr.supercore.fab")
    content, _ = build.build_fab_from_files({name: text.encode() for name, text in files.items()})
    return fab.Fab(hashlib.sha256(content).hexdigest(), content, {})


@contextlib.contextmanager
def connection(place: Path) -> Generator[tuple[Any, ...]]:
    """What Flower's own gives a SuperNode: its number, and functions to talk to the server."""
    runs: Any = importlib.import_module("flwr.supercore.run")
    types: Any = importlib.import_module("flwr.supercore.constant").TaskType
    config: Any = importlib.import_module("flwr.cli.config_utils")
    objects: Any = importlib.import_module("flwr.supercore.inflatable.inflatable_object")
    sender: Any = importlib.import_module("flwr.supercore.task_identity").TaskIdentity
    fab = bundle(app_files(place / DECOY))
    kinds = {1: types.SERVER_APP, 2: types.AGENT_APP}  # of the runs, by their numbers
    asked: dict[str, Any] = {}
    left = list(kinds)

    def receive() -> tuple[Message, Any] | None:
        if not left:
            (place / OVER).touch()
            return None
        sender.run_id, sender.task_id, sender.node_id = left.pop(0), SERVER, SERVER
        content = RecordDict({"agent": ConfigRecord({"text": "work"})})  # what an agent app takes
        message = Message(content, dst_node_id=NODE, message_type="query")
        message.metadata.__dict__["_message_id"] = message.object_id
        parts = objects.get_all_nested_objects(message)
        asked.update({name: part.deflate() for name, part in parts.items()})
        return message, objects.get_object_tree(message)

    def get_run(number: int) -> Any:
        run = runs.Run.create_empty(number)
        run.fab_id, run.fab_version = config.get_fab_metadata(fab.content)
        run.fab_hash, run.primary_task_type = fab.hash_str, kinds[number]
        run.series_id = number
        return run

    def send(reply: Message, *_: Any) -> tuple[set[str], str]:
        (place / ANSWER.format(reply.metadata.run_id)).touch()
        return set(), ""

    yield (
        NODE,
        receive,
        send,
        get_run,
        lambda *_: fab,
        lambda _, name: asked[name],  # pull an object
        lambda *_: None,  # push one
        lambda *_: None,  # confirm
    )


def main(place: Path, command: list[str]) -> None:
    """The client that `command` starts, connected to the decoy."""
    node: Any = importlib.import_module("flwr.supernode.start_client_internal")
    program: Any = importlib.import_module("flwr.supernode.cli.flower_supernode")
    assert callable(node._init_connection)
    node._init_connection = lambda *_, **__: connection(place)
    os.environ["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = "0.05"
    sys.argv = command
    try:
        if command[0] == SUPERNODE:
            program.flower_supernode()
        else:
            warm.main(command[-1], lambda *_: "")
    except Exception:
        traceback.print_exc()
        os._exit(1)  # a thread of Flower's would go on


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
