# SPDX-License-Identifier: Apache-2.0
"""How the program ends."""

import subprocess
import sys

import pytest

# Prints more than a pipe holds, in a thread too, and does something when all is done.
PROGRAM = """
import atexit, sys, threading, time
from agnosticfl.cli import commands

@commands.app.command()
def longest(status: int):
    def late():
        time.sleep(0.2)
        print("late")
    threading.Thread(target=late).start()
    atexit.register(lambda: print("done", end=""))
    print("word " * 50_000)
    if status == 4:
        raise ValueError("a mistake")
    sys.exit(status)

commands.script()
"""


@pytest.mark.parametrize("status", [0, 3, 4])
def test_all_is_done_before_it_ends(status: int):
    words = [sys.executable, "-c", PROGRAM, "longest", str(status)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stdout == "word " * 50_000 + "\nlate\ndone"
    assert done.returncode == (1 if status == 4 else status)
    assert ("ValueError: a mistake" in done.stderr) == (status == 4)
