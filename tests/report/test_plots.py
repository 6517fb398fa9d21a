# SPDX-License-Identifier: Apache-2.0
"""Pictures of what fairness and privacy cost."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from agnosticfl.report.comparison import Comparison, compare_runs
from agnosticfl.report.drawing import save
from agnosticfl.report.panels import Plot
from agnosticfl.report.plots import ALL, HIGHEST, LOWEST, MEDIAN, draw_plots
from agnosticfl.report.progress import ends, progress
from agnosticfl.report.runs import Run
from agnosticfl.report.tradeoffs import close_up, pareto, privacy, undominated
from tests.helpers.reports import course, synthetic_run


def test_a_point_is_beaten_by_one_that_is_as_high_in_both_and_higher_in_one():
    points = np.array([[3, 1], [2, 2], [1, 3], [1, 1], [2, 1], [2, 2]])
    np.testing.assert_array_equal(undominated(points), [1, 1, 1, 0, 0, 1])


def test_a_half_in_a_corner_is_shown_closer():
    corner = np.array([[9, 9], [9.1, 9.2], [9.2, 9.1], [1, 1], [2, 3]])
    near = close_up(corner)
    assert near is not None
    np.testing.assert_array_equal(near, [1, 1, 1, 0, 0])
    assert close_up(np.array([[9.0, 9], [5, 8], [4, 7], [1, 1]])) is None  # there is room
    assert close_up(np.array([[9, 9], [9.1, 9.2], [1, 1]])) is None  # two need no picture


@pytest.fixture
def comparison() -> Comparison:
    """AFA is best for the worst domain, FedAvg on average, and q-FFL beaten by both."""
    losses = {"fedavg": ([1.0, 5.0], 1.5), "afa": ([2.0, 3.0], 2.2), "qffl": ([2.0, 6.0], 2.6)}
    return compare_runs(
        [
            synthetic_run(name, seed, values, overall={"test": {"loss": average + seed / 10}})
            for name, (values, average) in losses.items()
            for seed in (0, 1)
        ]
    )


def test_the_picture_has_a_point_an_algorithm_and_joins_the_unbeaten(comparison: Comparison):
    (axes,) = pareto(comparison).figure.axes
    (front,) = axes.lines
    np.testing.assert_allclose(np.asarray(front.get_xydata()), [[1.55, 5.0], [2.25, 3.0]])
    titles = [text.get_text() for text in pareto(comparison).figure.legends[0].get_texts()]
    assert titles == ["FedAvg (uniform)", "AFA", "q-FFL (q = 1)"]


def test_only_a_comparison_of_several_algorithms_has_the_picture(comparison: Comparison):
    assert "pareto" in [plot.name for plot in draw_plots(comparison)]
    two = comparison._replace(rows=comparison.rows[:2])
    assert "pareto" not in [plot.name for plot in draw_plots(two)]


def private(name: str, epsilon: float | None, seed: int, loss: float) -> Run:
    run = synthetic_run(name, seed, [0.0, loss])
    dp = None if epsilon is None else {"epsilon": epsilon, "delta": 1e-4}
    return run._replace(config=msgspec.structs.replace(run.config, dp=dp))


def test_utility_against_privacy_is_a_line_an_algorithm():
    losses = {("afa", 4): 9.0, ("afa", None): 2.0, ("afa", 16): 5.0, ("fedavg", 16): 6.0}
    runs = [private(*case, seed, loss + seed) for case, loss in losses.items() for seed in (0, 1)]
    comparison = compare_runs(runs)
    titles = [row.title for row in comparison.rows]
    assert titles == ["FedAvg (uniform), ε = 16", "AFA", "AFA, ε = 16", "AFA, ε = 4"]
    (axes,) = privacy(comparison).figure.axes
    fedavg, afa, without = axes.lines
    np.testing.assert_allclose(np.asarray(fedavg.get_xydata()), [[16, 6.5]])
    np.testing.assert_allclose(np.asarray(afa.get_xydata()), [[16, 5.5], [4, 9.5]])
    np.testing.assert_allclose(np.asarray(without.get_ydata()), [2.5, 2.5])
    legend = privacy(comparison).figure.legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["FedAvg (uniform)", "AFA"]
    assert "privacy" in [plot.name for plot in draw_plots(comparison)]
    two = compare_runs([private("fedavg", e, 0, loss) for e, loss in ((4, 9.0), (None, 3.0))])
    assert ends(two, progress(two)) == {0: 3.0}  # others are held against FedAvg without privacy
    one_budget = compare_runs([run for run in runs if run.config.algorithm == "fedavg"])
    assert "privacy" not in [plot.name for plot in draw_plots(one_budget)]


def plots(comparison: Comparison) -> dict[str, Plot]:
    return {plot.name: plot for plot in draw_plots(comparison)}


def many(number: int, seeds: int = 1, letters: str = "domain") -> Comparison:
    """Domain i has the loss i."""
    names = [f"{letters} {i}" for i in range(number)]
    losses = [float(i) for i in range(number)]
    return compare_runs(
        [course(a, s, names, losses) for a in ("fedavg", "afa") for s in range(seeds)]
    )


def test_many_domains_are_the_highest_the_lowest_the_median_and_a_band():
    plot = plots(many(57, seeds=2))["train"]
    legend = [text.get_text() for text in plot.figure.legends[0].get_texts()]
    assert legend == [ALL, HIGHEST, MEDIAN, LOWEST]
    for axes in plot.figure.axes:
        assert [np.asarray(line.get_ydata())[-1] for line in axes.lines] == [56.0, 28.0, 0.0]
        (band,) = axes.collections
        heights = np.asarray(band.get_paths()[0].vertices, float)[:, 1]
        assert (heights.min(), heights.max()) == (0.0, 56.0)
        assert axes.get_title(loc="left").endswith("highest domain 56, lowest domain 0")


def test_few_domains_have_a_line_each_and_no_two_look_alike():
    (axes, _) = plots(many(6))["train"].figure.axes
    styles = {(line.get_color(), line.get_linestyle()) for line in axes.lines}
    assert len(axes.lines) == len(styles) == 6


def test_the_axis_of_the_weights_fits_them_and_begins_at_0():
    for number in (2, 56):
        (axes,) = plots(many(number))["weights"].figure.axes
        assert axes.get_ylim() == pytest.approx((0, 1.05 / number))


def test_names_in_any_letters_are_no_warning_and_stay_text(tmp_path: Path):
    """Warnings are errors here."""
    for number in (2, 9):
        for plot in draw_plots(many(number, letters="東京")):
            save(plot, tmp_path)
        text = (tmp_path / "train.svg").read_text()
        assert "東京 0" in text
        assert "sans-serif" in text  # whatever the browser has


def test_the_learned_value_is_drawn_of_models_of_one_number():
    assert "value" not in plots(many(2))
    for numbers in ([1.0], [1.0, 2.0]):
        run = synthetic_run("afa", 0, [1.0, 2.0], params=numbers)
        run = run._replace(records=[record | {"params": numbers} for record in run.records])
        assert ("value" in plots(compare_runs([run]))) == (len(numbers) == 1)


def test_domains_without_held_out_examples_are_named_below_the_curves():
    run = course("afa", 0, ["a", "b"], [1.0, 2.0])
    for record in run.records:
        record["heldout"] = {"a": {"loss": 1.0}, "b": {"loss": None}}
    assert "on held-out clients (none of 'b')" in plots(compare_runs([run]))["curves"].caption
    hidden = msgspec.structs.replace(run.config, dp={"epsilon": 8, "delta": 1e-5})
    caption = plots(compare_runs([run._replace(config=hidden)]))["curves"].caption
    assert "on held-out clients (too few for the noise of 'b')" in caption


def test_a_look_that_noise_hides_leaves_a_gap_and_did_not_diverge():
    run = course("afa", 0, ["a", "b"], [1.0, 2.0])
    run.records[1]["heldout"] = {"a": {"loss": None}, "b": {"loss": None}}
    for dp, middle in ((None, np.inf), ({"epsilon": 8, "delta": 1e-5}, np.nan)):
        config = msgspec.structs.replace(run.config, dp=dp)
        seen = progress(compare_runs([run._replace(config=config)]))
        ((curve,),) = seen.curves.values()
        np.testing.assert_array_equal(curve.values, [2.0, middle, 2.0])
