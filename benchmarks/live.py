# SPDX-License-Identifier: Apache-2.0
"""Seconds of a round over real processes on this machine: SuperLink, gate, ServerApp and clients.

    python benchmarks/live.py toy --nodes 3 --rounds 20 [--secure] [--supernode] [--json FILE]

Prints the median and the spread of rounds after the first two, the processor time of a round by
process, and the load of the machine beside it, which should be none.
"""

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import psutil

from agnosticfl.deploy.supervise.local import run_locally
from agnosticfl.deploy.task import federated_config, new_task
from agnosticfl.runs.build import build
from agnosticfl.runs.records import read_records
from agnosticfl.runs.resolve import resolve

FIRST = 2  # rounds that are not counted: programs are compiled in them


def kind(words: list[str]) -> str:
    """What a process of the federation is, by its command line."""
    names = {
        "flower.superlink": "SuperLink",
        "gate.serve": "gate",
        "flwr-serverapp": "ServerApp",
        "flower-superexec": "SuperExec",
        "flower.warm": "clients",
        "flower-supernode": "clients",
        "flwr-clientapp": "clients",
    }
    line = " ".join(words[:4])
    return next((name for part, name in names.items() if part in line), "other")


class Meter:
    """Processor seconds of all processes that came of this one, by kind, looked at now and then."""

    def __init__(self) -> None:
        self.seen: dict[tuple[int, float], tuple[str, float]] = {}
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)
        self.thread.start()

    def _look(self) -> None:
        own = psutil.Process()
        while not self.stop.wait(0.25):
            for process in own.children(recursive=True):
                try:
                    times = process.cpu_times()
                    key = (process.pid, process.create_time())
                    name = self.seen[key][0] if key in self.seen else kind(process.cmdline())
                    self.seen[key] = (name, times.user + times.system)
                except psutil.Error:  # it has ended
                    continue

    def total(self) -> dict[str, float]:
        sums: dict[str, float] = defaultdict(float)
        for name, seconds in list(self.seen.values()):
            sums[name] += seconds
        return dict(sums)


def trained(place: Path) -> float:
    """Seconds that the slowest client worked on its last training, by the clients' logs."""
    seconds = [0.0]
    for log in place.glob("agnosticfl-*/node*/node.log"):
        found = re.findall(r"answer to the train message, after ([\d.]+) s", log.read_text())
        seconds += [float(found[-1])] if found else []
    return max(seconds)


def measure(task: Any, nodes: int, supernode: bool, most: float) -> dict[str, Any]:
    """Plays the run of `task`, for `most` seconds, and says how long its rounds took."""
    meter, marks, work = Meter(), list[dict[str, float]](), list[float]()

    def on_round(_: Any) -> None:
        marks.append(meter.total())
        work.append(trained(Path(tempfile.gettempdir())))

    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder  # where the federation's own folder will be
        out = Path(folder) / "run"
        begun = time.time()
        run_locally(
            task,
            out,
            nodes,
            supernode=supernode,
            on_round=on_round,
            should_stop=lambda: time.time() - begun > most,
        )
        times = [record["time"] for record in read_records(out)]
    meter.stop.set()
    seconds = [b - a for a, b in zip(times[FIRST - 1 :], times[FIRST:], strict=False)]
    rounds = len(marks) - FIRST
    used = {
        name: (marks[-1][name] - marks[FIRST - 1].get(name, 0.0)) / rounds for name in marks[-1]
    }
    return {
        "rounds": len(seconds),
        "median": statistics.median(seconds),
        "least": min(seconds),
        "most": max(seconds),
        "training": statistics.median(work[FIRST:]),
        "until_round_1": times[0] - begun,
        "processor_seconds": used,
        "load": os.getloadavg()[0],
        "cores": len(os.sched_getaffinity(0)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--secure", action="store_true")
    parser.add_argument("--supernode", action="store_true", help="Flower's own SuperNodes")
    parser.add_argument("--set", action="append", default=[], dest="sets")
    parser.add_argument("--seconds", type=float, default=3600.0, help="end after so many")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    sets = [*options.sets, *(["secure.name=simulate"] if options.secure else [])]
    total = options.rounds + FIRST
    config = federated_config(resolve(options.task, rounds=total, sets=sets), options.nodes)
    task = new_task(config, build(config).data)
    found = measure(task, options.nodes, options.supernode, options.seconds)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1))
    used = ", ".join(
        f"{name} {seconds:.2f}" for name, seconds in found["processor_seconds"].items()
    )
    sys.stdout.write(
        f"{options.task}{' secure' if options.secure else ''}, {options.nodes} nodes,"
        f" {found['rounds']} rounds: median {found['median']:.2f} s"
        f" ({found['least']:.2f} to {found['most']:.2f}), of which the slowest client's training"
        f" {found['training']:.2f} s; round 1 after"
        f" {found['until_round_1']:.1f} s; processor seconds per round: {used};"
        f" load {found['load']:.1f} on {found['cores']} cores\n"
    )


if __name__ == "__main__":
    main()
