# SPDX-License-Identifier: Apache-2.0
"""Two real processes on one machine that make one run."""

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import jax
import numpy as np
import pytest

from agnosticfl.engines.helpers import feed
from agnosticfl.errors import BadInput
from agnosticfl.runs import processes
from agnosticfl.runs.processes import BROKEN
from tests.helpers.command_line import command, printed_by, wait_for_round
from tests.helpers.runs import results

WAIT = 600  # seconds; a process that is left alone ends at once, or within a minute

# Prints, for each engine, a hash of the state after three rounds and its parameters.
ROUNDS = """
import hashlib, json, sys
import jax, numpy as np, optax
from agnosticfl import agnostic_fedavg
from agnosticfl.engines.helpers import feed
from agnosticfl.registry import ENGINES
from agnosticfl.runs import processes
from tests.helpers.problems import quadratic, random_federated

with processes.joined(*json.loads(sys.argv[1])):
    for engine, resident in (("lanes", True), ("lanes", False), ("steps", True)):
        feed.fits = lambda _: resident
        algorithm = agnostic_fedavg(
            quadratic(), random_federated(3, clients=30), clients_per_round=7, batch_size=3,
            client_optimizer=optax.sgd(0.1, 0.5), engine=ENGINES.get(engine),
        )
        state = algorithm.init()
        for t in range(1, 4):
            state, _ = algorithm.round(state, algorithm.cohort(t))
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(state)]
        digest = hashlib.sha256(b"".join(leaf.tobytes() for leaf in leaves)).hexdigest()
        params = [v for leaf in jax.tree.leaves(state.params) for v in np.ravel(leaf).tolist()]
        print(json.dumps([jax.process_count(), digest, params]))
"""

# Prints, for each kind of noise, a hash of the state after four private rounds and its parameters.
PRIVATE = """
import hashlib, json, sys
import jax, numpy as np
from agnosticfl.runs import processes
from agnosticfl.runs.build import build
from agnosticfl.runs.resolve import resolve

with processes.joined(*json.loads(sys.argv[1])):
    for sets in json.loads(sys.argv[2]):
        built = build(resolve("synthetic-points", "afa", None, 0, 4, sets))
        state = built.algorithm.init()
        for t in range(1, 5):
            state, _ = built.algorithm.round(state, built.algorithm.cohort(t))
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(state)]
        digest = hashlib.sha256(b"".join(leaf.tobytes() for leaf in leaves)).hexdigest()
        params = [v for leaf in jax.tree.leaves(state.params) for v in np.ravel(leaf).tolist()]
        print(json.dumps([jax.process_count(), digest, params]))
"""

# Prints how many processes there are and which one this is.
WHO = """
import jax
from agnosticfl.runs import processes
with processes.joined(None, None, None):
    print(jax.process_index(), jax.process_count())
"""


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


Starter: TypeAlias = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Starter]:
    """Starts a process with more environment variables; none outlives its test."""
    started: list[subprocess.Popen[str]] = []

    def starter(words: list[str], **environment: Any) -> subprocess.Popen[str]:
        variables = {key: str(value) for key, value in environment.items()}
        process = subprocess.Popen(
            words,
            env=os.environ | {"JAX_PLATFORMS": "cpu"} | variables,
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield starter
    for process in started:
        process.kill()
        process.communicate()


def outputs(started: list[subprocess.Popen[str]]) -> list[list[str]]:
    """The lines that each printed, without what the transport says on its own."""
    texts = [process.communicate(timeout=WAIT) for process in started]
    assert [process.returncode for process in started] == [0] * len(started), texts
    return [[line for line in out.splitlines() if "Gloo" not in line] for out, _ in texts]


def test_every_process_has_the_same_bits_and_one_process_the_same_numbers(
    start: Starter, monkeypatch: pytest.MonkeyPatch
):
    address = f"127.0.0.1:{free_port()}"
    words = [[sys.executable, "-c", ROUNDS, json.dumps([address, 2, i])] for i in (0, 1)]
    one, other = outputs([start(w) for w in words])
    monkeypatch.setattr(feed, "fits", feed.fits)  # as it is now, after the rounds here
    monkeypatch.setattr(sys, "argv", ["", json.dumps([None, None, None])])
    single = printed_by(ROUNDS, Path.cwd()).splitlines()
    assert one == other
    assert [json.loads(line)[0] for line in one] == [2, 2, 2]
    for line, expected in zip(one, single, strict=True):
        np.testing.assert_allclose(json.loads(line)[2], json.loads(expected)[2], rtol=1e-5)


@pytest.mark.slow
def test_processes_of_a_private_run_draw_the_same_noise(
    start: Starter, monkeypatch: pytest.MonkeyPatch
):
    """Noise is drawn on the host of each process, but from one secret: all have the same sums."""
    pytest.importorskip("dp_accounting")
    pytest.importorskip("jax_privacy")
    small = ["clients_per_round=8", "data.clients=60", "data.examples=5", "evaluation_every=0"]
    own = ["dp.epsilon=8", "dp.delta=1e-4", 'dp.public=["test", "heldout"]']
    kinds = [
        [*small, *own],  # noise of the operating system
        [*small, *own, "dp.test_seed=1"],
        [*small, *own, "dp.test_seed=1", 'dp.noise="banded"'],
        [*small, *own, "dp.test_seed=1", 'dp.mode="distributed"'],
    ]
    address = f"127.0.0.1:{free_port()}"
    each = [[sys.executable, "-c", PRIVATE, json.dumps([address, 2, i])] for i in (0, 1)]
    one, other = outputs([start([*words, json.dumps(kinds)]) for words in each])
    monkeypatch.setattr(sys, "argv", ["", json.dumps([None, None, None]), json.dumps(kinds)])
    single = printed_by(PRIVATE, Path.cwd()).splitlines()
    assert one == other
    assert [json.loads(line)[0] for line in one] == [2] * len(kinds)
    params, expected = ([json.loads(line)[2] for line in lines] for lines in (one, single))
    assert np.abs(np.subtract(params[0], expected[0])).max() > 1e-3  # another secret
    for some, alone in zip(params[1:], expected[1:], strict=True):
        np.testing.assert_allclose(some, alone, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("launcher", ["SLURM", "Open MPI"])
def test_processes_of_a_launcher_find_each_other(start: Starter, launcher: str):
    job = random.SystemRandom().randrange(2**16)

    def environment(index: int) -> dict[str, Any]:
        if launcher == "SLURM":
            job_variables = {"SLURM_JOB_ID": job, "SLURM_STEP_NODELIST": "localhost"}
            counts = {"SLURM_NTASKS": 2, "SLURM_STEP_NUM_TASKS": 2}
            return {**job_variables, **counts, "SLURM_PROCID": index, "SLURM_LOCALID": index}
        return {
            "OMPI_MCA_orte_hnp_uri": f"{job * 2**12}.0;tcp://127.0.0.1:1",
            "OMPI_COMM_WORLD_SIZE": 2,
            "OMPI_COMM_WORLD_RANK": index,
            "OMPI_COMM_WORLD_LOCAL_RANK": index,
        }

    found = outputs([start([sys.executable, "-c", WHO], **environment(i)) for i in (0, 1)])
    assert found == [["0 2"], ["1 2"]]


TOY = ("run", "toy", "--rounds", "120", "--set", "checkpoint_every=20", "--num-processes", "2")


def pair(start: Starter, out: Path, *more: str) -> list[subprocess.Popen[str]]:
    where = ("--coordinator", f"127.0.0.1:{free_port()}", "--out", str(out), *more)
    return [start(command(*TOY, *where, "--process-id", str(i))) for i in (0, 1)]


@pytest.mark.slow
def test_a_killed_process_ends_the_others_and_the_run_goes_on_to_the_same_bits(
    start: Starter, tmp_path: Path
):
    outputs(pair(start, tmp_path / "whole"))
    folder = tmp_path / "killed"

    first, second = pair(start, folder)
    wait_for_round(first, folder, 15)
    second.send_signal(signal.SIGKILL)
    _, errors = first.communicate(timeout=WAIT)
    assert first.returncode == 1
    assert "error: another process of this run has ended after round" in errors
    assert "start all processes again with --resume" in errors
    assert "Traceback" not in errors
    saved = max(int(path.name) for path in (folder / "checkpoints").iterdir())
    assert saved == len(results(folder)) < 120  # the last whole round, not only every 20th

    first, second = pair(start, folder, "--resume")
    wait_for_round(first, folder, saved + 15)
    first.send_signal(signal.SIGKILL)
    _, errors = second.communicate(timeout=WAIT)
    assert second.returncode not in (0, None)
    assert "another process of this run has ended" in errors or "another task died" in errors

    outputs(pair(start, folder, "--resume"))
    assert results(folder) == results(tmp_path / "whole")
    folders = (folder, tmp_path / "whole")
    one, other = (json.loads((f / "summary.json").read_text()) for f in folders)
    assert (one["params"], one["test"]) == (other["params"], other["test"])
    assert one["environment"]["processes"] == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("host", 2, 0), "--coordinator is 'host'; it must be HOST:PORT"),
        (("host:70000", 2, 0), "--coordinator is 'host:70000'; it must be HOST:PORT"),
        (("host:1", 0, 0), "--num-processes is 0; it must be at least 1"),
        (("host:1", 2, 2), "--process-id is 2; it must be from 0 to 1"),
    ],
)
def test_bad_addresses_are_refused(given: tuple[str, int, int], message: str):
    with pytest.raises(BadInput, match=re.escape(message)):
        processes.start(*given)


def test_only_what_the_network_says_counts_as_a_loss():
    assert BROKEN.search("UNKNOWN: Gloo all-reduce failed: Connection reset by peer")
    assert not BROKEN.search("shapes (3,) and (4,) do not match")
    assert jax.process_count() == 1


def test_a_process_alone_starts_its_device_in_a_thread(monkeypatch: pytest.MonkeyPatch):
    """Several processes must join each other first."""
    started: list[str] = []

    def devices() -> None:
        started.append(threading.current_thread().name)
        raise RuntimeError("no device")  # said when the run asks for it, and not here

    complaints: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", complaints.append)
    monkeypatch.setattr(jax, "devices", devices)
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # as it would be from now on
    processes.start_device_ahead("host:1", 2, 0)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    processes.start_device_ahead()
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    processes.start_device_ahead(None, None, None)
    for thread in threading.enumerate():
        if thread.name == "agnosticfl-device":
            thread.join()
    assert started == ["agnosticfl-device"]
    assert complaints == []


@pytest.mark.parametrize(("before", "after"), [(None, "false"), ("true", "true")])
def test_memory_is_taken_as_it_is_needed_unless_the_user_wants_it_otherwise(
    monkeypatch: pytest.MonkeyPatch, before: str | None, after: str
):
    name = "XLA_PYTHON_CLIENT_PREALLOCATE"
    monkeypatch.setenv(name, str(before))  # what it is now comes back after the test
    if before is None:
        monkeypatch.delenv(name)
    processes.start_device_ahead()
    assert os.environ[name] == after
