# SPDX-License-Identifier: Apache-2.0
"""`agnosticfl deploy …` as a user meets it, and every command of docs/deploy.md."""

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from agnosticfl.cli.commands import app
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
    shell_commands,
    unit_commands,
)


def commands() -> list[str]:
    """Every command line of the page, those of the unit and of the compose file among them."""
    return [*shell_commands(), *unit_commands(), *compose_commands()]


@pytest.mark.parametrize("line", commands())
def test_the_program_knows_every_command_and_option_of_the_docs(line: str):
    """Parsed by the program itself, up to the point where it would act."""
    words = shlex.split(line, comments=True)[1:]
    group: Any = typer.main.get_command(app)
    context = group.make_context("agnosticfl", list(words), resilient_parsing=False)
    while hasattr(group, "commands"):
        name, group, rest = group.resolve_command(context, context._protected_args + context.args)
        context = group.make_context(name, list(rest), parent=context)
    assert context.params


def test_the_unit_and_the_compose_file_have_the_form_of_such_files():
    unit = configparser.ConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment]
    unit.read_string(block("ini"))
    assert {"Unit", "Service", "Install"} == set(unit.sections())
    assert unit["Service"]["Restart"] == "always"
    services = yaml.safe_load(block("yaml"))["services"]
    assert set(services) == {"server", "client"}
    known = {"image", "command", "working_dir", "ports", "volumes", "restart", "depends_on"}
    assert all(set(service) <= known for service in services.values())


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_the_unit(tmp_path: Path):
    """All but the path of the program, which must exist and is not the page's here."""
    program = tmp_path / "agnosticfl"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "agnosticfl-client.service"
    unit.write_text(block("ini").replace("/opt/agnosticfl/bin/agnosticfl", str(program)))
    words = ["systemd-analyze", "verify", "--man=no", str(unit)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    said = [line for line in done.stderr.splitlines() if unit.name in line]
    assert (done.returncode, said) == (0, []), done.stderr


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
        (("local", "toy", "--secure", "--dp", "epsilon=8"), "delta is needed"),
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
