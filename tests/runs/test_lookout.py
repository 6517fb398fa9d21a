# SPDX-License-Identifier: Apache-2.0
"""Looks that a device still works at while the next round is played."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agnosticfl.core.model import Params
from agnosticfl.runs import lookout, playing, processes
from agnosticfl.runs.config import Config
from agnosticfl.runs.records import Record, read_records
from agnosticfl.runs.resolve import resolve
from agnosticfl.runs.run import Stopped, run

SMALL = ("data.clients=30", "data.examples=8", "clients_per_round=3", "engine='lanes'", "lanes=2")


def config(rounds: int, every: int) -> Config:
    sets = (*SMALL, f"evaluation_every={every}", "evaluation_batch_size=7")
    return resolve("synthetic-images", rounds=rounds, sets=sets)


def told(folder: Path) -> list[Any]:
    """All that was written down of rounds, except how long they took, and the best model."""
    records = [{**r, "seconds": 0, "time": 0} for r in read_records(folder)]
    return [records, (folder / "models" / "best.safetensors").read_bytes()]


@pytest.mark.parametrize("every", [1, 2])
def test_rounds_that_wait_for_no_look_have_the_same_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
):
    run(config(5, every), tmp_path / "waited")
    monkeypatch.setattr(processes, "may_work_beside_rounds", lambda: True)
    seen: list[int] = []
    run(config(5, every), tmp_path / "beside", on_round=lambda record: seen.append(record["round"]))
    assert seen == [1, 2, 3, 4, 5]
    assert told(tmp_path / "waited") == told(tmp_path / "beside")


def test_a_look_is_begun_when_its_round_is_over_and_waited_for_after_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    order: list[str] = []
    usual, usual_play = lookout.beginner, playing.play

    def beginner(*args: Any) -> Any:
        begin = usual(*args)

        def begun(params: Params, batches: int) -> Any:
            order.append("begun")
            wait = begin(params, batches)
            return lambda: (order.append("waited for"), wait())[1]

        return begun

    def play(*args: Any) -> Iterator[Any]:
        for t, found in enumerate(usual_play(*args), 1):
            order.append(f"played {t}")
            yield found

    monkeypatch.setattr(lookout, "beginner", beginner)
    monkeypatch.setattr("agnosticfl.runs.run.play", play)
    monkeypatch.setattr(processes, "may_work_beside_rounds", lambda: True)
    run(config(4, 2), tmp_path, on_round=lambda record: order.append(f"told {record['round']}"))
    first = ["played 1", "told 1", "played 2", "begun", "played 3", "waited for", "told 2"]
    assert order == [*first, "told 3", "played 4", "begun", "waited for", "told 4"]


def test_a_run_that_is_stopped_while_a_look_is_under_way_goes_on_with_the_same_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(processes, "may_work_beside_rounds", lambda: True)
    run(config(5, 2), tmp_path / "whole")
    last: list[Record] = []
    with pytest.raises(Stopped, match="after round 2 of 5"):
        run(
            config(5, 2),
            tmp_path / "stopped",
            on_round=last.append,
            should_stop=lambda: len(last) == 2,
        )
    assert "heldout" in last[1]
    run(config(5, 2), tmp_path / "stopped", resume=True)
    assert told(tmp_path / "whole") == told(tmp_path / "stopped")
