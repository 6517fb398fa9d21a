# SPDX-License-Identifier: Apache-2.0
"""A process that has one processor: JAX's CPU client needs two threads for what calls Python."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity"), reason="nobody says which processors a process has"
)

CHILD = """
import os, sys
mine = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, mine[: int(sys.argv[1])])
import agnosticfl
import jax
jax.devices()
threads = [open(f"/proc/self/task/{t}/comm").read() for t in os.listdir("/proc/self/task")]
print(os.environ.get("NPROC"), sum("XLA" in name for name in threads))
"""


def child(processors: int, **environment: str) -> list[str]:
    own = {name: value for name, value in os.environ.items() if name != "NPROC"}
    command = [sys.executable, "-c", CHILD, str(processors)]
    done = subprocess.run(
        command, env=own | environment, check=True, capture_output=True, text=True, timeout=120
    )
    return done.stdout.split()


def test_one_processor_has_two_threads():
    assert child(1) == ["2", "2"]
    assert child(1, NPROC="3") == ["3", "3"]  # what the user says


def test_more_processors_are_left_alone():
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two processors")
    assert child(2) == ["None", "2"]
