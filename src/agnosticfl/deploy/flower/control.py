# SPDX-License-Identifier: Apache-2.0
"""What an operator tells a SuperLink: who may connect, what to run. Flower's `flwr` does the same,
in a process of some seconds for each word.
"""

import contextlib
import hashlib
import importlib
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from agnosticfl.deploy.gate.members import read_member
from agnosticfl.deploy.supervise.children import Failed, Link

_build: Any = importlib.import_module("flwr.cli.build")
_control: Any = importlib.import_module("flwr.supercore.control")
_errors: Any = importlib.import_module("flwr.supercore.error")
_fab: Any = importlib.import_module("flwr.supercore.fab")
_messages: Any = importlib.import_module("flwr.proto.control_pb2")
_serde: Any = importlib.import_module("flwr.common.serde")
_version: Any = importlib.import_module("flwr.supercore.interceptors.http.runtime_version")


class Node(NamedTuple):
    """A client, as the SuperLink knows it."""

    number: int
    status: str  # registered, online, offline
    key: bytes  # its public key, as a file of clients/ gives it


class Run(NamedTuple):
    """A run of Flower's."""

    number: int
    status: str  # pending, running, finished:completed, finished:failed …
    details: str


class Operator:
    """A connection to a SuperLink, as a context."""

    def __init__(self, link: Link):
        self._client = _control.ControlHttpClient.from_server_address(
            server_address=link.address,
            insecure=False,
            root_certificates=link.authority.read_bytes(),
            interceptors=[_version.RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        )

    def __enter__(self) -> "Operator":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def register(self, public_key: Path) -> bool:
        """Lets in the client with this key; False if it was let in before."""
        known = read_member(public_key)
        if known is None:
            raise Failed(f"{public_key} is no public key of a node")
        try:
            self._call(
                self._client.RegisterNode, _messages.RegisterNodeRequest(public_key=known[0])
            )
        except KnownKey:
            return False
        return True

    def nodes(self) -> list[Node]:
        """All clients that were let in."""
        answer = self._call(self._client.ListNodes, _messages.ListNodesRequest())
        return [Node(node.node_id, node.status, node.public_key) for node in answer.nodes_info]

    def runs(self) -> list[Run]:
        """The last runs, the newest first."""
        answer = self._call(self._client.ListRuns, _messages.ListRunsRequest())
        runs = [_serde.run_from_proto(run) for run in answer.run_dict.values()]
        runs.sort(key=lambda run: run.pending_at, reverse=True)
        return [_run(run) for run in runs]

    def start(self, app: Path, options: Mapping[str, Any]) -> int:
        """Starts a run of an app; its number."""
        content: bytes = _build.build_fab_from_disk(app)
        bundle = _fab.Fab(hashlib.sha256(content).hexdigest(), content, {})
        request = _messages.StartRunRequest(
            fab=_serde.fab_to_proto(bundle),
            override_config=_serde.user_config_to_proto(dict(options)),
        )
        answer = self._call(self._client.StartRun, request)
        if not answer.HasField("run_id"):
            raise Failed(f"the SuperLink started no run: {answer}")
        return int(answer.run_id)

    def stop_all(self) -> None:
        """Ends every run that has not ended."""
        for run in self.runs():
            if not run.status.startswith("finished"):
                with contextlib.suppress(Failed):  # it has ended meanwhile
                    self._call(self._client.StopRun, _messages.StopRunRequest(run_id=run.number))

    def _call(self, function: Callable[[Any], Any], request: Any) -> Any:
        with _explained():
            return function(request)


class KnownKey(Failed):
    """The key is registered already."""


@contextlib.contextmanager
def _explained() -> Generator[None]:
    """What the SuperLink says of a failure, as `Failed`."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        why = _errors.FlowerError.from_json(error.response.text)
        if why is None:
            raise Failed(f"the SuperLink refuses: {error}") from None
        known = why.code == _errors.ApiErrorCode.PUBLIC_KEY_ALREADY_IN_USE
        words = " ".join(f"{why.message} {why.public_details or ''}".split())
        raise (KnownKey if known else Failed)(f"the SuperLink refuses: {words}") from None
    except httpx.HTTPError as error:
        raise Failed(f"the SuperLink does not answer: {error}") from None


def _run(run: Any) -> Run:
    status = ":".join(filter(None, (run.status.status, run.status.sub_status)))
    return Run(run.run_id, status, run.status.details)
