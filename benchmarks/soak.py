# SPDX-License-Identifier: Apache-2.0
"""A federation under load: a real SuperLink, gate and ServerApp, and a crowd of real connections.

    python -m benchmarks.soak --clients 100 --cohort 50 --seconds 900 [--clear] [--json FILE]

The crowd (`benchmarks/crowd.py`) is one process. 10 % of the clients that are asked fall silent
somewhere in a round, 1 % send nonsense. Says every minute how far it is. At the end, or after
Ctrl-C, prints seconds per round and of each stage, processor time and memory of the server's
processes while clients only wait and in rounds, and what became of rounds and messages.
"""

import argparse
import itertools
import json
import logging
import os
import re
import resource
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psutil
from benchmarks.crowd import Crowd, Moody
from rich.console import Console
from rich.table import Table

from agnosticfl.deploy.app import PACKAGE, write_app
from agnosticfl.deploy.gate.limits import Limits
from agnosticfl.deploy.keys import make_node_key, make_server_keys, read_verify_key
from agnosticfl.deploy.node.examples import domains_dealt
from agnosticfl.deploy.supervise import children
from agnosticfl.deploy.supervise.children import Failed
from agnosticfl.deploy.supervise.local import make_members, secure_node
from agnosticfl.deploy.supervise.supervisor import Service, Supervisor
from agnosticfl.deploy.task import FederatedTask, federated_config, new_task
from agnosticfl.registry import SOURCES
from agnosticfl.runs.build import build
from agnosticfl.runs.records import read_records
from agnosticfl.runs.resolve import resolve

ROOT = Path(__file__).parents[1]
OVER = 1.25  # so many times as many are asked as are waited for
MESSAGES = 3  # of a secure round, when the one before it went well
SHARE = 0.75  # of those waited for, that must report
MINUTE = 60.0  # seconds between two lines on how far it is
PATIENCE = 600.0  # seconds for clients to connect; with those who have, it goes on
TURN = 0.05  # seconds: each of a thousand threads that wait for their turn wakes up so often
PROCESSES = ("SuperLink", "gate", "ServerApp")
# What the server says when the answers of a stage are in.
ANSWERS = re.compile(
    r"round \d+: ([a-z ]+): (\d+) of (\d+) in ([\d.]+) s, the last after ([\d.]+) s"
)

CLIENT = """\
from pathlib import Path

from benchmarks.crowd import light_app

app = light_app(Path(__file__).parent)
"""


class Load(NamedTuple):
    """What is played."""

    clients: int
    cohort: int  # how many are asked in a round
    seconds: float
    secure: bool = True
    drop: float = 0.1  # the share of clients that fall silent somewhere in a round
    hostile: float = 0.01  # the share of clients that send nonsense, whenever they are asked
    step: float = 20.0  # seconds that the server waits for those who are silent
    longest: float = 10.0  # seconds between a client's looks for messages
    rounds: int = 10_000
    idle: float = 40.0  # seconds that all clients only wait, before the first round


def wanted(load: Load) -> int:
    """How many reports a round waits for (c)."""
    return round(load.cohort / OVER)


def task_of(load: Load) -> FederatedTask:
    """The toy, with ten points for each client."""
    points = [2 * load.clients] * 5
    sets = [f"data.points={points}", f"data.clients={load.clients}"]
    if load.secure:
        sets += ["secure.name=simulate", f"secure.most_clients={load.cohort}"]
    config = resolve("toy", rounds=load.rounds, sets=sets)
    config = federated_config(config, wanted(load))
    config = msgspec.structs.replace(config, evaluation_every=0)
    return new_task(config, build(config).data)


class Soaked:
    """The server of a federation under load, and what is measured of it."""

    def __init__(self, load: Load, place: Path):
        self.load, self.place, self.said = load, place, list[str]()
        task = task_of(load)
        make_server_keys(place / "keys", ["127.0.0.1"], days=2)
        key = read_verify_key(place / "keys" / "server.verify").hex()
        write_app(place / "app", task._replace(server_key=key))
        (place / "app" / PACKAGE / "client_app.py").write_text(CLIENT)
        self.folder = place / "keys" / "clients"
        self.keys = [self.folder / f"{number}.key" for number in range(load.clients)]
        if load.secure:
            held = domains_dealt(SOURCES.build(task.config.data, "data").train, load.clients)
            make_members(self.keys, held, self.folder / "roster")
        else:
            for each in self.keys:
                make_node_key(each)
        many = 4 * load.clients + 256
        self.service = Service(
            app=place / "app",
            keys=place / "keys",
            state=place / "server",
            out=place / "run",
            host="127.0.0.1",
            port=children.free_port(),
            options={
                "over-selection": load.cohort / wanted(load),
                "minimum": max(int(SHARE * wanted(load)), 1),
                "step": load.step,
                "deadline": 2 * load.step,
                "wait": 300.0,
                "attempts": 20,
                "roster": str(self.folder / "roster"),
                "signing-key": str(place / "keys" / "server.sign"),
            },
            limits=Limits(connections=many, address_connections=many, address_rate=1e5),
        )
        self.supervisor = Supervisor(self.service, self.said.append)
        self.looks: list[dict[str, Any]] = []
        self.stopped = False  # by Ctrl-C
        self._begun = self._last = time.monotonic()

    def player(self, number: int) -> tuple[Path, Moody]:
        key, home = self.keys[number], self.place / "homes" / str(number)
        home.mkdir(parents=True)
        config: dict[str, Any] = {"partition-id": number, "num-partitions": self.load.clients}
        if self.load.secure:
            config |= secure_node(self.folder, key, home)
        hostile = number < round(self.load.hostile * self.load.clients)
        messages = MESSAGES if self.load.secure else 1
        drop = 1 - (1 - self.load.drop) ** (1 / messages)
        return key, Moody(self.service.app, config, number, drop, hostile)

    def stop(self, *_: object) -> None:
        """What Ctrl-C does: the round is not waited for, but all that was measured is told."""
        self.stopped = True

    def tell(self, crowd: Crowd) -> None:
        """Says how far it is, if that was not said in this minute."""
        now = time.monotonic()
        if now - self._last < MINUTE:
            return
        self._last = now
        rounds, counts = len(read_records(self.service.out)), crowd.counts()
        sys.stderr.write(
            f"{(now - self._begun) / MINUTE:.0f} min: {len(crowd.players)} clients are connected,"
            f" {rounds} rounds are done, {counts['asked']} messages came,"
            f" {counts['dropped']} were let go on purpose, load {os.getloadavg()[0]:.1f}\n"
        )

    def pause(self, crowd: Crowd, seconds: float, enough: Callable[[], bool]) -> None:
        """Waits until there is enough, for so many seconds at most."""
        until = time.monotonic() + seconds
        while not (self.stopped or enough() or time.monotonic() > until):
            self.tell(crowd)
            time.sleep(0.2)

    def look(self) -> dict[str, Any]:
        """Processor seconds and memory of the server's processes now."""
        found: dict[str, Any] = {"time": time.time()}
        assert self.supervisor.superlink is not None
        assert self.supervisor.gate is not None
        link = psutil.Process(self.supervisor.superlink.process.pid)
        named = {"SuperLink": link, "gate": psutil.Process(self.supervisor.gate.process.pid)}
        for child in link.children(recursive=True):
            if any("flwr-serverapp" in word for word in child.cmdline()[:2]):
                named["ServerApp"] = child
        for name, process in named.items():
            times = process.cpu_times()
            found[name] = (times.user + times.system, process.memory_info().rss / 2**20)
        return found

    def play(self) -> dict[str, Any]:
        """Serves the crowd for the time of the load; what was measured.

        The server's processes and the crowd go on until this process ends.
        """
        load, out = self.load, self.service.out
        makers = [lambda number=number: self.player(number) for number in range(load.clients)]
        begun = time.monotonic()
        self.supervisor.ensure_up()
        registered, empty = time.monotonic() - begun, self.look()
        entrance = self.supervisor.entrance
        crowd = Crowd(entrance.address, entrance.authority, makers, load.longest)
        crowd.begin()
        self.pause(crowd, PATIENCE, lambda: len(crowd.players) >= load.clients)
        connected, players = time.monotonic() - begun, len(crowd.players)
        before = self.look()
        self.pause(crowd, load.idle, lambda: False)
        waiting = while_waiting(empty, before, self.look(), players)
        until = time.monotonic() + load.seconds

        def should_stop() -> bool:
            self.tell(crowd)
            return self.stopped or time.monotonic() > until

        try:
            ended = "done" if self.serve(should_stop) else "stopped"
        except Failed as error:
            ended = str(error)
        counts, failures = crowd.counts(), crowd.failures()
        kept = out.with_name(f"{out.name}.log")
        log = kept.read_text() if kept.exists() else ""
        return {
            **load._asdict(),
            "ended": ended,
            "connected": players,
            "seconds_until_registered": registered,
            "seconds_until_connected": connected,
            **waiting,
            **measured([record["time"] for record in read_records(out)], self.looks, load.cohort),
            "stages": stages(log),
            "attempts_abandoned": len(re.findall("abandoned \\(", log)),
            "rounds_lost": log.count("is given up"),
            "messages": dict(counts),
            "messages_lost": counts["asked"]
            - sum(counts[name] for name in ("answered", "refused", "dropped", "nonsense")),
            "not_waited_for": sum(
                len(line.rpartition(":")[2].split(","))
                for line in log.splitlines()
                if "no longer waited for" in line
            ),
            "clients_that_ended": failures[:5],
            "load": os.getloadavg()[0],
            "cores": len(os.sched_getaffinity(0)),
        }

    def serve(self, should_stop: Callable[[], bool]) -> bool:
        """Plays rounds; whether all of them are done."""
        return self.supervisor.serve(
            on_round=lambda _: self.looks.append(self.look()), should_stop=should_stop
        )


def while_waiting(
    empty: dict[str, Any], before: dict[str, Any], after: dict[str, Any], clients: int
) -> dict[str, Any]:
    """What the server's processes used for clients that only wait for messages.

    Args:
      empty: a look at them before there were any clients.
    """
    found: dict[str, Any] = {}
    for name in PROCESSES:
        if name in empty and name in before and name in after:
            used = (after[name][0] - before[name][0]) / (after["time"] - before["time"])
            found[f"{name}_share_of_a_core_while_waiting"] = used
            found[f"{name}_share_of_a_core_while_waiting_per_client"] = used / clients
            found[f"{name}_MiB_while_waiting"] = round(after[name][1])
            found[f"{name}_MiB_per_client"] = (after[name][1] - empty[name][1]) / clients
    return found


def measured(times: list[float], looks: list[dict[str, Any]], cohort: int) -> dict[str, Any]:
    """Rounds after the first, and what the server's processes used for them."""
    seconds = [b - a for a, b in itertools.pairwise(times)]
    found: dict[str, Any] = {"rounds": len(times)}
    if seconds:
        found |= {"seconds_per_round": [round(each, 1) for each in seconds]}
        found |= {"median": statistics.median(seconds)}
        found |= {"least": min(seconds), "most": max(seconds)}
    for name in PROCESSES:
        seen = [look[name] for look in looks if name in look]
        if len(seen) > 1:
            used = (seen[-1][0] - seen[0][0]) / (len(seen) - 1)
            found[f"{name}_processor_seconds_per_round"] = used
            found[f"{name}_processor_seconds_per_round_and_client"] = used / cohort
            found[f"{name}_MiB"] = [round(seen[0][1]), round(seen[-1][1])]
    return found


def stages(log: str) -> dict[str, dict[str, float]]:
    """Of each stage: how often it was, and the medians of who was asked, who answered and when."""
    seen: dict[str, list[tuple[float, ...]]] = {}
    for name, *numbers in ANSWERS.findall(log):
        seen.setdefault(name, []).append(tuple(map(float, numbers)))
    names = ("answered", "asked", "seconds", "last_answer_after")
    found: dict[str, dict[str, float]] = {}
    for name, rows in seen.items():
        columns = zip(names, zip(*rows, strict=True), strict=True)
        medians = {of: statistics.median(column) for of, column in columns}
        found[name] = {"times": len(rows), **medians}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--cohort", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=900.0)
    parser.add_argument("--rounds", type=int, default=10_000, help="end after so many")
    parser.add_argument("--clear", action="store_true", help="without secure aggregation")
    parser.add_argument("--drop", type=float, default=0.1)
    parser.add_argument("--hostile", type=float, default=0.01)
    parser.add_argument("--poll", type=float, default=10.0)
    parser.add_argument("--step", type=float, default=20.0)
    parser.add_argument("--idle", type=float, default=40.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    allow_files(8 * options.clients + 256)
    sys.setswitchinterval(TURN)
    logging.getLogger("flwr").setLevel(logging.CRITICAL)  # a line for each message of each client
    load = Load(
        options.clients,
        options.cohort,
        options.seconds,
        not options.clear,
        options.drop,
        options.hostile,
        options.step,
        options.poll,
        options.rounds,
        options.idle,
    )
    place = Path(tempfile.mkdtemp(prefix="soak-"))
    try:
        soaked = Soaked(load, place)
        signal.signal(signal.SIGINT, soaked.stop)
        tell(soaked.play(), options.json)
        sys.stdout.flush()
        threading.excepthook = lambda _: None  # of the crowd, whose server loses its files
    finally:
        shutil.rmtree(place, ignore_errors=True)
    # A thousand connections, each with a thread, are not signed off one by one; the server's
    # processes end with this one, by their guards.
    os._exit(0)


def tell(found: dict[str, Any], file: Path | None) -> None:
    """Prints what was measured, and writes it to a file."""
    if file is not None:
        file.write_text(json.dumps(found, indent=1))
    table = Table("", "", title=f"{found['clients']} clients, {found['cohort']} in a round")
    for name, value in found.items():
        if name != "stages":
            said = f"{value:.4g}" if isinstance(value, float) else str(value)
            table.add_row(name.replace("_", " "), said)
    beside = Table("stage", "times", "answered", "asked", "seconds", "last answer after")
    for name, of in found["stages"].items():
        beside.add_row(name, *(f"{value:.4g}" for value in of.values()))
    console = Console(width=100)
    console.print(table)
    console.print(beside)


def allow_files(wanted: int) -> None:
    """As many open files as connections need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    )
    main()
