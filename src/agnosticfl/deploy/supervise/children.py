# SPDX-License-Identifier: Apache-2.0
"""Flower's processes and the gate: started with telemetry and installs off, and stopped."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from agnosticfl.deploy.flower.pinned import SUPERNODE, write_launcher
from agnosticfl.deploy.gate.settings import Settings
from agnosticfl.deploy.node import settings as node
from agnosticfl.deploy.process_settings import as_json
from agnosticfl.deploy.seeing.settings import PageSettings

CONNECTION = "federation"  # what Flower's configuration calls the one SuperLink it knows
PATIENCE = 60.0  # seconds for a process to start or to stop
WARM = "agnosticfl.deploy.flower.warm"  # a client's program
LOOPBACK = "127.0.0.1"
PRIVATE = 0o077  # what others may not do with any file that is written here


class Failed(OSError):
    """A process of Flower that did not do what it should."""


class Link(NamedTuple):
    """How a SuperLink is reached, and where this user of it keeps Flower's files."""

    address: str  # host:port
    authority: Path  # the certificate to trust
    home: Path  # $FLWR_HOME


class Child(NamedTuple):
    """A process that was started here, and the one that ends it and all that comes of it."""

    process: subprocess.Popen[bytes]
    guard: subprocess.Popen[bytes]
    log: Path

    def alive(self) -> bool:
        return self.process.poll() is None

    def release(self) -> None:
        """Lets the guard end it."""
        assert self.guard.stdin is not None
        self.guard.stdin.close()

    def stop(self) -> None:
        """Returns when it has ended, with all that came of it."""
        self.release()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:  # so its guard was killed
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.guard.wait()


def environment(home: Path) -> dict[str, str]:
    """The environment of every process: nothing phones home, nothing is installed.

    What lies in `home`/bin goes before Flower's own programs (see `pinned`).
    Each message is worked on by a process of its own, so what JAX compiles is kept on the disc.
    """
    here = str(Path(sys.executable).parent)
    # Programs read either name, and the small letters count for most of them if both are there.
    named = os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")
    past_proxies = ",".join(filter(None, [named, "127.0.0.1", "localhost"]))
    return {
        **os.environ,
        "PATH": os.pathsep.join([str(home / "bin"), here, os.environ.get("PATH", "")]),
        "NO_PROXY": past_proxies,
        "no_proxy": past_proxies,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",  # seconds until an app is started
        "JAX_COMPILATION_CACHE_DIR": os.environ.get("JAX_COMPILATION_CACHE_DIR", str(home / "jax")),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


def make_private_folder(folder: Path) -> None:
    """Makes a folder that only its owner can look into, whatever the files in it say."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)


def superlink_command(port: int, keys: Path, database: Path) -> list[str]:
    """A SuperLink with TLS and node authentication that remembers its nodes in `database`.

    It obeys whoever reaches it, so only this machine does, and of its users only this one.
    """
    return [
        *(sys.executable, "-m", "agnosticfl.deploy.flower.superlink"),
        *("--ssl-ca-certfile", str(keys / "ca.pem")),
        *("--ssl-certfile", str(keys / "server.pem")),
        *("--ssl-keyfile", str(keys / "server.key")),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
        *("--database", str(database)),
        *("--host", LOOPBACK),
        *("--port", str(port)),
    ]


def gate_command(settings: Settings) -> list[str]:
    """The gate, by which alone the world reaches a SuperLink."""
    return [sys.executable, "-m", "agnosticfl.deploy.gate.serve", as_json(settings)]


def page_command(settings: PageSettings) -> list[str]:
    """The page on which a server can be looked at."""
    return [sys.executable, "-m", "agnosticfl.deploy.seeing.serve", as_json(settings)]


def client_command(
    link: Link,
    key: Path,
    app: Path,
    node_config: Mapping[str, str | int],
    *,
    supernode: bool = False,
    longest: float = node.LONGEST,
) -> list[str]:
    """A client that knows the server by its certificate, is known by its key, and runs `app`.

    It is one process that stays warm, or Flower's own `supernode`, whose launcher is then written.

    Args:
      longest: seconds between a warm client's looks for a message, when there was none for long.
    """
    if supernode:
        write_launcher(link.home / "bin", app)
        return supernode_command(link, key, free_port(), node_config)
    settings = node.Settings(
        link.address, str(link.authority), str(key), str(app), dict(node_config), longest
    )
    return [sys.executable, "-m", WARM, as_json(settings)]


def supernode_command(
    link: Link, key: Path, port: int, node_config: Mapping[str, str | int]
) -> list[str]:
    """A SuperNode that knows the server by its certificate and is known by its key."""
    # TOML strings, of which Flower makes values again.
    config = " ".join(f"{name}={json.dumps(value)}" for name, value in node_config.items())
    return [
        SUPERNODE,
        *("--superlink", link.address),
        *("--root-certificates", str(link.authority)),
        *("--auth-supernode-private-key", str(key)),
        *("--host", LOOPBACK),  # of the door between the node and its own apps
        *("--port", str(port)),
        *("--node-config", config),
    ]


def start(command: Sequence[str], home: Path, log: Path) -> Child:
    """Starts a process in a group of its own, so that Ctrl-C reaches only us; we stop it.

    If we are killed before, its guard does.
    """
    make_private_folder(home)
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "ab") as output:
        process = subprocess.Popen(
            command,
            env=environment(home),
            umask=PRIVATE,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    guard = subprocess.Popen(
        [sys.executable, "-P", str(Path(__file__).with_name("guard.py")), str(process.pid)],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    return Child(process, guard, log)


def become(command: Sequence[str], home: Path) -> NoReturn:
    """Goes on as another process: whoever watches this one watches that one."""
    make_private_folder(home)
    os.umask(PRIVATE)
    variables = environment(home)
    program = shutil.which(command[0], path=variables["PATH"]) or command[0]
    os.execve(program, list(command), variables)


@contextlib.contextmanager
def stopping(children: list[Child]) -> Generator[None]:
    """Stops all of `children`, however the block ends."""
    try:
        yield
    finally:
        for child in children:
            child.release()
        for child in children:
            child.stop()


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as one:
        one.bind((LOOPBACK, 0))
        return int(one.getsockname()[1])


def wait_until(done: Callable[[], bool], child: Child, what: str) -> None:
    """Waits for `done`; fails if `child` ends first, or after `PATIENCE` seconds."""
    until = time.monotonic() + PATIENCE
    while not done():
        last = last_lines(child.log)
        if not child.alive():
            raise Failed(f"{what} ended with status {child.process.returncode}: {last}")
        if time.monotonic() > until:
            raise Failed(f"{what} did not start within {PATIENCE:.0f} s: {last}")
        time.sleep(0.2)


def listening(address: str) -> bool:
    """Whether something accepts connections there."""
    host, _, port = address.rpartition(":")
    place = (host.strip("[]"), int(port))
    with contextlib.suppress(OSError), socket.create_connection(place, timeout=1.0):
        return True
    return False


def last_lines(log: Path, number: int = 3) -> str:
    """The end of a log as one line."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    return " / ".join(line.strip() for line in lines[-number:])


def configure(link: Link) -> None:
    """Writes the configuration by which Flower's own commands find the SuperLink."""
    make_private_folder(link.home)
    (link.home / "config.toml").write_text(
        f"[superlink]\ndefault = {json.dumps(CONNECTION)}\n\n"
        f"[superlink.{CONNECTION}]\n"
        f"address = {json.dumps(link.address)}\n"
        f"root-certificates = {json.dumps(str(link.authority))}\n",
        encoding="utf-8",
    )
