# SPDX-License-Identifier: Apache-2.0
"""How the clients of a round draw the order of their ring, so that no server can choose it.

All commit to a number when they join, before any is told. A committee, which follows from the round
with all its commitments, then makes the ring: the digest of its numbers, of which a few may be
missing. Who sees the numbers can only leave some of them out, `TRIES` ways in all; see
docs/security.md.
"""

import math
from collections.abc import Collection, Mapping, Sequence

from agnosticfl.secagg.graph import shuffled
from agnosticfl.secagg.messages import Keys, Refused, Setup
from agnosticfl.secagg.primitives import derive, digest

MEMBERS = 20  # of the committee
MISSING = 4  # of them that may be lost
TRIES = sum(math.comb(MEMBERS, missing) for missing in range(MISSING + 1))


def draw_name(run: bytes, number: int) -> bytes:
    """What a commitment is bound to: there is no set-up yet."""
    return digest(b"draw", run, number.to_bytes(8, "big"))


def commitment(number: bytes, round: bytes, client: int) -> bytes:
    """To a client's number, which it tells only when those of all others are committed to."""
    return digest(b"drawn", number, round, client.to_bytes(4, "big"))


def committee(round: bytes, cohort: Sequence[int]) -> list[int]:
    """The clients whose numbers make the ring of a round."""
    return sorted(shuffled(derive(round, b"", b"committee"), cohort)[:MEMBERS])


def suffice(round: bytes, cohort: Sequence[int], clients: Collection[int]) -> bool:
    """Whether the numbers of these clients make a ring."""
    return len(set(committee(round, cohort)) & set(clients)) >= MEMBERS - MISSING


def check_number(setup: Setup, keys: Keys) -> None:
    """Refuses a number that a client did not commit to."""
    name = draw_name(setup.run, setup.number)
    same = commitment(keys.draw, name, keys.sender) == setup.draws.get(keys.sender)
    if not same:
        raise Refused(f"client {keys.sender} drew another number than it had committed to")


def ring_of(round: bytes, drawn: Mapping[int, Keys]) -> bytes:
    """The seed of the ring from the numbers of the committee, each checked before."""
    least = MEMBERS - MISSING
    if len(drawn) < least:
        raise Refused(f"{len(drawn)} of {MEMBERS} numbers of the draw are there, and {least} must")
    told = [client.to_bytes(4, "big") + drawn[client].draw for client in sorted(drawn)]
    return digest(b"ring", round, *told)
