# SPDX-License-Identifier: Apache-2.0
"""Every option of every named part is checked before anything is built."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from agnosticfl.errors import BadInput
from agnosticfl.methods.base import DEFAULT_RULE
from agnosticfl.registry import METHODS, MODELS, SAMPLERS, SOURCES, WEIGHT_RULES
from agnosticfl.runs.config import Config, as_table, config_keys, from_table
from agnosticfl.runs.optimizers import build_optimizer, optimizer_names
from agnosticfl.runs.resolve import find_method, resolve
from tests.helpers.command_line import called

BAD = {
    "client_optimizer.learning_rate=fast": "'fast'; it must be a number above 0",
    "client_optimizer.learning_rate=nan": "is nan; it must be a number above 0",
    "client_optimizer.learning_rate=inf": "is inf; it must be a number above 0",
    "client_optimizer.learning_rate=0": "is 0; it must be a number above 0",
    "client_optimizer.learning_rate=-0.1": "is -0.1; it must be a number above 0",
    "server_optimizer.learning_rate=-1": "server_optimizer 'sgd' is -1; it must be a number above",
    "client_optimizer.momentum=big": "momentum of client_optimizer 'sgd' is 'big'; it must be a",
    "client_optimizer.nesterov=3": "nesterov of client_optimizer 'sgd' is 3; it must be true or",
    "client_optimizer.name=lbfgs": "'lbfgs' needs more than a gradient at every step",
    "client_optimizer.name=_deprecated_dpsgd": "unknown client_optimizer '_deprecated_dpsgd'",
    "client_optimizer.name=chain": "unknown client_optimizer 'chain'",
    "client_optimizer.name=3": "[client_optimizer] needs a name",
    "client_optimizer.proximal=-1": "proximal of client_optimizer is -1; it must be a number of",
    "client_optimizer=3": "client_optimizer in task 'toy' is 3; it must be a table",
    "data.points=3": "points of data 'toy' is 3; it must be a list of whole numbers",
    "data.spread=-1": "spread of data 'toy' is -1; it must be a number of at least 0",
    "model.start=x": "start of model 'point' is 'x'; it must be a number",
    "model.features=x": "unknown option of model 'point' 'features'",
    "model={name='logistic',features='x',classes=2}": "features of model 'logistic' is 'x'",
    "model={name='logistic',features=2,classes=1e9}": "is 1000000000.0; it must be a whole number",
    "model={name='logistic',features=2,classes=0}": "is 0; it must be a whole number of at least",
    "model={name='logistic',features=2}": "model 'logistic' needs the option 'classes'",
    "model.name=cn": "unknown model 'cn'",
    "algorithms.afa=3": "algorithms.afa is 3 in task 'toy'; it must be a table",
    "algorithms=3": "algorithms is 3 in task 'toy'; it must be tables",
    "algorithms.afaa.rounds=3": "unknown algorithm in [algorithms] of task 'toy' 'afaa'",
    "weight_rule.learning_rate=nan": "is nan; it must be a number of at least 0",
    "weight_rule.absent=forget": "is 'forget'; it must be 'hold' or 'presence' or 'zero'",
    "weight_rule.before=[{name='adjusted',constant='x'}]": "constant of weight_rule.before",
    "weight_rule.after=['cap']": "unknown weight_rule.after 'cap'; did you mean 'capped'",
    "weight_rule.before=3": "weight_rule.before is 3; it must be a list",
    "sampling.over_selection=0.5": "is 0.5; it must be a number of at least 1",
    "dp.delta=1e-6": "dp needs the option 'epsilon'",
    "dp={epsilon=1,delta=2}": "delta of dp is 2; it must be a number above 0 and below 1",
    "compress.bits=7": "bits of compress is 7; it must be 4 or 8 or left out",
    "secure.name=real": "name of secure is 'real'; it must be 'simulate'",
    "options.q=1": "unknown option of afa 'q'",
    "engine=lans": "unknown engine 'lans'; did you mean 'lanes'",
    "normalisation=both": "is 'both'; it must be",
    "rounds=2.5": "rounds in task 'toy' is 2.5; it must be a whole number of at least 1",
    "rounds=true": "rounds in task 'toy' is True; it must be a whole number",
    "init_domain_weights=[1,nan]": "it must be a list of numbers or left out",
    "seed=3": "'seed' cannot be set here; it is an option of the command",
    "data_digest=abc": "'data_digest' cannot be set here; the program finds it",
    "roundz=3": "unknown key in task 'toy': 'roundz'; did you mean 'rounds'",
}


@pytest.mark.parametrize("setting", BAD)
def test_a_bad_value_is_one_line_that_names_value_place_and_what_is_allowed(setting: str):
    with pytest.raises(BadInput) as error:
        resolve("toy", sets=[setting])
    assert BAD[setting] in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_no_task_is_one_line_and_status_2(tmp_path: Path):
    (tmp_path / "binary.toml").write_bytes(b"rounds = 3\n\xff\xfe\x00")
    (tmp_path / "broken.toml").write_text("rounds = = 3")
    for name, problem in {
        "binary": "is not a text in UTF-8",
        "broken": "is not valid TOML",
    }.items():
        done = called("run", tmp_path / f"{name}.toml")
        assert done.returncode == 2
        assert problem in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_a_bad_value_on_the_command_line_has_status_2_and_leaves_no_folder(tmp_path: Path):
    out = tmp_path / "run"
    for words in (("--set", "client_optimizer.learning_rate=fast"), ("--dp", "delta=1e-6")):
        done = called("run", "toy", "--out", out, *words)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
        assert not out.exists()


def test_every_optimizer_that_is_offered_takes_a_step():
    names = optimizer_names()
    assert {"sgd", "adam", "yogi", "adagrad"} <= set(names)
    assert not any(name.startswith("_") for name in names)
    one = jnp.ones(3)
    with jax.numpy_dtype_promotion("standard"):  # Optax's own affair
        for name in names:
            steps = build_optimizer({"name": name, "learning_rate": 0.1}, "server_optimizer")
            updates: Any = steps.update(one, steps.init(one), one)[0]
            assert jnp.all(jnp.isfinite(updates))


def test_the_default_rule_is_the_same_from_python_and_in_a_task():
    assert config_keys()["weight_rule"].default == DEFAULT_RULE


def test_a_configuration_survives_its_file():
    config = resolve("toy", "fedavg", sets=["init_domain_weights=[0.2,0.2,0.2,0.2,0.2]"])
    assert from_table(as_table(config), "here") == config
    with pytest.raises(BadInput, match=r"config\.json is not a configuration"):
        from_table({**as_table(config), "rounds": "many"}, "config.json")


def test_every_key_and_every_option_has_a_meaning():
    from agnosticfl.options import options_of

    for option in config_keys().values():
        assert option.meaning, option.name
    for registry in (MODELS, SAMPLERS, SOURCES, WEIGHT_RULES):
        for name in registry.names():
            for option in options_of(registry.get(name)).values():
                assert option.meaning, f"{option.name} of {registry.kind} {name}"


@pytest.mark.parametrize("name", METHODS.names())
def test_every_method_resolves_with_its_own_settings(name: str):
    entry = find_method(name)
    needed = {"excess-risk": ["options.references={a = 1.0}"]}
    target = "centre 1" if entry.takes_target else None
    config = resolve("toy", name, target, sets=needed.get(name, []))
    assert isinstance(config, Config)
    for key, value in entry.settings.items():
        own: Any = getattr(config, key)
        if isinstance(value, dict):
            assert value.items() <= own.items()
        else:
            assert own == value
