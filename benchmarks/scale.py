# SPDX-License-Identifier: Apache-2.0
"""What growing costs: ten times the clients, more devices, a process that starts again.

    python benchmarks/scale.py [cohorts] [devices] [startup] [cards] [--rounds 3] [--json OUT]

Every figure comes from a process of its own. `cohorts`: the keyboard model (CIFG) with 50 and 500
clients per round, on an accelerator with 2000 and 5000 too; peak memory is the process's on a CPU,
the device's on an accelerator; a round waits for its plan where that took longer to make than the
round before it. `devices`: the same model with 1 to 8 simulated CPU devices, which share the
machine's cores: they cannot be faster than one, so beside the seconds stands the share of the steps
that the busiest device has, which is what real devices would take. `startup`: from the start of
`agnosticfl run` to its first round, without and with what an earlier run compiled. `cards` measures
nothing: it reckons what rounds would take on 1 to 8 H200s, from what they took on one, and for what
they would wait (`reckoned`).
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
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

# A process that measures starts others, which need the device's memory too.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import numpy as np
import optax
from bare import federated
from workloads import make

from agnosticfl import agnostic_fedavg, from_arrays
from agnosticfl.core import tree
from agnosticfl.core.model import Model
from agnosticfl.core.work import ClientWork
from agnosticfl.engines import lanes_engine
from agnosticfl.engines.helpers import plan
from agnosticfl.engines.lanes import TINY
from agnosticfl.methods.base import Algorithm
from agnosticfl.models import cifg, cnn, lstm, point
from agnosticfl.runs.records import read_records

CLIENTS, LARGEST, WORDS, LENGTH, BATCH = 10_000, 8, 10_000, 20, 8
KEY = jax.random.key(0)
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
    more = () if jax.default_backend() == "cpu" else (2000, 5000)
    return [_inner("cohort", clients, rounds) for clients in (50, 500, *more)]


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
    seconds, examples, waited = _timed(algorithm, rounds)
    memory = jax.local_devices()[0].memory_stats() or {}
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "clients_per_round": clients,
        "examples_per_round": examples,
        "median_s_per_round": seconds,
        "examples_per_s": examples / seconds,
        "median_s_until_the_plan_is_there": waited,
        "peak_mib": memory.get("peak_bytes_in_use", host) / 2**20,
    }


def one_device(number: int, rounds: int) -> dict[str, float]:
    algorithm = _keyboard(48, lanes=1, devices=number)
    seconds, _, _ = _timed(algorithm, rounds)
    layout = algorithm.cohort(1).layout
    steps = np.atleast_1d(jax.device_get(layout.steps))  # each device has one lane
    return {
        "devices": number,
        "median_s_per_round": seconds,
        "busiest_share_of_steps": float(steps.max() / steps.sum()),
    }


def _keyboard(clients: int, **options: Any) -> Algorithm:
    """CIFG at full size on synthetic sentences, a few per client."""
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


def _timed(algorithm: Algorithm, rounds: int) -> tuple[float, float, float]:
    """Median seconds and mean examples per round; median seconds that it waits for its plan."""
    state, each = algorithm.init(), list[float]()
    examples, waits = list[float](), list[float]()
    for t in range(1, rounds + 2):
        started = time.perf_counter()
        cohort = algorithm.cohort(t)
        waits.append(time.perf_counter() - started)
        state, info = algorithm.round(state, cohort)
        examples.append(float(info.domain_count.sum()))
        each.append(time.perf_counter() - started)
    late = slice(1, None)  # the first one is compiled
    return (
        statistics.median(each[late]),
        statistics.mean(examples[late]),
        statistics.median(waits[late]),
    )


def _inner(name: str, *numbers: int, **environment: str) -> Any:
    words = [sys.executable, __file__, "--one", name, *map(str, numbers)]
    done = subprocess.run(
        words, env=os.environ | environment, check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def _agnosticfl(*words: str, **environment: str) -> None:
    program = [sys.executable, "-c", "from agnosticfl.cli import script; script()", *words]
    subprocess.run(program, env=os.environ | environment, check=True, capture_output=True)


def _device() -> str:
    return f"{os.cpu_count()} cores, {jax.devices()[0].device_kind}"


class OneCard(NamedTuple):
    """What a round took on one H200 in bf16 (docs/performance.md)."""

    seconds: float
    loss_pass: float  # of these seconds
    lanes: int
    model: Callable[[], Model]


ONE_CARD = {
    "toy": OneCard(0.16e-3, 0.0, 50, point),
    "emnist": OneCard(3.7e-3, 0.3e-3, 5, cnn),
    "stackoverflow": OneCard(31e-3, 3.5e-3, 25, lstm),
}
OVERHEAD = 10.0  # of a step, in steps of one lane: an LSTM's, before U stayed on the chip
LINK = 450e9  # bytes per second and direction between two H200s of one machine, by its maker
START = 20e-6  # seconds until a sum over devices is under way, a guess on the safe side
CARDS = (1, 2, 4, 8)


def cards(_: int) -> list[dict[str, Any]]:
    return [reckoned(task, number) for task in ONE_CARD for number in CARDS]


def reckoned(task: str, number: int) -> dict[str, Any]:
    """A round on so many cards: each takes its part of both passes, then one sum over |W|.

    The training pass takes S · (r + L) of what one card's took, S the steps of the busiest card, L
    its lanes, r the overhead of a step; the loss pass is divided evenly; the sum sends
    2 (n − 1) / n · |W| over every card's link, there and back in a ring. S is never less than the
    steps of the longest client: where it is the same, more cards do nothing. A tiny model stays on
    one card. Lanes hold `gb_of_lanes` of w, and as much again of gradients; a card of a group of m
    (`model_devices`) holds the m-th part.
    """
    workload, one = make(task, 0), ONE_CARD[task]
    data, size = federated(workload), tree.size(jax.eval_shape(one.model().init, KEY))
    work = ClientWork(one.model(), optax.sgd(0.1), 2, workload.hparams["batch_size"])
    asked, number = number, number if size > TINY else 1

    def busiest(parts: int, lanes: int) -> float:
        """Steps of a round, with so many lanes on each card."""
        planner = plan.make_planner(work, data, workload.round_clients, 0, parts)
        steps = 0
        for t in range(1, plan.FIRST_ROUNDS + 1):
            clients = plan.parted(planner, t, parts)
            sizes = np.where(clients == plan.NOBODY, 0, data.sizes_of(np.maximum(clients, 0)))
            load = plan.longest_first(plan.local_steps(planner, sizes), lanes)[2]
            steps += int(load.max())
        return steps / plan.FIRST_ROUNDS

    clients = -(-workload.clients_per_round // number)
    lanes = one.lanes if number == 1 else min(-(-clients // 2), one.lanes)
    steps, before = busiest(number, lanes), busiest(1, one.lanes)
    share = steps * (OVERHEAD + lanes) / (before * (OVERHEAD + one.lanes))
    sent = 2 * (number - 1) / number * 4 * size
    sum_s = 0.0 if number == 1 else START + sent / LINK
    parts = {
        "training_s": (one.seconds - one.loss_pass) * share,
        "loss_pass_s": one.loss_pass / number,
        "sum_over_cards_s": sum_s,
    }
    total = sum(parts.values())
    return {
        "task": task,
        "cards": asked,
        "cards_used": number,
        "clients_of_a_card": clients,
        "lanes": lanes,
        "gb_of_lanes": 4 * lanes * size / 1e9,
        "mb_over_each_link": sent / 1e6,
        "steps_of_the_busiest_card": steps,
        "steps_of_the_longest_client": busiest(1, workload.clients_per_round),
        **parts,
        "waits_most_for": max(parts, key=lambda part: parts[part]).removesuffix("_s"),
        "s_per_round": total,
        "times_one_card": one.seconds / total,
    }


MEASURES = {"cohorts": cohorts, "devices": devices, "startup": startup, "cards": cards}
ONE = {"cohort": one_cohort, "device": one_device}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", nargs="*", default=list(MEASURES), metavar="|".join(MEASURES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json")
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
