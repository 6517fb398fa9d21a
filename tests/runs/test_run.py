# SPDX-License-Identifier: Apache-2.0
import functools
import json
from pathlib import Path
from typing import Any

import jax
import msgspec
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from agnosticfl.errors import BadInput
from agnosticfl.runs import playing
from agnosticfl.runs.config import Config
from agnosticfl.runs.records import read_records
from agnosticfl.runs.resolve import resolve
from agnosticfl.runs.run import Stopped, run
from agnosticfl.runs.summary import absence
from tests.helpers.runs import results


def toy(**options: Any) -> Config:
    return resolve("toy", rounds=12, sets=["checkpoint_every=5"], **options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    run(toy(), folder)
    return folder


def test_a_run_folder_holds_everything(finished: Path):
    names = {path.name for path in finished.iterdir()}
    assert names == {
        "config.json", "engine.json", "metrics.jsonl", "tensorboard", "checkpoints", "summary.json",
        "domains.json", "run.lock", "models", "predictions", "about.json",
    }  # fmt: skip
    assert json.loads((finished / "config.json").read_text())["rounds"] == 12
    records = read_records(finished)
    assert [r["round"] for r in records] == list(range(1, 13))
    per_domain = ("domain_weights", "alpha", "loss", "count")
    assert all(len(records[0][key]) == 5 for key in per_domain)
    scalars = {"beta", "update_norm", "bytes_down", "bytes_up", "seconds", "left_out"}
    assert scalars | {"step_taken", "weights_taken"} <= set(records[0])


def test_the_summary_says_what_came_out(finished: Path):
    summary = json.loads((finished / "summary.json").read_text())
    wanted = {"task", "algorithm", "seed", "rounds", "domains", "domain_weights", "test"}
    wanted |= {"worst_domain", "gap", "seconds_per_round", "bytes", "params"}
    assert wanted <= set(summary)
    assert summary["domains"] == list(summary["test"])
    losses = [summary["test"][d]["loss"] for d in summary["domains"]]
    assert summary["test"][summary["worst_domain"]]["loss"] == max(losses)
    assert summary["gap"] == pytest.approx(max(losses) - min(losses))


def test_bytes_are_those_of_the_messages(finished: Path):
    sizes = json.loads((finished / "summary.json").read_text())["bytes"]
    clients, w, p = 50, 1, 5
    assert sizes["down_per_round"] == 4 * clients * (w + p)  # w, α
    assert sizes["up_per_round"] == 4 * clients * (w + 1 + p + p)  # update, β, L, N
    assert sizes["paper_per_round"] == 4 * (2 * clients * w + 4 * clients * p)


def test_tensorboard_reads_the_same_values(finished: Path):
    events = EventAccumulator(str(finished / "tensorboard")).Reload()
    values = [scalar.value for scalar in events.Scalars("domain_weights/centre 1")]
    expected = [record["domain_weights"][4] for record in read_records(finished)]
    np.testing.assert_allclose(values, expected, rtol=1e-6)


@pytest.mark.parametrize("stop_at", [1, 5, 7, 11])
def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path: Path, finished: Path, stop_at: int):
    done: list[int] = []
    with pytest.raises(Stopped, match=f"stopped after round {stop_at} of 12"):
        run(
            toy(), tmp_path / "run",
            on_round=lambda r: done.append(r["round"]), should_stop=lambda: done[-1] == stop_at,
        )  # fmt: skip
    assert not (tmp_path / "run" / "summary.json").exists()
    run(toy(), tmp_path / "run", resume=True)
    assert results(tmp_path / "run") == results(finished)


@pytest.mark.parametrize("engine", ["padded", "lanes"])
def test_a_run_that_goes_on_is_compiled_no_more(tmp_path: Path, finished: Path, engine: str):
    """What the run before it compiled is in the memory, and fits."""
    assert finished.exists()
    config = msgspec.structs.replace(toy(), engine=engine)
    done: list[int] = []
    with pytest.raises(Stopped):
        run(
            config, tmp_path / "run",
            on_round=lambda r: done.append(r["round"]), should_stop=lambda: done[-1] == 6,
        )  # fmt: skip
    missed: list[str] = []

    def note(event: str, **_: str | int) -> None:
        missed.extend([event] * event.endswith("/cache_misses"))

    jax.monitoring.register_event_listener(note)
    try:
        run(config, tmp_path / "run", resume=True)
    finally:
        jax.monitoring.unregister_event_listener(note)
    assert missed == []


def test_rounds_one_by_one_write_the_same_as_blocks(tmp_path: Path, finished: Path):
    run(msgspec.structs.replace(toy(), engine="padded"), tmp_path / "run")
    for one, other in zip(results(tmp_path / "run"), results(finished), strict=True):
        assert one.keys() == other.keys()
        np.testing.assert_allclose(one["params"], other["params"], rtol=1e-5)
        np.testing.assert_allclose(one["domain_weights"], other["domain_weights"], rtol=1e-5)


def test_a_round_under_way_while_the_last_is_written_changes_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = msgspec.structs.replace(toy(), engine="padded")
    run(config, tmp_path / "one by one")
    one_by_one = functools.partial(playing._one_by_one, ahead=True)
    monkeypatch.setattr(
        playing,
        "_one_by_one",
        lambda *args, ahead: one_by_one(*args),  # noqa: ARG005
    )
    done: list[int] = []
    with pytest.raises(Stopped):
        run(
            config, tmp_path / "ahead",
            on_round=lambda r: done.append(r["round"]), should_stop=lambda: done[-1] == 7,
        )  # fmt: skip
    run(config, tmp_path / "ahead", resume=True)
    assert results(tmp_path / "ahead") == results(tmp_path / "one by one")


def test_a_damaged_newest_checkpoint_falls_back_and_gives_the_same_bits(
    tmp_path: Path, finished: Path
):
    folder = tmp_path / "run"
    done: list[int] = []
    with pytest.raises(Stopped):
        run(
            toy(), folder,
            on_round=lambda r: done.append(r["round"]), should_stop=lambda: done[-1] == 11,
        )  # fmt: skip
    for file in (folder / "checkpoints" / "00000011").rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[:-1])
    said: list[str] = []
    run(toy(), folder, resume=True, say=said.append)
    assert "checkpoint 00000011 is damaged" in said[0]
    assert results(folder) == results(finished)


def test_a_last_line_cut_short_is_forgotten(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text('{"round": 1}\n{"round": 2}\n{"rou')
    assert read_records(tmp_path) == [{"round": 1}, {"round": 2}]


def test_a_finished_run_is_not_run_again(finished: Path):
    before = (finished / "metrics.jsonl").stat().st_mtime_ns
    said: list[str] = []
    run(toy(), finished, resume=True, say=said.append)
    assert "is complete already" in said[0]
    assert (finished / "metrics.jsonl").stat().st_mtime_ns == before


def test_another_configuration_is_refused_by_its_first_difference(finished: Path):
    with pytest.raises(BadInput, match="another configuration: seed was 0 and is now 1"):
        run(toy(seed=1), finished, resume=True)
    with pytest.raises(BadInput, match="holds a run already; go on with --resume"):
        run(toy(), finished)


def test_a_folder_of_other_things_is_not_touched(tmp_path: Path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(BadInput, match="exists and holds no run"):
        run(toy(), tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_run_says_once_that_absent_domains_sank(tmp_path: Path):
    said: list[str] = []
    sets = ["clients_per_round=1", "data.points=[8, 120, 200, 250, 350]"]
    summary = run(resolve("toy", rounds=12, sets=sets), tmp_path / "zero", say=said.append)
    missed = [sum(r["count"][i] == 0 for r in read_records(tmp_path / "zero")) for i in range(5)]
    assert max(missed) > 1.2  # of 12 rounds, a tenth
    (line,) = (text for text in said if "absent" in text)
    assert line == f"warning: {summary['often_absent']}"
    for name, number in zip(summary["domains"], missed, strict=True):
        assert (f"{name!r} ({number})" in line) == (number > 1.2)

    held = [*sets, "weight_rule.absent='hold'"]
    said.clear()
    summary = run(resolve("toy", rounds=12, sets=held), tmp_path / "hold", say=said.append)
    assert summary["often_absent"] is None
    assert said == []


def test_a_tenth_of_the_rounds_is_not_too_much():
    def line(absent: int, key: str = "loss") -> str | None:
        others = {"loss": [1.0, 1.0]} if key != "loss" else {}
        records = [{**others, key: [1.0, None if t < absent else 2.0]} for t in range(20)]
        return absence(resolve("toy"), records, ["often", "rare"])

    assert line(2) is None
    assert "absent from many of the 20 rounds: 'rare' (3); that" in str(line(3))
    assert "'rare' (3); that" in str(line(3, "heldout_loss"))  # by which λ moved


def test_bad_input_leaves_no_folder(tmp_path: Path):
    config = resolve("toy", sets=["init_domain_weights=[1,1,0,0,0]"])
    with pytest.raises(BadInput, match="domain weights sum to 2"):
        run(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_toy_finds_zero_with_lambda_on_the_extremes(tmp_path: Path):
    """The appendix's result: |w| < 0.02 within 1000 rounds, λ on the two extreme domains."""
    summary = run(resolve("toy"), tmp_path / "run")
    assert abs(summary["params"][0]) < 0.02
    weights = summary["domain_weights"]
    np.testing.assert_allclose([weights[0], weights[4]], [0.5, 0.5], atol=0.02)
    assert max(weights[1:4]) < 0.01
