# SPDX-License-Identifier: Apache-2.0
"""Commands of the program as a person types them, in real processes that can all be found again."""

import contextlib
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from tests.helpers.command_line import command

ROOT = Path(__file__).parents[2]
PATIENCE = 300.0  # seconds for anything, on a machine that has other things to do


# Where a command runs: (its words, its folder) -> the words that run it there.
At = Callable[[list[str], Path], list[str]]


class Command:
    """A command that runs; what it says goes to a file."""

    def __init__(
        self,
        words: list[str],
        folder: Path,
        mark: str,
        temporary: Path,
        at: At | None = None,
        variables: Mapping[str, str] | None = None,
    ):
        folder.mkdir(parents=True, exist_ok=True)
        path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        more = {"PYTHONPATH": path, "TMPDIR": str(temporary), "AGNOSTICFL_TEST": mark}
        line = command(*words)
        self.log = folder / f"{words[1]}-{uuid.uuid4().hex[:6]}.log"
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                at(line, folder) if at else line,
                cwd=folder,
                env={**os.environ, **more, **(variables or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def until(self, done: Callable[[], bool]) -> None:
        """Waits for something while the command runs."""
        end = time.monotonic() + PATIENCE
        while not done():
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < end, self.said()
            time.sleep(0.2)

    def ends(self) -> int:
        """Its exit status, when it has ended by itself."""
        return self.process.wait(PATIENCE)

    def send(self, number: signal.Signals) -> None:
        """To the command and its group, as a terminal does it."""
        os.killpg(self.process.pid, number)


class Shell:
    """Starts commands, and knows every process that came of them by a mark in its environment."""

    def __init__(self, place: Path):
        self.place, self.mark = place, uuid.uuid4().hex
        self.temporary = place / "tmp"
        self.temporary.mkdir()
        self.commands: list[Command] = []

    def start(
        self, line: list[str], folder: str = ".", at: At | None = None, **variables: str
    ) -> Command:
        """Starts a command in a folder, somewhere else than here if told so."""
        place = self.place / folder
        made = Command(line, place, self.mark, self.temporary, at, variables)
        self.commands.append(made)
        return made

    def run(self, line: list[str], folder: str = ".") -> str:
        """What a command says that must succeed."""
        done = self.start(line, folder)
        assert done.ends() == 0, done.said()
        return done.said()

    def running(self, folder: str = ".") -> list[psutil.Process]:
        """Processes that came of the commands given in a folder or below it."""
        found: list[psutil.Process] = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):  # of somebody else, or gone
                ours = process.environ().get("AGNOSTICFL_TEST") == self.mark
                if ours and Path(process.cwd()).is_relative_to((self.place / folder).resolve()):
                    found.append(process)
        return found

    def values(self, variable: str, *programs: str) -> set[str | None]:
        """What a variable is in the environments of programs whose names begin so."""
        found: set[str | None] = set()
        for process in self.running():
            with contextlib.suppress(psutil.Error):
                if any(Path(word).name.startswith(programs) for word in process.cmdline()[:2]):
                    found.add(process.environ().get(variable))
        return found

    def quiet(self, folder: str = ".") -> bool:
        """Whether nothing of it runs any more, after at most a minute."""
        end = time.monotonic() + 60.0
        while self.running(folder) and time.monotonic() < end:
            time.sleep(0.2)
        return not self.running(folder)

    def close(self) -> None:
        for process in self.running():
            with contextlib.suppress(psutil.Error):
                process.kill()
        for each in self.commands:
            each.process.wait()
