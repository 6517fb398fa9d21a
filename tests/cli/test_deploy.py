# SPDX-License-Identifier: Apache-2.0
"""`agnosticfl deploy …` as a user meets it, and every command of docs/deploy.md."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agnosticfl.data.loaders import synthetic
from agnosticfl.data.store import write_store
from agnosticfl.deploy.flower.server_app import server_data
from agnosticfl.deploy.gate.limits import MARGIN, Limits
from agnosticfl.deploy.gate.routes import CALLS, CHECK
from agnosticfl.deploy.supervise import children
from agnosticfl.deploy.task import read_task
from tests.helpers.command_line import called
from tests.helpers.deploy_page import (
    DOCS,
    block,
    compose_commands,
    host_commands,
    manifest_commands,
    parsed,
    shell_commands,
    unit_commands,
)


def commands() -> list[str]:
    """Every command line of the page and of the files that it speaks of."""
    files = [*unit_commands(), *compose_commands(), *manifest_commands()]
    return [*shell_commands(), *host_commands(), *files]


@pytest.mark.parametrize("line", commands())
def test_the_program_knows_every_command_and_option_of_the_docs(line: str):
    assert parsed(line)


def test_init_writes_an_app_that_flower_takes(tmp_path: Path):
    done = called("deploy", "init", tmp_path / "app", "toy", "--clients", "3", "--rounds", "7")
    assert done.returncode == 0, done.stderr
    task = read_task(tmp_path / "app" / "federation")
    assert (task.config.rounds, task.config.clients_per_round, len(task.domains)) == (7, 3, 5)
    built = subprocess.run(
        ["flwr", "build", "--app", str(tmp_path / "app")],
        cwd=tmp_path,
        env=children.environment(tmp_path / "home"),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    assert list(tmp_path.glob("*.fab"))
    again = called("deploy", "init", tmp_path / "app", "toy", "--clients", "3")
    assert again.returncode == 2
    assert "exists and is not empty" in again.stderr


POINTS = """
rounds = 4
clients_per_round = 3
batch_size = 10
evaluation_every = 2
[data]
name = "store"
path = "{path}"
[model]
name = "logistic"
features = 16
classes = 10
[client_optimizer]
name = "sgd"
learning_rate = 0.1
"""


def store_of(path: Path, *splits: str) -> Path:
    """Synthetic points of these splits only."""
    made = synthetic.load(clients=20, heldout_fraction=0.2, test_fraction=0.2)
    rows = [piece for piece in made.rows() if piece.split in splits]
    write_store(made._replace(rows=lambda: iter(rows), total=None), path)
    return path


def test_init_needs_no_training_row_where_clients_evaluate(tmp_path: Path):
    store = store_of(tmp_path / "store", "test")
    (tmp_path / "points.toml").write_text(POINTS.format(path=store))
    words = ("deploy", "init", tmp_path / "app", tmp_path / "points.toml", "--clients", "3")
    done = called(*words)
    assert (done.returncode, "has no split 'train'" in done.stderr) == (2, True)
    done = called(*words, "--set", "evaluation_by=clients")
    assert done.returncode == 0, done.stderr
    task = read_task(tmp_path / "app" / "federation")
    shutil.rmtree(store)
    held = server_data(task, {"data": ""})  # nothing is read
    assert held.test.num_examples == held.train.num_examples == 0
    assert held.train.domains == ("domain0", "domain1")
    assert {name: array.shape for name, array in held.test.examples.items()} == {
        "x": (0, 16),
        "y": (0,),
    }


def test_init_says_what_clients_cannot_evaluate(tmp_path: Path):
    store = store_of(tmp_path / "store", "test")
    (tmp_path / "points.toml").write_text(POINTS.format(path=store))
    words = ("deploy", "init", tmp_path / "app", tmp_path / "points.toml", "--clients", "3")
    done = called(*words, "--set", "evaluation_by=clients", "--set", "client_spread=true")
    assert done.returncode == 2
    assert "nobody sees a single one's values" in done.stderr
    assert not (tmp_path / "app").exists()


def test_a_server_that_is_to_look_needs_examples_to_look_at(tmp_path: Path):
    """Said before anything is started, not when the first look comes."""
    whole = store_of(tmp_path / "store", "train", "heldout", "test")
    (tmp_path / "points.toml").write_text(POINTS.format(path=whole))
    for words in (
        ("init", tmp_path / "app", tmp_path / "points.toml", "--clients", "3"),
        ("keys", "server", tmp_path / "keys", "--host", "127.0.0.1"),
    ):
        assert called("deploy", *words).returncode == 0
    own = store_of(tmp_path / "own", "test")
    words = ("--keys", tmp_path / "keys", "--out", tmp_path / "run", "--data", own)
    done = called("deploy", "server", tmp_path / "app", *words)
    assert done.returncode == 2
    assert done.stderr.endswith("own has no split 'heldout'\n")


def test_what_the_commands_write_is_private(tmp_path: Path):
    for words in (
        ("init", tmp_path / "app", "toy", "--clients", "3"),
        ("keys", "server", tmp_path / "keys", "--host", "fl.example.org"),
        ("keys", "client", tmp_path / "ann.key", "--domains", "a", "--contact", "x"),
        ("keys", "keeper", tmp_path / "keeper.sign"),
    ):
        done = called("deploy", *words)
        assert done.returncode == 0, done.stderr
    modes = {path: path.stat().st_mode & 0o077 for path in tmp_path.rglob("*")}
    assert len(modes) > 10
    assert set(modes.values()) == {0}


def test_the_proxies_of_the_page_let_through_what_the_gate_does():
    (nginx,) = re.findall(r"location ~ \^/v1/fleet/\(([\w|-]+)\)\$ \{", block("nginx"))
    assert nginx.split("|") == list(CALLS)
    assert "location / { return 404; }" in block("nginx")
    (caddy,) = re.findall(r"^ *path (.*)$", block("caddy"), re.MULTILINE)
    assert caddy.split() == [CHECK, *(f"/v1/fleet/{call}" for call in CALLS)]
    assert f"location = {CHECK} {{" in block("nginx")
    for text in (block("nginx"), block("caddy")):
        assert set(re.findall(r"/v1/\w+", text)) == {"/v1/fleet", "/v1/federation"}
        assert text.count("{") == text.count("}")


def test_the_page_lists_the_gate_s_limits():
    rows = dict(re.findall(r"^\| `([\w-]+)` \| (\d+)", DOCS, re.MULTILINE))
    usual = Limits()._replace(message=MARGIN // 2**20)
    found = {name.replace("-", "_"): float(value) for name, value in rows.items()}
    assert found == {name: float(value) for name, value in usual._asdict().items()}


def _options(*names: str) -> list[str]:
    """Each of these options with some value."""
    return [word for name in names for word in (f"--{name}", "x")]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("local", "toi"), "unknown task 'toi'; did you mean 'toy'?"),
        (("local", "toy", "--nodes", "99"), "nodes is 99; it must be from 1 to"),
        (("local", "toy", "--dp", "epsilon=8,delta=1e-6"), "deploy with --secure"),
        (
            ("local", "toy", "--secure", "--dp", "epsilon=8,delta=1e-6,quantile=0.5"),
            "find bounds with `agnosticfl bounds`",
        ),
        (("local", "toy", "--secure", "--dp", "epsilon=8"), "dp needs the option 'delta'"),
        (
            ("local", "toy", "--secure", "--dp", "epsilon=8,delta=1e-6,noise=banded,separation=2"),
            "dp: separation is 2; with `deploy local` all nodes take part in every round",
        ),
        (
            (
                "client",
                *_options("server", "ca", "app", "key", "data"),
                "--most-epsilon",
                "0",
            ),
            "--most-epsilon is 0.0; it must be a number above 0",
        ),
        (("status",), "deploy-state is not the --state of a `deploy server`"),
        (("server", "nowhere", "--keys", "k", "--out", "o"), "is no task of a federation"),
        (
            ("client", *_options("server", "ca", "app", "key", "data"), "--when", "asleep"),
            "unknown condition 'asleep'",
        ),
        (
            ("client", *_options("server", "ca", "app", "key", "data"), "--poll", "0"),
            "--poll is 0.0; it must be above 0 and at most 3600 seconds",
        ),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    tmp_path: Path, words: Any, message: str, monkeypatch: Any
):
    monkeypatch.chdir(tmp_path)
    done = called("deploy", *words)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert message in done.stderr
    assert not list(tmp_path.iterdir())


def test_without_flower_the_command_to_install_it_is_shown(tmp_path: Path):
    code = "import sys; sys.modules['flwr'] = None; from agnosticfl.cli import main; main()"
    words = [sys.executable, "-c", code, "deploy", "local", "toy"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        "error: agnosticfl deploy needs flwr: pip install 'agnosticfl[deploy]'\n"
    )


def test_the_core_does_not_import_flower():
    code = "import sys, agnosticfl.runs.run, agnosticfl.cli; sys.exit('flwr' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
