# SPDX-License-Identifier: Apache-2.0
"""Ends a process of Flower and all that came of it, once whoever started it is done, or dead.

    python guard.py PID

Waits for the end of its standard input, a pipe whose other end only the starter has: it is closed
after SIGKILL too. Flower starts some programs in sessions of their own, which outlive it for a
while and which no signal to a group of processes reaches, so this looks for them now and then.
"""

import contextlib
import os
import select
import signal
import sys

import psutil

LOOK = 2.0  # seconds between two looks
PATIENCE = 10.0  # seconds to end when asked to


def guard(pid: int) -> None:
    """Waits, and ends the process `pid` and its descendants."""
    family: set[psutil.Process] = set()
    with contextlib.suppress(psutil.NoSuchProcess):
        family.add(psutil.Process(pid))
    while not select.select([sys.stdin], [], [], LOOK)[0]:
        family = _grown(family)
    family = _grown(family)
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, left = psutil.wait_procs(family, PATIENCE)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # what was never seen of its group


def _grown(family: set[psutil.Process]) -> set[psutil.Process]:
    """Those that still run, with all that they have started."""
    grown = {process for process in family if process.is_running()}
    for process in tuple(grown):
        with contextlib.suppress(psutil.NoSuchProcess):
            grown.update(process.children(recursive=True))
    return grown


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it ends when its work is done
    guard(int(sys.argv[1]))
