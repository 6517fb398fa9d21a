# SPDX-License-Identifier: Apache-2.0
"""Tables in a terminal: nothing is cut, however many domains there are."""

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from agnosticfl.report import tables
from agnosticfl.report.comparison import Comparison, compare_runs
from agnosticfl.report.grid import Entry, Grid, grid
from agnosticfl.report.table import results
from agnosticfl.report.terminal import terminal
from tests.helpers.reports import course


def printed(table: Grid, width: int = 80) -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(terminal(table, width))
    return file.getvalue()


def compared(domains: list[str]) -> Comparison:
    """Domain i has the loss 10.i with FedAvg, and AFA turns the order round."""
    losses = [10 + i / 100 for i in range(len(domains))]
    runs = [
        course("fedavg", 0, domains, losses),
        course("fedavg", 1, domains, [v + 0.5 for v in losses]),
        course("afa", 0, domains, losses[::-1]),
    ]
    return compare_runs(runs)


@pytest.mark.parametrize("number", [1, 2, 8, 56])
def test_numbers_are_whole_in_80_columns(number: int):
    comparison = compared([f"domain {i}" for i in range(number)])
    for table in tables(comparison, short=True):
        text = printed(table)
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= 80
        for row in table.rows:
            for entry in row[1:]:
                assert entry.text in text


def test_of_56_domains_the_worst_five_and_the_best_are_shown():
    comparison = compared([f"domain {i}" for i in range(56)])
    (table,) = results(comparison, short=True)
    names = [entry.text for entry in table.header]
    assert names[:3] == ["algorithm", "worst", "difference"]
    assert names[3:] == [f"domain {i}" for i in (55, 54, 53, 52, 51, 0)]
    text = printed(table)
    assert "10.8 (0.4)" in text  # 10.55 and 11.05: the worst of FedAvg
    assert "56 domains, of which the 5 that FedAvg (uniform) serves worst" in text
    assert "12,345" in text
    (whole,) = results(comparison)
    assert len(whole.header) == 3 + 56


def test_few_domains_stand_as_the_data_has_them_and_many_by_how_they_are_served():
    for number, first in ((6, "domain 0"), (7, "domain 6")):
        (table,) = results(compared([f"domain {i}" for i in range(number)]))
        assert table.header[3].text == first


def test_long_and_wide_names_are_broken_and_not_cut():
    name = "東京都のとても長い名前の家族と友人と同僚"
    comparison = compared([name, "b" * 40])
    (table,) = results(comparison)
    text = printed(table)
    assert set(name) <= set(text)
    assert text.count("b") >= 40
    assert "…" not in text
    assert max(map(cell_len, text.splitlines())) <= 80


def test_intervals_have_a_line_of_their_own():
    table = grid("caption", ("row", "value"), [[Entry("a"), Entry("1.0", 1.0, interval="[0, 2]")]])
    lines = [line.strip("│ ") for line in printed(table).splitlines()]
    assert "a   │    1.0" in lines
    assert lines[lines.index("a   │    1.0") + 1] == "[0, 2]"
