# SPDX-License-Identifier: Apache-2.0
"""A private federation of real processes, by command."""

from collections.abc import Generator
from pathlib import Path

import pytest

from agnosticfl.files import read_json
from agnosticfl.runs.records import read_records
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
