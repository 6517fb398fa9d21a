# SPDX-License-Identifier: Apache-2.0
"""A client's test, before it starts, that code sent by a server is not run on it.

How Flower starts an app is not part of what it promises, and may change with its version.
"""

import shutil
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from agnosticfl.deploy.flower.decoy import ANSWER, DECOY, OVER, OWN, app_files
from agnosticfl.deploy.flower.pinned import LAUNCHER, REFUSAL, programs
from agnosticfl.deploy.supervise import children as processes
from agnosticfl.deploy.supervise.children import Link
from agnosticfl.errors import check

TESTED = ("1.41.0",)  # versions of Flower
PATIENCE = 120.0  # seconds for the trial, which takes a few


def check_flower(link: Link, key: Path, supernode: bool = False) -> None:
    """Refuses to go on with a Flower that runs what a server sends, or was not tested.

    Args:
      supernode: the client is Flower's own, whose launcher must be in its place already.
    """
    found = version("flwr")
    check(
        found in TESTED,
        f"Flower {found} is installed; a client runs with what was tested: {', '.join(TESTED)}",
    )
    if supernode:
        check_first(link.home)
    with tempfile.TemporaryDirectory(prefix="trial-", dir=link.home) as name:
        wrong = try_decoy(link._replace(home=Path(name)), key, supernode)
    check(
        not wrong,
        f"Flower {found} behaves otherwise than the tested {', '.join(TESTED)}: {wrong};"
        " this client does not start",
    )


def check_first(home: Path) -> None:
    """Refuses a path on which other programs come before the launcher."""
    path = processes.environment(home)["PATH"]
    for program in programs():
        place = shutil.which(program, path=path)
        ours = str(home / "bin" / program)
        check(place == ours, f"{program} is {place} on the path of this client, and not {ours}")


def try_decoy(link: Link, key: Path, supernode: bool) -> str:
    """Lets a server send a decoy to a real client; what is wrong then, empty if nothing is."""
    place = link.home
    for name, text in app_files(place / OWN).items():
        file = place / "app" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    client = processes.client_command(link, key, place / "app", {}, supernode=supernode)
    module = (sys.executable, "-m", "agnosticfl.deploy.flower.decoy")
    log = place / "log"
    child = processes.start([*module, str(place), *client], place, log)
    over = _refused if supernode else _answered
    try:
        until = time.monotonic() + PATIENCE
        while child.alive() and time.monotonic() < until and not (place / DECOY).exists():
            if (place / OWN).exists() and over(place):
                break
            if not supernode and (place / OVER).exists():  # it works on them one after the other
                break
            time.sleep(0.05)
    finally:
        child.stop()
    if (place / DECOY).exists():
        return "it runs the code that a server sends"
    if (place / "apps").exists():
        return "it unpacks the code that a server sends"
    if not (place / OWN).exists():
        own = f" by {LAUNCHER}" if supernode else ""
        return f"it does not run the client's own app{own} ({processes.last_lines(log)})"
    if over(place):
        return ""
    if supernode:
        return "it does not start agent apps by flwr-agentapp"
    return f"it does not answer ({processes.last_lines(log)})"


def _answered(place: Path) -> bool:
    """Whether the client's own app answered both messages of the decoy."""
    return all((place / ANSWER.format(number)).exists() for number in (1, 2))


def _refused(place: Path) -> bool:
    """Whether the second message of the decoy was."""
    said = (place / "log").read_text(encoding="utf-8", errors="replace")
    return f"flwr-agentapp {REFUSAL}" in said
