# SPDX-License-Identifier: Apache-2.0
"""Code that a server sends is not run on a client, and a Flower that would run it is found out."""

import importlib.util
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Generator
from pathlib import Path

import pytest

from agnosticfl.deploy.flower import pinned
from agnosticfl.deploy.flower.decoy import app_files
from agnosticfl.deploy.keys import make_authority, make_node_key
from agnosticfl.deploy.supervise import trial
from agnosticfl.deploy.supervise.children import Link, environment
from agnosticfl.errors import BadInput

ROOT = Path(__file__).parents[2]


class Client:
    """A client that is about to start."""

    def __init__(self, place: Path):
        make_authority(place, ["127.0.0.1"], days=2)
        make_node_key(place / "ann.key")
        self.key, self.link = place / "ann.key", Link("127.0.0.1:9", place / "ca.pem", place / "x")
        pinned.write_launcher(self.link.home / "bin", place / "app")

    def check(self) -> None:
        trial.check_flower(self.link, self.key)


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Client]:
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    client = Client(tmp_path)
    yield client
    assert not list(client.link.home.glob("trial-*"))  # nothing is left of it


def refused(client: Client) -> str:
    with pytest.raises(BadInput) as refusal:
        client.check()
    (line,) = str(refusal.value).splitlines()
    return line


@pytest.mark.attack(
    "a server sends code of its own",
    "a client runs its own app, and tries with a decoy",
)
def test_a_decoy_is_not_run_and_the_own_app_s_folder_stays_as_it_was(
    client: Client, monkeypatch: pytest.MonkeyPatch
):
    tried, files = trial.tried, set[str]()

    def look(link: Link, key: Path, place: Path) -> str:
        wrong = tried(link, key, place)
        app = place / "app"
        files.update(str(p.relative_to(app)) for p in app.rglob("*") if p.is_file())
        return wrong

    monkeypatch.setattr(trial, "tried", look)
    client.check()
    assert files == set(app_files(Path("mark")))


def test_without_the_launcher_s_patch_the_decoy_is_run(
    client: Client, monkeypatch: pytest.MonkeyPatch
):
    def plain(folder: Path, app: Path) -> None:
        pinned.write_launcher(folder, app)
        (folder / "flwr-clientapp").unlink()  # Flower's own is next on the path

    monkeypatch.setattr(trial, "write_launcher", plain)
    assert refused(client) == (
        "Flower 1.41.0 behaves otherwise than the tested 1.41.0: it runs the code that a server"
        " sends; this client does not start"
    )


@pytest.mark.slow
@pytest.mark.slow  # the one before shows that the trial can fail
def test_a_launcher_alone_does_not_stop_agent_apps(client: Client, monkeypatch: pytest.MonkeyPatch):
    """A server says which program works on its message, and this one loads the bundle too."""

    def launcher_alone(folder: Path, app: Path) -> None:
        pinned.write_launcher(folder, app)
        (folder / "flwr-agentapp").unlink()

    monkeypatch.setattr(trial, "write_launcher", launcher_alone)
    assert "it runs the code that a server sends" in refused(client)


# What a Flower of another version might do: the file, what is there now, and what is there then.
OTHERWISE = {
    "loads by another function": (
        "supernode/runtime/run_clientapp.py",
        {
            "load_client_app_fn = get_load": "load_client_app_fn = utils.get_load",
            "        install_from_fab(": "        install.install_from_fab(",
            "import httpx\n": "import httpx\nfrom flwr.cli import install\n"
            "from flwr.clientapp import utils\n",
        },
        "it runs the code that a server sends",
    ),
    "unpacks by another function": (
        "supernode/runtime/run_clientapp.py",
        {
            "        install_from_fab(": "        install.install_from_fab(",
            "import httpx\n": "import httpx\nfrom flwr.cli import install\n",
        },
        "it unpacks the code that a server sends",
    ),
    "starts apps as modules": (
        "supercore/superexec/executor/subprocess_executor.py",
        {
            "            TASK_TYPE_TO_COMMAND[spec.task_type],\n": '            "python3", "-c",'
            ' "from flwr.supernode.cli import flwr_clientapp as run; run()",\n'
        },
        "it runs the code that a server sends",
    ),
    "has no such function": (
        "supernode/start_client_internal.py",
        {"_init_connection(": "_begin_connection("},
        "it does not run the client's own app by flwr-clientapp",
    ),
}


@pytest.mark.attack(
    "a Flower that starts apps otherwise",
    "the client's trial at its start; a pinned version",
)
@pytest.mark.slow
@pytest.mark.parametrize("case", OTHERWISE)
def test_a_flower_that_behaves_otherwise_is_found_out(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
):
    spec = importlib.util.find_spec("flwr")
    assert spec is not None
    assert spec.origin is not None
    place = tmp_path / "otherwise"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(spec.origin).parent, place / "flwr", ignore=ignored)
    name, edits, expected = OTHERWISE[case]
    text = (place / "flwr" / name).read_text()
    for now, then in edits.items():
        assert now in text
        text = text.replace(now, then)
    (place / "flwr" / name).write_text(text)
    path = [str(place), str(ROOT / "src")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    assert expected in refused(client)


def test_another_version_is_refused(client: Client, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trial, "version", lambda _: "1.42.0")
    assert refused(client) == (
        "Flower 1.42.0 is installed; a client runs with what was tested: 1.41.0"
    )


def test_the_tested_version_is_what_is_installed_with_this_package():
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    assert [f"flwr=={version}" for version in trial.TESTED] == [
        name for name in extras["deploy"] if re.match("flwr\\b", name)
    ]


def test_a_launcher_that_is_not_first_on_the_path_is_found_out(client: Client):
    (client.link.home / "bin" / "flwr-clientapp").chmod(0o600)
    line = refused(client)
    assert line.startswith(f"flwr-clientapp is {Path(sys.executable).parent}/flwr-clientapp on")


def test_no_program_of_flower_s_is_left_but_a_node_s_own(client: Client):
    path = environment(client.link.home)["PATH"]
    own = client.link.home / "bin"
    found = {
        program.name: Path(shutil.which(program.name, path=path) or "").parent
        for program in Path(sys.executable).parent.iterdir()
        if program.name.startswith(("flwr", "flower"))
    }
    assert {name for name, folder in found.items() if folder != own} == set(pinned.NODE)
    assert len(found) == 10
