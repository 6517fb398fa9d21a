# SPDX-License-Identifier: Apache-2.0
"""A hospital on its way into a federation: its table prepared as agreed, and refused otherwise."""

import json
import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agnosticfl.deploy.client_keys import make_client_keys
from agnosticfl.deploy.keys import make_signing_key, read_verify_key, write_verify_key
from agnosticfl.deploy.supervise.local import make_members
from agnosticfl.deploy.task import read_task
from tests.helpers.command_line import called
from tests.helpers.deploy_page import DOCS

TASK = """\
[data]
name = "store"
path = "{store}"

[model]
name = "logistic"
features = 4
classes = 2

[client_optimizer]
name = "sgd"
learning_rate = 0.1
"""
HEADER = "age,chol,cp,ill\n"


class Place(NamedTuple):
    """The folder of a test, and the app in it."""

    folder: Path
    app: Path

    def write(self, name: str, lines: list[str], header: str = HEADER) -> Path:
        (self.folder / name).write_text(header + "\n".join(lines) + "\n")
        return self.folder / name

    def prepare(self, table: Path, *options: str | Path) -> Any:
        out = self.folder / table.stem
        roles = ("--domain", "@file", "--client", "@file", "--out", out, "--overwrite")
        return called("data", "prepare", "arrays", table, *roles, *options)

    def client(self, data: Path, *options: str | Path) -> Any:
        """Goes as far as the roster, in which the key is not: no process is started."""
        own = self.folder
        words = ("--server", "127.0.0.1:1", "--ca", own / "ca.pem", "--app", self.app)
        roster = ("--key", own / "va.key", "--roster", own / "roster", "--state", own / "state")
        return called("deploy", "client", *words, *roster, "--data", data, *options)

    def serve(self, *options: str | Path) -> Any:
        keys, out = self.folder / "keys", self.folder / "run"
        return called("deploy", "server", self.app, "--keys", keys, "--out", out, *options)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """An app whose task has the data of two hospitals, and the files that a client needs."""
    folder = tmp_path_factory.mktemp("federation")
    made = Place(folder, folder / "app")
    rows = [
        f"{40 + k},{200 + k % 7},{k % 2 + 1},{('sick', 'healthy')[k % 3 > 0]}" for k in range(40)
    ]
    tables = [made.write(f"{name}.csv", rows) for name in ("va", "bern")]
    learnt = ("--categories", "cp", "--label", "ill", "--classes", "sick,healthy")
    split = ("--split-by", "rows", "--test-fraction", "0.5", "--out", folder / "heart")
    roles = ("--domain", "@file", "--client", "@file")
    done = called("data", "prepare", "arrays", *tables, *roles, *learnt, *split)
    assert done.returncode == 0, done.stderr
    task = "rounds = 2\nclients_per_round = 2\nbatch_size = 8\n\n" + TASK
    (folder / "heart.toml").write_text(task.format(store=folder / "heart"))
    (folder / "keys").mkdir()
    for name in ("keys/ca.pem", "keys/server.pem", "keys/server.key", "ca.pem"):
        (folder / name).write_text("")
    write_verify_key(folder / "keys" / "server.verify", make_signing_key(folder / "server.sign"))
    make_client_keys(folder / "va.key", ["va"], "a hospital")
    others = [folder / f"{name}.key" for name in ("bern", "basel", "chur")]
    make_members(others, [("bern",)] * 3, folder / "roster")
    words = ("--clients", "3", "--secure", "--keys", folder / "keys")
    done = called("deploy", "init", made.app, folder / "heart.toml", *words)
    assert done.returncode == 0, done.stderr
    return made


def test_the_app_holds_what_was_agreed_on(place: Place):
    task = read_task(place.app / "federation")
    assert task.server_key == read_verify_key(place.folder / "keys" / "server.verify").hex()
    assert task.run.startswith("heart-afa-seed0-")
    own = json.loads((place.app / "preparation.json").read_text())
    assert own == task.schema["preparation"]
    assert own["label"]["classes"] == ["sick", "healthy"]


def test_the_page_s_way_into_the_federation(place: Place):
    """The first of a hospital's commands on the page, and its store goes as far as it should."""
    table = place.write("va.csv", ["55,233,1,healthy", "61,240,2,healthy"])
    (line,) = re.findall(r"^agnosticfl (data prepare .* --like .*)$", DOCS, re.MULTILINE)
    out = place.folder / "own"
    names = {"va.csv": table, "app": place.app, "stores/own": out}
    done = called(*(names.get(word, word) for word in shlex.split(line)))
    assert done.returncode == 0, done.stderr
    done = place.client(out)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "this signing key is not in the roster" in done.stderr


def test_a_store_of_its_own_making_is_refused_line_by_line(place: Place):
    """Only healthy patients, by whose rows healthy would be number 0."""
    table = place.write("alone.csv", ["233,55,1,healthy", "240,61,2,healthy"], "chol,age,cp,ill\n")
    done = place.prepare(table, "--label", "ill", "--categories", "cp")
    assert done.returncode == 0, done.stderr
    done = place.client(place.folder / "alone")
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    start = f"error: {place.folder / 'alone'}: "
    assert lines[:4] == [
        f"{start}label: class 0 is 'healthy', the task has 'sick'",
        f"{start}label: there is no class 1 here, the task has 'healthy'",
        f"{start}column 1 is 'chol', the task has 'age' there",
        f"{start}column 2 is 'age', the task has 'chol' there",
    ]
    assert re.search(r"and \d+ more differences", lines[5])
    assert len(lines) == 6


def test_a_server_s_store_that_differs_is_refused(place: Place):
    rows = [f"{50 + k},{200 + k},{k % 2 + 1},{('sick', 'healthy')[k % 2]}" for k in range(8)]
    table = place.write("test.csv", rows)
    split = ("--split-by", "rows", "--test-fraction", "0.5")
    done = place.prepare(table, "--label", "ill", "--categories", "cp", *split)
    assert done.returncode == 0, done.stderr
    for words in (("--data", place.folder / "test"), ("--set", f"data={place.folder / 'test'}")):
        done = place.serve(*words)
        assert done.returncode == 2
        assert "label: class 0 is 'healthy', the task has 'sick'" in done.stderr
    assert not (place.folder / "run").exists()


def test_a_domain_that_the_task_does_not_have_is_refused(place: Place):
    table = place.write("basel.csv", ["55,233,1,healthy"])
    assert place.prepare(table, "--like", place.app).returncode == 0
    done = place.client(place.folder / "basel")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "unknown domain of" in done.stderr
    assert "(allowed: bern, va)" in done.stderr


def test_another_version_is_refused_in_one_line(place: Place):
    file = place.app / "federation" / "task.json"
    whole = file.read_text()
    try:
        file.write_text(json.dumps(json.loads(whole) | {"program": "0.0.9"}))
        for done in (place.client(place.folder / "heart"), place.serve()):
            assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
            assert "was made with 0.0.9" in done.stderr
    finally:
        file.write_text(whole)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--secure",), "--secure needs --keys KEYS"),
        (("--keys", "nowhere"), "there is no nowhere/server.verify; `deploy keys server` makes it"),
    ],
)
def test_an_app_without_the_server_s_key_is_not_made(place: Place, words: Any, message: str):
    new = place.folder / "new"
    done = called("deploy", "init", new, place.folder / "heart.toml", "--clients", "3", *words)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert message in done.stderr
    assert not new.exists()


def test_an_option_that_contradicts_is_refused(place: Place):
    table = place.write("odd.csv", ["55,233,1,healthy"])
    done = place.prepare(table, "--like", place.app, "--classes", "healthy,sick")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "classes is healthy,sick, but in" in done.stderr
    assert not (place.folder / "odd").exists()
