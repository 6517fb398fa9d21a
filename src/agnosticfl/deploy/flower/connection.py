# SPDX-License-Identifier: Apache-2.0
"""Flower's own connection of a node to its server, as our clients use it.

Fleet protocol, node key, TLS and retries are Flower's. What is taken from its inside is
in this file, for the version that is pinned; `tests/deploy/test_warm.py` fails if it changes.
"""

import contextlib
import importlib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from flwr.app import Message

from agnosticfl.deploy.flower.alive import Lively
from agnosticfl.deploy.flower.whole import Whole, sending
from agnosticfl.deploy.keys import read_node_key
from agnosticfl.errors import BadInput

_node: Any = importlib.import_module("flwr.supernode.start_client_internal")
_http: Any = importlib.import_module("flwr.supernode.fleet_http_connection")
_objects: Any = importlib.import_module("flwr.supercore.inflatable.inflatable_object")
_parts: Any = importlib.import_module("flwr.supercore.inflatable.inflatable_utils")
# What a call ends with if the run is over; no `Exception`.
Stopped: type[BaseException] = importlib.import_module("flwr.supercore.run").RunNotRunningException


class Connection(NamedTuple):
    """What Flower gives a node: its number, and functions that talk to the server."""

    node: int
    receive: Callable[[], tuple[Message, Any] | None]
    send: Callable[[Message, Any, float], tuple[set[str], str]]
    get_run: Callable[[int], Any]
    get_fab: Callable[[str, int], Any]  # never called
    pull_object: Callable[[int, str], bytes]
    push_object: Callable[[int, str, str, bytes], None]
    confirm: Callable[[int, str], None]


class NotLetIn(Exception):
    """The server knows the client's key, but does not (yet) let it work."""


def _raise_not_let_in(_code: int, message: str = "") -> NoReturn:
    """Flower would end the process; ours says why, and may try again."""
    raise NotLetIn(" ".join(message.split()))


class WholeFleet(Whole, Lively):
    """A client's own client of a SuperLink."""

    def DeactivateNode(self, request: Any) -> Any:  # noqa: N802, as Flower has it
        # Who leaves need not understand the answer; of what can go wrong Flower lets only this go.
        try:
            return super().DeactivateNode(request)
        except ValueError as error:
            raise RuntimeError(str(error)) from error


_http.flwr_exit = _raise_not_let_in
_http.FleetHttpClient = WholeFleet


@contextlib.contextmanager
def connected(server: str, authority: Path, key: Path) -> Generator[Connection]:
    """A connection that lasts, whatever happens to the network, until the block ends.

    `NotLetIn` if the server does not want it.

    Args:
      server: host:port.
      authority: the certificate to trust.
      key: the file with the node key.
    """
    private = read_node_key(key)
    with _node._init_connection(
        server_address=server,
        insecure=False,
        root_certificates=authority.read_bytes(),
        authentication_keys=(private, private.public_key()),
        max_retries=None,
        max_wait_time=None,
    ) as parts:
        yield Connection(*parts)


def pull(connection: Connection, run: int, tree: Any) -> Message:
    """Fetches the message with all its parts, which the server may then forget."""
    wanted = [part.object_id for part in _objects.iterate_object_tree(tree)]
    found = _parts.pull_objects(wanted, lambda name: connection.pull_object(run, name))
    connection.confirm(run, tree.object_id)
    message: object = _parts.inflate_object_from_contents(tree.object_id, found)
    if not isinstance(message, Message):
        raise BadInput(f"the server sent a {type(message).__name__} in place of a message")
    message.metadata.__dict__["_message_id"] = tree.object_id
    return message


def push(connection: Connection, run: int, reply: Message) -> None:
    """Sends an answer, and those of its parts that the server does not have.

    Flower would like to know how long the app has worked; it is not told.
    """
    reply.metadata.__dict__["_message_id"] = reply.object_id
    with _objects.no_object_id_recompute():
        parts = _objects.get_all_nested_objects(reply)
        with sending([reply]):
            missing, session = connection.send(reply, _objects.get_object_tree(reply), 0.0)
        _parts.push_objects(
            parts,
            lambda name, content: connection.push_object(run, session, name, content),
            object_ids_to_push=missing,
        )
