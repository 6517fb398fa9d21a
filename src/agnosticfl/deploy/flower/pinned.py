# SPDX-License-Identifier: Apache-2.0
"""A SuperNode that runs its own copy of the federation's app, whatever code its server sends.

Flower sends the app from the server to its nodes, as a bundle. A client whose code comes from the
server has no secrets from it, and no secure aggregation could change that. So each message to a
node of ours is worked on by the app in a folder of the node itself; of the bundle only the name and
the version are looked at, which must be the same. It is not unpacked.

A server also chooses which of Flower's programs works on its messages: `flwr-clientapp`, or
`flwr-agentapp`, which runs the bundle too. So no program of Flower's but those that a node is made
of can be started by it.
"""

import functools
import importlib
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

LAUNCHER, SUPERNODE = "flwr-clientapp", "flower-supernode"
NODE = (SUPERNODE, "flower-superexec")  # the programs that a node is made of
REFUSAL = "is refused: a node runs its own app, and no other program of Flower's"


def write_launcher(folder: Path, app: Path) -> None:
    """Writes a `flwr-clientapp` to `folder` that runs `app`; it has to be first on the path.

    Flower's other programs, but for those of a node, are there too, and do nothing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    own = f"from agnosticfl.deploy.flower.pinned import main\n\nmain({str(app.resolve())!r})\n"
    for program in programs():
        refuse = f"import sys\n\nsys.exit({f'{program} {REFUSAL}'!r})\n"
        file = folder / program
        text = own if program == LAUNCHER else refuse
        file.write_text(f"#!{sys.executable}\n{text}", encoding="utf-8")
        file.chmod(0o700)


def programs() -> list[str]:
    """Flower's programs that could be started for a message."""
    scripts = distribution("flwr").entry_points.select(group="console_scripts")
    return sorted({LAUNCHER, *scripts.names} - set(NODE))


def main(app: str) -> None:
    """Flower's own `flwr-clientapp`, with its loader told where to load from."""
    runtime: Any = importlib.import_module("flwr.supernode.runtime.run_clientapp")
    command: Any = importlib.import_module("flwr.supernode.cli.flwr_clientapp")
    theirs = runtime.get_load_client_app_fn

    @functools.wraps(theirs)
    def load_own(**options: Any) -> Any:
        sys.dont_write_bytecode = True  # the app's folder stays as people compared it
        return theirs(**{**options, "app_path": app})

    @functools.wraps(runtime.install_from_fab)
    def unpack_nothing(*_: Any, **__: Any) -> None:
        pass

    runtime.get_load_client_app_fn = load_own
    runtime.install_from_fab = unpack_nothing
    command.flwr_clientapp()
