# SPDX-License-Identifier: Apache-2.0
"""How a search goes, with scores that are a formula instead of a training."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from scipy import stats

from agnosticfl.errors import BadInput
from agnosticfl.runs.axes import Axis, Setting, around, axis_of, beyond, checked_keys, parse_keys
from agnosticfl.runs.search import Searched, search
from agnosticfl.runs.told_apart import standard_error, t_quantile, told_apart
from agnosticfl.runs.trials import Outcome, Tried

HERE = (0.0, 0.0)  # two seeds that add nothing to the score


def search_lowest(
    score: Callable[[Setting], float | None],
    *axes: Axis,
    budget: int = 12,
    lowest: float = 0.0,
    seeds: Sequence[float] = HERE,
) -> Searched:
    """A search for the lowest score; values of at most `lowest` are not allowed."""

    def one(setting: Setting) -> Tried:
        found = score(setting)
        values = [None if found is None else found + extra for extra in seeds]
        return Tried(setting, [Outcome(value, "a", 0.0) for value in values])

    return search(
        axes, lambda wave: {setting: one(setting) for setting in wave},
        lambda setting: all(not isinstance(v, float) or v > lowest for v in setting),
        budget, higher=False,
    )  # fmt: skip


def tried(result: Searched) -> list[Any]:
    return [m.setting[0] if len(m.setting) == 1 else m.setting for m in result.measured]


def best(result: Searched) -> Setting:
    assert result.best is not None
    return result.best.setting


def test_a_best_that_is_inside_ends_the_search_at_once():
    result = search_lowest(lambda s: abs(s[0] - 1), axis_of("rate", (0.1, 1.0, 10.0)))
    assert (tried(result), best(result)) == ([0.1, 1.0, 10.0], (1.0,))
    assert result.inside
    assert result.ended == "the best lies inside the grid (3 of 12 settings)"


def test_the_grid_grows_by_its_own_ratio_until_the_best_is_inside():
    upward = search_lowest(lambda s: abs(s[0] - 1000), axis_of("rate", (0.1, 1.0)))
    assert tried(upward) == [0.1, 1.0, 10.0, 100.0, 1000.0, 10000.0]
    assert best(upward) == (1000.0,)
    downward = search_lowest(lambda s: abs(s[0] - 0.3), axis_of("rate", (3.0, 10.0, 30.0)))
    assert tried(downward) == [0.1, 0.3, 1.0, 3.0, 10.0, 30.0]
    assert best(downward) == (0.3,)


def test_a_budget_that_is_spent_is_said_and_never_exceeded():
    result = search_lowest(lambda s: -s[0], axis_of("rate", (0.1, 1.0)), budget=4)
    assert tried(result) == [0.1, 1.0, 10.0, 100.0]
    assert not result.inside
    assert result.ended == (
        "the best lies at the edge of the grid, rate = 100.0, and the budget is spent: the next"
        " line has 1 more (4 of 4 settings)"
    )


def test_growth_of_a_product_adds_a_line():
    axes = axis_of("rate", (0.1, 1.0)), axis_of("name", ("a", "b", "c"))
    result = search_lowest(lambda s: abs(s[0] - 1) + (s[1] != "c"), *axes, budget=11)
    assert tried(result) == [(rate, name) for rate in (0.1, 1.0, 10.0) for name in "abc"]
    assert best(result) == (1.0, "c")  # a name has no edge
    too_small = search_lowest(lambda s: abs(s[0] - 1), *axes, budget=8)
    assert len(too_small.measured) == 6
    assert "the next line has 3 more (6 of 8 settings)" in too_small.ended


def test_where_nothing_is_allowed_beyond_the_edge_the_search_ends_and_says_so():
    result = search_lowest(lambda s: s[0], axis_of("share", (0.1, 0.2, 0.3)))
    assert tried(result) == [0.1, 0.2, 0.3]  # equal steps: the next would be 0
    assert not result.inside
    assert result.ended.startswith("the best lies at the edge of the grid, share = 0.1, and there")
    names = search_lowest(lambda s: len(s[0]), axis_of("name", ("bb", "a")))
    assert names.ended == "all were tried (2 of 12 settings)"
    assert names.inside


def test_what_diverged_is_never_the_best_and_smaller_values_are_tried():
    result = search_lowest(lambda s: None if s[0] > 0.05 else -s[0], axis_of("rate", (1.0, 10.0)))
    # All of 1 and 10 diverge, then 0.1 too; 0.01 is better than 0.001.
    assert tried(result) == [0.001, 0.01, 0.1, 1.0, 10.0]
    assert best(result) == (0.01,)
    assert [m.mean is None for m in result.measured] == [False, False, True, True, True]
    assert result.inside
    nothing = search_lowest(lambda _: None, axis_of("rate", (1.0, 10.0)), budget=3)
    assert nothing.best is None
    assert nothing.equals == []
    assert nothing.ended.startswith("every setting diverged, and the budget is spent")


def test_settings_that_seeds_cannot_tell_apart_are_named():
    scores = {0.1: (3.0, 3.1, 2.9), 1.0: (1.0, 1.2, 1.1), 10.0: (1.1, 1.0, 1.3), 100.0: None}

    def measure(wave: Sequence[Setting]) -> dict[Setting, Tried]:
        values = {s: scores[s[0]] or (1.0, None, 1.0) for s in wave}
        return {s: Tried(s, [Outcome(v, "a", 0.0) for v in own]) for s, own in values.items()}

    axes = [axis_of("rate", (0.1, 1.0, 10.0, 100.0))]
    result = search(axes, measure, lambda _: True, 4, higher=False)
    assert best(result) == (1.0,)
    assert [m.setting for m in result.equals] == [(10.0,)]  # differences −0.1, 0.2, −0.2
    assert result.measured[3].mean is None  # one seed of three diverged
    assert result.measured[1].mean == pytest.approx(1.1)
    assert result.measured[1].error == pytest.approx(0.1 / 3**0.5)


def test_what_was_measured_before_may_be_judged_anew():
    """Trials at 1 see less than those before, and all are judged without what these do not see."""
    done: list[Setting] = []

    def measure(wave: Sequence[Setting]) -> dict[Setting, Tried]:
        done.extend(wave)
        best = 0.01 if (1.0,) in done else 1.0
        return {s: Tried(s, [Outcome(abs(s[0] - best), "a", 0.0)]) for s in done}

    result = search([axis_of("rate", (0.01, 0.1))], measure, lambda _: True, 4, higher=False)
    assert tried(result) == [0.001, 0.01, 0.1, 1.0]
    assert best(result) == (0.01,)
    assert result.inside


def test_quantiles_are_those_of_scipy():
    for freedom in (*range(1, 12), 29, 100):
        assert t_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-9)


def test_two_settings_are_told_apart_by_their_paired_differences():
    # Differences 1, 2, 3: mean 2, standard error 1/√3, and 4.303 / √3 = 2.48 is more than 2.
    assert standard_error([1, 2, 3]) == pytest.approx(3**-0.5)
    assert not told_apart([11, 22, 33], [10, 20, 30])
    assert told_apart([12, 22.1, 32], [10, 20, 30])  # whatever the seeds have in common
    assert not told_apart([1, 2], [1, 2])
    assert not told_apart([1.0], [5.0])  # one seed tells nothing


@pytest.mark.parametrize(
    ("values", "above", "below"),
    [
        ((0.1, 1.0), 10.0, 0.01),
        ((0.0316, 0.1, 0.316), 1.0, 0.01),
        ((1.0, 3.0, 10.0), 30.0, 0.3),
        ((0.1, 0.2, 0.3), 0.4, 0.0),
        ((2, 4, 8), 16, 1),
        ((5, 10, 15), 20, 0),
        ((0.0, 0.5), 1.0, -0.5),
    ],
)
def test_an_axis_goes_on_as_it_began(values: tuple[Any, ...], above: float, below: float):
    axis = axis_of("key", values[::-1])
    assert axis.values == values
    assert (beyond(axis, upward=True), beyond(axis, upward=False)) == (above, below)


def test_a_key_without_values_starts_around_the_task_s_own():
    assert around(0.1) == (0.0316, 0.1, 0.316)
    assert around(10) == (5, 10, 20)
    assert parse_keys(["a.b", "c=1,x"]) == {"a.b": (), "c": (1, "x")}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["a="], "--keys 'a=': a value is missing after = or a comma"),
        (["a=1,,2"], "a value is missing"),
        (["=1,2"], "is not of the form KEY or KEY=V1,V2"),
        (["a", "a=1,2"], "--keys has 'a' twice"),
        (["a=1"], "--keys a has 1; give it two or more different values, or none"),
        (["a=1,1"], "--keys a has 1, 1; give it two"),
        (["seed=0,1"], "--keys 'seed': a search cannot choose 'seed'"),
        (["data.clients=10,20"], "a search cannot choose 'data'"),
        ([], "no key was given to search"),
    ],
)
def test_bad_keys_are_refused(keys: list[str], message: str):
    with pytest.raises(BadInput, match=message):
        checked_keys(parse_keys(keys))
