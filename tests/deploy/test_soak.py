# SPDX-License-Identifier: Apache-2.0
"""A crowd of real connections, some of which drop out or lie, in a short run of `make soak`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.soak import measured, while_waiting

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["secure", "clear"])
def test_a_crowd_with_drop_outs_and_liars_trains_to_its_end(tmp_path: Path, kind: str):
    """No message of theirs is lost, and no round that enough stay in."""
    found, rounds = tmp_path / "found.json", 3
    words = ["--clients", "14", "--cohort", "10", "--rounds", str(rounds), "--seconds", "400"]
    words += ["--drop", "0.1", "--hostile", "0.1", "--step", "10", "--poll", "1", "--idle", "2"]
    words += ["--json", str(found), *(["--clear"] if kind == "clear" else [])]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.soak", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(found.read_text())
    assert (result["ended"], result["rounds"]) == ("done", rounds)
    assert (result["messages_lost"], result["clients_that_ended"]) == (0, [])
    assert result["messages"]["nonsense"] >= 1
    # Only who fell silent, or came after enough others, was not waited for.
    assert result["not_waited_for"] <= result["messages"].get("dropped", 0) + 2 * rounds


def test_what_is_used_is_told_for_each_client():
    empty, before, after = (
        {"time": time, "SuperLink": (used, 100.0 + used)}
        for time, used in ((0.0, 1.0), (10.0, 5.0), (20.0, 7.0))
    )
    waiting = while_waiting(empty, before, after, 4)
    assert waiting["SuperLink_share_of_a_core_while_waiting"] == pytest.approx(0.2)
    assert waiting["SuperLink_share_of_a_core_while_waiting_per_client"] == pytest.approx(0.05)
    assert waiting["SuperLink_MiB_per_client"] == pytest.approx(1.5)
    rounds = measured([10.0, 30.0, 35.0, 65.0], [before, after], 4)
    assert (rounds["rounds"], rounds["median"]) == (4, 20.0)
    assert (rounds["least"], rounds["most"]) == (5.0, 30.0)
    assert rounds["SuperLink_processor_seconds_per_round_and_client"] == pytest.approx(0.5)
