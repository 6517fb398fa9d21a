# SPDX-License-Identifier: Apache-2.0
"""Federations over machines with networks of their own, by the commands of docs/deploy.md.

The machines are network namespaces on a real bridge, with addresses and names of their own; cables
between them delay frames, lose some and can be cut.
"""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

from agnosticfl import __version__
from agnosticfl.runs.records import read_records
from tests.deploy.hosts import Host, Network, why_not
from tests.deploy.people import PEOPLE, set_up, write_stores
from tests.deploy.shell import ROOT, Command, Shell
from tests.helpers.deploy_page import Page, block, shell_commands

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
NAME, ADDRESS = "fl.example.org", "192.0.2.1"  # of the server
CUT = 60.0  # seconds
ROUNDS = 40  # of which many are left when a line is cut
TASK = Path("app", "federation", "task.json")
CONNECTED = "connected as node"
HEALTH = (sys.executable, "-m", "agnosticfl.deploy.seeing.health")
# How long a connection to the server takes to come about: there and back again.
CONNECT = f"""
import socket, time
begun = time.monotonic()
socket.create_connection(("{NAME}", 8000), 30).close()
print(time.monotonic() - begun)
"""


class Federation:
    """A server and the machines of people, each in a folder of its own name."""

    def __init__(self, place: Path):
        self.shell, self.network = Shell(place), Network(place, {ADDRESS: NAME})
        self.out = place / "server" / "runs" / "live"
        self.page = Page({})
        self.hosts: dict[str, Host] = {}
        self.network.bridge("office")
        self.plug("server", ADDRESS)

    def close(self) -> None:
        self.shell.close()
        self.network.close()

    def plug(self, name: str, address: str, seconds: float = 0.0, lost: float = 0.0) -> Host:
        self.hosts[name] = self.network.host(name)
        self.network.plug(self.hosts[name], "office", address, seconds, lost)
        return self.hosts[name]

    def serve(self, *more: str) -> Command:
        """Starts the server, as the page says; returns when it is up."""
        line = [*self.page.line("deploy server", shell_commands()), *more]
        server = self.shell.start(line, "server", self.hosts["server"].words)
        server.until(lambda: "starts after round 0" in server.said())
        return server

    def start(self, name: str, *more: str, command: str = "client", **variables: str) -> Command:
        """Starts a client, or its check, as the page says and with more words."""
        own = {"ann.key": f"{name}.key"}
        line = self.page.line(f"deploy {command}", shell_commands(), **own)
        return self.shell.start([*line, *more], name, self.hosts[name].words, **variables)

    def rounds(self) -> int:
        return len(read_records(self.out)) if (self.out / "metrics.jsonl").exists() else 0

    def log(self) -> str:
        return self.out.with_name("live.log").read_text()


@pytest.fixture
def federation(tmp_path: Path) -> Generator[Federation]:
    if why := why_not():
        pytest.skip(why)
    federation = Federation(tmp_path)
    try:
        yield federation
    finally:
        federation.close()


def added(counts: Sequence[Sequence[int]]) -> list[int]:
    """Σ_k N^k, domain by domain."""
    return [sum(of_domain) for of_domain in zip(*counts, strict=True)]


def test_lines_that_lose_and_a_cut_of_a_minute_in_mid_round(federation: Federation, tmp_path: Path):
    """A tenth of a second there and back, two of a hundred frames lost; one of three is cut off.

    Of three clients none may drop out of a secure round, so while bob is away none gets done.
    """
    counts = added(write_stores(tmp_path))
    federation.page = set_up(tmp_path, PEOPLE, "--rounds", str(ROUNDS))
    for number, name in enumerate(PEOPLE, 2):
        federation.plug(name, f"192.0.2.{number}", seconds=0.05, lost=0.02)
    server = federation.serve()
    clients = [federation.start(name) for name in PEOPLE]
    assert float(federation.hosts["ann"].run(sys.executable, "-c", CONNECT)) >= 0.1
    server.until(lambda: federation.rounds() >= 1)
    directions(federation)
    for name in ("server", *PEOPLE):  # all are well
        federation.hosts[name].run(*HEALTH, str(tmp_path / name / "deploy-state"))

    bob = federation.hosts["bob"]
    federation.network.cut(bob)
    done, end = federation.rounds(), time.monotonic() + CUT
    server.until(lambda: time.monotonic() > end)
    assert federation.rounds() <= done + 1 < ROUNDS  # one whose sum was nearly there may end
    federation.network.mend(bob)
    assert server.ends() == 0, server.said()
    assert [record["count"] for record in read_records(federation.out)] == [counts] * ROUNDS
    assert sum(host.sent_again() for host in federation.hosts.values()) > 0
    for client in clients:
        assert client.process.poll() is None, client.said()
    assert f"address: {NAME}:8000 does not answer" in clients[1].said()
    assert "it is tried again" in clients[1].said()


def directions(federation: Federation) -> None:
    """One port is open to the world, the server's; all that it has to do with others is there."""
    known = federation.hosts["server"].sockets()
    assert {one.port for one in known if not one.loopback} == {8000}
    assert any(one.listens for one in known if one.loopback)
    for name in PEOPLE:
        assert not any(one.listens for one in federation.hosts[name].sockets())


LISTEN = """
import socket, sys
listener = socket.create_server(("0.0.0.0", 8000))
print("ready", flush=True)
sys.stdin.read()
"""
# Whether the port is reached at an address.
REACHED = """
import socket
try:
    socket.create_connection(("{}", 8000), 2).close()
    print("yes")
except TimeoutError:
    print("no")
"""


def test_the_firewall_of_the_page_lets_in_its_networks_only(federation: Federation, tmp_path: Path):
    if shutil.which("nft") is None:
        pytest.skip("the firewall needs nft")
    server, ann = federation.hosts["server"], federation.plug("ann", "192.0.2.2")
    stranger = federation.plug("stranger", "203.0.113.9")
    server.run("ip", "address", "add", "203.0.113.1/24", "dev", "eth0")
    federation.network.start(server, sys.executable, "-c", LISTEN)

    def reached() -> list[str]:
        asked = ((ann, ADDRESS), (stranger, "203.0.113.1"))
        return [who.run(sys.executable, "-c", REACHED.format(at)).strip() for who, at in asked]

    assert reached() == ["yes", "yes"]
    (tmp_path / "rules").write_text(block("nft"))
    server.run("nft", "--file", str(tmp_path / "rules"))
    assert reached() == ["yes", "no"]


def another_clock(place: Path, seconds: int) -> dict[str, str]:
    """The variables of a process whose time of day is off by so much."""
    compiler, library = shutil.which("cc"), place / "clock.so"
    if compiler is None:
        pytest.skip("a clock that is off needs a C compiler")
    if not library.exists():
        line = [compiler, "-shared", "-fPIC", "-o", str(library), str(HERE / "clock.c"), "-ldl"]
        subprocess.run(line, check=True)
    return {"LD_PRELOAD": str(library), "CLOCK_OFF": str(seconds)}


def installed(place: Path, version: str) -> dict[str, str]:
    """The variables of a process that has the program from another place, in that version."""
    folder = place / f"installed-{version}"
    shutil.copytree(ROOT / "src", folder, ignore=shutil.ignore_patterns("__pycache__"))
    file = folder / "agnosticfl" / "__init__.py"
    file.write_text(file.read_text().replace(f'"{__version__}"', f'"{version}"'))
    return {"PYTHONPATH": str(folder)}


def test_clocks_that_are_off_a_proxy_and_a_client_that_upgrades(
    federation: Federation, tmp_path: Path
):
    """Ann's clock is ahead and Bob's behind, by less than is too much; Cleo gets out by a proxy.

    Dora's is off by a minute first. Then she upgrades between rounds: to the same version, to
    another one, and to another one with an app of its own. Meanwhile Ann and Bob do not consent, so
    that no round gets done.
    """
    people = (*PEOPLE, "dora")
    parts = write_stores(tmp_path, people)
    federation.page = set_up(tmp_path, people, "--rounds", "200")
    for number, name in enumerate(("ann", "bob", "dora"), 2):
        federation.plug(name, f"192.0.2.{number}")
    proxied = behind_a_proxy(federation, "cleo")
    consent = tmp_path / "consent"
    agreed = json.loads((tmp_path / "server" / TASK).read_text())
    consent.write_text(agreed["run"])
    options = {"minimum": 3, "step": 20, "deadline": 20}
    server = federation.serve(*(f"--set={name}={value}" for name, value in options.items()))
    for name, seconds in (("ann", 3), ("bob", -20)):
        federation.start(name, "--consent", str(consent), **another_clock(tmp_path, seconds))
    federation.start("cleo", **proxied)

    ahead = federation.start("dora", **another_clock(tmp_path, 60))
    behind = federation.start("dora", command="check", **another_clock(tmp_path, -400))
    assert (ahead.ends(), behind.ends()) == (1, 1)
    allowed = "the server's; 5 s ahead and 305 s behind are let in; set it \\(NTP\\)"
    # The server's time is as old as its answer, which takes a second or two where much is going on.
    apart = "(59|6[0-3])"
    assert re.search(f"error: clock: this machine's is {apart} s ahead of {allowed}", ahead.said())
    assert "WRONG certificate: it is not valid before" in behind.said()  # which was just made
    assert "by this machine's clock; set that clock (NTP)" in behind.said()

    def counts() -> list[list[int]]:
        return [record["count"] for record in read_records(federation.out)]

    dora = federation.start("dora")
    server.until(lambda: federation.rounds() >= 1)
    assert counts()[0] == added(parts)
    consent.write_text("")
    leave(dora)
    dora = federation.start("dora", **installed(tmp_path, __version__))
    dora.until(lambda: CONNECTED in dora.said())
    done = federation.rounds()
    consent.write_text(agreed["run"])
    server.until(lambda: added(parts) in counts()[done:])

    consent.write_text("")
    leave(dora)
    other = installed(tmp_path, "9.9.9")
    refused = federation.start("dora", **other)
    assert refused.ends() == 2
    said = f"this is agnosticfl 9.9.9, but the task in app was made with {__version__}"
    assert said in refused.said()
    (tmp_path / "dora" / TASK).write_text(json.dumps({**agreed, "program": "9.9.9"}))
    dora = federation.start("dora", **other)
    dora.until(lambda: CONNECTED in dora.said())
    assert f"program is 9.9.9 here, and {__version__} on the server" in dora.said()
    done = federation.rounds()
    consent.write_text(agreed["run"])
    server.until(lambda: added(parts[:3]) in counts()[done:])
    said = f"client dora failed: refused: program: 9.9.9 here, {__version__} on the server"
    assert said in federation.log()
    assert f"{NAME}:8000 200 OK" in (tmp_path / "proxy.log").read_text()


def behind_a_proxy(federation: Federation, name: str) -> dict[str, str]:
    """A machine in a network of its own, whose one way out is a proxy; variables that name it.

    It does not know the server's name.
    """
    network = federation.network
    network.bridge("clinic")
    proxy = federation.plug("proxy", "192.0.2.99")
    network.plug(proxy, "clinic", "198.51.100.1")
    federation.hosts[name] = network.host(name, {})
    network.plug(federation.hosts[name], "clinic", "198.51.100.2")
    log = network.place / "proxy.log"
    line = [sys.executable, str(HERE / "proxies.py"), "198.51.100.1", "3128", str(log)]
    network.start(proxy, *line)
    return {"HTTPS_PROXY": "http://198.51.100.1:3128"}


def leave(client: Command) -> None:
    client.send(signal.SIGTERM)
    assert client.ends() == 0, client.said()
