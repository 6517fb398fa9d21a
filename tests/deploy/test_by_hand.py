# SPDX-License-Identifier: Apache-2.0
"""Federations by command, as a person types them: to their ends, interrupted and killed."""

import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from agnosticfl.tracking import read_records
from tests.deploy.shell import Shell
from tests.deploy.test_strategy import NODES, assert_same, simulate, toy

pytestmark = pytest.mark.slow


@pytest.fixture
def shell(tmp_path: Path) -> Generator[Shell]:
    shell = Shell(tmp_path)
    try:
        yield shell
    finally:
        shell.close()


def rounds(out: Path) -> int:
    return len(read_records(out)) if (out / "metrics.jsonl").exists() else 0


def test_a_local_federation_interrupted_and_killed_goes_on_to_the_simulation_s_end(
    shell: Shell, tmp_path: Path
):
    """Ctrl-C in a round, then SIGKILL in a later one, then to the end, by the same command."""
    out = tmp_path / "run"
    line = ["deploy", "local", "toy", "--nodes", str(NODES), "--rounds", "4", "--out", str(out)]

    interrupted = shell.start(line)
    interrupted.until(lambda: rounds(out) >= 1)
    interrupted.send(signal.SIGINT)
    assert interrupted.ends() == 130
    said = interrupted.said()
    assert "stopping; a round that is not complete is given up\n" in said
    assert "stopped; the state after the last complete round is saved; add --resume" in said
    assert "Traceback" not in said
    assert not shell.running()
    assert not list(shell.temporary.glob("agnosticfl-*"))  # the keys are thrown away
    first = rounds(out)

    killed = shell.start([*line, "--resume"])
    killed.until(lambda: rounds(out) > first)
    killed.send(signal.SIGKILL)
    assert killed.ends() == -signal.SIGKILL
    assert shell.quiet()
    second = rounds(out)
    assert 1 <= first < second < 4

    last = shell.start([*line, "--resume"])
    assert last.ends() == 0, last.said()
    assert f"starts after round {second}" in last.said()
    assert not shell.running()
    expected: list[dict[str, Any]] = simulate(tmp_path / "simulated", toy(4).config)
    assert_same(read_records(out), expected)
    assert "report.html" in last.said()
