# SPDX-License-Identifier: Apache-2.0
"""What a round costs on the network: counted from the messages themselves."""

from typing import NamedTuple

import numpy as np

from agnosticfl.core import tree
from agnosticfl.core.channel import Channel, is_plain, message_bytes, message_shapes
from agnosticfl.core.contribution import ClientSum, report_shapes
from agnosticfl.core.state import ServerState


class Bytes(NamedTuple):
    """Bytes of one client in one round, or of all of them."""

    down: int
    up: int


def times(clients: int, each: Bytes) -> Bytes:
    """The bytes of so many clients."""
    return Bytes(clients * each.down, clients * each.up)


def added(a: Bytes, b: Bytes) -> Bytes:
    """The bytes of two exchanges."""
    return Bytes(a.down + b.down, a.up + b.up)


def bytes_per_client(state: ServerState, channel: Channel) -> Bytes:
    """The messages between the server and one client: down w and α, up β^k Δ^k, β^k, L^k, N^k."""
    w, alpha, scalar = state.params, state.domain_weights, np.zeros((), np.float32)
    reply = ClientSum(w, beta=scalar, domain_loss=alpha, domain_count=alpha, left_out=scalar)  # type: ignore[arg-type]
    message = message_shapes(channel, reply)
    if is_plain(channel):
        # `left_out` is the server's own tally: a client that is left out sends nothing usable.
        message = message._replace(left_out=())
    return Bytes(tree.num_bytes((w, alpha, state.channel_state)), message_bytes(channel, message))


def bytes_per_report(state: ServerState, channel: Channel) -> Bytes:
    """The same for a client who does not train: down w, up L^k and N^k."""
    down = tree.num_bytes((state.params, state.report_state))
    if is_plain(channel):
        return Bytes(down, 2 * tree.num_bytes(state.domain_weights))
    message = message_shapes(channel, report_shapes(state.domain_weights.size))
    return Bytes(down, message_bytes(channel, message))


def paper_bytes(state: ServerState, clients: int, agnostic: bool) -> int:
    """The paper's cost of a round, 2c|W| + 4cp numbers (2c|W| for FedAvg), at 4 bytes each."""
    numbers = 2 * tree.size(state.params) + (4 * state.domain_weights.size if agnostic else 0)
    return 4 * clients * numbers
