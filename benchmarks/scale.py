# SPDX-License-Identifier: Apache-2.0
"""What growing costs: ten times the clients, more devices, a process that starts again.

    python benchmarks/scale.py [cohorts] [devices] [startup] [--rounds 3] [--json OUT]

Every figure comes from a process of its own. `cohorts`: the keyboard model (CIFG) with 50 and 500
clients a round; peak memory is the process's on a CPU, the device's on an accelerator. `devices`:
the same model with 1 to 8 simulated CPU devices, which share the machine's cores: they cannot be
faster than one, so beside the seconds stands the share of the steps that the busiest device has,
which is what real devices would take. `startup`: from the start of `agnosticfl run` to its first
round, without and with what an earlier run compiled.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from agnosticfl import agnostic_fedavg, from_arrays
from agnosticfl.engines import lanes_engine
from agnosticfl.methods.base import Algorithm
from agnosticfl.models import cifg
from agnosticfl.runs.records import read_records

CLIENTS, LARGEST, WORDS, LENGTH, BATCH = 1000, 8, 10_000, 20, 8
LANES = 4  # of the cohorts' comparison on a CPU: memory is about lanes × |W| there too


def main() -> None:
    options = _options()
    if options.one:  # the inner process
        print(json.dumps(ONE[options.one[0]](*map(int, options.one[1:]))))  # noqa: T201
        return
    found = {what: MEASURES[what](options.rounds) for what in options.what}
    text = json.dumps({**found, "load": os.getloadavg()[0], "device": _device()}, indent=1)
    print(text)  # noqa: T201
    if options.json:
        Path(options.json).write_text(text + "\n", encoding="utf-8")


def cohorts(rounds: int) -> list[dict[str, float]]:
    return [_inner("cohort", clients, rounds) for clients in (50, 500)]


def devices(rounds: int) -> list[dict[str, float]]:
    return [
        _inner(
            "device", number, rounds, XLA_FLAGS=f"--xla_force_host_platform_device_count={number}"
        )
        for number in (1, 2, 4, 8)
    ]


def startup(_: int) -> list[dict[str, Any]]:
    """A small LSTM, which takes a while to compile and none to run."""
    with tempfile.TemporaryDirectory() as folder:
        task = Path(folder) / "sentences.toml"
        build = ("data", "prepare", "synthetic", "--kind", "sentences", "--clients", "50")
        _agnosticfl(*build, "--out", f"{folder}/store")
        task.write_text(TASK.format(store=f"{folder}/store"), encoding="utf-8")
        results: list[dict[str, Any]] = []
        for number, cache in enumerate(("off", f"{folder}/cache", f"{folder}/cache")):
            out, begun = Path(folder) / str(number), time.time()
            _agnosticfl("run", str(task), "--out", str(out), AGNOSTICFL_CACHE=cache)
            first = read_records(out)[0]["time"] - begun
            case = ("no cache", "empty cache", "filled cache")[number]
            results.append({"case": case, "seconds_to_first_round": first})
        return results


TASK = """# Sentences, to see a process start.
rounds = 2
clients_per_round = 10
batch_size = 16
[data]
name = "store"
path = "{store}"
[model]
name = "lstm"
embedding = 16
hidden = 32
[client_optimizer]
name = "sgd"
learning_rate = 0.1
"""


def one_cohort(clients: int, rounds: int) -> dict[str, float]:
    number = LANES if jax.default_backend() == "cpu" else None
    algorithm = _keyboard(clients, lanes=number, devices=1)
    seconds, examples = _timed(algorithm, rounds)
    memory = jax.local_devices()[0].memory_stats() or {}
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "clients_per_round": clients,
        "examples_per_round": examples,
        "median_s_per_round": seconds,
        "examples_per_s": examples / seconds,
        "peak_mib": memory.get("peak_bytes_in_use", host) / 2**20,
    }


def one_device(number: int, rounds: int) -> dict[str, float]:
    algorithm = _keyboard(48, lanes=1, devices=number)
    seconds, _ = _timed(algorithm, rounds)
    layout = algorithm.cohort(1).layout
    steps = np.atleast_1d(jax.device_get(layout.steps))  # each device has one lane
    return {
        "devices": number,
        "median_s_per_round": seconds,
        "busiest_share_of_steps": float(steps.max() / steps.sum()),
    }


def _keyboard(clients: int, **options: Any) -> Algorithm:
    """CIFG at full size on made-up sentences, a few a client."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, LARGEST + 1, CLIENTS)
    tokens = rng.integers(3, WORDS + 3, (sizes.sum(), LENGTH + 1)).astype(np.int16)
    owner = np.repeat(np.arange(CLIENTS), sizes)
    data = from_arrays({"tokens": tokens}, owner, owner % 3)
    return agnostic_fedavg(
        cifg(WORDS),
        data,
        clients_per_round=clients,
        batch_size=BATCH,
        client_optimizer=optax.sgd(0.1),
        engine=lambda *given: lanes_engine(*given, **options),
    )


def _timed(algorithm: Algorithm, rounds: int) -> tuple[float, float]:
    """Median seconds and mean examples per round."""
    state, each, examples = algorithm.init(), list[float](), list[float]()
    for t in range(1, rounds + 2):
        started = time.perf_counter()
        state, info = algorithm.round(state, algorithm.cohort(t))
        examples.append(float(info.domain_count.sum()))
        each.append(time.perf_counter() - started)
    return statistics.median(each[1:]), statistics.mean(examples[1:])


def _inner(name: str, *numbers: int, **environment: str) -> Any:
    words = [sys.executable, __file__, "--one", name, *map(str, numbers)]
    done = subprocess.run(
        words, env=os.environ | environment, check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def _agnosticfl(*words: str, **environment: str) -> None:
    program = [sys.executable, "-c", "from agnosticfl.cli import main; main()", *words]
    subprocess.run(program, env=os.environ | environment, check=True, capture_output=True)


def _device() -> str:
    return f"{os.cpu_count()} cores, {jax.devices()[0].device_kind}"


MEASURES = {"cohorts": cohorts, "devices": devices, "startup": startup}
ONE = {"cohort": one_cohort, "device": one_device}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", default=list(MEASURES), metavar="|".join(MEASURES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json")
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
