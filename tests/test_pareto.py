# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from agnosticfl.report.plots import pareto, plots, undominated
from agnosticfl.report.runs import Comparison, compare_runs
from tests.test_report import made_up


def test_a_point_is_beaten_by_one_that_is_as_high_in_both_and_higher_in_one():
    points = np.array([[3, 1], [2, 2], [1, 3], [1, 1], [2, 1], [2, 2]])
    np.testing.assert_array_equal(undominated(points), [1, 1, 1, 0, 0, 1])


@pytest.fixture
def comparison() -> Comparison:
    """AFA is best for the worst domain, FedAvg on average, and q-FFL beaten by both."""
    losses = {"fedavg": ([1.0, 5.0], 1.5), "afa": ([2.0, 3.0], 2.2), "qffl": ([2.0, 6.0], 2.6)}
    return compare_runs(
        [
            made_up(name, seed, values, overall={"test": {"loss": average + seed / 10}})
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
    assert "pareto" in [plot.name for plot in plots(comparison)]
    two = comparison._replace(rows=comparison.rows[:2])
    assert "pareto" not in [plot.name for plot in plots(two)]
