# SPDX-License-Identifier: Apache-2.0
"""Code that a server sends is not run on a client, and a Flower that would run it is found out."""

import importlib.util
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Generator, Mapping
from pathlib import Path

import pytest

from agnosticfl.deploy.flower import pinned
from agnosticfl.deploy.flower.decoy import app_files
from agnosticfl.deploy.keys import make_authority, make_node_key
from agnosticfl.deploy.supervise import children, trial
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

    def check(self, supernode: bool = True) -> None:
        trial.check_flower(self.link, self.key, supernode)


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
@pytest.mark.parametrize("supernode", [False, True])
def test_a_decoy_is_not_run_and_the_own_app_s_folder_stays_as_it_was(
    client: Client, monkeypatch: pytest.MonkeyPatch, supernode: bool
):
    """Both of its messages are answered by a warm client's own app, and by nothing else."""
    tried, files, programs = trial.try_decoy, set[str](), list[Path]()

    def look(link: Link, key: Path, supernode: bool) -> str:
        wrong = tried(link, key, supernode)
        app = link.home / "app"
        files.update(str(p.relative_to(app)) for p in app.rglob("*") if p.is_file())
        programs.extend((link.home / "bin").glob("*"))
        return wrong

    monkeypatch.setattr(trial, "try_decoy", look)
    client.check(supernode)
    assert files == set(app_files(Path("mark")))
    assert bool(programs) == supernode  # a warm client starts none


def test_a_warm_client_that_loads_the_server_s_bundle_is_found_out(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As if somebody had it fetch the bundle, unpack it and load the app from there."""
    place = tmp_path / "otherwise"
    place.mkdir()
    (place / "sitecustomize.py").write_text(FETCHES)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(place), str(ROOT / "src")]))
    with pytest.raises(BadInput, match="it runs the code that a server sends"):
        client.check(supernode=False)


FETCHES = """\
import importlib, io, sys, tempfile, zipfile

def fetched(self, message, connection):
    folder = tempfile.mkdtemp()
    zipfile.ZipFile(io.BytesIO(connection.get_fab("", 1).content)).extractall(folder)
    sys.path.insert(0, folder)
    sys.modules.pop("federation.client_app", None)
    sys.modules.pop("federation", None)
    app = importlib.import_module("federation.client_app").app
    return app(message, self.context(1, connection))

if "agnosticfl.deploy.flower.decoy" in sys.orig_argv:
    from agnosticfl.deploy.flower.own_app import OwnApp
    OwnApp.answer = fetched
"""


def test_without_the_launcher_s_patch_the_decoy_is_run(
    client: Client, monkeypatch: pytest.MonkeyPatch
):
    def plain(folder: Path, app: Path) -> None:
        pinned.write_launcher(folder, app)
        (folder / "flwr-clientapp").unlink()  # Flower's own is next on the path

    monkeypatch.setattr(children, "write_launcher", plain)
    assert refused(client) == (
        "Flower 1.41.0 behaves otherwise than the tested 1.41.0: it runs the code that a server"
        " sends; this client does not start"
    )


@pytest.mark.slow  # the one before shows that the trial can fail
def test_a_launcher_alone_does_not_stop_agent_apps(client: Client, monkeypatch: pytest.MonkeyPatch):
    """A server says which program works on its message, and this one loads the bundle too."""

    def launcher_alone(folder: Path, app: Path) -> None:
        pinned.write_launcher(folder, app)
        (folder / "flwr-agentapp").unlink()

    monkeypatch.setattr(children, "write_launcher", launcher_alone)
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
    name, edits, expected = OTHERWISE[case]
    copied(tmp_path / "otherwise", monkeypatch, name, edits)
    assert expected in refused(client)


def copied(
    place: Path, monkeypatch: pytest.MonkeyPatch, name: str, edits: Mapping[str, str]
) -> None:
    """A Flower in which one file is another, for the processes that are started."""
    spec = importlib.util.find_spec("flwr")
    assert spec is not None
    assert spec.origin is not None
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(spec.origin).parent, place / "flwr", ignore=ignored)
    text = (place / "flwr" / name).read_text()
    for now, then in edits.items():
        assert now in text
        text = text.replace(now, then)
    (place / "flwr" / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(place), str(ROOT / "src")]))


# The same of what a warm client takes from Flower's inside.
CHANGED = {
    "has no such function": (
        "supernode/start_client_internal.py",
        {"_init_connection(": "_begin_connection("},
    ),
    "wants another argument": (
        "clientapp/utils.py",
        {"    multi_app: bool,\n": "    multi_app: bool,\n    *,\n    bundle: str,\n"},
    ),
    "gives messages in another form": (
        "supercore/inflatable/inflatable_utils.py",
        {"def inflate_object_from_contents(": "def inflate_object("},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CHANGED)
def test_a_warm_client_does_not_start_with_a_flower_that_is_another_inside(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
):
    copied(tmp_path / "otherwise", monkeypatch, *CHANGED[case])
    with pytest.raises(BadInput, match="behaves otherwise than the tested"):
        client.check(supernode=False)


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
