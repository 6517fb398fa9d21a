# SPDX-License-Identifier: Apache-2.0
"""`agnosticfl show`: every key, its value, where that comes from, what it means."""

from pathlib import Path

from agnosticfl.runs.config import FOUND, config_keys
from agnosticfl.runs.explain import Row, key_lines, named_things, task_rows
from agnosticfl.runs.resolve import NOT_OF_A_TASK
from tests.helpers.command_line import called


def rows(*arguments: object) -> dict[str, Row]:
    return {row.key: row for row in task_rows(*arguments)}  # type: ignore[arg-type]


def test_every_key_is_there_with_its_value_and_meaning():
    shown = rows("toy")
    assert set(config_keys()) - set(FOUND) <= set(shown)
    assert all(row.meaning for row in shown.values())
    assert shown["batch_size"].value == "10"
    assert shown["lanes"].value == "left out"


def test_a_value_says_where_it_comes_from(tmp_path: Path):
    task = tmp_path / "task.toml"
    task.write_text(
        'rounds = 5\nclients_per_round = 2\nbatch_size = 3\n[data]\nname = "toy"\n'
        "centres = [0.0, 1.0]\npoints = [20, 20]\n"
        '[model]\nname = "point"\n[client_optimizer]\nname = "sgd"\nlearning_rate = 0.1\n'
        "[algorithms.fedavg.client_optimizer]\nlearning_rate = 0.2\n"
        "[algorithms.q-fedavg]\nepochs = 2\n"
    )
    sets = ["data.spread=0.5", "window_size=4"]
    shown = rows(str(task), "q-fedavg", None, 7, 9, sets)
    origins = {
        "batch_size": "task",
        "data.points": "task",
        "data.clients": "default",
        "data.spread": "--set",
        "window_size": "--set",
        "client_optimizer.name": "task",
        "client_optimizer.learning_rate": "[algorithms.fedavg]",
        "normalisation": "algorithm q-fedavg",
        "weight_rule.name": "algorithm q-fedavg",
        "options.q": "algorithm q-fedavg",
        "epochs": "[algorithms.q-fedavg]",
        "seed": "command line",
        "rounds": "command line",
        "precision": "default",
    }
    assert {key: shown[key].origin for key in origins} == origins
    assert shown["client_optimizer.learning_rate"].value == "0.2"
    assert shown["data.clients"].value == "50"


def test_all_keys_and_all_that_they_can_name_are_listed():
    lines = "\n".join(key_lines())
    for key in set(config_keys()) - set(NOT_OF_A_TASK):
        assert f"{key}: " in lines
    for heading, entries in named_things():
        assert heading in lines
        assert all(f"  {name}: " in lines for name, _, _ in entries)
    assert "sgd" in lines


def test_the_command_shows_a_task_or_all_keys():
    done = called("show", "toy", "--algorithm", "fedavg", "--set", "rounds=3")
    assert done.returncode == 0, done.stderr
    assert "= 3  (--set)" in done.stdout
    assert "= proportional  (algorithm fedavg)" in done.stdout
    assert called("show", "--keys").returncode == 0
    done = called("show")
    assert (done.returncode, done.stderr) == (2, "error: give a TASK to explain, or --keys\n")
