# SPDX-License-Identifier: Apache-2.0
"""From a run to a model in use: every built-in model, every adapter, and what is refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agnosticfl as afl
from agnosticfl.data.store import open_store
from agnosticfl.errors import BadInput
from agnosticfl.export.folder import export_run
from agnosticfl.export.model import TrainedModel, load, softmax
from agnosticfl.export.predict import measure_store
from agnosticfl.registry import MODELS
from agnosticfl.runs.predictions import read_predictions
from agnosticfl.runs.resolve import resolve
from agnosticfl.runs.run import run as run_once
from tests.export.torch_run import torch_federation
from tests.helpers.stores import FEATURES, images, patients, trained

OWN = "tests.export.own_models:"
ROWS: dict[str, Any] = {"features": FEATURES}
WORDS: dict[str, Any] = {"words": 20, "embedding": 4, "hidden": 6}
LABELS = ["accuracy", "auroc", "balanced_accuracy"]
# Kind of data, model, and the metric of the report that predictions must give.
CASES: list[tuple[str, dict[str, Any], str]] = [
    ("classes", {"name": "logistic", **ROWS, "classes": 2, "metrics": LABELS}, "accuracy"),
    ("classes", {"name": "mlp", **ROWS, "classes": 2, "hidden": [5]}, "accuracy"),
    ("numbers", {"name": "linear", **ROWS}, "mae"),
    ("numbers", {"name": "mlp", **ROWS, "hidden": [5], "dropout": 0.5}, "mae"),
    ("images", {"name": "cnn", "classes": 3, "height": 8, "width": 7}, "accuracy"),
    ("sentences", {"name": "lstm", **WORDS}, "in_vocab_accuracy"),
    ("sentences", {"name": "cifg", **WORDS}, "in_vocab_accuracy"),
    *(
        ("classes", {"name": OWN + name, **ROWS}, "accuracy")
        for name in ("plain", "of_nnx", "of_linen", "of_equinox")
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("export")


def named(case: tuple[str, dict[str, Any], str]) -> str:
    return f"{case[0]}-{case[1]['name']}"


# Of models with siblings that are exported in the same way, one will do.
SLOW = ("images-cnn", "sentences-cifg", "numbers-mlp")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(case, id=named(case), marks=[pytest.mark.slow] * (named(case) in SLOW))
        for case in CASES
    ],
)
def exported(request: pytest.FixtureRequest, folder: Path) -> tuple[Path, TrainedModel, str, str]:
    kind, model, metric = request.param
    run = trained(folder / kind, kind, model, metric)
    out = folder / kind / "exported" / run.name
    export_run(run, out)
    return run, load(out), kind, metric


def test_every_model_is_among_the_cases():
    # No table has rows for the point (see below); survival is in tests/models/test_survival.
    built_in = set(MODELS.names()) - {"point", "hazard", "cox"}
    assert built_in == {case[1]["name"] for case in CASES if ":" not in case[1]["name"]}


def best(run: Path) -> dict[str, Any]:
    return json.loads((run / "summary.json").read_text())["best"]


def test_on_the_test_rows_it_is_as_good_as_the_report_says_to_the_last_digit(
    exported: tuple[Path, TrainedModel, str, str],
):
    run, model, kind, metric = exported
    told = best(run)
    measured = measure_store(model, open_store(run.parents[1] / kind), "test")
    assert measured.domains == told["test"]
    assert measured.overall == told["overall"]["test"]
    own = read_predictions(run, "test", "best")
    assert own is not None
    if kind == "sentences":
        return  # what follows the last word of a sentence is not what the report measures
    table = patients() if kind != "images" else images()
    rows = np.flatnonzero(np.asarray(table["part"]) == "test")
    new = {name: np.asarray(table[name])[rows] for name in table}
    said = model.predict({name: new[name] for name in _inputs(kind)})
    examples = open_store(run.parents[1] / kind).splits["test"].examples
    assert own.measured.outputs is not None
    np.testing.assert_array_equal(model.outputs(examples), own.measured.outputs)
    wanted = new[{"classes": "ill", "numbers": "days", "images": "kind"}[kind]]
    for domain, values in told["test"].items():
        there = new["hospital"] == domain
        if metric == "accuracy":
            assert np.mean(said[there] == wanted[there]) == values["accuracy"]
        else:  # the report adds up in another order
            assert np.mean(abs(said - wanted)[there]) == pytest.approx(values["mae"], rel=1e-5)


def _inputs(kind: str) -> list[str]:
    return ["pixels"] if kind == "images" else ["age", "dose", "kind"]


def test_probabilities_belong_to_the_predictions(
    exported: tuple[Path, TrainedModel, str, str],
):
    _, model, kind, _ = exported
    if kind == "sentences":
        words = model.opened.facts.data.vocabulary
        assert words is not None
        texts = [f"{words[5]} {words[7]}", words[4]]
        likely, said = model.predict_proba(texts), model.predict(texts)
        assert [words[k] for k in likely.argmax(axis=1)] == said.tolist()
        return
    table = images() if kind == "images" else patients()
    rows = {name: table[name] for name in _inputs(kind)}
    if kind == "numbers":
        with pytest.raises(BadInput, match=r"predicts a number.*use predict"):
            model.predict_proba(rows)
        return
    likely = model.predict_proba(rows)
    np.testing.assert_allclose(likely.sum(axis=1), 1, rtol=1e-6)
    assert model.labels is not None
    assert [model.labels[k] for k in likely.argmax(axis=1)] == model.predict(rows).tolist()


@pytest.fixture(scope="module")
def logistic(folder: Path) -> Path:
    """The run of the first case."""
    kind = CASES[0][0]
    place = folder / kind / "runs" / "logistic"
    return place if place.exists() else trained(folder / kind, *CASES[0])


def test_rows_of_any_kind_are_taken(logistic: Path, tmp_path: Path):
    export_run(logistic, tmp_path / "m")
    model = afl.load(tmp_path / "m")
    frame = patients()[["age", "dose", "kind"]][1:6]  # no age is missing in these
    said = model.predict(frame).tolist()
    frame.to_csv(tmp_path / "rows.csv", index=False)
    frame.to_parquet(tmp_path / "rows.parquet")
    others = (tmp_path / "rows.csv", tmp_path / "rows.parquet", frame.to_dict("records"))
    for rows in (*others, {name: frame[name].to_numpy() for name in frame}):
        assert model.predict(rows).tolist() == said
    with pytest.raises(BadInput, match=r"unknown column of the frame 'dose'.*allowed: age, kind"):
        model.predict(frame[["age", "kind"]])
    with pytest.raises(BadInput, match="there are no rows to predict"):
        model.predict(frame[:0])
    unlike = frame.assign(kind="z")
    with pytest.warns(UserWarning, match="column 'kind': 5 rows have the unknown category 'z'"):
        model.predict(unlike)


def test_the_last_model_is_there_too(logistic: Path, tmp_path: Path):
    assert export_run(logistic, tmp_path / "last", "last") == "last"
    told = json.loads((logistic / "summary.json").read_text())
    measured = measure_store(
        load(tmp_path / "last"), open_store(logistic.parents[1] / "classes"), "test"
    )
    assert measured.domains == told["test"]
    with pytest.raises(BadInput, match=r"unknown model of a run 'beast'; did you mean 'best'\?"):
        export_run(logistic, tmp_path / "other", "beast")


def test_one_changed_byte_in_any_file_is_refused(logistic: Path, tmp_path: Path):
    export_run(logistic, tmp_path / "m")
    files = sorted(file.name for file in (tmp_path / "m").iterdir())
    assert files == ["README.md", "about.json", "config.json", "manifest.json", "model.safetensors"]
    for name in files:
        shutil.copytree(tmp_path / "m", tmp_path / "changed", dirs_exist_ok=True)
        content = bytearray((tmp_path / "m" / name).read_bytes())
        content[len(content) // 2] ^= 1
        (tmp_path / "changed" / name).write_bytes(content)
        with pytest.raises(BadInput, match=r"checksum differs|manifest.json"):
            load(tmp_path / "changed")
    shutil.copytree(tmp_path / "m", tmp_path / "less")
    (tmp_path / "less" / "about.json").unlink()
    with pytest.raises(BadInput, match=r"about.json is missing from the exported model"):
        load(tmp_path / "less")


def test_the_card_says_what_one_must_know(logistic: Path, tmp_path: Path):
    export_run(logistic, tmp_path / "m")
    card = (tmp_path / "m" / "README.md").read_text()
    look = best(logistic)
    assert f"after round {look['round']} of 4" in card
    assert "test examples had no say" in card
    for words in (
        "`kind`: one of a, b, c",
        "`age`: a number",
        "`ill` (no, yes)",
        "No differential",
    ):
        assert words in card
    assert "[95 % interval over test clients" in card
    accuracy = look["overall"]["test"]["accuracy"]
    assert f"{accuracy:.3f} [" in card
    assert afl.__version__ in card


def test_bad_places_get_one_line_and_nothing_is_written(logistic: Path, tmp_path: Path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "empty").mkdir()
    out = tmp_path / "m"
    for run, problem in {
        tmp_path / "nowhere": "is not a folder",
        tmp_path / "empty": r"is no finished run \(no summary.json\)",
        logistic.parent: r"is no finished run; it holds the runs .*logistic",
    }.items():
        with pytest.raises(BadInput, match=problem):
            export_run(run, out)
    for taken, problem in {
        tmp_path / "empty": "exists; --overwrite replaces an exported model",
        tmp_path / "file": "exists; --overwrite replaces an exported model",
    }.items():
        with pytest.raises(BadInput, match=problem):
            export_run(logistic, taken)
        with pytest.raises(BadInput, match="is no exported model"):
            export_run(logistic, taken, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file"]
    assert (tmp_path / "file").read_text() == "mine"
    export_run(logistic, out)
    export_run(logistic, out, "last", overwrite=True)
    assert json.loads((out / "manifest.json").read_text())["format"] == "agnosticfl-model"


def test_a_run_without_looks_gives_its_last_model(tmp_path: Path):
    kind, model, metric = CASES[0]
    run = trained(tmp_path, kind, model, metric, evaluation_every=0)
    with pytest.raises(BadInput, match=r"kept no best model: that needs looks at held-out clients"):
        export_run(run, tmp_path / "m", "best")
    assert export_run(run, tmp_path / "m") == "last"


@pytest.mark.filterwarnings("ignore:.*very few rows")
def test_a_model_from_python_is_exported_and_loaded_with_it(tmp_path: Path):
    table = patients()
    data = afl.split_frame(
        table, client="patient", domain="hospital", split="part", label="ill",
        features=["age", "dose", "kind"],
    )  # fmt: skip
    model = afl.models.logistic(features=FEATURES, classes=2)
    afl.study(
        model, data, tmp_path / "s", algorithms={"afa": {}}, seeds=1, rounds=3, clients_per_round=3,
        batch_size=8, client_optimizer={"name": "sgd", "learning_rate": 0.3},
    )  # fmt: skip
    afl.export_run(tmp_path / "s" / "afa-seed0", tmp_path / "m")
    with pytest.raises(BadInput, match=r"came from Python: afl.load\(.*, model=…\) needs it"):
        afl.load(tmp_path / "m")
    with pytest.raises(BadInput, match=r"the parameters in .* are .*, but the model has"):
        afl.load(tmp_path / "m", afl.models.logistic(features=3, classes=2))
    said = afl.load(tmp_path / "m", model).predict(table)
    told = json.loads((tmp_path / "s" / "afa-seed0" / "summary.json").read_text())
    test = (table["part"] == "test").to_numpy()
    assert np.mean((said == table["ill"])[test]) == told["overall"]["test"]["accuracy"]


def test_a_model_without_a_forward_function_says_so(tmp_path: Path):
    run = trained(
        tmp_path, "classes", {"name": OWN + "without_forward", "features": FEATURES}, "loss"
    )
    export_run(run, tmp_path / "m")
    with pytest.raises(BadInput, match=r"has no forward function, so it cannot predict"):
        load(tmp_path / "m")


def test_a_model_of_one_number_says_it_of_every_row(tmp_path: Path):
    """`point`, whose rows are numbers alone: those of the toy task."""
    told = run_once(resolve("toy", rounds=5), tmp_path / "run")
    assert export_run(tmp_path / "run", tmp_path / "m") == "last"
    own = read_predictions(tmp_path / "run", "test", "last")
    assert own is not None
    assert own.measured.outputs is not None
    rows = np.linspace(-3, 3, len(own.measured.outputs)).astype(np.float32)
    said = load(tmp_path / "m").predict({"x": rows})
    np.testing.assert_array_equal(said, own.measured.outputs)
    assert set(said.tolist()) == set(told["params"]) != {3.0}  # where it began


def test_softmax_does_not_overflow():
    np.testing.assert_allclose(
        softmax(np.array([[1e4, 1e4], [0.0, np.log(3)]])), [[0.5, 0.5], [0.25, 0.75]]
    )


def test_what_pytorch_clients_trained_is_a_state_dict(tmp_path: Path):
    """The run of a federation whose clients are PyTorch's, in one process."""
    torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")
    safetensors_torch = pytest.importorskip("safetensors.torch")
    data, model, create = torch_federation(tmp_path / "run")
    export_run(tmp_path / "run", tmp_path / "m")
    said = load(tmp_path / "m", model).predict_proba({"x": data.test.examples["x"]})
    module = create()
    module.load_state_dict(safetensors_torch.load_file(tmp_path / "m" / "model.safetensors"))
    with torch.no_grad():
        logits = module(torch.tensor(np.array(data.test.examples["x"])))
    np.testing.assert_allclose(said, torch.softmax(logits, dim=1).numpy(), rtol=1e-5)
    told = json.loads((tmp_path / "run" / "summary.json").read_text())
    right = said.argmax(axis=1) == data.test.examples["y"]
    assert np.mean(right) == told["overall"]["test"]["accuracy"]
