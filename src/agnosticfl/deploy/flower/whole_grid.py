# SPDX-License-Identifier: Apache-2.0
"""Flower's grid, by which the run talks to its SuperLink, with messages that travel `whole`.

What is used of Flower's inside is in this file, for the version that is pinned;
`tests/deploy/test_whole.py` fails if it changes.
"""

import importlib
from typing import Any

from flwr.serverapp import Grid

from agnosticfl.deploy.flower.whole import Whole

_grid: Any = importlib.import_module("flwr.superlink.grid.http_grid")
_messages: Any = importlib.import_module("flwr.proto.message_pb2")


class WholeRuntime(Whole, _grid.RuntimeHttpClient):
    """The run's client of a SuperLink."""

    def ConfirmMessageReceived(self, request: Any) -> Any:  # noqa: N802, as Flower has it
        """Of a reply that came whole the SuperLink has kept nothing."""
        if request.message_object_id in self.whole:
            return _messages.ConfirmMessageReceivedResponse()
        return super().ConfirmMessageReceived(request)


def use_whole(grid: Grid) -> None:
    """Has Flower's grid connect anew, by `WholeRuntime`; who uses its old connection keeps it."""
    _grid.RuntimeHttpClient = WholeRuntime
    if isinstance(grid, _grid.HttpGrid):
        grid._client = None  # pyright: ignore[reportAttributeAccessIssue]
