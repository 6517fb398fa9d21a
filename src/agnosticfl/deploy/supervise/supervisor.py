# SPDX-License-Identifier: Apache-2.0
"""Keeps a run going: starts the SuperLink, the gate and the run, and starts them again if they die.

Flower does not go on with a run that lost its SuperLink or its ServerApp. Its state is in the run
folder after every round, so a new Flower run goes on from there.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import psutil

from agnosticfl.deploy import served
from agnosticfl.deploy.accepted import accept
from agnosticfl.deploy.gate.limits import Limits
from agnosticfl.deploy.gate.members import read_member
from agnosticfl.deploy.gate.settings import Settings
from agnosticfl.deploy.keys import make_authority
from agnosticfl.deploy.node.file_cache import Version, versions
from agnosticfl.deploy.registered import register_members
from agnosticfl.deploy.roster import read_roster
from agnosticfl.deploy.seeing.logs import put_away
from agnosticfl.deploy.seeing.settings import PageSettings, address_of
from agnosticfl.deploy.seeing.status import LINES, SERVER, Client, Line, Server, write
from agnosticfl.deploy.supervise import children as processes
from agnosticfl.deploy.supervise.children import Child, Failed, Link
from agnosticfl.deploy.task import NO_PROGRESS
from agnosticfl.errors import BadInput
from agnosticfl.runs.records import METRICS, Record, read_records

if TYPE_CHECKING:
    from agnosticfl.deploy.flower.control import Operator

LOOK = 0.2  # seconds between two looks at the run folder
ASK = 2.0  # and between two questions to the SuperLink
LOGS = ("superlink.log", "gate.log", "page.log")  # in the state folder
LAST_WORDS = 15.0  # seconds for a run that is complete to end
TRIES = 3  # runs in a row that may end without a round done


class Service(NamedTuple):
    """What a server serves."""

    app: Path  # the Flower app
    keys: Path  # certificates, and the public keys of the clients in clients/
    state: Path  # where Flower keeps its own things
    out: Path  # the run folder
    host: str
    port: int
    options: Mapping[str, Any]  # of the run
    limits: Limits = Limits()  # of the gate
    page: PageSettings | None = None  # where it can be looked at, if anywhere
    roster: Path | None = None  # the keeper's file, which is followed; options name our own copy


class Supervisor:
    """A SuperLink, the gate before it, and the run on it. At its end, as a context, both stop.

    `link` is the operator's way to the SuperLink, on this machine; `entrance` is that of clients.

    Args:
      say: gets messages for the user.
    """

    def __init__(self, service: Service, say: Callable[[str], Any] = lambda _: None):
        self.service, self.say = service, self._noted(say)
        home, self._inner = (service.state / name for name in ("flwr", "inner"))
        self.link = Link("", (self._inner / "ca.pem").resolve(), home.resolve())
        host = processes.LOOPBACK if service.host == "0.0.0.0" else service.host
        authority = (service.keys / "ca.pem").resolve()
        self.entrance = Link(f"{host}:{service.port}", authority, home.resolve())
        self.superlink: Child | None = None
        self.gate: Child | None = None
        self.page: Child | None = None
        self._kept: Server | None = None  # what is written of `shown`
        self._known: dict[Version, bytes] = {}  # public keys of clients that are registered
        self._said = ""  # what is wrong with the keeper's last roster
        self.shown = Server(
            pid=os.getpid(),
            started=psutil.Process().create_time(),
            out=str(service.out.resolve()),
            address=f"{service.host}:{service.port}",
            page="" if service.page is None else address_of(service.page),
        )

    def __enter__(self) -> "Supervisor":
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_all()

    def _stop_all(self) -> None:
        """Ends all children, and what a dead SuperLink left: its ServerApp lives on for a while."""
        for child in (self.page, self.gate, self.superlink):
            if child is not None:
                child.stop()

    def ensure_up(self) -> Child:
        """Makes sure that a SuperLink runs behind its gate and knows its clients."""
        if self.superlink is None or not self.superlink.alive():
            self._stop_all()
            self.gate = self.page = None
            if processes.listening(self.entrance.address):
                raise Failed(f"something listens on {self.entrance.address} already")
            self.superlink = self._start_superlink()
            self._wait_for(self.link, self.superlink, "the SuperLink")
            self._known.clear()
        self.register()
        self.guard()  # last: who comes now is known
        return self.superlink

    def guard(self) -> None:
        """Makes sure that the gate stands."""
        if self.gate is None or not self.gate.alive():
            if self.gate is not None:
                self.say("the gate died")
                self.gate.stop()
            self.gate = self._start_gate()
            self._wait_for(self.entrance, self.gate, "the gate")
        self._show_page()

    def _show_page(self) -> None:
        """Makes sure that the page is there; without one the run goes on all the same."""
        settings = self.service.page
        if settings is None or (self.page is not None and self.page.alive()):
            return
        try:
            if self.page is not None:
                self.say("the page's process died")
                self.page.stop()
            self.page = self._start_page(settings)
        except Failed as error:
            self.say(f"there is no status page: {error}")
            self.service = self.service._replace(page=None)
            self.show(page="")

    def _start_superlink(self) -> Child:
        """On a free port of loopback, with a certificate of its own that lives as long as it."""
        state = self.service.state
        processes.make_private_folder(state)
        if self._inner.exists():
            shutil.rmtree(self._inner)
        make_authority(self._inner, [processes.LOOPBACK])
        port = processes.free_port()
        self.link = self.link._replace(address=f"{processes.LOOPBACK}:{port}")
        processes.configure(self.link)
        command = processes.superlink_command(port, self._inner, state / "superlink.db")
        return processes.start(command, self.link.home, state / "superlink.log")

    def _start_gate(self) -> Child:
        """On the address that clients know."""
        service = self.service
        settings = Settings(
            host=service.host,
            port=service.port,
            keys=str(service.keys.resolve()),
            superlink=self.link.address,
            authority=str(self.link.authority),
            limits=service.limits,
            served=str((service.state / served.FILE).resolve()),
        )
        command = processes.gate_command(settings)
        return processes.start(command, self.link.home, service.state / "gate.log")

    def _start_page(self, settings: PageSettings) -> Child:
        place = f"{settings.host}:{settings.port}"
        if processes.listening(place):
            raise Failed(f"something listens on {place} already")
        self.show()  # so that there is something to see
        command = processes.page_command(settings)
        page = processes.start(command, self.link.home, self.service.state / "page.log")
        try:
            processes.wait_until(lambda: processes.listening(place), page, "the page")
        except Failed:
            page.stop()
            raise
        return page

    def _noted(self, say: Callable[[str], Any]) -> Callable[[str], Any]:
        """Says it, and keeps the last lines for whoever looks later."""

        def both(text: str) -> None:
            said = (*self.shown.said, Line(time.time(), text))[-LINES:]
            self.show(said=said)
            say(text)

        return both

    def show(self, **changes: Any) -> None:
        """Keeps what is known of the server for `deploy status`, if that is not there already."""
        self.shown = msgspec.structs.replace(self.shown, **changes)
        if self.service.state.is_dir() and self.shown != self._kept:
            with contextlib.suppress(OSError):  # a full disc ends nothing here
                write(self.service.state, SERVER, self.shown)
                self._kept = self.shown

    def _look(self, operator: "Operator") -> None:
        """Who is connected now."""
        names = {key: Path(file.path).stem for file, key in self._known.items()}
        clients = [
            Client(names[node.key], str(node.number), node.status)
            for node in operator.nodes()
            if node.key in names
        ]
        self.show(clients=tuple(sorted(clients, key=lambda client: client.name)))

    def _wait_for(self, link: Link, child: Child, what: str) -> None:
        processes.wait_until(lambda: processes.listening(link.address), child, what)

    def register(self) -> None:
        """Lets in the clients whose public keys lie in clients/ and were not let in before."""
        self.follow()
        files = versions(sorted((self.service.keys / "clients").glob("*.pub")))
        for file in self._known.keys() - set(files):
            del self._known[file]
        new = [file for file in files if file not in self._known]
        if not new:
            return
        with self.operator() as operator:
            for file in new:
                path = Path(file.path)
                if operator.register(path):  # else known from before: the SuperLink remembers
                    self.say(f"client {path.stem} may connect")
                known = read_member(path)
                self._known[file] = b"" if known is None else known[0]
            self._look(operator)

    def follow(self) -> None:
        """Takes over the keeper's roster if it is a new one that follows; the run goes on."""
        if self.service.roster is None:
            return
        own = Path(str(self.service.options["roster"]))
        try:
            lines = accept(self.service.roster, own)
        except (BadInput, OSError) as error:
            if str(error) != self._said:
                self.say(f"the roster is not taken over: {error}")
            self._said = str(error)
            return
        self._said = ""
        if lines:
            for line in (
                *lines,
                *register_members(read_roster(own), self.service.keys / "clients"),
            ):
                self.say(line)
            self._write_served()

    def _write_served(self) -> None:
        roster = str(self.service.options.get("roster", ""))
        served.write_served(self.service.state / served.FILE, self.service.app, roster)

    def serve(
        self,
        *,
        on_round: Callable[[Record], Any] = lambda _: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Serves until the run is complete (True) or somebody wants to stop (False).

        `Failed` if a run gave up a round, or several ended one after the other without a round.
        """
        fruitless = 0
        while not self.finished():
            self.ensure_up()
            before = len(read_records(self.service.out))
            run = self.start_run()
            self.say(f"Flower run {run} starts after round {before}")
            ending = self._watch(run, on_round, should_stop)
            if ending is None:
                self._let_end(run)
                break
            fruitless = 0 if len(read_records(self.service.out)) > before else fruitless + 1
            self.say(f"Flower run {run} ended: {ending}")
            if fruitless == TRIES or NO_PROGRESS in ending:
                raise Failed(f"the run does not go on: {ending}")
        return self.finished()

    def _let_end(self, run: int) -> None:
        """Gives a run that is complete the seconds in which it tells its clients so."""
        until = time.monotonic() + LAST_WORDS
        while self.finished() and time.monotonic() < until:
            try:
                if self.status(run).startswith("finished"):
                    break
            except Failed:
                break
            time.sleep(LOOK)

    def finished(self) -> bool:
        """Whether the run is complete."""
        return (self.service.out / "summary.json").exists()

    def start_run(self) -> int:
        """Starts a Flower run of the app; its number.

        Of one that a SuperLink or a ServerApp left unfinished when it was killed, clients may have
        the beginning of a message: that ends, or they would wait for the rest of it.
        """
        options = {**self.service.options, "out": str(self.service.out.resolve())}
        options["state"] = str(self.service.state.resolve())
        self.show(out=options["out"])
        self._write_served()
        with self.operator() as operator:
            operator.stop_all()
            return operator.start(self.service.app, options)

    def status(self, run: int) -> str:
        """What Flower says of a run: pending, running, finished:completed, finished:failed …"""
        with self.operator() as operator:
            self._look(operator)
            for entry in operator.runs():
                if entry.number == run:
                    return f"{entry.status} ({entry.details})"
        return "unknown"

    def operator(self) -> "Operator":
        """The operator's way to the SuperLink."""
        from agnosticfl.deploy.flower.control import Operator  # here: it takes a second to load

        return Operator(self.link)

    def _watch(
        self, run: int, on_round: Callable[[Record], Any], should_stop: Callable[[], bool]
    ) -> str | None:
        """Waits for the run's end: None if it is complete or should stop, else why it ended."""
        seen, asked = len(read_records(self.service.out)), time.monotonic()
        before: object = None
        while True:
            complete = self.finished()
            written = versions([self.service.out / METRICS])
            if written != before:  # a long run's records are not read for nothing
                before = written
                for record in read_records(self.service.out)[seen:]:
                    on_round(record)
                    seen += 1
            if complete or should_stop():
                return None
            if self.superlink is None or not self.superlink.alive():
                return "the SuperLink died"
            self.guard()
            if time.monotonic() - asked > ASK:
                asked = time.monotonic()
                for name in LOGS:
                    put_away(self.service.state / name)
                try:
                    self.register()
                    status = self.status(run)
                except Failed as error:  # perhaps the SuperLink is about to die
                    self.say(str(error))
                    continue
                if status.startswith("finished") and not self.finished():
                    return status.removeprefix("finished:")
            time.sleep(LOOK)
