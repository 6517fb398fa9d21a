# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agnosticfl.errors import BadInput
from agnosticfl.runs.build import build
from agnosticfl.runs.config import as_table, first_difference
from agnosticfl.runs.resolve import has_effect, resolve, title
from agnosticfl.runs.tasks import task_description, task_names


@pytest.mark.parametrize("name", task_names())
def test_every_task_is_described_and_resolves(name: str):
    assert len(task_description(name)) > 40
    assert resolve(name).task == name


def test_the_algorithm_s_own_settings_are_stronger_than_the_task_s():
    assert resolve("toy").weight_rule["name"] == "exponentiated_gradient"
    assert resolve("toy", "fedavg").weight_rule == {"name": "proportional"}
    assert resolve("toy", "fedavg").normalisation == "unbiased"
    assert title(resolve("toy", "fedavg-target", "centre 1")) == "FedAvg (centre 1)"


def test_runs_that_differ_in_strength_privacy_or_compression_have_names_of_their_own():
    term = resolve("toy", "term")
    assert title(term) == "TERM (τ = 1)"
    private = msgspec.structs.replace(term, dp={"epsilon": 8.0, "delta": 1e-6})
    assert title(private) == "TERM (τ = 1), ε = 8"
    afa = resolve("toy")
    assert title(msgspec.structs.replace(afa, compress={"bits": 4})) == "AFA, 4 bits"
    assert title(msgspec.structs.replace(afa, compress={"top_k": 0.005})) == "AFA, largest 0.5 %"


def test_sets_change_the_task_also_for_one_algorithm():
    sets = ["batch_size=5", "algorithms.fedavg.client_optimizer={name='adam', learning_rate=0.1}"]
    assert resolve("toy", sets=sets).batch_size == 5
    assert resolve("toy", sets=sets).client_optimizer["name"] == "sgd"
    assert resolve("toy", "fedavg", sets=sets).client_optimizer["name"] == "adam"
    assert has_effect(resolve("toy", sets=sets), sets[0])
    assert not has_effect(resolve("toy", sets=sets), sets[1])


def test_a_table_without_a_name_means_the_default():
    assert resolve("toy", sets=["sampling.over_selection=1.3"]).sampling == {
        "name": "uniform",
        "over_selection": 1.3,
    }


def test_a_task_may_be_a_file(tmp_path: Path):
    file = tmp_path / "mine.toml"
    tables = "[data]\nname='toy'\ncentres=[0.0]\npoints=[9]\n[model]\nname='point'\n"
    tables += "[client_optimizer]\nname='sgd'\nlearning_rate=0.1\n"
    file.write_text(f"# mine\nrounds = 3\nclients_per_round = 1\nbatch_size = 1\n{tables}")
    assert resolve(str(file)).task == "mine"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "toi"}, r"unknown task 'toi'; did you mean 'toy'\?"),
        ({"task": "no.toml"}, r"task file 'no.toml' does not exist"),
        ({"algorithm": "fedsgd"}, "unknown algorithm 'fedsgd'"),
        ({"algorithm": "fedavg-target"}, "algorithm 'fedavg-target' needs --target DOMAIN"),
        ({"target": "centre 1"}, "algorithm 'afa' takes no --target"),
        (
            {"sets": ["batchsize=3"]},
            "unknown key in task 'toy': 'batchsize'; did you mean 'ba",
        ),
        ({"sets": ["batch_size=x"]}, "batch_size in task 'toy' is 'x'; it must be a whole number"),
        ({"sets": ["batch_size=true"]}, "batch_size in task 'toy' is True"),
        (
            {"sets": ["client_spread=1"]},
            "client_spread in task 'toy' is 1; it must be true or false",
        ),
        ({"sets": ["batch_size"]}, "--set 'batch_size' is not of the form key=value"),
        ({"sets": ["rounds.x=1"]}, "--set rounds.x: 'rounds' is not a table"),
        ({"sets": ["init_domain_weights=['a']"]}, "must be a list of numbers or left out"),
        ({"sets": ["seed=3"]}, "'seed' cannot be set here"),
        ({"rounds": 0}, "rounds in task 'toy' is 0; it must be a whole number of at least 1"),
        (
            {"sets": ["algorithms.afaa.rounds=1"]},
            "algorithm in .* 'afaa'; did you mean 'afa'",
        ),
    ],
)
def test_bad_settings_are_refused(options: dict[str, Any], message: str):
    with pytest.raises(BadInput, match=message):
        resolve(options.pop("task", "toy"), **options)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.strat=1", "unknown option of model 'point' 'strat'; did you mean 'start'"),
        ("model.name='pint'", "unknown model 'pint'; did you mean 'point'"),
        ("model={start=1}", r"\[model\] needs a name \(allowed: cifg, cnn, "),
        ("model={name='logistic', features=3}", "model 'logistic' needs the option 'classes'"),
        ("data.name='tiy'", "unknown data 'tiy'; did you mean 'toy'"),
        ("client_optimizer.name='sdg'", "unknown client_optimizer 'sdg'; did you mean 'sgd'"),
        ("engine='fast'", "unknown engine 'fast'"),
        ("sampling={name='stratified'}", "sampling 'stratified' needs the option 'shares'"),
        ("sampling={name='available', lowest=0.5, highest=0.2}", "both must be from 0 to 1"),
        (
            "sampling.over_selection=0.5",
            "over_selection of sampling 'uniform' is 0.5; it must be a number of at least 1",
        ),
        ("lanes=0", "lanes in task 'toy' is 0; it must be a whole number of at least 1"),
        (
            "weight_rule.learning_rate=-1",
            "learning_rate of weight_rule 'exponentiated_gradient' is -1; it must be a number of",
        ),
        (
            "window_size=0",
            "window_size in task 'toy' is 0; it must be a whole number of at least 1",
        ),
        ("init_domain_weights=[1,1,0,0,0]", "domain weights sum to 2"),
    ],
)
def test_bad_parts_are_refused_before_anything_runs(setting: str, message: str):
    with pytest.raises(BadInput, match=message):
        build(resolve("toy", sets=[setting])).algorithm.init()


def test_the_first_difference_is_named():
    one, other = resolve("toy"), resolve("toy", sets=["batch_size=7", "window_size=3"])
    difference = first_difference(as_table(one), as_table(other))
    assert difference == "batch_size was 10 and is now 7"
    assert first_difference(as_table(one), as_table(one)) is None


def test_a_key_that_an_older_version_lacked_was_as_by_default():
    new = as_table(resolve("toy"))
    old = {key: value for key, value in new.items() if key != "mean_model"}
    assert first_difference(old, new) is None
    assert first_difference(old, {**new, "mean_model": True}) == (
        "mean_model was false and is now true"
    )
