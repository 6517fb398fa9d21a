# SPDX-License-Identifier: Apache-2.0
"""The program as a process of its own, and within another one.

A new process takes seconds before it does anything. So tests start one where it is the process that
matters, its signals, its death or what it imports, and call the program everywhere else.
"""

import contextlib
import io
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from agnosticfl.cli import main

ROOT = Path(__file__).parents[2]


def command(*words: str | Path) -> list[str]:
    """The words of `agnosticfl …`, as the system starts it."""
    return [sys.executable, "-c", "from agnosticfl.cli import main; main()", *map(str, words)]


def agnosticfl(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs `agnosticfl …` to its end."""
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=300, check=False)


def called(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """What `agnosticfl …` does, without a new Python: for tests of what it says and writes."""
    line = ["agnosticfl", *map(str, words)]
    out, err, status = io.StringIO(), io.StringIO(), 0
    mask = os.umask(0o022)  # which a command may change
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", line),
        _warnings_as_usual(),
    ):
        try:
            main()
        except SystemExit as ended:
            status = int(ended.code or 0)
        finally:
            os.umask(mask)
    return subprocess.CompletedProcess(line, status, out.getvalue(), err.getvalue())


def printed_by(code: str, cwd: Path, variables: dict[str, Any] | None = None) -> str:
    """What Python code prints that is run in a folder, without a new Python.

    Args:
      variables: those that the code finds, and where it leaves its own.
    """
    out = io.StringIO()
    with contextlib.chdir(cwd), contextlib.redirect_stdout(out), _warnings_as_usual():
        exec(code, {"__name__": "__main__"} if variables is None else variables)
    return out.getvalue()


@contextlib.contextmanager
def _warnings_as_usual() -> Generator[None]:
    """On the standard error, those that Python shows to users; in tests, all would be errors."""

    def show(message: Warning | str, category: type[Warning], file: str, line: int, *_: Any):
        sys.stderr.write(warnings.formatwarning(message, category, file, line))

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        for unseen in (DeprecationWarning, PendingDeprecationWarning, ImportWarning):
            warnings.simplefilter("ignore", unseen)
        warnings.simplefilter("ignore", ResourceWarning)
        warnings.showwarning = show
        yield


# Calls some commands one after another, and prints what each of them came to.
SEVERAL = """
import json, sys
from tests.helpers.command_line import called
done = [called(*words) for words in json.loads(sys.argv[1])]
print(json.dumps([(each.args, each.returncode, each.stdout, each.stderr) for each in done]))
"""


def process(
    line: Sequence[str], cwd: Path, path: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a process to its end; it finds modules in the folder `path` first."""
    places = [str(path or ""), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}
    return subprocess.run(
        line, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def several(
    *lines: Sequence[str], cwd: Path, path: Path | None = None
) -> list[subprocess.CompletedProcess[str]]:
    """Calls commands in one other process, which may import what this one must not."""
    done = process([sys.executable, "-c", SEVERAL, json.dumps(lines)], cwd, path)
    assert done.returncode == 0, done.stderr
    return [subprocess.CompletedProcess(*each) for each in json.loads(done.stdout)]


def start(*words: str | Path) -> subprocess.Popen[str]:
    """Starts `agnosticfl …`."""
    return subprocess.Popen(
        command(*words), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def wait_for_round(process: subprocess.Popen[str], folder: Path, t: int) -> None:
    """Waits until the run in `folder` has written down round t."""
    deadline = time.monotonic() + 120
    records = folder / "metrics.jsonl"
    while not records.exists() or records.read_bytes().count(b"\n") < t:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.005)
