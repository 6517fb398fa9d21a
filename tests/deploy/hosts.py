# SPDX-License-Identifier: Apache-2.0
"""Machines with addresses and names of their own on a real bridge: network namespaces.

They hang on processes that end with this one, so that nothing of them is left, whatever happens.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

CABLE = Path(__file__).with_name("cable.py")
PROGRAMS = ("ip", "nsenter", "unshare")
HOLD = 'mount --bind "$0" /etc/hosts && ip link set lo up && echo ready && exec cat'
LOOPBACK, LISTENS = "0100007F", "0A"  # as the kernel's table has 127.0.0.1, and the state
PATIENCE = 60.0  # seconds for a process to end


def why_not() -> str:
    """Why there can be no such machines here; empty if there can."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"network namespaces need {', '.join(missing)}"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "cables between network namespaces need /dev/net/tun"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "ip", "link", "add", "name", "x", "type", "bridge"],
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if tried.returncode == 0 else f"no network namespaces here: {tried.stderr.strip()}"


class Socket(NamedTuple):
    """A socket's end on a machine."""

    loopback: bool  # only the machine itself reaches it
    port: int
    listens: bool


class Host:
    """A machine: a network and a table of host names of its own."""

    def __init__(self, name: str, names: Path):
        self.name = name
        self.process = _ready(["unshare", "--net", "--mount", "sh", "-c", HOLD, str(names)])
        self.devices: list[str] = []

    def words(self, line: Sequence[str], folder: Path) -> list[str]:
        """The command that runs another one on this machine."""
        at = ["nsenter", f"--target={self.process.pid}", "--net", "--mount", f"--wd={folder}"]
        return [*at, *line]

    def run(self, *line: str) -> str:
        """What a command on this machine says that must succeed."""
        done = subprocess.run(
            self.words(line, Path("/")), capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, f"{line}: {done.stderr}"
        return done.stdout

    def sockets(self) -> list[Socket]:
        """All of TCP that it has, connected or listening."""
        found: list[Socket] = []
        for name in ("tcp", "tcp6"):
            table = Path(f"/proc/{self.process.pid}/net/{name}").read_text().splitlines()[1:]
            for line in table:
                here, _, state = line.split()[1:4]
                address, _, port = here.rpartition(":")
                found.append(Socket(address.endswith(LOOPBACK), int(port, 16), state == LISTENS))
        return found

    def sent_again(self) -> int:
        """Segments of TCP that it has sent more than once, since they seemed to be lost."""
        table = Path(f"/proc/{self.process.pid}/net/snmp").read_text().splitlines()
        names, values = (line.split() for line in table if line.startswith("Tcp:"))
        return int(values[names.index("RetransSegs")])


class Network:
    """Bridges in a machine of their own, and machines that are plugged in by cables.

    Args:
      place: a folder for the tables of names.
      names: address -> the name that every machine knows it by, if not told otherwise.
    """

    def __init__(self, place: Path, names: Mapping[str, str]):
        self.place, self.names = place, names
        self.processes: list[subprocess.Popen[str]] = []
        self.hub = self.host("hub")

    def host(self, name: str, names: Mapping[str, str] | None = None) -> Host:
        """A machine that is not plugged in anywhere yet."""
        known = {"127.0.0.1": "localhost", **(self.names if names is None else names)}
        table = self.place / f"{name}.hosts"
        table.write_text("".join(f"{address} {known[address]}\n" for address in known))
        host = Host(name, table)
        self.processes.append(host.process)
        return host

    def bridge(self, name: str) -> None:
        self.hub.run("ip", "link", "add", "name", name, "type", "bridge")
        self.hub.run("ip", "link", "set", name, "up")

    def plug(
        self, host: Host, bridge: str, address: str, seconds: float = 0.0, lost: float = 0.0
    ) -> None:
        """A cable from a machine to a bridge; the machine has that address there.

        Args:
          seconds: that a frame takes.
          lost: share of the frames that are.
        """
        there, here = f"{bridge}-{host.name}", f"eth{len(host.devices)}"
        ends = [str(self.hub.process.pid), there, str(host.process.pid), here]
        line = [
            sys.executable,
            str(CABLE),
            *ends,
            str(seconds),
            str(lost),
            str(len(self.processes)),
        ]
        self.processes.append(_ready(line))
        host.devices.append(there)
        self.hub.run("ip", "link", "set", there, "master", bridge, "up")
        host.run("ip", "address", "add", f"{address}/24", "dev", here)
        host.run("ip", "link", "set", here, "up")

    def start(self, host: Host, *line: str) -> None:
        """Starts a process on a machine that says when it is ready and ends with its input."""
        self.processes.append(_ready(host.words(line, self.place)))

    def cut(self, host: Host) -> None:
        """Nothing comes through any more; the machine itself does not notice."""
        for device in host.devices:
            self.hub.run("ip", "link", "set", device, "down")

    def mend(self, host: Host) -> None:
        for device in host.devices:
            self.hub.run("ip", "link", "set", device, "up")

    def close(self) -> None:
        for process in reversed(self.processes):
            assert process.stdin is not None
            process.stdin.close()
            process.wait(PATIENCE)


def _ready(line: Sequence[str]) -> subprocess.Popen[str]:
    """A process that says when it is ready, and ends when its standard input does."""
    process = subprocess.Popen(
        line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", f"{line} did not start"
    process.stdout.close()
    return process
