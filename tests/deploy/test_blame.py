# SPDX-License-Identifier: Apache-2.0
"""Who is left out after attempts that failed: cheaters soon, honest clients not for long."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agnosticfl.deploy.blame import Blame, failed, left_out, shown, succeeded

NOBODY = Blame()


def play(
    blame: Blame, n: int, least: int, culprits: set[int], seed: int, attempts: int
) -> tuple[Blame, list[bool], set[int]]:
    """So many attempts, which fail with any of the culprits; who was left out of the last."""
    ended, out = list[bool](), set[int]()
    for number in range(attempts):
        out = set(left_out(blame, range(n), least, [seed, number]).out)
        clients = set(range(n)) - out
        assert len(clients) >= least
        ended.append(not culprits & clients)
        blame = succeeded(blame, clients) if ended[-1] else failed(blame, clients)
    return blame, ended, out


@st.composite
def federations(draw: st.DrawFn) -> tuple[int, int, int, int]:
    n = draw(st.integers(3, 40))
    return n, draw(st.integers(1, n - 1)), draw(st.integers(0, n - 1)), draw(st.integers(0, 2**32))


@settings(max_examples=200)
@given(federations())
def test_one_client_that_always_fails_is_found_and_nobody_else_is_left_out(federation: tuple):
    n, least, culprit, seed = federation
    blame, ended, out = play(NOBODY, n, least, {culprit}, seed, 2 * n + 20)
    spare = n - least
    # Each failure clears those who were left out, half of all or as many as can be spared; then
    # all suspects are left out at once.
    assert ended.index(True) <= max(2, math.ceil(n / spare))
    # After that each attempt, whatever becomes of it, halves the number of suspects.
    assert ended.count(False) <= max(2, math.ceil(n / spare)) + math.ceil(math.log2(n))
    assert (out, blame.suspects, blame.named) == ({culprit}, frozenset(), {})


@pytest.mark.parametrize("n", [8, 100, 1000])
def test_with_half_of_them_to_spare_it_takes_two_failures_at_most(n: int):
    for seed in range(20):
        _, ended, _ = play(NOBODY, n, n // 2, {n // 3}, seed, 3)
        assert ended[2] or ended[1]


@settings(max_examples=100)
@given(st.integers(0, 2**32), st.integers(6, 30))
def test_two_that_always_fail_are_found_one_after_the_other(seed: int, n: int):
    """With half to spare, half of all searches from the beginning end with a success."""
    blame, ended, out = play(NOBODY, n, n // 2, {0, n - 1}, seed, 100)
    assert out == blame.alone == {0, n - 1}
    assert all(ended[60:])
    # From the first success on, each failure halves the suspects of one search.
    assert ended[ended.index(True) :].count(False) <= 2 * (math.ceil(math.log2(n)) + 1)


def test_whoever_was_in_every_failed_attempt_is_left_out_of_the_next():
    blame = failed(failed(NOBODY, {0, 1, 2, 3, 4}), {1, 2, 5, 6})
    assert blame.suspects == {1, 2}
    choice = left_out(blame, range(7), 3, 0)
    assert choice.out == {1, 2}
    assert choice.why == "left out since attempts failed with them: 1, 2"


def test_a_success_clears_those_who_took_part():
    blame = succeeded(failed(NOBODY, {0, 1, 2, 3}), {0, 1, 4})
    assert blame.suspects == {2, 3}
    assert not blame.failing
    # One of the two comes back, and shows whether it was the one.
    (out,) = left_out(blame, range(5), 3, 0).out
    (back,) = {2, 3} - {out}
    assert succeeded(blame, {0, 1, 4, back}).alone == {out}
    blame = failed(blame, {0, 1, 4, back})
    assert blame.suspects == {back}
    # This round goes on with those of whom nothing speaks against; then the other one is back.
    assert left_out(blame, range(5), 3, 0).out == {2, 3}
    blame = succeeded(blame, {0, 1, 4})
    assert blame.alone == left_out(blame, range(5), 3, 0).out == {back}


def test_nobody_is_left_out_when_all_are_needed_and_that_is_said():
    choice = left_out(failed(NOBODY, range(4)), range(4), 4, 0)
    assert choice.out == set()
    assert choice.why == (
        "nobody can be spared of those with whom attempts failed: 4 are left and 4 are needed"
    )
    assert left_out(NOBODY, range(4), 4, 0) == (frozenset(), "")


def test_one_that_is_named_is_left_out_whatever_is_needed():
    blame = shown(failed(NOBODY, range(4)), 2, "its signature is another one's")
    assert 2 not in blame.suspects
    choice = left_out(blame, range(4), 4, 0)
    assert choice.out == {2}
    assert choice.why.startswith("client 2 is left out: its signature is another one's; nobody can")


def test_of_a_pair_that_contradicts_itself_both_are_suspects_and_the_others_are_not():
    blame = failed(NOBODY, range(6), [(1, 4)], liars=1)
    assert (blame.suspects, blame.named) == ({1, 4}, {})
    assert left_out(blame, range(6), 4, 0).out == {1, 4}


def test_contradictions_add_up_over_attempts():
    blame = failed(NOBODY, range(6), [(1, 4)], liars=1)
    blame = failed(blame, range(6), [(2, 4)], liars=1)
    assert dict(blame.named) == {4: "it contradicts 2 clients, and 1 at most are reckoned to cheat"}
    # That explains both attempts: nobody else is suspected for them.
    assert blame.suspects == {1}
    assert not blame.pairs


@st.composite
def liars(draw: st.DrawFn) -> tuple[int, set[int], list[list[tuple[int, int]]]]:
    """Clients, up to B liars among them, and what these say, attempt by attempt."""
    n = draw(st.integers(4, 15))
    cheats = draw(st.sets(st.integers(0, n - 1), min_size=1, max_size=n // 3))
    pair = st.tuples(st.sampled_from(sorted(cheats)), st.integers(0, n - 1))
    return n, cheats, draw(st.lists(st.lists(pair, max_size=20), min_size=1, max_size=8))


@settings(max_examples=200)
@given(liars(), st.integers(0, 2**32))
def test_no_honest_client_is_named_whatever_up_to_b_liars_say(said: tuple, seed: int):
    n, cheats, attempts = said
    rng, blame = np.random.default_rng(seed), NOBODY
    for lies in attempts:
        honest = [
            (who, cheat)
            for who, cheat in itertools.product(set(range(n)) - cheats, cheats)
            if rng.random() < 0.3
        ]
        blame = failed(blame, range(n), [*lies, *honest], len(cheats))
        assert blame.named.keys() <= cheats


@given(st.integers(4, 20), st.integers(1, 5))
def test_a_liar_that_complains_of_everybody_is_named(n: int, b: int):
    b = min(b, n - 2)
    blame = failed(NOBODY, range(n), [(0, other) for other in range(1, n)], b)
    assert list(blame.named) == [0]
    assert blame.named[0].startswith(f"it contradicts {n - 1} clients, and {b} at most")
    assert blame.suspects == frozenset()


def test_contradictions_of_those_who_did_not_take_part_are_not_heard():
    blame = failed(NOBODY, range(4), [(9, 1), (1, 9), (2, 2)], liars=0)
    assert blame.named == {}
    assert blame.suspects == set(range(4))
