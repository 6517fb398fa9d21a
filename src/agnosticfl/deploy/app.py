# SPDX-License-Identifier: Apache-2.0
"""The Flower app of a federation: a folder that `deploy init` writes and a person may change."""

from pathlib import Path

from agnosticfl.data.preparation.record import FILE as PREPARATION
from agnosticfl.deploy.task import FederatedTask, write_task
from agnosticfl.errors import check
from agnosticfl.files import write_json

PACKAGE = "federation"

PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "agnosticfl-{name}"
version = "1.0.0"
description = "Agnostic federated learning of the task {name}."
dependencies = ["agnosticfl[deploy]"]

[tool.flwr.app]
publisher = "agnosticfl"
fab-include = ["{package}/*.py", "{package}/*.json"]

[tool.flwr.app.components]
serverapp = "{package}.server_app:app"
clientapp = "{package}.client_app:app"

# `agnosticfl deploy server` fills in out, state, data, roster and signing-key.
[tool.flwr.app.config]
out = ""              # the run folder on the server, an absolute path
state = ""            # the folder in which the server keeps what `deploy status` shows
log = "text"          # how the log beside the run folder is written: text, or json (a line each)
data = ""             # a store on the server with a split to test on; if empty, the task's own
                      # data, or none where clients evaluate
roster = ""           # of a secure federation: the list of its members that their keeper signed
signing-key = ""      # of a secure federation: what the server signs the set-up of rounds with
minimum = 0           # reports below which a round is abandoned and tried again; 0: all clients
over-selection = 1.3  # how many times as many clients are asked as are waited for
deadline = 600.0      # seconds a client has for its work in a round
step = 60.0           # seconds a client has for each other step of a secure round
wait = 3600.0         # seconds an attempt waits for enough clients that are connected and take part
attempts = 5          # at one round, before the run ends as failed
dishonest = 1         # secure rounds bear so many clients that work for the server, or 5 %
"""

SERVER = '''\
"""The server's side of the federation."""

from pathlib import Path

from agnosticfl.deploy.flower.server_app import server_app

app = server_app(Path(__file__).parent)
'''

CLIENT = '''\
"""The client's side of the federation."""

from pathlib import Path

from agnosticfl.deploy.flower.client_app import client_app

app = client_app(Path(__file__).parent)
'''


def write_app(folder: Path, task: FederatedTask) -> None:
    """Writes the app of `task` to `folder`, which must be new or empty.

    Where the task's data has a preparation, it is there too: clients prepare their tables with it.
    """
    free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    check(free, f"{folder} exists and is not empty; choose another folder")
    package = folder / PACKAGE
    package.mkdir(parents=True)
    pyproject = PYPROJECT.format(name=task.config.task, package=PACKAGE)
    files = {
        folder / "pyproject.toml": pyproject,
        package / "__init__.py": "",
        package / "server_app.py": SERVER,
        package / "client_app.py": CLIENT,
    }
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
    write_task(package, task)
    if task.schema["preparation"] is not None:
        write_json(folder / PREPARATION, task.schema["preparation"])
