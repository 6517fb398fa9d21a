# SPDX-License-Identifier: Apache-2.0
import base64
import dataclasses
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from agnosticfl.config import resolve
from agnosticfl.errors import BadInput
from agnosticfl.report import grids, write_report
from agnosticfl.report.runs import Run, compare_runs
from agnosticfl.report.table import markdown


def made_up(algorithm: str, seed: int, losses: list[float], **changes: Any) -> Run:
    """A run with given test losses for two domains."""
    target = "b" if algorithm == "fedavg-target" else None
    config = resolve("toy", algorithm, target, seed)
    record = {"round": 1, "loss": losses, "domain_weights": [0.5, 0.5]}
    summary: dict[str, Any] = {
        "domains": ["a", "b"],
        "test": {"a": {"loss": losses[0]}, "b": {"loss": losses[1]}},
        "bytes": {"down_per_round": 1, "up_per_round": 2, "paper_per_round": 3},
        "environment": {},
        **changes,
    }
    return Run(Path(), config, summary, [record])


def test_cells_are_means_and_sample_deviations_and_the_best_is_bold():
    runs = [
        made_up("afa", 0, [2.0, 3.0]),
        made_up("fedavg", 0, [1.0, 4.0]),
        made_up("afa", 1, [2.0, 3.5]),
        made_up("fedavg", 1, [1.0, 5.0]),
    ]
    (grid,) = grids(compare_runs(runs))
    assert markdown(grid).splitlines()[2:] == [
        "| algorithm | a | b | worst | difference |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| FedAvg (uniform) | **1 (0)** | 4.5 (0.7) | 4.5 (0.7) | 3.5 |",
        "| AFA | 2 (0) | **3.25 (0.4)** | **3.25 (0.4)** | **1.25** |",
    ]


def test_accuracy_is_better_when_higher():
    def run(algorithm: str, accuracies: list[float]) -> Run:
        test = {d: {"accuracy": v} for d, v in zip("ab", accuracies, strict=True)}
        return made_up(algorithm, 0, [0.0, 0.0], test=test)

    (grid,) = grids(compare_runs([run("fedavg", [0.9, 0.5]), run("afa", [0.8, 0.7])]))
    assert [row[3] for row in grid.rows] == ["0.5", "0.7"]
    assert [marks[3] for marks in grid.best] == [False, True]


def test_a_domain_without_test_examples_is_a_dash():
    test = {"a": {"loss": 1.0}, "b": {"loss": None}}
    (grid,) = grids(compare_runs([made_up("afa", 0, [1.0, 2.0], test=test)]))
    assert grid.rows[0][1:3] == ["1", "–"]


def test_runs_that_do_not_belong_together_are_refused():
    with pytest.raises(BadInput, match=r"two runs of AFA have the same seed: \[0, 0\]"):
        compare_runs([made_up("afa", 0, [1.0, 2.0])] * 2)
    run = made_up("afa", 0, [1.0, 2.0])
    other = run._replace(config=dataclasses.replace(run.config, task="emnist"))
    with pytest.raises(BadInput, match="runs of different tasks cannot be compared: emnist, toy"):
        compare_runs([run, other])


def test_folders_without_runs_are_refused(tmp_path: Path):
    with pytest.raises(BadInput, match="holds no finished run"):
        write_report([tmp_path], tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(BadInput, match="is not a readable run folder"):
        write_report([tmp_path], tmp_path)


class Page(HTMLParser):
    """Counts what a page holds."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_page_is_self_contained(tmp_path: Path):
    from agnosticfl.experiment import run

    for algorithm in ("fedavg", "afa"):
        run(resolve("toy", algorithm, rounds=5), tmp_path / algorithm)
    write_report([tmp_path], tmp_path)
    page = Page((tmp_path / "report.html").read_text())
    assert page.tags.count("img") == 3
    assert all(address.startswith("data:") for address in page.addresses)
    for picture in (a for a in page.addresses if a.startswith("data:image/svg")):
        assert re.search(rb"<svg.*</svg>", base64.b64decode(picture.split(",")[1]), re.DOTALL)
