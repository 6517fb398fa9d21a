# SPDX-License-Identifier: Apache-2.0
"""A first task for a store: it fits, it says why, and it runs as it is."""

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agnosticfl.data.loaders.arrays import from_frame
from agnosticfl.data.loaders.tcga_brca import load as load_patients
from agnosticfl.data.source import Feature, Rows, Source
from agnosticfl.data.store import Store, open_store, write_store
from agnosticfl.errors import BadInput
from agnosticfl.runs.resolve import resolve
from agnosticfl.runs.run import run
from agnosticfl.runs.starter import Seen, fitting_models, metric_for, seen_of, starter_task
from tests.data.survival_files import patients, write
from tests.helpers.stores import source

FIRST = {"classes": "logistic", "numbers": "linear", "images": "cnn", "sentences": "lstm"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("stores")
    for kind in FIRST:
        write_store(source(kind), place / kind)
    return place


def task_of(store: Store, path: Path, model: str | None = None) -> dict[str, Any]:
    return tomllib.loads(starter_task(store, str(path), model))


@pytest.mark.parametrize(
    ("kind", "model"),
    [pytest.param(*each, marks=[pytest.mark.slow] * (each[1] == "lstm")) for each in FIRST.items()],
)
def test_it_runs_as_it_is(folder: Path, tmp_path: Path, kind: str, model: str):
    file = tmp_path / "my.toml"
    file.write_text(starter_task(open_store(folder / kind), str(folder / kind)))
    config = resolve(str(file), rounds=2, sets=["evaluation_every=1"])
    assert config.model["name"] == model
    summary = run(config, tmp_path / "run")
    assert config.metric in summary["test"][summary["domains"][0]]
    assert summary["best"]["metric"] == config.metric
    resolve(str(file), "fedavg")  # whose rate has a table of its own


@pytest.mark.slow
@pytest.mark.parametrize("kind", FIRST)
def test_every_model_that_fits_is_one_that_does(folder: Path, tmp_path: Path, kind: str):
    store = open_store(folder / kind)
    for model in fitting_models(seen_of(store)):
        file = tmp_path / f"{model}.toml"
        file.write_text(starter_task(store, str(folder / kind), model))
        run(resolve(str(file), rounds=1, sets=["evaluation_every=0"]), tmp_path / model)


def test_sizes_are_those_of_the_data(folder: Path):
    task = task_of(open_store(folder / "images"), folder / "images")
    wanted = {"name": "cnn", "classes": 3, "height": 8, "width": 7}
    assert wanted.items() <= task["model"].items()
    task = task_of(open_store(folder / "classes"), folder / "classes")
    assert (task["model"]["features"], task["model"]["classes"]) == (6, 2)
    assert task["data"] == {"name": "store", "path": str(folder / "classes")}
    assert task["clients_per_round"] == 5  # all of them
    assert task["window_size"] == 1
    assert task["evaluation_clients"] == 5


@pytest.mark.parametrize(("side", "first"), [(8, ["cnn"]), (5, [])])
def test_an_image_is_also_the_row_of_its_pixels(side: int, first: list[str]):
    """And nothing else, where it is too small for the network."""
    counts = seen([[50, 50]])
    models = fitting_models(counts._replace(features={"x": (side, side, 3), "y": ()}))
    assert list(models) == [*first, "logistic", "mlp"]
    assert models["logistic"]["features"] == 3 * side**2


def seen(counts: list[list[int]] | None, rows: int = 100, features: int = 4) -> Seen:
    classes = None if counts is None else len(counts[0])
    return Seen(
        {"x": (features,), "y": ()},
        rows,
        classes,
        None,
        None if counts is None else np.array(counts),
        is_number=counts is None,
    )


@pytest.mark.parametrize(
    ("counts", "metric"),
    [
        ([[50, 50], [40, 60]], "accuracy"),
        ([[95, 5], [96, 4]], "auroc"),  # 4.5 % of all
        ([[80, 20], [80, 20]], "balanced_accuracy"),  # 20 % is under half of an even share
        ([[50, 50], [5, 95]], "balanced_accuracy"),  # lopsided in one domain
        ([[40, 40, 3], [40, 40, 3]], "balanced_accuracy"),
        (None, "mae"),
    ],
)
def test_the_metric_fits_the_balance_of_classes(counts: list[list[int]] | None, metric: str):
    assert metric_for(seen(counts))[0] == metric


def test_a_network_comes_first_where_there_are_many_rows():
    assert list(fitting_models(seen([[50, 50]]))) == ["logistic", "mlp"]
    assert list(fitting_models(seen([[50, 50]], rows=10_000))) == ["mlp", "logistic"]
    assert list(fitting_models(seen(None))) == ["linear", "mlp"]


@pytest.mark.parametrize(("risk_sets", "models"), [(True, ["cox", "hazard"]), (False, ["hazard"])])
def test_survival_gets_a_model_of_it(tmp_path: Path, risk_sets: bool, models: list[str]):
    files = write(tmp_path, patients(16))
    write_store(load_patients([files], risk_sets=risk_sets), tmp_path / "store")
    store = open_store(tmp_path / "store")
    assert list(fitting_models(seen_of(store))) == models
    # Events at 1950, 1900, 1850, 1750, … 1250 in every region: none at 2000, 1800, 1600 and 1400.
    edges = fitting_models(seen_of(store))["hazard"]["edges"]
    assert len(edges) == 7
    assert edges == sorted(edges)
    assert 1250 < edges[0] < 1350 < 1850 < edges[-1] < 1950
    file = tmp_path / "my.toml"
    file.write_text(starter_task(store, str(tmp_path / "store")))
    config = resolve(str(file), rounds=1)
    assert (config.model["name"], config.metric) == (models[0], "c_index")
    assert "c_index" in run(config, tmp_path / "run")["test"]["Northeast"]


def test_two_numbers_that_are_no_time_and_event_fit_no_model(tmp_path: Path):
    made = load_patients([write(tmp_path, patients(4))])

    def rows() -> Any:
        for part in made.rows():
            yield part._replace(features={**part.features, "y": part.features["y"] + 0.5})

    write_store(made._replace(rows=rows), tmp_path / "store")
    assert fitting_models(seen_of(open_store(tmp_path / "store"))) == {}


def many_clients(tmp_path: Path, having: int) -> Store:
    """1000 clients of one row each, of which `having` are of the rare domain."""
    clients = [f"c{k:04}" for k in range(1000)]
    domain = np.where(np.arange(1000) < having, "rare", "usual")
    table = {"who": clients, "where": domain, "v": np.arange(1000.0), "y": np.arange(1000) % 2}
    split = np.where(np.arange(1000) % 5 == 4, "test", "train")
    made = from_frame({**table, "part": split}, client="who", domain="where", label="y",
                      split="part")  # fmt: skip
    write_store(made, tmp_path / "store")
    return open_store(tmp_path / "store")


def test_the_window_is_long_enough_for_the_rarest_domain(tmp_path: Path):
    task = task_of(many_clients(tmp_path, 50), tmp_path)
    assert task["clients_per_round"] == 80  # a tenth of 800 training clients
    absent = (1 - 40 / 800) ** 80  # of one round
    assert absent ** task["window_size"] <= 1e-3 < absent ** (task["window_size"] - 1)
    assert "evaluation_every" not in task  # there are no held-out clients


def test_lopsided_classes_get_weights_as_a_comment(tmp_path: Path):
    rows = 100
    table = {"who": np.arange(rows) // 5, "v": np.arange(rows, dtype=float)}
    table |= {"where": np.array(["a", "b"])[np.arange(rows) % 2]}
    table |= {"y": np.where(np.arange(rows) % 10 == 0, "yes", "no")}
    table |= {"part": np.where(np.arange(rows) < 80, "train", "test")}
    write_store(from_frame(table, client="who", domain="where", label="y", split="part"),
                tmp_path / "s")  # fmt: skip
    text = starter_task(open_store(tmp_path / "s"), "s")
    assert "# class_weights = [0.556, 5.0]" in text  # 80 / (2 · 72), 80 / (2 · 8)


def test_what_has_no_task_gets_one_line(folder: Path, tmp_path: Path):
    store = open_store(folder / "classes")
    with pytest.raises(BadInput, match=r"unknown model for s: 'cnn' \(allowed: logistic, mlp\)"):
        starter_task(store, "s", "cnn")
    only_train = store._replace(splits={"train": store.splits["train"]})
    with pytest.raises(BadInput, match=r"s has no split 'test'; prepare it again, with --test-fr"):
        starter_task(only_train, "s")

    def rows() -> Any:
        for split in ("train", "test"):
            yield Rows(split, ["a"], np.zeros(1, np.int32), {"x": np.zeros((1, 3), np.float32)})

    write_store(Source("n", "l", ("d",), {"x": Feature("float32", (3,))}, rows), tmp_path / "s")
    with pytest.raises(BadInput, match=r"no built-in model fits s: its features are x \[3\]; ther"):
        starter_task(open_store(tmp_path / "s"), "s")
