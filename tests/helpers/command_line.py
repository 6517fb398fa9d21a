# SPDX-License-Identifier: Apache-2.0
"""The program as a process of its own."""

import subprocess
import sys
import time
from pathlib import Path

from agnosticfl.runs.records import read_records


def command(*words: str | Path) -> list[str]:
    """The words of `agnosticfl …`, as the system starts it."""
    return [sys.executable, "-c", "from agnosticfl.cli import main; main()", *map(str, words)]


def agnosticfl(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs `agnosticfl …` to its end."""
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=300, check=False)


def start(*words: str | Path) -> subprocess.Popen[str]:
    """Starts `agnosticfl …`."""
    return subprocess.Popen(
        command(*words), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def wait_for_round(process: subprocess.Popen[str], folder: Path, t: int) -> None:
    """Waits until the run in `folder` has written down round t."""
    deadline = time.monotonic() + 120
    while not (folder / "metrics.jsonl").exists() or len(read_records(folder)) < t:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.002)
