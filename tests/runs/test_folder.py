# SPDX-License-Identifier: Apache-2.0
"""Whose a run folder is, who may write it, and what crashes and full disks leave of it."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from agnosticfl.data.collect import collect
from agnosticfl.data.loaders.synthetic import load
from agnosticfl.data.store.writer import write_store
from agnosticfl.errors import BadInput
from agnosticfl.runs.config import Config
from agnosticfl.runs.records import read_records
from agnosticfl.runs.resolve import resolve
from agnosticfl.runs.run import run
from tests.helpers.command_line import agnosticfl, called, start, wait_for_round

STORE_TASK = """
rounds = 6
clients_per_round = 4
batch_size = 5
checkpoint_every = 2
[data]
name = "store"
path = "{store}"
[model]
name = "logistic"
features = 16
classes = 10
[client_optimizer]
name = "sgd"
learning_rate = 0.1
"""


def toy(rounds: int = 20, *sets: str) -> Config:
    return resolve("toy", rounds=rounds, sets=sets)


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def test_a_second_process_is_kept_out_and_the_first_is_not_disturbed(tmp_path: Path):
    out = tmp_path / "run"
    words = ("run", "toy", "--out", out, "--rounds", "30000", "--set", "checkpoint_every=128")
    first = start(*words)
    try:
        wait_for_round(first, out, 500)
        second = called(*words, "--resume")
        assert second.returncode == 2
        message = f"{out} is being written by another process (pid {first.pid})"
        assert second.stderr == f"error: {message}\n"
        first.send_signal(signal.SIGINT)
        assert first.wait(120) == 130
    finally:
        first.kill()
        first.communicate()
    rounds = [record["round"] for record in read_records(out)]
    assert rounds == list(range(1, len(rounds) + 1))


def test_the_lock_ends_with_its_process(tmp_path: Path):
    out = tmp_path / "run"
    words = ("run", "toy", "--out", out, "--rounds", "1200", "--set", "checkpoint_every=128")
    killed = start(*words)
    wait_for_round(killed, out, 500)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    done = called(*words, "--resume")
    assert done.returncode == 0, done.stderr
    assert len(read_records(out)) == 1200


def test_a_run_that_crashed_before_its_first_checkpoint_does_not_block_its_folder(tmp_path: Path):
    out = tmp_path / "run"
    killed = start(
        "run", "toy", "--out", out, "--rounds", "300000", "--set", "checkpoint_every=300000"
    )
    wait_for_round(killed, out, 300)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert (out / "config.json").exists()
    said: list[str] = []
    run(toy(5, "client_optimizer.learning_rate=0.01"), out, say=said.append)
    assert said == [f"{out} held a run that ended before its first checkpoint: starting anew"]
    assert len(read_records(out)) == 5


def test_a_run_with_a_checkpoint_is_replaced_only_on_request(tmp_path: Path):
    run(toy(5), tmp_path / "run")
    with pytest.raises(BadInput, match=r"go on with --resume, replace it with --overwrite or"):
        run(toy(7), tmp_path / "run")
    summary = run(toy(7), tmp_path / "run", overwrite=True)
    assert summary["rounds"] == 7
    assert checkpoints(tmp_path / "run") == ["00000007"]
    done = called("run", "toy", "--out", tmp_path / "run", "--resume", "--overwrite")
    assert (done.returncode, done.stderr) == (
        2,
        "error: --resume and --overwrite: give one of them\n",
    )


def test_overwrite_leaves_a_folder_that_is_no_run_alone(tmp_path: Path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "holiday.jpg").write_bytes(b"x")
    with pytest.raises(BadInput, match="exists and holds no run"):
        run(toy(2), tmp_path / "photos", overwrite=True)
    assert (tmp_path / "photos" / "holiday.jpg").exists()


def test_a_refused_run_leaves_no_folder(tmp_path: Path):
    with pytest.raises(BadInput, match="clients per round"):
        run(toy(2, "clients_per_round=51"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_if_all_checkpoints_are_damaged_it_is_said_and_the_new_ones_are_kept(tmp_path: Path):
    whole = run(toy(30, "checkpoint_every=10"), tmp_path / "whole")
    out = tmp_path / "run"
    run(toy(30, "checkpoint_every=10"), out)
    (out / "summary.json").unlink()
    for name in checkpoints(out):
        (out / "checkpoints" / name / "state.safetensors").write_text("{}")
    said: list[str] = []
    summary = run(toy(30, "checkpoint_every=10"), out, resume=True, say=said.append)
    assert sum("is damaged" in line for line in said) == 3
    assert said[-1].endswith("holds no checkpoint that is whole: starting at round 1")
    names = ["00000010", "00000020", "00000030"]
    assert checkpoints(out) == sorted([*names, *(f"{name}.damaged" for name in names)])
    assert summary["test"] == whole["test"]
    run(toy(30, "checkpoint_every=10"), out, resume=True)


def rebuilt(path: Path, seed: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    write_store(load(clients=30, seed=seed), path, lambda *_: None)


def test_a_run_belongs_to_its_store(tmp_path: Path):
    store, task, out = tmp_path / "store", tmp_path / "task.toml", tmp_path / "run"
    rebuilt(store, seed=0)
    task.write_text(STORE_TASK.format(store=store))
    first = run(resolve(str(task)), out)
    rebuilt(store, seed=0)  # the same data made again is the same data
    assert run(resolve(str(task)), out, resume=True) == first
    rebuilt(store, seed=1)
    with pytest.raises(BadInput, match="its data is not the data of now"):
        run(resolve(str(task)), out, resume=True)


def test_a_run_belongs_to_its_model(tmp_path: Path):
    store, task, out = tmp_path / "store", tmp_path / "task.toml", tmp_path / "run"
    rebuilt(store, seed=0)
    task.write_text(STORE_TASK.format(store=store))
    run(resolve(str(task)), out)
    config = json.loads((out / "config.json").read_text())
    assert config["model_shapes"] == {
        "linear.bias": "float32[10]",
        "linear.kernel": "float32[16, 10]",
    }
    config["model_shapes"]["linear.bias"] = "float32[11]"
    (out / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadInput, match="model_shapes was"):
        run(resolve(str(task)), out, resume=True)


def test_a_run_of_an_older_version_can_be_gone_on_with_and_reported(tmp_path: Path):
    out = tmp_path / "run"
    run(toy(10, "checkpoint_every=5"), out)
    config = json.loads((out / "config.json").read_text())
    for key in ("data_digest", "model_shapes"):
        del config[key]
    (out / "config.json").write_text(json.dumps(config))
    summary = json.loads((out / "summary.json").read_text())
    del summary["higher_is_better"], summary["diverged"]
    (out / "summary.json").write_text(json.dumps(summary))
    done = called("report", out)
    assert done.returncode == 0, done.stderr
    (out / "summary.json").unlink()
    shutil.rmtree(out / "checkpoints" / "00000010")
    assert run(toy(10, "checkpoint_every=5"), out, resume=True)["test"] == summary["test"]


@pytest.mark.nan_input
@pytest.mark.parametrize("rate", ["5.0", "1e30"])
def test_a_run_whose_loss_explodes_says_so_and_ends_with_status_1(tmp_path: Path, rate: str):
    done = called(
        "run", "toy", "--rounds", "40", "--out", tmp_path / "run",
        "--set", f"client_optimizer.learning_rate={rate}",
    )  # fmt: skip
    assert done.returncode == 1
    problem = "diverged" if rate == "5.0" else "left as it was in 40 of 40 rounds"
    said = [line for line in done.stderr.splitlines() if problem in line]
    assert said[0].startswith("warning: the ")
    assert "RuntimeWarning" not in done.stderr
    assert (tmp_path / "run" / "report.html").exists()
    assert problem in json.loads((tmp_path / "run" / "summary.json").read_text())["diverged"]


def test_a_run_that_learns_says_nothing(tmp_path: Path):
    said: list[str] = []
    summary = run(toy(50), tmp_path / "run", say=said.append)
    assert summary["diverged"] is None
    assert said == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1200k", "tmpfs", str(place)]
    if os.geteuid() or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount a small disk")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_said_in_one_line_and_leaves_a_checkpoint(small_disk: Path):
    out = small_disk / "run"
    words = ("run", "toy", "--rounds", "20000", "--set", "checkpoint_every=50", "--out", out)
    done = agnosticfl(*words)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"error: no space left on the disk of {out};")
    assert "Traceback" not in done.stderr
    kept = [name for name in checkpoints(out) if name.isdigit()]
    assert kept
    assert (out / "checkpoints" / kept[-1] / "state.safetensors").exists()


def test_the_same_arrays_have_the_same_digest_and_others_another():
    from agnosticfl.core.federated import Splits, digest_of

    def digest(seed: int) -> str:
        parts = collect(load(clients=30, seed=seed))
        return digest_of(Splits(parts["train"], parts["test"]))

    assert digest(0) == digest(0)
    assert digest(0) != digest(1)
    parts = collect(load(clients=30))
    base = Splits(parts["train"], parts["test"])
    moved = base.train._replace(domain=np.roll(base.train.domain, 1))
    assert digest_of(base) != digest_of(base._replace(train=moved))
