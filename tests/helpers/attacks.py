# SPDX-License-Identifier: Apache-2.0
"""The table of `make attack`: the attacks that are played in the tests, and what came of them.

    @pytest.mark.attack("what is tried", "what holds it off")

names what is tried and what holds it off. The test plays it against the real code and passes only
if it does not succeed. This plugin (`pytest -p tests.helpers.attacks -m attack`) prints one line
for each attack.
"""

from collections.abc import Generator, Mapping
from typing import NamedTuple

import pytest


class Attack(NamedTuple):
    """What is tried, and what holds it off."""

    name: str
    held_by: str


class Tried(NamedTuple):
    """How often an attack was played, in all its forms, and how often it succeeded."""

    played: int = 0
    succeeded: int = 0
    skipped: int = 0
    seconds: float = 0.0


TRIED: dict[Attack, Tried] = {}
PROPERTY = "attack"  # of a report, with what it says of the attack


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where the test runs, which may be another process than the one that prints the table."""
    report = yield
    mark = item.get_closest_marker("attack")
    if mark is not None:
        report.user_properties.append((PROPERTY, list(mark.args)))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Where the table is printed."""
    for name, said in report.user_properties:
        if name == PROPERTY and isinstance(said, list):
            attack = Attack(*said)
            TRIED[attack] = _with(TRIED.get(attack, Tried()), report)


def _with(was: Tried, report: pytest.TestReport) -> Tried:
    return Tried(
        was.played + (report.when == "call" and not report.skipped),
        was.succeeded + report.failed,
        was.skipped + report.skipped,
        was.seconds + report.duration,
    )


def table(tried: Mapping[Attack, Tried]) -> str:
    """In Markdown."""
    lines = ["| attack | held off by | played | result | s |", "|---|---|---|---|---|"]
    for attack, was in sorted(tried.items()):
        result = "**SUCCEEDS or fails to run**" if was.succeeded else "held off"
        if not was.played and not was.succeeded:
            result = "not played here"
        cells = (attack.name, attack.held_by, was.played, result, f"{was.seconds:.1f}")
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if TRIED:
        terminalreporter.write_line("")
        terminalreporter.write_line(table(TRIED))
