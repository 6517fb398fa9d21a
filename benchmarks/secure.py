# SPDX-License-Identifier: Apache-2.0
"""What a secure round costs: seconds of the processor and bytes, of one client and of the server.

    python benchmarks/secure.py [--clients 10 100 1000] [--parameters 1000000 4000000] [--json FILE]

Everything runs in this process, on one core. A client is measured exactly: it goes through all five
stages with real keys and boxes of all its neighbours. The server is measured on all clients'
replies, one in twenty of which never sends its vector; to make a thousand clients affordable, what
the server only passes on or adds (boxes, masked vectors) is made up, and what it checks or opens
(signatures, commitments, shares of the lost) is real.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from rich.console import Console
from rich.table import Table

from agnosticfl.secagg import derivation as keys
from agnosticfl.secagg import draw as draws
from agnosticfl.secagg import member as client
from agnosticfl.secagg import primitives
from agnosticfl.secagg.aggregator import Server
from agnosticfl.secagg.agreement import Agreement, Member, digest_of, graph_of, is_ring, member
from agnosticfl.secagg.graph import holders_of, neighbours, quorum
from agnosticfl.secagg.member import State
from agnosticfl.secagg.messages import (
    BOX,
    Boxes,
    Confirmed,
    Keys,
    Masked,
    Peers,
    Revealed,
    Setup,
    Shares,
    Survivors,
    Unmask,
    pack,
    parse,
)
from agnosticfl.secagg.primitives import SEED, random_bytes

LOST = 20  # one in so many
Result = TypeVar("Result")


class Clock:
    """Seconds of this process's processor time."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, function: Callable[..., Result], *arguments: Any) -> Result:
        start = time.process_time()
        result = function(*arguments)
        self.seconds += time.process_time() - start
        return result


NOW = 0  # what clocks say: the rounds here have the number 1


class Cohort:
    """Clients that have sent their keys."""

    def __init__(self, clients: int, length: int) -> None:
        signing = [primitives.signing_key() for _ in range(clients)]
        keys = [primitives.verify_key(key) for key in signing]
        own = primitives.signing_key()
        agreement = Agreement(b"benchmark", keys, primitives.verify_key(own), rounds=1)
        self.members: list[Member] = [member(agreement, key) for key in signing]
        self.server = Server(agreement, own, 1, range(clients), length)
        fresh = [client.IDLE] * clients
        if self.server.stage == "draws":
            request = self.server.requests[0]
            drew = [client.answer(own, client.IDLE, request, NOW) for own in self.members]
            fresh = [state for state, _ in drew]
            for c, (_, reply) in enumerate(drew):
                self.server.receive(c, reply)
            self.server.advance()
        self.fresh, request = fresh[0], self.server.requests[0]
        self.setup = parse(request, Setup)
        self.name = digest_of(self.setup)
        first = [
            client.answer(own, state, request, NOW)
            for own, state in zip(self.members, fresh, strict=True)
        ]
        self.states: list[State] = [state for state, _ in first]
        self.keys = [reply for _, reply in first]
        ring = is_ring(self.setup)
        self.committee = draws.committee(self.name, range(clients)) if ring else []
        told = {c: parse(self.keys[c], Keys) for c in self.committee}
        self.ring = draws.ring_of(self.name, told) if ring else b""
        graph = graph_of(self.setup, self.ring)
        self.neighbours = {c: neighbours(graph, c) for c in range(clients)}


def measure_client(cohort: Cohort) -> dict[str, float]:
    """Client 0, stage by stage."""
    me, setup, name, clock = 0, cohort.setup, cohort.name, Clock()
    own, near = cohort.members[me], cohort.neighbours[me]
    public = {c: parse(cohort.keys[c], Keys) for c in [me, *near]}
    vector = np.zeros(setup.length, np.uint32)
    everyone = setup.cohort

    def box(sender: int) -> bytes:
        private, receiver = cohort.states[sender].box_private, public[me].box_key
        key = keys.box_key(private, receiver, name, sender, me)
        context = keys.box_context(setup.run, setup.number, name, sender, me)
        return primitives.seal(key, random_bytes(2 * SEED), context)

    signed = keys.signed_survivors(name, cohort.ring, everyone)
    far = [c for c in everyone if c != me and c not in near]
    witnesses = sorted([*near, *far[: max(0, quorum(len(everyone)) - 1 - len(near))]])
    signatures = {c: cohort.members[c].signing_key.sign(signed) for c in witnesses}
    told = [cohort.keys[c] for c in cohort.committee]
    requests = [
        pack(setup),
        pack(Peers(name, [cohort.keys[c] for c in near], told)),
        pack(Boxes(name, {c: box(c) for c in near})),
        pack(Survivors(name, everyone)),
        pack(Unmask(name, near, (), signatures)),
    ]
    state, up = cohort.fresh, 0
    for number, request in enumerate(requests):
        state, reply = clock(client.answer, own, state, request, NOW, lambda _: client.Work(vector))
        if number == 0:
            state = cohort.states[me]  # whose keys the boxes are for
        up += len(reply)
    down = sum(len(request) for request in requests)
    return {"client_s": clock.seconds, "client_up": up, "client_down": down}


def measure_server(cohort: Cohort) -> dict[str, float]:
    """All stages, with the replies of all clients."""
    server, setup, name, clock = cohort.server, cohort.setup, cohort.name, Clock()
    everyone = list(setup.cohort)
    lost = everyone[1::LOST]
    alive = [c for c in everyone if c not in set(lost)]

    def receive(clients: list[int], reply: Callable[[int], bytes]) -> None:
        for c in clients:
            clock(server.receive, c, reply(c))
        clock(server.advance)

    def revealed(c: int) -> bytes:
        near = cohort.neighbours[c]
        dead = {
            n: shares[n][holders_of(n, cohort.neighbours[n]).index(c)] for n in near if n in shares
        }
        shown = {n: bytes(SEED) for n in near if n not in shares}
        return pack(Revealed(name, c, cohort.states[c].own_seed, shown, dead))

    zeros = bytes(4 * setup.length)
    receive(everyone, lambda c: cohort.keys[c])
    receive(
        everyone, lambda c: pack(Shares(name, c, dict.fromkeys(cohort.neighbours[c], bytes(BOX))))
    )
    receive(alive, lambda c: pack(Masked(name, c, zeros)))
    signed = keys.signed_survivors(name, cohort.ring, alive)
    receive(alive, lambda c: pack(Confirmed(name, c, cohort.members[c].signing_key.sign(signed))))
    shares = {
        c: primitives.split(
            cohort.states[c].mask_seed, setup.threshold, len(cohort.neighbours[c]) + 1
        )
        for c in lost
    }
    receive(alive, revealed)
    assert server.total is not None
    return {"server_s": clock.seconds, "lost": len(lost)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--parameters", type=int, nargs="+", default=[1_000_000, 4_000_000])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures: list[dict[str, float]] = []
    table = Table(
        "clients", "parameters", "k", "t", "client s", "up MB", "down MB", "server s", "lost"
    )
    for parameters in options.parameters:
        for clients in options.clients:
            cohort = Cohort(clients, parameters)
            setup = cohort.setup
            figure = {"clients": clients, "parameters": parameters}
            figure |= {"neighbours": setup.neighbours, "threshold": setup.threshold}
            figure |= measure_client(cohort) | measure_server(cohort)
            figures.append(figure)
            table.add_row(
                *(str(figure[n]) for n in ("clients", "parameters", "neighbours", "threshold")),
                f"{figure['client_s']:.2f}",
                *(f"{figure[n] / 1e6:.3f}" for n in ("client_up", "client_down")),
                f"{figure['server_s']:.2f}",
                str(figure["lost"]),
            )
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
