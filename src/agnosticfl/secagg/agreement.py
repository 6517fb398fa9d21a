# SPDX-License-Identifier: Apache-2.0
"""What all members of a federation know before its first round, and never take from a server."""

from collections.abc import Sequence
from typing import NamedTuple

from agnosticfl.errors import check
from agnosticfl.secagg import graph
from agnosticfl.secagg.graph import Graph, GraphPlan
from agnosticfl.secagg.messages import MOST_CLIENTS, Setup, pack
from agnosticfl.secagg.primitives import KEY, Ed25519PrivateKey, digest, verify_key
from agnosticfl.secagg.rings import Rings

FEWEST = 2  # and of two each can subtract its own vector and read the other's


class Agreement(NamedTuple):
    """The agreement of a federation; the same on the server and on every client."""

    run: bytes  # a name of the run that no other has
    roster: Sequence[bytes]  # registered Ed25519 keys; a client is known by its place in it
    fewest: int = 3  # clients in a sum
    dishonest: float = 0.05  # share of a cohort that may work for the server
    dropout: float = 0.1  # share of a cohort that is lost in a round of many clients


class Member(NamedTuple):
    """A client's own place in the federation."""

    agreement: Agreement
    place: int  # in the roster
    signing_key: Ed25519PrivateKey


def check_agreement(agreement: Agreement) -> Agreement:
    """Returns `agreement`, or says which of its values is not allowed."""
    run, roster, fewest = agreement.run, agreement.roster, agreement.fewest
    check(1 <= len(run) <= 64, f"run name has {len(run)} bytes; it must have 1 to 64")
    check(all(len(key) == KEY for key in roster), f"a key of the roster has not {KEY} bytes")
    check(len(set(roster)) == len(roster), "the roster holds a key twice; one is meant for each")
    check(
        FEWEST <= fewest <= len(roster) <= MOST_CLIENTS,
        f"fewest clients is {fewest}; it must be from {FEWEST} to the {len(roster)} of the roster",
    )
    for name in ("dishonest", "dropout"):
        value = getattr(agreement, name)
        check(0 <= value < 0.5, f"{name} is {value}; it must be at least 0 and below 0.5")
    return agreement


def member(agreement: Agreement, signing_key: Ed25519PrivateKey) -> Member:
    """The place of a signing key in the federation."""
    own = verify_key(signing_key)
    check(own in agreement.roster, "this signing key is not in the roster; register it first")
    return Member(check_agreement(agreement), list(agreement.roster).index(own), signing_key)


def roster_digest(agreement: Agreement) -> bytes:
    """What a round says of the roster."""
    return digest(b"roster", *agreement.roster)


def plan_of(agreement: Agreement, clients: int) -> GraphPlan:
    """k and t of a cohort."""
    return graph.plan(clients, agreement.dishonest, agreement.dropout)


def digest_of(setup: Setup) -> bytes:
    """The name of a round. All keys, boxes and signatures are bound to it."""
    return digest(b"round", pack(setup))


def graph_of(setup: Setup) -> Graph:
    """The neighbours of a round."""
    plan = GraphPlan(setup.neighbours, setup.threshold)
    return graph.graph(digest_of(setup), setup.cohort, plan)


def rings_of(setup: Setup) -> Rings:
    """The numbers of a round's vectors."""
    return Rings(setup.length, setup.short, setup.bits)
