# SPDX-License-Identifier: Apache-2.0
"""A private federation of real processes, by command."""

import tempfile
import time
from collections.abc import Generator
from pathlib import Path

import msgspec
import pytest

from agnosticfl.deploy.node.allowance import LEDGER
from agnosticfl.deploy.node.ledger import Row, read
from agnosticfl.deploy.supervise.local import run_locally
from agnosticfl.deploy.task import federated_config, new_task
from agnosticfl.files import read_json
from agnosticfl.runs.build import build
from agnosticfl.runs.records import read_records
from agnosticfl.runs.resolve import resolve
from tests.deploy.shell import Shell

pytestmark = pytest.mark.slow


@pytest.fixture
def shell(tmp_path: Path) -> Generator[Shell]:
    shell = Shell(tmp_path)
    try:
        yield shell
    finally:
        shell.close()


def test_a_private_federation_of_three_nodes(shell: Shell, tmp_path: Path):
    """Real nodes, secure sums, noise of their own; clients evaluate, and everything is counted."""
    out = tmp_path / "run"
    line = "deploy local toy --nodes 3 --rounds 2 --secure --dp epsilon=8,delta=1e-6"
    sets = ("--set", "evaluation_by=clients", "--set", "evaluation_every=2", "--out", str(out))
    said = shell.run([*line.split(), *sets])
    assert not shell.running()
    assert "ε 8 at δ 1e-06 for every client" in said
    assert "the noise of 2 honest clients is enough" in said
    assert len(read_records(out)) == 2
    spent = read_json(out / "privacy.json")
    assert spent["private"]
    assert spent["honest"] == 2
    assert 0 < spent["epsilon"] < 8
    # Two rounds, a look, and the model at the end; more if an attempt at one failed.
    assert spent["sums"] >= 2 + 1 + 1
    assert len((tmp_path / "run.asked").read_text().splitlines()) == spent["sums"]
    assert read_json(out / "summary.json")["privacy"] == spent
    assert (out / "report.html").exists()


@pytest.mark.parametrize("noise", ["banded", "buffered"])
def test_clients_of_real_nodes_take_turns_under_correlated_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noise: str
):
    """DP-FTRL: the server adds noise that later rounds take back; six clients, three in a round."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where their ledgers will be
    out, rounds, begun = tmp_path / "run", 4, time.monotonic()
    dp = {"epsilon": 8.0, "delta": 1e-6, "noise": noise, "separation": 2}
    plain = resolve("toy", rounds=rounds, sets=["secure.name=simulate"])
    config = federated_config(msgspec.structs.replace(plain, dp=dp), 3)
    task = new_task(config, build(plain).data)
    rows: list[Row] = []

    def look(_: object) -> None:
        files = sorted(tmp_path.glob(f"agnosticfl-*/node*/{LEDGER}"))
        rows[:] = [read(file)[task.run] for file in files]

    assert run_locally(
        task, out, 6, on_round=look, should_stop=lambda: time.monotonic() - begun > 400
    )
    assert [record["round"] for record in read_records(out)] == list(range(1, rounds + 1))
    assert not (tmp_path / "run.sum").exists()  # what was summed before the noise lies nowhere
    said = read_json(out / "privacy.json")
    assert (said["private"], said["mode"]) == (True, "central")
    assert said["trusted"] == "the server, with the sum"
    assert said["noise"].startswith(noise)
    assert (said["sums"], said["rounds_between_two_of_a_client"]) == (2, 2)
    assert 7.9 < said["epsilon"] <= 8
    assert read_json(out / "summary.json")["privacy"] == said
    # Each client was in two rounds, by its own ledger, and these were apart.
    assert [row.sums for row in rows] == [2] * 6
    assert sorted(row.last for row in rows) == [3, 3, 3, 4, 4, 4]
