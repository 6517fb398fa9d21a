# SPDX-License-Identifier: Apache-2.0
"""Private runs: what they charge and say, and that nothing but noised sums leaves a round."""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agnosticfl import agnostic_fedavg, fedavg
from agnosticfl.channels.dp import NOT_PRIVATE, RunFacts, differential_privacy
from agnosticfl.channels.dp.clipping import private
from agnosticfl.core import tree
from agnosticfl.core.contribution import contribution_shapes
from agnosticfl.engines import padded_engine
from agnosticfl.errors import BadInput
from agnosticfl.export.folder import export_run
from agnosticfl.privacy.entropy import Secrets, secret_of_a_test
from agnosticfl.privacy.noise_source import noise_source
from agnosticfl.report import write_report
from agnosticfl.runs.config import from_table
from agnosticfl.runs.kept_models import WHICH, file_of, read_params
from agnosticfl.runs.records import read_records
from agnosticfl.runs.resolve import resolve, title
from agnosticfl.runs.run import Stopped, run
from tests.helpers.problems import linear, random_federated

pytest.importorskip("dp_accounting")


def private_toy(**options: Any) -> Any:
    sets = ["checkpoint_every=4", "clients_per_round=10", "dp.epsilon=30.0", "dp.delta=1e-5"]
    sets.append("engine=padded")  # a few rounds, not a block of many
    return resolve("toy", rounds=6, sets=[*sets, *(f"{k}={v}" for k, v in options.items())])


def spent_in(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "privacy.json").read_text())


def test_a_run_says_what_it_spent_and_never_goes_past_it(tmp_path: Path):
    folder, done, charged = tmp_path / "run", list[int](), list[int]()

    def on_round(record: Any) -> None:
        done.append(record["round"])
        charged.append(spent_in(folder)["rounds"])

    with pytest.raises(Stopped):
        run(private_toy(), folder, on_round=on_round, should_stop=lambda: len(done) == 5)
    assert charged == [4, 4, 4, 4, 6]  # ahead of the rounds, a checkpoint's worth at a time
    assert spent_in(folder)["rounds"] == 5
    assert 0 < spent_in(folder)["epsilon"] < 30.0
    summary = run(private_toy(), folder, resume=True)
    assert summary["privacy"] == spent_in(folder)
    assert 29.0 < summary["privacy"]["epsilon"] <= 30.0
    assert summary["privacy"]["delta"] == 1e-5

    # Somebody wants more rounds of the same folder, and edits what stands in the way.
    (folder / "summary.json").unlink()
    more = json.loads((folder / "config.json").read_text()) | {"rounds": 12}
    (folder / "config.json").write_text(json.dumps(more))
    config = from_table(more, "the edited configuration")
    with pytest.raises(BadInput, match="dp: 6 rounds were charged already"):
        run(config, folder, resume=True)
    (folder / "privacy.json").unlink()
    with pytest.raises(BadInput, match="is missing: what 6 rounds of this run have spent"):
        run(config, folder, resume=True)


def test_rounds_that_a_crash_repeats_are_charged_again(tmp_path: Path):
    folder, config = tmp_path / "run", private_toy(checkpoint_every=2)

    def crash(record: Any) -> None:
        if record["round"] == 4:
            raise RuntimeError("a crash before the checkpoint of round 4")

    with pytest.raises(RuntimeError, match="a crash"):
        run(config, folder, on_round=crash)
    first = spent_in(folder)
    assert first["rounds"] == 4
    seen = read_records(folder)[2]
    privacy = run(config, folder, resume=True)["privacy"]
    again = read_records(folder)[2]
    assert seen["round"] == again["round"] == 3
    assert seen["update_norm"] != again["update_norm"]  # drawn anew …
    assert privacy["rounds"] == 8  # … and charged anew: 1 to 4, then 3 to 6
    before, after = privacy["charged"]
    assert before["rounds"] == after["rounds"] == 4
    assert before["noise_multiplier"] < after["noise_multiplier"]
    assert 29.0 < privacy["epsilon"] <= 30.0


def test_noise_from_a_number_is_not_private_and_every_output_says_so(tmp_path: Path):
    said: list[str] = []
    config = private_toy(**{"dp.test_seed": 7})
    summary = run(config, tmp_path / "run", say=said.append)
    run(config, tmp_path / "same")
    losses = [[r["loss"] for r in read_records(tmp_path / name)] for name in ("run", "same")]
    assert losses[0] == losses[1]
    assert summary["privacy"]["private"] is False
    assert summary["privacy"]["warning"] == spent_in(tmp_path / "run")["warning"] == NOT_PRIVATE
    assert said[0] == said[-1] == f"warning: {NOT_PRIVATE}"  # before the first round and at the end
    assert "NOT PRIVATE" in title(config)
    write_report([tmp_path / "run"], tmp_path / "run")
    for page in ("report.html", "table.md", "table.tex", "comparison.json"):
        assert "NOT PRIVATE" in (tmp_path / "run" / page).read_text(), page
    plots = {path.name: path.read_text() for path in (tmp_path / "run" / "plots").glob("*.svg")}
    assert {"counts.svg", "weights.svg", "train.svg"} <= set(plots)
    for name, text in plots.items():
        assert "NOT PRIVATE" in text, name
    assert "NOT PRIVATE" not in title(private_toy())


def test_models_and_records_of_noise_from_a_number_say_so_by_themselves(tmp_path: Path):
    """They may go where the rest of the run folder does not."""
    sets = ["mean_model=true", "evaluation_every=2", "dp.epsilon=8", "dp.delta=1e-5"]
    sets += ["data.clients=100", "clients_per_round=20", 'dp.public=["heldout", "test"]']
    for name, own in (("test", ["dp.test_seed=7"]), ("real", [])):
        run(resolve("synthetic-points", rounds=4, sets=[*sets, *own]), tmp_path / name)
        told = [read_records(tmp_path / name)[0].get("private")]
        for which in WHICH:
            kept = read_params(file_of(tmp_path / name, which))
            told.append(kept.about.get("warning"))
        assert told == ([False, *[NOT_PRIVATE] * 3] if own else [None] * 4)
    (events,) = (tmp_path / "test" / "tensorboard").iterdir()
    assert b"private" in events.read_bytes()
    export_run(tmp_path / "test", tmp_path / "out")
    assert read_params(tmp_path / "out" / "model.safetensors").about["warning"] == NOT_PRIVATE
    assert "NOT PRIVATE" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize("make", [agnostic_fedavg, fedavg])
def test_noise_far_above_the_data_leaves_weights_and_model_finite(make: Any):
    data = random_federated(0, clients=10)
    facts = RunFacts(contribution_shapes(linear(), 3), 30, 5, 10)
    privacy = differential_privacy(facts, 0.01, 1e-6)
    algorithm = make(
        linear(), data, clients_per_round=5, batch_size=4, client_optimizer=optax.sgd(0.1),
        channel=privacy.channel, engine=padded_engine,
    )  # fmt: skip
    state = algorithm.init()
    for t in range(1, 31):
        state, info = algorithm.round(state, algorithm.cohort(t))
        assert tree.all_finite((state.params, state.domain_weights, state.window, info.alpha))
        assert jnp.all(state.domain_weights >= 0)
        assert jnp.sum(state.domain_weights) == pytest.approx(1, abs=1e-5)


# Nothing but the noised sum leaves the clients.


def records_of(folder: Path, data_seed: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    """All that a run writes down of its rounds if the noised sum is the same whatever the data."""
    source = noise_source(Secrets(secret_of_a_test(0)))

    def constant(total: np.ndarray, sigma: np.ndarray) -> np.ndarray:
        return source(int(sigma), 1, total.size).astype(np.float32)

    monkeypatch.setattr("agnosticfl.channels.dp.independent", lambda *_: constant)
    points = [10 + 7 * data_seed, 30, 20, 25, 35]
    # Who has no point at all is no client, and the number of clients is public.
    config = private_toy(**{"data.points": points, "clients_per_round": 5, "dp.population": 20})
    run(config, folder)
    # How long a round took is not of the clients' data in a simulation.
    return [
        {k: v for k, v in record.items() if k not in ("seconds", "time")}
        for record in read_records(folder)
    ], spent_in(folder)


def test_everything_that_leaves_a_round_is_made_of_the_noised_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    one = records_of(tmp_path / "one", 0, monkeypatch)
    other = records_of(tmp_path / "other", 1, monkeypatch)
    assert len(one[0]) == 6
    assert one == other


def test_that_test_sees_a_value_that_was_not_noised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def leaking(*given: Any) -> Any:
        channel = private(*given)

        def decode(state: Any, total: Any, key: Any) -> Any:
            decoded = channel.decode(state, total, key)
            return decoded._replace(
                total=decoded.total._replace(beta=1 + total.beta.astype(jnp.float32))
            )

        return channel._replace(decode=decode)

    monkeypatch.setattr("agnosticfl.channels.dp.private", leaking)
    one = records_of(tmp_path / "one", 0, monkeypatch)
    assert one != records_of(tmp_path / "other", 1, monkeypatch)
