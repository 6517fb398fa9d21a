# SPDX-License-Identifier: Apache-2.0
"""What all members of a federation know before its first round, and never take from a server."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from agnosticfl.errors import check
from agnosticfl.secagg import graph
from agnosticfl.secagg.graph import Graph, GraphPlan
from agnosticfl.secagg.messages import MOST_CLIENTS, Setup, Sum, pack
from agnosticfl.secagg.primitives import KEY, Ed25519PrivateKey, digest, verify_key
from agnosticfl.secagg.rings import Rings

FEWEST = 2  # and of two each can subtract its own vector and read the other's


class Agreement(NamedTuple):
    """The agreement of a federation; the same on the server and on every client."""

    run: bytes  # a name of the run that no other has
    roster: Sequence[bytes]  # registered Ed25519 keys; a client is known by its place in it
    server: bytes  # the Ed25519 key under which rounds are set up
    rounds: int  # T: rounds of the algorithm
    holdings: Sequence[Collection[str]] = ()  # domains of each client of the roster, if stated
    terms: Mapping[str, str] = {}  # all else that must be the same everywhere, by name
    fewest: int = 3  # clients in a sum, and holders of a domain in it
    dishonest: int = 1  # so many of a cohort may work for the server, or 5 % if that is more
    dropout: float = 0.1  # server: share of a cohort that it does not wait for
    # Clients add noise of which the shares of so many honest ones are enough; 0: they add none.
    honest: int = 0


class Member(NamedTuple):
    """A client's own place in the federation."""

    agreement: Agreement
    place: int  # in the roster
    signing_key: Ed25519PrivateKey
    alone: Collection[str] = ()  # domains that it shows with fewer than `fewest` holders, too


def check_agreement(agreement: Agreement) -> Agreement:
    """Returns `agreement`, or says which of its values is not allowed."""
    run, roster, fewest = agreement.run, agreement.roster, agreement.fewest
    check(1 <= len(run) <= 64, f"run name has {len(run)} bytes; it must have 1 to 64")
    check(all(len(key) == KEY for key in roster), f"a key of the roster has not {KEY} bytes")
    check(len(set(roster)) == len(roster), "the roster holds a key twice; one is meant for each")
    check(len(agreement.server) == KEY, f"the server's key has not {KEY} bytes")
    check(
        len(agreement.holdings) in (0, len(roster)),
        f"domains of {len(agreement.holdings)} clients are stated, of {len(roster)} in the roster",
    )
    check(
        FEWEST <= fewest <= len(roster) <= MOST_CLIENTS,
        f"fewest clients is {fewest}; it must be from {FEWEST} to the {len(roster)} of the roster",
    )
    dishonest, dropout = agreement.dishonest, agreement.dropout
    check(dishonest >= 0, f"dishonest is {dishonest}; it must be a number of clients, 0 or more")
    check(0 <= dropout < 1 / 3, f"dropout is {dropout}; it must be at least 0 and below a third")
    return agreement


def member(
    agreement: Agreement, signing_key: Ed25519PrivateKey, alone: Collection[str] = ()
) -> Member:
    """The place of a signing key in the federation."""
    own = verify_key(signing_key)
    check(own in agreement.roster, "this signing key is not in the roster; register it first")
    place = list(agreement.roster).index(own)
    return Member(check_agreement(agreement), place, signing_key, alone)


def agreed(agreement: Agreement) -> bytes:
    """The digest of all that must be the same on the server and on every client."""
    held = [b"\0".join(sorted(name.encode() for name in names)) for names in agreement.holdings]
    terms = [part.encode() for term in sorted(agreement.terms.items()) for part in term]
    return digest(
        b"agreed",
        agreement.server,
        agreement.rounds.to_bytes(8, "big"),
        *(digest(*parts) for parts in (agreement.roster, held, terms)),
    )


def num_with_domain(agreement: Agreement, domain: str, clients: Collection[int]) -> int:
    """How many of some clients say that they hold a domain."""
    return sum(domain in agreement.holdings[client] for client in clients)


def reckoned_dishonest(agreement: Agreement, clients: int) -> int:
    """B of a cohort."""
    return graph.reckoned_dishonest(clients, agreement.dishonest)


def plan_of(agreement: Agreement, clients: int) -> GraphPlan:
    """k and t of a cohort."""
    return graph.plan(clients, reckoned_dishonest(agreement, clients), agreement.dropout)


def is_ring(setup: Setup) -> bool:
    """Whether a round has more clients than neighbours of each."""
    return setup.neighbours < len(setup.cohort) - 1


def in_words(clients: int, dishonest: int, dropout: float) -> str:
    """What rounds of so many clients can bear, for those who set up a federation."""
    reckoned = graph.reckoned_dishonest(clients, dishonest)
    plan = graph.plan(clients, reckoned, dropout)
    check(
        graph.tolerates(clients, plan, reckoned),
        f"dishonest is {dishonest}; no secure round of {clients} clients bears so many",
    )
    lost = graph.may_drop(clients, plan)
    return (
        f"secure rounds of {clients} clients: {lost or 'none'} may drop out, wherever they stand,"
        f" and {reckoned} may work for the server"
    )


def digest_of(setup: Setup) -> bytes:
    """The name of a round. All its keys and boxes are bound to it."""
    return digest(b"round", pack(setup._replace(signature=b"")))


def graph_of(setup: Setup, ring: bytes) -> Graph:
    """The neighbours of a round whose ring was drawn."""
    plan = GraphPlan(setup.neighbours, setup.threshold)
    return graph.graph(ring, setup.cohort, plan)


def rings_of(asked: Sum) -> Rings:
    """The numbers of the vectors of a sum."""
    return Rings(asked.length, asked.short, asked.bits)
