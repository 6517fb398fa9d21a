# SPDX-License-Identifier: Apache-2.0
"""A node that runs its own copy of the federation's app, whatever code its server sends.

Flower sends the app from the server to its nodes, as a bundle. A client whose code comes from the
server has no secrets from it, and no secure aggregation could change that. So each message to a
node of ours is worked on by the app in a folder of the node itself; of the bundle only the name and
the version are looked at, which must be the same.
"""

import functools
import importlib
import sys
from pathlib import Path
from typing import Any


def write_launcher(folder: Path, app: Path) -> None:
    """Writes a `flwr-clientapp` to `folder` that runs `app`; it has to be first on the path."""
    folder.mkdir(parents=True, exist_ok=True)
    launcher = folder / "flwr-clientapp"
    call = f"main({str(app.resolve())!r})"
    text = f"#!{sys.executable}\nfrom agnosticfl.deploy.flower.pinned import main\n\n{call}\n"
    launcher.write_text(text, encoding="utf-8")
    launcher.chmod(0o700)


def main(app: str) -> None:
    """Flower's own `flwr-clientapp`, with its loader told where to load from."""
    runtime: Any = importlib.import_module("flwr.supernode.runtime.run_clientapp")
    command: Any = importlib.import_module("flwr.supernode.cli.flwr_clientapp")
    theirs = runtime.get_load_client_app_fn

    @functools.wraps(theirs)
    def load_own(**options: Any) -> Any:
        return theirs(**{**options, "app_path": app})

    runtime.get_load_client_app_fn = load_own
    command.flwr_clientapp()
