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


def attack_of(item: pytest.Item) -> Attack | None:
    """The attack that a test plays."""
    mark = item.get_closest_marker("attack")
    return None if mark is None else Attack(*mark.args)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    attack = attack_of(item)
    if attack is not None:
        _note(attack, call)
    return (yield)


def _note(attack: Attack, call: pytest.CallInfo[None]) -> None:
    was = TRIED.setdefault(attack, Tried())
    error = call.excinfo
    skipped = error is not None and error.errisinstance(pytest.skip.Exception)
    broken = error is not None and not skipped
    TRIED[attack] = Tried(
        was.played + (call.when == "call" and not skipped),
        was.succeeded + broken,
        was.skipped + skipped,
        was.seconds + call.duration,
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
