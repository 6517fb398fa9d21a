# SPDX-License-Identifier: Apache-2.0
"""The models that a run keeps, and what they said of the test examples."""

import json
import signal
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from agnosticfl.core.evaluate import Results, metric_value
from agnosticfl.core.metrics import LOSS, Reading, reading
from agnosticfl.errors import BadInput
from agnosticfl.runs import kept_models
from agnosticfl.runs.predictions import read_predictions
from agnosticfl.runs.records import read_records
from agnosticfl.runs.resolve import resolve
from agnosticfl.runs.run import run
from tests.helpers.command_line import called, start, wait_for_round

SETS = ["evaluation_every=2", "checkpoint_every=5", "data.clients=60", "data.examples=10"]
ACCURACY = Reading(higher_is_better=True)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    run(resolve("synthetic-points", rounds=12, sets=SETS), folder)
    return folder


def summary(folder: Path) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    return json.loads((folder / "summary.json").read_text())


def test_the_best_model_is_the_one_whose_worst_held_out_domain_was_best(finished: Path):
    looks = {r["round"]: r["heldout"] for r in read_records(finished) if "heldout" in r}
    assert list(looks) == [2, 4, 6, 8, 10, 12]
    worst = {t: min(values["accuracy"] for values in seen.values()) for t, seen in looks.items()}
    best = max(t for t, value in worst.items() if value == max(worst.values()))
    look = kept_models.best_look(finished)
    assert look is not None
    assert (look.round, look.metric, look.value) == (best, "accuracy", worst[best])
    assert looks[best][look.domain]["accuracy"] == look.value
    told = summary(finished)["best"]
    assert (told["round"], told["value"], told["domain"]) == (best, look.value, look.domain)


def test_the_last_model_is_that_of_the_last_round(finished: Path):
    found = kept_models.read_params(kept_models.file_of(finished, "last"))
    assert found.about == {"round": "12"}
    assert {name: array.shape for name, array in found.arrays.items()} == {
        "linear.bias": (10,),
        "linear.kernel": (16, 10),
    }


@pytest.mark.parametrize("which", ["last", "best"])
@pytest.mark.parametrize("split", ["heldout", "test"])
@pytest.mark.parametrize("metric", ["loss", "accuracy"])
def test_what_was_said_gives_the_numbers_of_the_summary(
    finished: Path, which: str, split: str, metric: str
):
    found = read_predictions(finished, split, which)
    assert found is not None
    told = summary(finished) if which == "last" else summary(finished)["best"]
    for i, domain in enumerate(found.domains):
        weight = (found.measured.domain == i).astype(float)
        value = metric_value(metric, reading(metric), found.measured, weight)
        assert value == pytest.approx(told[split][domain][metric], rel=1e-12)


def test_what_was_said_is_by_example_with_the_names_of_the_clients(finished: Path):
    found = read_predictions(finished, "test", "last")
    assert found is not None
    measured = found.measured
    examples = sum(summary(finished)["examples"]["test"].values())  # type: ignore[arg-type]
    assert measured.by_example
    assert measured.outputs is not None
    assert measured.outputs.shape == (examples, 10)
    assert len(found.client_ids) == len(set(measured.client.tolist()))
    assert np.bincount(measured.domain).tolist() == list(
        summary(finished)["examples"]["test"].values()
    )


def test_runs_without_looks_have_no_best_model(tmp_path: Path):
    run(resolve("toy", rounds=3), tmp_path / "run")
    assert kept_models.best_look(tmp_path / "run") is None
    assert "best" not in summary(tmp_path / "run")
    assert kept_models.file_of(tmp_path / "run", "last").exists()


def test_a_killed_run_ends_with_the_same_best_model(tmp_path: Path, finished: Path):
    folder, options = tmp_path / "run", [part for s in SETS for part in ("--set", s)]
    words = ("run", "synthetic-points", "--rounds", "12", "--out", folder, *options)
    process = start(*words)
    wait_for_round(process, folder, 8)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert called(*words, "--resume").returncode == 0
    for which in ("last", "best"):
        one, other = (
            kept_models.file_of(place, which).read_bytes() for place in (folder, finished)
        )
        assert one == other


def test_an_overwritten_run_forgets_its_models(tmp_path: Path):
    sets = [*SETS, "data.seed=1"]
    run(resolve("synthetic-points", rounds=4, sets=SETS), tmp_path / "run")
    before = kept_models.file_of(tmp_path / "run", "best").read_bytes()
    config = resolve("synthetic-points", rounds=2, sets=[*sets, "metric=loss"])
    run(config, tmp_path / "run", overwrite=True)
    look = kept_models.best_look(tmp_path / "run")
    assert look is not None
    assert (look.round, look.metric) == (2, "loss")
    assert kept_models.file_of(tmp_path / "run", "best").read_bytes() != before


def looks(*values: float) -> list[Results]:
    """Looks at two domains, of which the second is served better."""
    return [{"a": {"loss": v, "acc": v}, "b": {"loss": v - 1, "acc": v + 1}} for v in values]


@pytest.mark.parametrize(
    ("how", "values", "best"),
    [
        (ACCURACY, (0.1, 0.3, 0.2), 2),
        (ACCURACY, (0.1, 0.3, 0.3, 0.2), 3),  # of equals the later one
        (ACCURACY, (0.1, float("inf"), 0.2), 3),  # what is not finite is never the best
        (LOSS, (0.3, 0.1, 0.2), 2),
    ],
)
def test_the_best_of_some_looks(tmp_path: Path, how: Reading, values: tuple[float, ...], best: int):
    metric = "acc" if how.higher_is_better else "loss"
    for t, look in enumerate(looks(*values), 1):  # a keeper that begins anew each time
        kept_models.best_keeper(tmp_path, metric, how)(t, {"w": jnp.float32(t)}, look)
    found = kept_models.best_look(tmp_path)
    assert found == kept_models.Look(best, metric, "a", values[best - 1])
    w = kept_models.read_params(kept_models.file_of(tmp_path, "best")).arrays["w"]
    assert (w.shape, w) == ((), best)


def test_one_changed_byte_of_a_kept_model_is_refused(tmp_path: Path):
    file = tmp_path / "models" / "w.safetensors"
    kept_models.write_params(file, {"w": np.arange(3, dtype=np.float32)}, {"round": 1})
    whole = file.read_bytes()
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(BadInput, match=r"cannot be read|is damaged"):
            kept_models.read_params(file)


def test_a_domain_that_looks_cannot_see_is_said(tmp_path: Path):
    said: list[str] = []
    sets = ["evaluation_every=1", "evaluation_clients=1"]
    run(resolve("synthetic-points", rounds=1, sets=sets), tmp_path / "run", say=said.append)
    (line,) = said
    assert line.startswith("warning: the 1 held-out clients that are looked at have no example of")
