# SPDX-License-Identifier: Apache-2.0
"""Intervals by bootstrap over test clients, against what is known of them without a computer."""

import numpy as np
import pytest

from agnosticfl.report import intervals
from agnosticfl.report.comparison import Comparison, compare_runs
from agnosticfl.report.intervals import with_intervals
from agnosticfl.report.table import help_lines, results
from agnosticfl.runs.predictions import Predictions
from tests.helpers.reports import LARGEST, run_of, said, synthetic_run


def compared(
    *predictions: Predictions, algorithms: tuple[str, ...] = ("fedavg", "afa")
) -> Comparison:
    """One run each."""
    runs = [run_of(name, 0, each) for name, each in zip(algorithms, predictions, strict=False)]
    by_name = dict(zip(algorithms, predictions, strict=False))
    return with_intervals(compare_runs(runs), lambda run: by_name[run.config.algorithm])


def interval(comparison: Comparison, domain: str, row: int = 0) -> tuple[float, float]:
    found = comparison.rows[row].cells["loss"][domain].interval
    assert found is not None
    return found


def test_of_many_clients_it_is_two_standard_errors_wide():
    values = np.random.default_rng(0).normal(size=800)
    client, domain = np.arange(800), np.arange(800) % 2
    comparison = compared(said(values, client, domain))
    own = values[domain == 0]
    low, high = interval(comparison, "a")
    error = own.std() / np.sqrt(len(own))
    assert low == pytest.approx(own.mean() - 1.96 * error, abs=0.15 * error)
    assert high == pytest.approx(own.mean() + 1.96 * error, abs=0.15 * error)
    assert comparison.bootstrap.resamples == {"loss": 1000}
    assert comparison.bootstrap.clients == 800


def test_examples_of_one_client_are_drawn_together():
    """20 clients of 10 equal examples each know as much as 20 examples."""
    values = np.random.default_rng(0).normal(size=20)
    client = np.repeat(np.arange(40), 10)
    comparison = compared(said(np.repeat([*values, *values], 10), client, np.repeat([0, 1], 200)))
    low, high = interval(comparison, "a")
    assert high - low == pytest.approx(2 * 1.96 * values.std() / np.sqrt(20), rel=0.1)


def test_a_domain_of_few_clients_has_its_examples_drawn_and_a_note():
    """Five examples, one of which has the loss 1: B(5, 0.2) has 97.5 % at or below 3 of 5."""
    many = list(range(1, 31))
    predictions = said([0, 0, 0, 0, 1] + [0.5] * 30, [0] * 5 + many, [1] * 5 + [0] * 30)
    comparison = compared(predictions)
    assert interval(comparison, "b") == (0.0, 3 / 5)
    assert interval(comparison, "a") == (0.5, 0.5)
    (table,) = results(comparison)
    assert table.notes == [
        "Fewer than 10 test clients, so that the interval is over examples, not clients: 'b'."
    ]


def test_resamples_without_a_domain_do_not_count_for_it():
    """Two of 32 clients, whose examples were not kept: often one of them is drawn alone."""
    predictions = said(
        [0.25, 0.75] + [0.5] * 30, list(range(32)), [1, 1] + [0] * 30, by_example=False
    )
    comparison = compared(predictions)
    assert interval(comparison, "b") == (0.25, 0.75)
    assert comparison.bootstrap.few_clients == ["b"]
    assert comparison.bootstrap.over_examples == []


def test_a_single_example_has_no_interval():
    comparison = compared(said([1.0] + [0.5] * 30, list(range(31)), [1] + [0] * 30))
    assert comparison.rows[0].cells["loss"]["b"].interval is None


def test_the_worst_is_picked_anew_in_every_resample():
    """Two domains of one example's loss 1 among five: the worst is the larger of two B(5, 0.2)."""
    predictions = said([0, 0, 0, 0, 1] * 2, [0] * 5 + [1] * 5, [0] * 5 + [1] * 5)
    row = compared(predictions).rows[0]
    assert row.worst["loss"].mean == pytest.approx(0.2)
    # P(both 0) = 0.8^10 = 0.107; P(either above 3 of 5) = 1 - 0.9933² = 0.013
    assert row.worst["loss"].interval == (0.0, 3 / 5)
    # Of all ten examples: each domain keeps its five; B(10, 0.2) has 0.107 at 0, 0.994 below 6.
    assert row.overall["loss"].interval == (0.0, 5 / 10)


def test_seeds_are_averaged_before_the_percentiles_are_taken():
    """Errors of two seeds that cancel on every example leave a mean without error."""
    client, domain = list(range(40)), [0] * 20 + [1] * 20
    noise = np.random.default_rng(0).normal(size=40)
    seeds = {0: said(1 + noise, client, domain), 1: said(1 - noise, client, domain)}
    runs = [run_of("afa", seed, each) for seed, each in seeds.items()]
    comparison = with_intervals(compare_runs(runs), lambda run: seeds[run.config.seed])
    assert interval(comparison, "a") == pytest.approx((1.0, 1.0))


def test_rows_are_held_against_the_reference_on_the_same_clients():
    """AFA is better by 0.1 for everybody, which is less than clients differ, and still certain."""
    client, domain = list(range(40)), [0] * 20 + [1] * 20
    losses = np.random.default_rng(0).normal(1, 1, size=40)
    comparison = compared(said(losses, client, domain), said(losses - 0.1, client, domain))
    fedavg, afa = comparison.rows
    assert fedavg.against == {}
    assert afa.against["loss"].worst == pytest.approx((-0.1, -0.1))
    assert afa.against["loss"].difference == pytest.approx((0.0, 0.0))
    (table,) = results(comparison)
    assert [row[1].text.endswith(" †") for row in table.rows] == [False, True]
    assert any(line.startswith("† marks") for line in help_lines(comparison))
    assert "1,000 resamples" in table.caption


def test_a_difference_that_hangs_on_one_client_has_no_mark():
    """Better for one of 20 clients: in (1 - 1/40)^40 = 36 % of the resamples nobody is that one."""
    client, domain = list(range(40)), [0] * 20 + [1] * 20
    worse, better = [0.5] * 20 + [1.0] * 20, [0.5] * 20 + [1.0] * 19 + [0.8]
    comparison = compared(said(worse, client, domain), said(better, client, domain))
    against = comparison.rows[1].against["loss"].worst
    assert against is not None
    assert against[0] < 0
    assert against[1] == pytest.approx(0)
    (table,) = results(comparison)
    assert [row[1].text for row in table.rows] == ["1.000", "0.990"]


def test_a_metric_of_all_outputs_is_computed_resample_by_resample():
    """The largest of 1 … 5: it is at most 2 in (2/5)^5 = 1 % of the draws, at most 3 in 8 %."""
    outputs = np.array([1.0, 2, 3, 4, 5] * 2)
    predictions = said(
        [1.0] * 10,
        [0] * 5 + [1] * 5,
        [0] * 5 + [1] * 5,
        outputs=outputs,
        wanted=outputs,
    )
    run = run_of("afa", 0, predictions)
    for values in (*run.summary["test"].values(), run.summary["overall"]["test"]):
        values[LARGEST] = 5.0
    comparison = with_intervals(compare_runs([run]), lambda _: predictions)
    (row,) = comparison.rows
    assert row.cells[LARGEST]["b"].interval == (3.0, 5.0)
    # The worst is at most 2 in 1 - (1 - 0.0102)² = 2.04 % of the draws, the best nearly always 5.
    assert row.worst[LARGEST].interval == (3.0, 5.0)
    assert row.overall[LARGEST].interval == (4.0, 5.0)  # at most 3 in 0.6^10 = 0.6 % of them
    assert set(comparison.bootstrap.resamples) == {"loss", LARGEST}
    unkept = predictions._replace(measured=predictions.measured._replace(outputs=None))
    missing = with_intervals(compare_runs([run]), lambda _: unkept).bootstrap.missing
    assert missing == {LARGEST: "what the models said was not kept"}


def test_work_has_a_limit_and_the_caption_says_how_many_resamples_there_were(
    monkeypatch: pytest.MonkeyPatch,
):
    predictions = said([1.0] * 20 + [2.0] * 20, list(range(40)), [0] * 20 + [1] * 20)
    once = intervals.DRAWING * 40 + 2 * 1 * 40  # 40 clients, two sums of one run for each
    monkeypatch.setattr(intervals, "PRODUCTS", 150 * once)
    (table,) = results(compared(predictions))
    assert "150 resamples" in table.caption
    monkeypatch.setattr(intervals, "PRODUCTS", 1)
    assert compared(predictions).bootstrap.resamples == {"loss": 100}


def test_draws_in_pieces_are_the_same_draws(monkeypatch: pytest.MonkeyPatch):
    values = list(np.random.default_rng(0).normal(size=40))
    predictions = said(values, list(range(40)), [0] * 20 + [1] * 20)
    whole = interval(compared(predictions), "a")
    monkeypatch.setattr(intervals, "CHUNK", 40 * 7)
    assert interval(compared(predictions), "a") == whole


def test_runs_without_predictions_or_with_others_clients_have_none_and_say_so():
    runs = [synthetic_run("fedavg", 0, [1.0, 2.0]), synthetic_run("afa", 0, [1.0, 2.0])]
    (table,) = results(with_intervals(compare_runs(runs), lambda _: None))
    assert table.notes == ["No interval: 2 of 2 runs kept no predictions."]
    assert "interval" not in table.caption
    one, other = said([1.0, 2.0], [0, 1], [0, 1]), said([1.0, 2.0], [1, 0], [0, 1])
    (table,) = results(compared(one, other))
    assert table.notes == ["No interval: the runs were not tested on the same clients."]


def test_predictions_that_give_another_value_are_not_used():
    predictions = said([1.0, 2.0], [0, 1], [0, 1])
    run = run_of("afa", 0, predictions)
    run.summary["overall"]["test"]["loss"] = 1.6  # their mean is 1.5
    (table,) = results(with_intervals(compare_runs([run]), lambda _: predictions))
    assert table.notes[-1] == "No interval: what was kept gives another loss."


def test_a_diverged_run_has_no_interval():
    good = said([1.0] * 20 + [2.0] * 20, list(range(40)), [0] * 20 + [1] * 20)
    bad = said([1.0] * 20 + [np.nan] * 20, list(range(40)), [0] * 20 + [1] * 20)
    runs = {"fedavg": run_of("fedavg", 0, good), "afa": run_of("afa", 0, good)}
    runs["afa"].summary["test"]["b"]["loss"] = runs["afa"].summary["overall"]["test"]["loss"] = None
    comparison = with_intervals(
        compare_runs(list(runs.values())),
        lambda run: bad if run.config.algorithm == "afa" else good,
    )
    fedavg, afa = comparison.rows
    assert fedavg.worst["loss"].interval == (2.0, 2.0)
    assert afa.worst["loss"].interval is None
    assert afa.cells["loss"]["a"].interval == (1.0, 1.0)
    assert afa.against == {}
