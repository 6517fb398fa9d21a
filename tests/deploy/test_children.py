# SPDX-License-Identifier: Apache-2.0
"""What we start ends with us, however we end."""

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from agnosticfl.deploy.supervise import children

# As Flower does: a program that starts another one in a session of its own. Both write their pids.
PROGRAM = """\
import subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
other = subprocess.Popen(sleep, start_new_session=True)
print(other.pid, flush=True)
{after}
"""
STAY, DIE = "time.sleep(600)", "time.sleep(8); import os; os._exit(1)"

STARTER = """\
import sys, time
from pathlib import Path
from agnosticfl.deploy.supervise.children import start

home = Path(sys.argv[1])
print(start(sys.argv[2:], home, home / "log").process.pid, flush=True)
time.sleep(600)
"""


def program(after: str) -> list[str]:
    return [sys.executable, "-c", PROGRAM.format(after=after)]


def other(home: Path) -> int:
    """The process that the program started."""
    until = time.monotonic() + 60
    while not (home / "log").exists() or "\n" not in (home / "log").read_text():
        assert time.monotonic() < until
        time.sleep(0.05)
    return int((home / "log").read_text())


def gone(*pids: int) -> bool:
    _, alive = psutil.wait_procs([psutil.Process(p) for p in pids if psutil.pid_exists(p)], 60)
    return not alive


@pytest.mark.parametrize("after", [STAY, pytest.param(DIE, marks=pytest.mark.slow)])
def test_stopped_it_ends_with_all_that_came_of_it(tmp_path: Path, after: str):
    """Also if it died by itself before, and left another one behind."""
    child = children.start(program(after), tmp_path, tmp_path / "log")
    left = other(tmp_path)
    if after == DIE:
        child.process.wait(60)
        assert psutil.pid_exists(left)
    child.stop()
    assert gone(child.process.pid, left)


def test_it_ends_if_whoever_started_it_is_killed(tmp_path: Path):
    words = [sys.executable, "-c", STARTER, str(tmp_path), *program(STAY)]
    starter = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    with starter:
        assert starter.stdout is not None
        child = int(starter.stdout.readline())
        left = other(tmp_path)
        starter.kill()
    assert gone(child, left)


def test_no_process_of_ours_phones_home_or_installs_anything(tmp_path: Path):
    variables = children.environment(tmp_path)
    assert variables["FLWR_TELEMETRY_ENABLED"] == "0"
    assert variables["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    link = children.superlink_command(1, tmp_path, tmp_path / "db")
    assert "--disable-runtime-dependency-installation" in link
    assert "--enable-supernode-auth" in link
    assert "--insecure" not in link
    assert link[link.index("--host") + 1] == "127.0.0.1"
