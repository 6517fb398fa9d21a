# SPDX-License-Identifier: Apache-2.0
"""Who is left out of the next attempt at a round, after some have failed.

    blame = failed(blame, clients, pairs, liars)         # or succeeded(blame, clients)
    choice = left_out(blame, candidates, least, seed)    # before the next attempt

Some can be *named*: they were shown to have cheated, by what they sent themselves or because they
contradict more clients than can be lying. The others are searched for. Somebody of those
in an attempt made it fail, so whoever was in every attempt that failed is a suspect; and to leave a
part of the suspects out tells more with every attempt, whether it fails or not, until one remains.

Clients are places in the roster. Nothing here is known of how rounds are played.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

Pair: TypeAlias = tuple[int, int]  # clients that contradict each other: one of them has cheated


class Blame(NamedTuple):
    """What attempts have shown so far."""

    named: Mapping[int, str] = {}  # client -> why it is left out for the rest of the run
    pairs: frozenset[Pair] = frozenset()  # those that nobody's naming explains
    cleared: frozenset[int] = frozenset()  # took part in an attempt that succeeded
    doubted: frozenset[int] = frozenset()  # took part in one that failed, and in none since that
    suspects: frozenset[int] = frozenset()  # those of them of whom one at least is to blame
    alone: frozenset[int] = frozenset()  # each the last suspect of a search
    failing: bool = False  # whether the last attempt failed


class Choice(NamedTuple):
    """Who does not take part in the next attempt."""

    out: frozenset[int]
    why: str  # one line for the log; empty if there is nothing to say


def shown(blame: Blame, client: int, why: str) -> Blame:
    """After `client` was shown to have cheated."""
    return _without(blame._replace(named={client: why, **blame.named}))


def contradicted(blame: Blame, pairs: Collection[Pair], liars: int) -> Blame:
    """After some clients contradicted each other.

    An honest client contradicts those who cheat only. So whoever contradicts more than `liars`
    clients is one of them; of any other pair it is one, but nobody knows which.

    Args:
      liars: how many dishonest clients there may be, as the federation reckons.
    """
    blame = blame._replace(pairs=blame.pairs | {pair for pair in pairs if pair[0] != pair[1]})
    for who in sorted({client for pair in blame.pairs for client in pair}):
        others = {client for pair in blame.pairs if who in pair for client in pair} - {who}
        if len(others) > liars:
            why = f"it contradicts {len(others)} clients, and {liars} at most are reckoned to cheat"
            blame = shown(blame, who, why)
    return blame


def failed(
    blame: Blame, clients: Collection[int], pairs: Collection[Pair] = (), liars: int = 1
) -> Blame:
    """After an attempt that failed.

    Args:
      clients: who took part.
      pairs: of them that contradict each other, and `liars`: see `contradicted`.
    """
    among = {pair for pair in pairs if set(pair) <= set(clients)}
    before = blame.named.keys()
    blame = contradicted(blame._replace(failing=True), among, liars)
    if set(clients) & (blame.alone | (blame.named.keys() - before)):
        return blame  # that explains it
    either = {who for pair in among & blame.pairs for who in pair}
    might = frozenset(either or clients) - blame.named.keys()
    doubtful = might - blame.cleared or might
    # If no suspect can explain it there are two to blame, and the search begins anew.
    suspects = blame.suspects & doubtful or blame.suspects | doubtful
    return blame._replace(
        cleared=blame.cleared - doubtful, doubted=blame.doubted | doubtful, suspects=suspects
    )


def succeeded(blame: Blame, clients: Collection[int]) -> Blame:
    """After an attempt that succeeded: nobody who took part is suspected any more."""
    well = frozenset(clients) - blame.named.keys()
    doubted, suspects, alone = (
        group - well for group in (blame.doubted, blame.suspects, blame.alone)
    )
    if len(suspects) == 1:
        doubted, suspects, alone = doubted - suspects, frozenset[int](), alone | suspects
    return blame._replace(
        cleared=blame.cleared | well,
        doubted=doubted,
        suspects=suspects,
        alone=alone,
        failing=False,
    )


def left_out(
    blame: Blame,
    candidates: Collection[int],
    least: int,
    seed: int | Sequence[int],
    names: Sequence[str] | None = None,
) -> Choice:
    """Who of the candidates is not asked to take part in the next attempt.

    All who are named; and of the others, as far as they can be spared:

    - all whose search has ended with them;
    - after a failure, all who are doubted if enough are left; else all suspects; or half of them,
      if everybody is one;
    - after a success, half of the suspects: the other half may show that they are not to blame, so
      that in the end one client is left out and not many. Who is doubted waits for that.

    Args:
      least: so many candidates must remain.
      seed: of the random choice.
      names: of the clients, for the log; by default their numbers.
    """
    known = frozenset(candidates) & blame.named.keys()
    rest = frozenset(candidates) - known
    alone, suspects, doubted = (g & rest for g in (blame.alone, blame.suspects, blame.doubted))
    rng = np.random.default_rng(seed)
    half = _drawn(rng, suspects, len(suspects) // 2)
    if not blame.failing:
        groups = [alone, half, doubted - suspects if suspects else frozenset[int]()]
    elif len(rest - alone - doubted) >= least:
        groups = [alone, doubted]
    else:
        groups = [alone, suspects if suspects < rest - alone else half]
    chosen = frozenset[int]()
    for group in groups:
        spare = max(len(rest) - least - len(chosen), 0)
        chosen |= _drawn(rng, group, spare)
    wanted = frozenset[int]().union(*groups)
    call = str if names is None else names.__getitem__
    return Choice(known | chosen, _in_words(blame, known, chosen, wanted, len(rest), least, call))


def _in_words(
    blame: Blame,
    known: Collection[int],
    chosen: Collection[int],
    wanted: Collection[int],
    rest: int,
    least: int,
    call: Callable[[int], str],
) -> str:
    parts = [f"client {call(who)} is left out: {blame.named[who]}" for who in sorted(known)]
    if chosen:
        names = ", ".join(map(call, sorted(chosen)))
        parts.append(f"left out since attempts failed with them: {names}")
    elif wanted:
        reason = f"{rest} are left and {least} are needed"
        parts.append(f"nobody can be spared of those with whom attempts failed: {reason}")
    return "; ".join(parts)


def _without(blame: Blame) -> Blame:
    """Nobody is suspected for what is explained by those who are named."""
    named = blame.named.keys()
    pairs = frozenset(pair for pair in blame.pairs if not named & set(pair))
    groups = {g: getattr(blame, g) - named for g in ("cleared", "doubted", "suspects", "alone")}
    return blame._replace(pairs=pairs, **groups)


def _drawn(rng: np.random.Generator, among: Collection[int], number: int) -> frozenset[int]:
    ordered = sorted(among)
    return frozenset(ordered[place] for place in rng.permutation(len(ordered))[:number])
