# SPDX-License-Identifier: Apache-2.0
"""Pictures of what fairness and privacy cost."""

import msgspec
import numpy as np

from agnosticfl.report.comparison import Comparison, Row
from agnosticfl.report.panels import Plot, Spot, painting
from agnosticfl.runs.config import Config
from agnosticfl.runs.resolve import title

SPOTS = "agnosticfl.report.spots"  # the module that draws them


def pareto(comparison: Comparison) -> Plot:
    """Fairness against utility: the worst domain's metric over the average of all test examples."""
    metric = comparison.metrics[0]
    sign = 1 if comparison.higher_is_better[metric] else -1
    spots = [
        Spot(row.title, average.mean, lowest.mean, average.values, lowest.values)
        for row in comparison.rows
        for average, lowest in [(row.overall[metric], row.worst[metric])]
    ]
    means = sign * np.array([[spot.x, spot.y] for spot in spots])
    better = "higher" if sign == 1 else "lower"
    caption = (
        f"Test {metric} of the worst domain against the average, {better} is better in both;"
        " the line joins the algorithms that no other beats in both"
    )
    data = spots, undominated(means), close_up(means), metric
    return Plot("pareto", caption, painting(SPOTS, "paint_pareto", *data))


def close_up(points: np.ndarray) -> np.ndarray | None:
    """[n] the half of the points [n, 2] with the highest second number, if it lies in a corner.

    None if the others leave it room enough: a third of the picture or more in both directions.
    """
    near = points[:, 1] >= np.median(points[:, 1])
    if not np.isfinite(points[near]).all():
        return None
    room = np.ptp(points[np.isfinite(points).all(axis=1)], axis=0)
    return near if np.all(np.ptp(points[near], axis=0) < room / 3) and near.sum() > 2 else None


def privacy(comparison: Comparison) -> Plot:
    """Utility against ε; a dotted line is the same algorithm without privacy."""
    metric = comparison.metrics[0]
    spots: dict[str, list[Spot]] = {}  # algorithm -> ε, and the worst domain's metric
    for row in comparison.rows:
        name, epsilon = title(_without_privacy(row)), row.runs[0].epsilon
        lowest = row.worst[metric]
        many = [epsilon] * len(lowest.values)
        own = Spot(name, epsilon, lowest.mean, many, lowest.values)
        spots.setdefault(name, []).append(own)
    caption = f"Test {metric} of the worst domain against ε (dotted: without privacy)"
    return Plot("privacy", caption, painting(SPOTS, "paint_privacy", spots, metric))


def _without_privacy(row: Row) -> Config:
    return msgspec.structs.replace(row.runs[0].config, dp=None)


def undominated(points: np.ndarray) -> np.ndarray:
    """[n] whether no other of the points [n, 2] is at least as high in both and higher in one."""
    here, other = points[:, None], points[None]
    beaten = np.all(other >= here, axis=2) & np.any(other > here, axis=2)
    return ~beaten.any(axis=1)
