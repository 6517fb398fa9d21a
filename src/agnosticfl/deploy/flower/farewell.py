# SPDX-License-Identifier: Apache-2.0
"""The last word of a server: its clients are told that the run has ended."""

import secrets

from flwr.app import ConfigRecord, MessageType, RecordDict
from flwr.serverapp import Grid

from agnosticfl.deploy.flower.federation import LOG, Attempt, gather, request, stamp
from agnosticfl.deploy.flower.records import OVER, ROUND

KIND = f"{MessageType.QUERY}.over"
SECONDS = 10.0  # that are waited for clients to hear it


def say_farewell(grid: Grid, rounds: int, seconds: float = SECONDS) -> int:
    """Tells all clients that are connected; how many have heard it. Nobody relies on it."""
    attempt = Attempt(rounds, 1, secrets.token_hex(16))
    content = RecordDict({ROUND: stamp(attempt), OVER: ConfigRecord({"rounds": rounds})})
    nodes = list(grid.get_node_ids())
    heard = gather(
        grid, [request(node, KIND, content, seconds) for node in nodes], attempt, seconds=seconds
    )
    LOG.info("%d of %d clients know that the run has ended", len(heard.replies), len(nodes))
    return len(heard.replies)
