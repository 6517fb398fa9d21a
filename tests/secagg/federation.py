# SPDX-License-Identifier: Apache-2.0
"""A federation in one process: its clients, and a server that asks them."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agnosticfl.secagg import member as client
from agnosticfl.secagg import primitives
from agnosticfl.secagg.agreement import Agreement, Member, digest_of, member
from agnosticfl.secagg.derivation import signed_by_server
from agnosticfl.secagg.joining import joining, question
from agnosticfl.secagg.memory import IDLE, Part, State, dump, load
from agnosticfl.secagg.messages import Boxes, Refused, Setup, Sum, pack, parse
from agnosticfl.secagg.opening import Opening
from agnosticfl.secagg.preparation import Preparation, Prepared
from agnosticfl.secagg.stages import Stages

STAGES = ("keys", "shares", "masked vectors", "survivors", "unmasking")
LENGTH = 5
ROUNDS = 1000
NOW = 0  # what clocks say: rounds of tests have low numbers
SERVER = Ed25519PrivateKey.from_private_bytes(primitives.digest(b"the server"))


@functools.cache
def signing_keys(number: int) -> tuple[Ed25519PrivateKey, ...]:
    """The same keys in every test: what they are does not matter."""
    return tuple(
        Ed25519PrivateKey.from_private_bytes(primitives.digest(b"test", i.to_bytes(2, "big")))
        for i in range(number)
    )


def federation(number: int, **options: Any) -> list[Member]:
    """As many clients that know each other."""
    keys = signing_keys(number)
    alone = options.pop("alone", ())
    verify = [primitives.verify_key(key) for key in keys]
    agreement = Agreement(b"a run", verify, primitives.verify_key(SERVER), ROUNDS, **options)
    return [member(agreement, key, alone) for key in keys]


def signed(message: Any) -> bytes:
    """What the server says to begin something, with its signature."""
    return pack(message._replace(signature=SERVER.sign(signed_by_server(message))))


def asking(request: bytes, **fields: Any) -> bytes:
    """The boxes of a request, with another sum that is asked for."""
    boxes = parse(request, Boxes)
    return pack(boxes._replace(sum=signed(parse(boxes.sum, Sum)._replace(**fields))))


class Server:
    """A round from its set-up to its sum: the preparation, and then the opening."""

    def __init__(self, preparation: Preparation, *asked: Any) -> None:
        self._asked = asked  # t, length, short, bits, sent
        self.now: Stages = preparation
        self.preparation = preparation
        self.opening: Opening | None = None
        self.setup = parse(next(iter(preparation.requests.values())), Setup)
        self.round = digest_of(self.setup)

    def __getattr__(self, name: str) -> Any:
        """What the stages have that are on now."""
        return getattr(self.now, name)

    @property
    def requests(self) -> Mapping[int, bytes]:
        return self.now.requests

    @requests.setter
    def requests(self, requests: Mapping[int, bytes]) -> None:
        self.now.requests = requests

    @property
    def dropped(self) -> dict[int, str]:
        both = (self.preparation, self.opening)
        return {c: why for half in both if half for c, why in half.dropped.items()}

    @property
    def cheated(self) -> dict[int, str]:
        both = (self.preparation, self.opening)
        return {c: why for half in both if half for c, why in half.cheated.items()}

    @property
    def prepared(self) -> Prepared:
        assert self.preparation.prepared is not None
        return self.preparation.prepared

    @property
    def total(self) -> np.ndarray | None:
        return self.opening.total if self.opening else None

    @property
    def ring(self) -> bytes:
        return self.preparation._ring

    @property
    def sum(self) -> bytes:
        """The name of the sum, once it was asked for."""
        assert self.opening is not None
        return self.opening._name

    def advance(self) -> None:
        self.now.advance()
        if not self.now.requests and self.opening is None:
            self.now = self.opening = Opening(self.prepared, *self._asked)


class Play:
    """One round, with everything that each side received or knew."""

    def __init__(
        self,
        members: list[Member],
        number: int = 1,
        length: int = LENGTH,
        short: int = 0,
        bits: int = 32,
        sent: bytes = b"",
        t: int | None = None,
        states: Mapping[int, State] | None = None,
    ) -> None:
        self.members, self.sent = members, sent
        self.weighty: tuple[str, ...] = ()  # domains with weight, if the federation states domains
        rng = np.random.default_rng(number)
        self.vectors = rng.integers(0, 2**32, (len(members), length), dtype=np.uint32)
        self.states = dict(states or dict.fromkeys(range(len(members)), IDLE))
        self.requests: dict[str, dict[int, bytes]] = {}
        self.replies: dict[str, dict[int, bytes]] = {}
        self.refusals: dict[int, str] = {}
        agreement = members[0].agreement
        asked = question(agreement, SERVER, number)
        joins = (self.answer(place, pack(asked)) for place in range(len(members)))
        drawn = dict(joining(agreement, asked, reply) for reply in joins)
        preparation = Preparation(agreement, SERVER, number, drawn)
        self.server = Server(preparation, t or number, length, short, bits, sent)

    def answer(self, place: int, request: bytes) -> bytes:
        """A client's reply; its state goes through bytes, as between two processes."""
        state, reply = client.answer(
            self.members[place],
            self.states[place],
            request,
            NOW,
            lambda *_: client.Work(self.vectors[place], self.weighty),
            self.sent,
        )
        self.states[place] = load(dump(state))
        return reply

    def part(self, place: int) -> Part:
        """A client's part in this round."""
        (part,) = (p for p in self.states[place].rounds if p.number == self.server.setup.number)
        return part

    def stage(
        self,
        silent: Mapping[int, str] | None = None,
        change: Callable[[int, bytes], bytes] = lambda _, reply: reply,
    ) -> None:
        """One stage: the clients that are not `silent` in it reply, and the server goes on."""
        name = self.server.stage
        self.requests[name], self.replies[name] = dict(self.server.requests), {}
        for place, request in self.server.requests.items():
            if (silent or {}).get(place) == name:
                continue
            try:
                reply = change(place, self.answer(place, request))
            except Refused as error:
                self.refusals[place] = str(error)
                self.server.refuse(place, str(error))
                continue
            self.replies[name][place] = reply
            self.server.receive(place, reply)
        self.server.advance()

    def until(self, stage: str) -> "Play":
        """Plays on until the server waits for `stage`."""
        while self.server.stage != stage:
            self.stage()
        return self

    def to_the_end(self, silent: Mapping[int, str] | None = None) -> "Play":
        while self.server.requests:
            self.stage(silent)
        return self

    def sum_of(self, clients: Any) -> np.ndarray:
        """What the sum should be, without any of the protocol."""
        return self.vectors[list(clients)].sum(axis=0, dtype=np.uint32)
