# SPDX-License-Identifier: Apache-2.0
"""What a secure round costs: seconds of the processor and bytes, of one client and of the server.

    python benchmarks/secure.py [--clients 10 100 1000] [--parameters 1000000 4000000] [--json FILE]

Everything runs in this process, on one core. A client is measured exactly: it goes through all six
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
from agnosticfl.secagg.agreement import Agreement, Member, digest_of, graph_of, is_ring, member
from agnosticfl.secagg.graph import holders_of, neighbours, quorum
from agnosticfl.secagg.joining import joining, question
from agnosticfl.secagg.memory import IDLE, Part, State, changed
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
    Sum,
    Survivors,
    Unmask,
    pack,
    parse,
)
from agnosticfl.secagg.opening import Opening
from agnosticfl.secagg.preparation import Preparation
from agnosticfl.secagg.primitives import SEED, random_bytes
from agnosticfl.secagg.stages import Stages

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
        self.key, self.length = own, length
        asked = pack(question(agreement, own, 1))
        joined = [client.answer(each, IDLE, asked, NOW) for each in self.members]
        self.join = (asked, *joined[0])  # the question, and what client 0 made of it
        places = (joining(agreement, question(agreement, own, 1), reply) for _, reply in joined)
        self.preparation = Preparation(agreement, own, 1, dict(places))
        request = self.preparation.requests[0]
        self.setup = parse(request, Setup)
        self.name = digest_of(self.setup)
        first = [
            client.answer(each, state, request, NOW)
            for each, (state, _) in zip(self.members, joined, strict=True)
        ]
        self.states: list[State] = [state for state, _ in first]
        self.parts: list[Part] = [state.rounds[0] for state in self.states]
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
    vector = np.zeros(cohort.length, np.uint32)
    everyone = setup.cohort

    def box(sender: int) -> bytes:
        private, receiver = cohort.parts[sender].box_private, public[me].box_key
        key = keys.box_key(private, receiver, name, sender, me)
        context = keys.box_context(setup.run, setup.number, name, sender, me)
        return primitives.seal(key, random_bytes(2 * SEED), context)

    asked = Sum(name, 1, cohort.length)
    asked = asked._replace(signature=cohort.key.sign(keys.signed_by_server(asked)))
    of_sum = keys.sum_name(asked)
    signed = keys.signed_survivors(of_sum, cohort.ring, everyone)
    far = [c for c in everyone if c != me and c not in near]
    witnesses = sorted([*near, *far[: max(0, quorum(len(everyone)) - 1 - len(near))]])
    signatures = {c: cohort.members[c].signing_key.sign(signed) for c in witnesses}
    told = [cohort.keys[c] for c in cohort.committee]
    question_, joined, reply = cohort.join
    requests = [
        pack(setup),
        pack(Peers(name, [cohort.keys[c] for c in near], told)),
        pack(Boxes(name, {c: box(c) for c in near}, pack(asked))),
        pack(Survivors(of_sum, everyone)),
        pack(Unmask(of_sum, near, (), signatures)),
    ]
    clock(client.answer, own, IDLE, question_, NOW)
    state, up = joined, len(reply)
    for number, request in enumerate(requests):
        state, reply = clock(
            client.answer, own, state, request, NOW, lambda *_: client.Work(vector)
        )
        if number == 0:
            state = changed(state, cohort.parts[me])  # whose keys the boxes are for
        up += len(reply)
    requests.append(question_)
    down = sum(len(request) for request in requests)
    return {"client_s": clock.seconds, "client_up": up, "client_down": down}


def measure_server(cohort: Cohort) -> dict[str, float]:
    """All stages, with the replies of all clients."""
    preparation, setup, name, clock = cohort.preparation, cohort.setup, cohort.name, Clock()
    everyone = list(setup.cohort)
    lost = everyone[1::LOST]
    alive = [c for c in everyone if c not in set(lost)]

    def receive(server: Stages, clients: list[int], reply: Callable[[int], bytes]) -> None:
        for c in clients:
            clock(server.receive, c, reply(c))
        clock(server.advance)

    def revealed(c: int) -> bytes:
        near = cohort.neighbours[c]
        dead = {
            n: shares[n][holders_of(n, cohort.neighbours[n]).index(c)] for n in near if n in shares
        }
        shown = {n: bytes(SEED) for n in near if n not in shares}
        return pack(Revealed(of_sum, c, cohort.parts[c].own_seed, shown, dead))

    def boxes(c: int) -> bytes:
        return pack(Shares(name, c, dict.fromkeys(cohort.neighbours[c], bytes(BOX))))

    zeros = bytes(4 * cohort.length)
    receive(preparation, everyone, lambda c: cohort.keys[c])
    receive(preparation, everyone, boxes)
    assert preparation.prepared is not None
    server = clock(Opening, preparation.prepared, 1, cohort.length)
    of_sum = keys.sum_name(parse(parse(server.requests[0], Boxes).sum, Sum))
    receive(server, alive, lambda c: pack(Masked(of_sum, c, zeros)))
    signed = keys.signed_survivors(of_sum, cohort.ring, alive)
    receive(
        server,
        alive,
        lambda c: pack(Confirmed(of_sum, c, cohort.members[c].signing_key.sign(signed))),
    )
    shares = {
        c: primitives.split(
            cohort.parts[c].mask_seed, setup.threshold, len(cohort.neighbours[c]) + 1
        )
        for c in lost
    }
    receive(server, alive, revealed)
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
