# SPDX-License-Identifier: Apache-2.0
"""Whether a server or a client is well, as a container's engine asks."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agnosticfl.deploy.seeing.health import ANSWERED, OLD, unwell
from agnosticfl.deploy.seeing.status import SERVER, Server, write


def test_a_server_is_well_as_long_as_its_gate_answers(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as gate:
        port = gate.getsockname()[1]
        for host in ("127.0.0.1", "0.0.0.0"):
            write(tmp_path, SERVER, Server(1, 0.0, "runs/live", f"{host}:{port}"))
            assert unwell(tmp_path, time.time()) == ""
    assert unwell(tmp_path, time.time()).startswith(f"the gate on 0.0.0.0:{port} does not answer")


def test_a_client_is_well_as_long_as_its_server_answers(tmp_path: Path):
    assert "no client of it was let in" in unwell(tmp_path, time.time())
    (tmp_path / ANSWERED).touch()
    now = (tmp_path / ANSWERED).stat().st_mtime
    assert unwell(tmp_path, now + OLD - 1) == ""
    assert unwell(tmp_path, now + OLD + 1) == "the server has not answered for 121 s"


@pytest.mark.parametrize(("age", "status"), [(0.0, 0), (OLD + 60, 1)])
def test_the_command_tells_it_by_its_status(tmp_path: Path, age: float, status: int):
    (tmp_path / ANSWERED).touch()
    then = time.time() - age
    os.utime(tmp_path / ANSWERED, (then, then))
    words = [sys.executable, "-m", "agnosticfl.deploy.seeing.health", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == status
    assert done.stderr.startswith("error: the server has not answered") == (status == 1)
    assert done.stderr.count("\n") == status
