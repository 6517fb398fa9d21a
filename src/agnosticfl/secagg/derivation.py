# SPDX-License-Identifier: Apache-2.0
"""The keys and signed words of a round: what client and server must derive alike."""

from collections.abc import Sequence

from agnosticfl.secagg.messages import Join, Joined, Keys, Setup, Sum, pack
from agnosticfl.secagg.primitives import agree, derive, digest


def pair(a: int, b: int) -> bytes:
    """Two clients in this order, as bytes."""
    return a.to_bytes(4, "big") + b.to_bytes(4, "big")


def private_key(seed: bytes, round: bytes) -> bytes:
    """The private key of a client's masks with its neighbours; its shared seed is short."""
    return derive(seed, round, b"mask key")


def own_mask(seed: bytes, sum: bytes) -> bytes:
    """The key of the mask that a client puts on its vector on its own."""
    return derive(seed, sum, b"own mask")


def pair_mask(private: bytes, public: bytes, sum: bytes, a: int, b: int) -> bytes:
    """The key of the mask that two neighbours share: one adds it, the other subtracts it.

    Two that were asked for different sums have no mask in common: nothing of theirs cancels.
    """
    return derive(agree(private, public), sum, b"pair mask" + pair(min(a, b), max(a, b)))


def mask_sign(client: int, other: int) -> int:
    """Whether `client` adds (+1) or subtracts (−1) the mask that it shares with `other`."""
    return 1 if client < other else -1


def box_key(private: bytes, public: bytes, round: bytes, sender: int, receiver: int) -> bytes:
    """The key of the box from one client to another."""
    return derive(agree(private, public), round, b"box" + pair(sender, receiver))


def box_context(run: bytes, number: int, round: bytes, sender: int, receiver: int) -> bytes:
    """What a box is bound to: run, round, sender and receiver."""
    return digest(b"box", run, number.to_bytes(8, "big"), round, pair(sender, receiver))


def commitment(seed: bytes, round: bytes, client: int) -> bytes:
    """By which the server tells that it opened the right seed."""
    return digest(b"commitment", seed, round, client.to_bytes(4, "big"))


def signed_keys(keys: Keys) -> bytes:
    """What a client signs of its keys: all of it."""
    return digest(b"keys", pack(keys._replace(signature=b"")))


def signed_survivors(sum: bytes, ring: bytes, alive: Sequence[int]) -> bytes:
    """What a client signs of a list of survivors: also of which sum, and on which ring."""
    return digest(b"survivors", sum, ring, *(client.to_bytes(4, "big") for client in alive))


def signed_by_server(message: Join | Setup | Sum) -> bytes:
    """What the server signs of a message that begins something: all of it."""
    return digest(b"server", pack(message._replace(signature=b"")))


def join_name(asked: Join) -> bytes:
    """What a client that joins says it joins."""
    return digest(b"join", pack(asked))


def signed_join(joined: Joined) -> bytes:
    """What a client signs that joins: all of it."""
    return digest(b"joined", pack(joined._replace(signature=b"")))


def sum_name(asked: Sum) -> bytes:
    """The name of a sum and of its round: masks and signatures are bound to it."""
    return digest(b"sum", pack(asked._replace(signature=b"")))
