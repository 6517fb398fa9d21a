# SPDX-License-Identifier: Apache-2.0
"""The table of neighbours and thresholds in docs/security.md is what the program computes."""

from pathlib import Path

from agnosticfl.secagg.agreement import Agreement, in_words
from agnosticfl.secagg.graph import may_drop, plan, quorum, reckoned_dishonest

PAGE = Path(__file__).parents[2] / "docs" / "security.md"


def row(title: str) -> list[int]:
    (line,) = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| {title} |")]
    return [int(cell.replace(" ", "")) for cell in line.split("|")[2:-1]]


def test_the_table_of_thresholds_is_what_is_planned():
    dropout = Agreement._field_defaults["dropout"]
    sizes = row("clients n")
    assert len(sizes) == 10
    dishonest = [reckoned_dishonest(n, 1) for n in sizes]
    plans = [plan(n, b, dropout) for n, b in zip(sizes, dishonest, strict=True)]
    assert row("dishonest B") == dishonest
    assert row("neighbours k") == [p.neighbours for p in plans]
    assert row("threshold t") == [p.threshold for p in plans]
    assert row("quorum q") == list(map(quorum, sizes))
    found = row("may drop, wherever they stand")
    assert found == [may_drop(n, p) for n, p in zip(sizes, plans, strict=True)]


def test_who_sets_up_a_federation_is_told_what_it_bears():
    said = [in_words(n, 1, 0.1) for n in (3, 5, 10)]
    rest = "may drop out, wherever they stand, and 1 may work for the server"
    assert said == [
        f"secure rounds of {n} clients: {lost} {rest}" for n, lost in ((3, "none"), (5, 1), (10, 3))
    ]
