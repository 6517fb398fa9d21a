# SPDX-License-Identifier: Apache-2.0
"""`afl.study`: a model and data of one's own, with a metric of one's own, in one call."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

import agnosticfl as afl

SETTINGS: dict[str, Any] = {
    "rounds": 20,
    "clients_per_round": 4,
    "batch_size": 5,
    "client_optimizer": {"name": "sgd", "learning_rate": 0.1},
    "weight_rule": {"absent": "hold"},  # two clients of eight have the small domain
    "seeds": 1,
}


def data(seed: int = 0) -> afl.Splits:
    rng = np.random.default_rng(seed)

    def split() -> afl.FederatedData:
        owner = np.repeat(np.arange(8), 10)
        hospital = np.where(owner < 2, "small", "large")
        x = rng.normal(size=len(owner)).astype(np.float32)
        y = (x * np.where(hospital == "small", -1, 1) > 0).astype(np.float32)
        return afl.from_arrays({"x": x, "y": y}, owner, hospital)

    return afl.Splits(split(), split())


def model(width: int = 1, **adapter: Any) -> afl.Model:
    """Logistic regression by hand, with sensitivity as a metric of its own."""

    def logit(w: Any, e: Mapping[str, Array]) -> Array:
        return jnp.sum(w["w"]) * e["x"]

    def loss(w: Any, e: Mapping[str, Array]) -> Array:
        return jnp.logaddexp(0.0, logit(w, e)) - e["y"] * logit(w, e)

    def metrics(w: Any, e: Mapping[str, Array]) -> dict[str, afl.Mean]:
        found = (logit(w, e) > 0).astype(jnp.float32) * e["y"]
        return {"sensitivity": afl.Mean(found, e["y"])}

    return afl.from_functions(lambda _: {"w": jnp.zeros(width)}, loss, metrics, **adapter)


def test_the_worst_of_a_metric_of_one_s_own_is_the_lowest_and_the_best_is_bold(tmp_path: Path):
    own = model(higher_is_better={"sensitivity": True})
    trained = afl.study(own, data(), tmp_path, metric="sensitivity", **SETTINGS)
    assert set(trained) == {"fedavg", "afa"}
    summary = json.loads((tmp_path / "fedavg-seed0" / "summary.json").read_text())
    shares = {name: values["sensitivity"] for name, values in summary["test"].items()}
    assert shares["small"] < shares["large"]
    assert summary["worst_domain"] == "small"
    row = next(r for r in (tmp_path / "table.md").read_text().splitlines() if "FedAvg" in r)
    worst = row.split("|")[2].partition("[")[0].strip(" *†")
    assert float(worst) == pytest.approx(shares["small"], abs=0.01)


def test_a_metric_that_does_not_say_which_way_is_better_is_refused_before_training(tmp_path: Path):
    with pytest.raises(afl.BadInput, match="nobody says whether a higher 'sensitivity' is better"):
        afl.study(model(), data(), tmp_path / "out", **SETTINGS)
    assert not (tmp_path / "out").exists()


def test_an_unknown_metric_is_refused_before_training(tmp_path: Path):
    own = model(higher_is_better={"sensitivity": True})
    with pytest.raises(afl.BadInput, match="'sensitivty'; did you mean 'sensitivity'"):
        afl.study(own, data(), tmp_path / "out", metric="sensitivty", **SETTINGS)
    assert not (tmp_path / "out").exists()


def test_the_same_call_gives_the_same_and_other_data_or_another_model_is_refused(tmp_path: Path):
    own = model(higher_is_better={"sensitivity": True})
    first = afl.study(own, data(), tmp_path, **SETTINGS)
    again = afl.study(own, data(), tmp_path, **SETTINGS)
    assert first["afa"][0]["w"] == again["afa"][0]["w"]
    with pytest.raises(afl.BadInput, match="its data is not the data of now"):
        afl.study(own, data(seed=1), tmp_path, **SETTINGS)
    wider = model(width=2, higher_is_better={"sensitivity": True})
    with pytest.raises(afl.BadInput, match=r"model_shapes was \{\"w\": \"float32\[1\]\"\}"):
        afl.study(wider, data(), tmp_path, **SETTINGS)


def test_the_tables_keep_the_order_of_the_methods(tmp_path: Path):
    own = model(higher_is_better={"sensitivity": True})
    afl.study(own, data(), tmp_path, algorithms={"term": {}, "afa": {}, "fedavg": {}}, **SETTINGS)
    rows = (tmp_path / "table.md").read_text().splitlines()
    names = [row.split("|")[1].strip() for row in rows if row.startswith("|")][2:5]
    assert names == ["TERM (τ = 1)", "AFA", "FedAvg (uniform)"]


def test_a_run_that_explodes_is_a_warning(tmp_path: Path):
    own = model(higher_is_better={"sensitivity": True})
    settings: dict[str, Any] = {
        **SETTINGS,
        "client_optimizer": {"name": "sgd", "learning_rate": 1e30},
    }
    with pytest.warns(UserWarning, match="diverged|left as it was"):
        afl.study(own, data(), tmp_path, algorithms={"afa": {}}, **settings)
