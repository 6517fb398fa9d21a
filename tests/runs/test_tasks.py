# SPDX-License-Identifier: Apache-2.0
"""The built-in tasks that are not tested elsewhere."""

import re
import shlex
from pathlib import Path

import jax
import numpy as np
import pytest

from agnosticfl import BadInput
from agnosticfl.core import tree
from agnosticfl.data.loaders import text_by_locale
from agnosticfl.data.sources.synthetic import synthetic
from agnosticfl.data.store import open_store, write_store
from agnosticfl.runs.build import build
from agnosticfl.runs.resolve import resolve
from agnosticfl.runs.run import run


@pytest.mark.parametrize("name", ["synthetic-points", "synthetic-images", "synthetic-sentences"])
def test_a_synthetic_task_needs_no_files(tmp_path: Path, name: str):
    sets = ["data.clients=100", "evaluation_every=2", "clients_per_round=5"]
    with jax.numpy_dtype_promotion("standard"):  # Optax's Adam needs it
        summary = run(resolve(name, rounds=2, sets=sets), tmp_path / "run")
    assert summary["domains"] == ["domain0", "domain1"]
    assert all(values["loss"] is not None for values in summary["heldout"].values())


def test_options_of_synthetic_data_are_those_of_its_loader():
    data = synthetic(kind="sentences", words=7, clients=30, test_fraction=0.5)
    assert data.vocabulary_size == 11
    assert data.heldout is None
    assert max(int(part.examples["tokens"].max()) for part in data[:2]) <= 9
    with pytest.raises(BadInput, match="'difficulties'; did you mean 'difficulty'"):
        build(resolve("synthetic-points", sets=["data.difficulties='0,0'"]))
    with pytest.raises(BadInput, match="words is 5, but only sentences have words, not points"):
        synthetic(words=5)
    with pytest.raises(BadInput, match="words is 1; it must be from 2 to 32764"):
        synthetic(kind="sentences", words=1)
    with pytest.raises(BadInput, match="synthetic points has no split 'test'"):
        synthetic(test_fraction=0.0)


def test_the_keyboard_s_store_is_made_from_a_folder_a_locale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The command that the task names works on files as the task describes them."""
    monkeypatch.chdir(tmp_path)
    config = resolve("keyboard")
    with pytest.raises(BadInput, match="there is no store stores/keyboard; this makes it: agnost"):
        build(config)
    for locale in ("es-US", "es-AR", "es-419"):
        for user in range(5):
            file = tmp_path / "texts" / locale / f"user{locale}{user}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("Hola . Nos vemos mañana .")
    words = shlex.split(config.data["made_by"])
    assert words[:5] == ["agnosticfl", "data", "prepare", "text-by-locale", "FOLDER"]
    assert words[5::2] == ["--pattern", "--out"]
    write_store(text_by_locale.load([tmp_path / "texts"], pattern=words[6]), words[8])
    store = open_store(config.data["path"])
    assert store.meta.domains == ("es-419", "es-AR", "es-US")
    assert sum(split.num_clients for split in store.splits.values()) == 15
    with pytest.raises(BadInput, match=re.escape("vocabulary has ids from 0 to 8; needed: 2 or")):
        build(config)


def test_the_keyboard_s_settings_are_the_paper_s():
    config = resolve("keyboard")
    assert (config.rounds, config.clients_per_round, config.epochs) == (3000, 500, 1)
    assert config.server_optimizer["nesterov"]
    small = resolve("keyboard", sets=["model.words=5", "data={name='synthetic', kind='sentences', "
                    "words=5, clients=60, shares='1,1,1', difficulty='0,0,0'}",
                    "clients_per_round=30", "model.hidden=4", "model.embedding=3",
                    "evaluation_every=0"])  # fmt: skip
    algorithm = build(small).algorithm
    state, info = algorithm.round(algorithm.init(), algorithm.cohort(1))
    assert bool(info.step_taken)
    momentum = jax.jit(tree.norm)(jax.tree.leaves(state.opt_state))
    assert np.isfinite(float(momentum))
    assert float(momentum) > 0
