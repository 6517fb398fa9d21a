# SPDX-License-Identifier: Apache-2.0
"""One of everything from outside `src/`, and one of everything more inside it in one file each."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agnosticfl import registry
from agnosticfl.errors import BadInput
from agnosticfl.registry import METHODS, MODELS, Registry
from agnosticfl.runs.records import read_records
from tests.helpers.command_line import several

ROOT = Path(__file__).parents[1]
OUTSIDE = ROOT / "tests" / "outside"
SOURCE = ROOT / "src" / "agnosticfl"

TASK = """
rounds = 4
clients_per_round = 3
batch_size = 5
metric = "found"
engine = "{engine}"
[data]
name = "{source}"
clients = 5
[model]
name = "{model}"
width = 2
metrics = ["accuracy", "{metric}"]
[client_optimizer]
name = "sgd"
learning_rate = 0.1
[weight_rule]
name = "{rule}"
share = 0.25
before = ["{before}"]
after = ["{after}"]
[sampling]
name = "{sampler}"
[options]
strength = 3.0
"""
NAMES = {
    "engine": "slow_engine",
    "source": "points",
    "model": "network",
    "metric": "found",
    "rule": "halfway",
    "before": "doubled",
    "after": "unchanged",
    "sampler": "first_clients",
}
GROUPS = {
    "engines": "slow_engine",
    "sources": "points",
    "models": "network",
    "metrics": "found",
    "weight_rules": "halfway",
    "loss_transforms": "doubled",
    "weight_transforms": "unchanged",
    "samplers": "first_clients",
    "methods": "mine",
    "trackers": "lines",
    "loaders": "load",
}


def assert_used(folder: Path) -> None:
    """Everything that the task names has left its trace in the run folder."""
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["higher_is_better"] == {"loss": False, "accuracy": True, "found": True}
    worst = min(summary["test"], key=lambda domain: summary["test"][domain]["found"])
    assert summary["worst_domain"] == worst
    assert json.loads((folder / "engine.json").read_text()) == {"engine": "slow"}
    assert (folder / "lines.txt").read_text().startswith("1 ")
    last = read_records(folder)[-1]
    assert max(last["domain_weights"]) > 0.5 + 0.25 * 0.5  # the rule's steps of a quarter
    assert sum(last["count"]) == 30  # always the first three clients, of ten points
    assert "Mine" in (folder / "table.md").read_text()


def test_one_of_everything_can_be_named_as_module_and_function(tmp_path: Path):
    named = {key: f"own_parts:{name}" for key, name in NAMES.items()}
    (tmp_path / "task.toml").write_text(TASK.format(**named))
    shutil.copy(OUTSIDE / "own_parts.py", tmp_path)  # as a user's folder has it
    words = ("--algorithm", "own_parts:mine", "--track", "own_parts:lines", "--out", "run")
    done, again = several(("run", "task.toml", *words), ("report", "run"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert_used(tmp_path / "run")
    assert again.returncode == 0, again.stderr
    assert "Mine" in again.stdout


def test_a_loader_of_one_s_own_makes_a_store(tmp_path: Path):
    shutil.copy(OUTSIDE / "own_parts.py", tmp_path)
    (tmp_path / "lines.txt").write_text("ann a 1.5 0\nann a 2.5 1\nbob b 3 1\n")
    words = ("lines.txt", "--times", "2", "--out", "store")
    done, shown, helped = several(
        ("data", "prepare", "own_parts:load", *words),
        ("data", "info", "store", "--json"),
        ("data", "prepare", "own_parts:load", "--help"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    info = json.loads(shown.stdout)
    assert info["domains"] == ["a", "b"]
    assert info["splits"]["train"]["examples"] == 3
    assert "what x is multiplied with" in helped.stdout


def test_an_installed_package_gives_short_names(tmp_path: Path):
    installed = tmp_path / "installed"
    package = installed / "outside-1.0.dist-info"
    package.mkdir(parents=True)
    shutil.copy(OUTSIDE / "own_parts.py", installed)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    points = "".join(
        f"[agnosticfl.{group}]\n{name} = own_parts:{name}\n" for group, name in GROUPS.items()
    )
    (package / "entry_points.txt").write_text(points)
    place = tmp_path / "elsewhere"
    place.mkdir()
    (place / "task.toml").write_text(TASK.format(**NAMES))
    words = ("--algorithm", "mine", "--track", "lines", "--out", "run")
    (place / "lines.txt").write_text("ann a 1.5 0\n")
    prepare = ("data", "prepare", "load", "lines.txt", "--out", "store")
    done, listed, prepared = several(
        ("run", "task.toml", *words), ("algorithms",), prepare, cwd=place, path=installed
    )
    assert done.returncode == 0, done.stderr
    assert_used(place / "run")
    assert "mine" in listed.stdout
    assert "nobody yet" in listed.stdout
    assert prepared.returncode == 0, prepared.stderr


def test_options_of_one_s_own_are_checked_before_anything_is_built(tmp_path: Path):
    shutil.copy(OUTSIDE / "own_parts.py", tmp_path)
    named = {key: f"own_parts:{name}" for key, name in NAMES.items()}
    (tmp_path / "task.toml").write_text(TASK.format(**named))
    problems = {
        "model.width=0": "width of model 'own_parts:network' is 0; it must be a whole number",
        "data.clients=few": "clients of data 'own_parts:points' is 'few'; it must be",
        "options.strength=-1": "strength of own_parts:mine is -1; it must be a number",
        "weight_rule.speed=1": "unknown option of weight_rule 'own_parts:halfway' 'speed'",
    }
    words = ("run", "task.toml", "--algorithm", "own_parts:mine", "--set")
    refused = several(*((*words, setting) for setting in problems), cwd=tmp_path)
    for done, problem in zip(refused, problems.values(), strict=True):
        assert done.returncode == 2
        assert problem in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


FILES = {
    "models/one_more.py": '''
from agnosticfl.core.model import Model
from agnosticfl.models.logistic_regression import logistic
from agnosticfl.registry import MODELS
@MODELS.add("one-more-model")
def one_more() -> Model:
    return logistic(features=16, classes=10, metrics=["one_more_metric"])
''',
    "weights/one_more.py": '''
from agnosticfl.registry import WEIGHT_RULES
from agnosticfl.weights.plain import fixed
@WEIGHT_RULES.add("one-more-rule")
def one_more():
    return fixed()
''',
    "engines/one_more.py": '''
from agnosticfl.engines.padded import padded_engine
from agnosticfl.registry import ENGINES
@ENGINES.add("one-more-engine")
def one_more(work, data, sampler, seed):
    return padded_engine(work, data, sampler, seed)
''',
    "methods/one_more.py": '''
from agnosticfl.methods.afa import agnostic_rounds
from agnosticfl.methods.base import method
@method("one-more-method", title="One more", paper="nobody")
def one_more(parts):
    return agnostic_rounds(parts)
''',
    "data/loaders/one_more.py": '''
from agnosticfl.data.loaders.synthetic import load as synthetic
from agnosticfl.registry import LOADERS
@LOADERS.add("one-more")
def load(sources=(), *, clients: int = 30):
    return synthetic(clients=clients)
''',
    "core/metrics/labels.py": '''
@metric("one_more_metric", of="labels", higher_is_better=True)
def one_more(logits, label):
    return accuracy(logits, label)
''',
}  # fmt: skip


def test_one_file_more_inside_is_all_that_a_part_needs(tmp_path: Path):
    copy = tmp_path / "src"
    shutil.copytree(SOURCE, copy / "agnosticfl", ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in FILES.items():
        with (copy / "agnosticfl" / name).open("a") as file:
            file.write(text)
    sets = ("model={name='one-more-model'}", "weight_rule={name='one-more-rule'}")
    sets = (*sets, "engine=one-more-engine", "metric=one_more_metric", "data.clients=60")
    words = [word for setting in sets for word in ("--set", setting)]
    words += ["--algorithm", "one-more-method", "--rounds", "2", "--out", "run"]
    prepare = ("data", "prepare", "one-more", "--out", "store")
    trained, prepared = several(
        ("run", "synthetic-points", *words), prepare, cwd=tmp_path, path=copy
    )
    assert trained.returncode == 0, trained.stderr
    assert "One more" in trained.stdout
    assert "one_more_metric" in trained.stdout
    assert prepared.returncode == 0, prepared.stderr


REGISTRIES = [thing for thing in vars(registry).values() if isinstance(thing, Registry)]


@pytest.mark.parametrize("door", REGISTRIES, ids=lambda door: door.kind)
def test_an_unknown_name_is_told_what_there_is_and_where_it_was_looked_for(door: Registry):
    names = door.names()
    assert names
    with pytest.raises(BadInput) as error:
        door.get(f"{names[0]}x")
    message = str(error.value)
    assert f"unknown {door.kind} '{names[0]}x'; did you mean" in message
    assert all(name in message for name in (*names, door.room, door.group))


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("no_such_module:model", "no module named 'no_such_module'"),
        ("json:no_such_function", "has no attribute 'no_such_function'"),
        ("json:", "is not of the form package.module:function"),
        ("os:path", "is a module; it must be a function"),
    ],
)
def test_what_cannot_be_imported_is_said_in_one_line(name: str, problem: str):
    with pytest.raises(BadInput) as error:
        MODELS.get(name)
    assert f"model {name!r}" in str(error.value)
    assert problem in str(error.value)


def test_a_module_that_fails_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "failing_parts.py").write_text("raise RuntimeError('no licence\\nat all')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BadInput) as error:
        MODELS.get("failing_parts:model")
    assert str(error.value).endswith(
        "importing failing_parts failed at failing_parts.py, line 1 (RuntimeError: no licence)"
    )


def test_an_attribute_that_a_module_itself_lacks_is_told_from_one_that_it_wants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "wanting_parts.py").write_text("import json\n\njson.nothing\nmodel = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BadInput, match=r"failed at wanting_parts\.py, line 3 \(AttributeError: "):
        MODELS.get("wanting_parts:model")


def test_a_rule_below_the_method_that_names_it_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "upside_down.py").write_text(
        "import agnosticfl as afl\n"
        "settings = {'weight_rule': {'name': 'upside_down:rule'}}\n"
        "@afl.method('one', title='One', paper='nobody', settings=settings)\n"
        "def method(parts): ...\n"
        "def rule(): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(METHODS, "_known", dict(METHODS._known))  # other tests list the methods
    with pytest.raises(BadInput, match="'upside_down:rule': it must stand in upside_down above"):
        METHODS.get("upside_down:method")


def test_a_metric_without_a_direction_and_a_function_that_is_no_method_are_refused():
    from agnosticfl.core.metrics import named_metrics
    from agnosticfl.runs.resolve import find_method

    with pytest.raises(BadInput, match="does not say which way is better"):
        named_metrics(["json:loads"], "labels")
    with pytest.raises(BadInput, match="'json:loads' is no method"):
        find_method("json:loads")


def test_names_with_the_same_file_are_found_without_their_siblings():
    code = (
        "import sys\n"
        "from agnosticfl.registry import LOADERS\n"
        "LOADERS.get('fashion-mnist')\n"
        "sys.exit('agnosticfl.data.loaders.emnist' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
