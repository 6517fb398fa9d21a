# SPDX-License-Identifier: Apache-2.0
"""All that a private run writes, file by file: made of noised sums and of what is public."""

import base64
import json
import math
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from agnosticfl.channels.dp.clipping import private
from agnosticfl.core.evaluate import Measured
from agnosticfl.core.metrics import Reading
from agnosticfl.errors import BadInput
from agnosticfl.privacy import accounting, discrete
from agnosticfl.privacy.accounting import Charge
from agnosticfl.privacy.entropy import Secrets, secret_of_a_test, stretched
from agnosticfl.privacy.noise_source import noise_source
from agnosticfl.report import write_report
from agnosticfl.runs import checkpoint, looks
from agnosticfl.runs.build import build
from agnosticfl.runs.build_privacy import build_privacy
from agnosticfl.runs.records import read_records
from agnosticfl.runs.resolve import resolve
from agnosticfl.runs.run import run
from tests.helpers.noised import Hiding
from tests.helpers.problems import federated

pytest.importorskip("dp_accounting")

FTRL = pytest.mark.skipif(find_spec("jax_privacy") is None, reason="needs the extra ftrl")

TASK = """
rounds = 6
clients_per_round = 8
batch_size = 8
checkpoint_every = 4
evaluation_every = 2
mean_model = true
metric = "accuracy"
engine = "padded"
[data]
name = "synthetic"
kind = "points"
clients = 60
examples = 10
heldout_fraction = 0.2
test_fraction = 0.2
seed = {seed}
[model]
name = "logistic"
features = 16
classes = 10
[client_optimizer]
name = "sgd"
learning_rate = 0.1
[dp]
epsilon = 20.0
delta = 1e-4
population = 25  # the same for both: how many clients there are is public
"""


def written(folder: Path) -> dict[str, Any]:
    """Every file of a run folder and what it says, but for times of the writing itself."""
    found: dict[str, Any] = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = str(path.relative_to(folder))
        if name.startswith("checkpoints/"):
            continue  # by their arrays, below
        if name.startswith("tensorboard/"):
            events = [e for e in EventFileLoader(str(path)).Load() if e.HasField("summary")]
            found["tensorboard"] = [(e.step, e.wall_time, str(e.summary)) for e in events]
        elif name.endswith(".safetensors"):
            arrays = safetensors.numpy.load_file(path)
            found[name] = {key: value.tolist() for key, value in arrays.items()}
        elif name.endswith((".json", ".jsonl", ".md", ".tex")):
            found[name] = NAMED.sub("", path.read_text())
        elif name.endswith(".html"):
            page, *plots = re.split(r"data:image/[a-z+]*;base64,([^\"]*)", path.read_text())
            found[name] = [NAMED.sub("", page), *map(without_numbering, plots[1::2])]
            found[f"{name}: plots"] = [without_numbering(base64.b64decode(p)) for p in plots[0::2]]
        elif name != "run.lock":
            found[name] = path.read_bytes()
    return found


# The task names its data by a seed: that alone may differ.
NAMED = re.compile(r'(?:"seed": |data\.seed</th><td>)\d+')


def without_numbering(svg: bytes | str) -> str:
    """A plot without the numbers that Matplotlib gives its parts, and without its date."""
    text = svg if isinstance(svg, str) else svg.decode()
    text = NAMED.sub("", text)
    return re.sub(r"[mpc][0-9a-f]{10}|<dc:date>.*</dc:date>", "", text)


def saved(folder: Path, like: Any) -> list[Any]:
    """The arrays of the newest checkpoint."""
    state = checkpoint.restore(folder / "checkpoints", like, lambda _: None)
    return [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(state)]


@pytest.fixture
def constant_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every noised sum is the same whatever the data: noise of a test, and no data at all."""

    def noise_alone(*_: Any) -> Any:
        source = noise_source(Secrets(secret_of_a_test(0)))
        return lambda total, sigma: source(int(sigma), 1, total.size).astype(np.float32)

    def as_many_sigmas(*_: Any) -> Any:
        """Of looks by clients: σ follows from how many these are, which is public."""
        return lambda total, sigma: np.arange(50, 50 + total.size) * np.float32(sigma)

    monkeypatch.setattr("agnosticfl.channels.dp.independent", noise_alone)
    monkeypatch.setattr("agnosticfl.channels.dp.correlated", noise_alone)
    monkeypatch.setattr("agnosticfl.runs.build_privacy.independent", as_many_sigmas)
    monkeypatch.setattr(
        "agnosticfl.runs.looks.discrete_gaussian",
        lambda sigma, size, _: Hiding(
            discrete.discrete_gaussian(sigma, size, stretched(b"", 0)) + 50 * 2**16
        ),
    )


def played(folder: Path, seed: int, *sets: str) -> tuple[dict[str, Any], list[Any]]:
    task = folder / "points.toml"
    folder.mkdir()
    task.write_text(TASK.format(seed=seed))
    config = resolve(str(task), sets=sets)
    run(config, folder / "run")
    write_report([folder / "run"], folder / "run")
    return written(folder / "run"), saved(folder / "run", build(config).algorithm.init())


@pytest.mark.usefixtures("constant_noise")
@pytest.mark.parametrize(
    "sets",
    [
        (),
        pytest.param(("evaluation_by=clients",), marks=pytest.mark.slow),
        ("evaluation_by=clients", "dp.mode=distributed"),
        pytest.param(("dp.noise=banded",), marks=[FTRL, pytest.mark.slow]),
        pytest.param(("weights_follow=heldout", "evaluation_every=0"), marks=pytest.mark.slow),
    ],
)
def test_every_file_is_made_of_noised_sums(tmp_path: Path, sets: tuple[str, ...]):
    seeds = 4, 5  # of data with as many held-out clients, which is public
    (one, arrays), (other, others) = (played(tmp_path / str(s), s, *sets) for s in seeds)
    assert one.keys() == other.keys()
    assert {"summary.json", "metrics.jsonl", "privacy.json", "engine.json", "about.json"} < set(one)
    for name, said in one.items():
        assert said == other[name], name
    assert arrays == others


@pytest.mark.usefixtures("constant_noise")
@pytest.mark.slow
def test_that_test_sees_a_number_that_was_not_noised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def leaking(*given: Any) -> Any:
        channel = private(*given)

        def decode(state: Any, total: Any, key: Any) -> Any:
            decoded = channel.decode(state, total, key)
            report = {**decoded.report, "sum_of_beta": total.beta.astype(float)}
            return decoded._replace(report=report)

        return channel._replace(decode=decode)

    monkeypatch.setattr("agnosticfl.channels.dp.private", leaking)
    (one, _), (other, _) = (played(tmp_path / str(seed), seed) for seed in (1, 2))
    assert one["metrics.jsonl"] != other["metrics.jsonl"]
    assert one["tensorboard"] != other["tensorboard"]


def test_what_is_not_noised_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder, secret = tmp_path / "points", bytes(range(100, 132))
    monkeypatch.setattr("agnosticfl.runs.build_privacy.fresh_secret", lambda: secret)
    files, _ = played(folder, 1)
    everything = b"".join(p.read_bytes() for p in (folder / "run").rglob("*") if p.is_file())
    assert secret not in everything
    assert secret.hex().encode() not in everything
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert summary["examples"] == {}
    assert "clients_with" not in summary
    assert summary["seconds_per_round"] is None
    assert not any(name.startswith("predictions/") for name in files)
    with pytest.raises(BadInput, match="a private run keeps those of public splits alone"):
        write_report([folder / "run"], folder / "report", per_client=tmp_path / "clients.csv")
    assert json.loads((folder / "run" / "engine.json").read_text()).keys() <= {"engine", "devices"}
    assert json.loads((folder / "run" / "config.json").read_text())["data_digest"] is None
    assert all(r["seconds"] is r["time"] is None for r in read_records(folder / "run"))
    spent = json.loads((folder / "run" / "privacy.json").read_text())["measured"]
    assert spent["heldout"]["looks"] == 3 + 3  # in rounds 2, 4, 6; the last, the mean, the best
    assert spent["test"]["looks"] == 3
    assert all(0 < said["epsilon"] <= 20 for said in spent.values())
    assert all(said["unit"] == "client, with all that it holds" for said in spent.values())


def test_public_clients_are_measured_as_they_are(tmp_path: Path):
    (tmp_path / "points.toml").write_text(TASK.format(seed=1))
    open_ = resolve(str(tmp_path / "points.toml"), sets=['dp.public=["heldout", "test"]'])
    summary = run(open_, tmp_path / "run")
    assert set(summary["examples"]) == {"heldout", "test"}
    assert (tmp_path / "run" / "predictions" / "test-last.npz").exists()
    assert "measured" not in summary["privacy"]


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["client_spread=true"], "client_spread tells of single clients; set it to false, or"),
        (["weights_follow='heldout'"], "set evaluation_every = 0, or state that their results"),
    ],
)
def test_what_would_leak_is_refused_with_the_private_way(
    tmp_path: Path, sets: list[str], message: str
):
    (tmp_path / "points.toml").write_text(TASK.format(seed=1))
    with pytest.raises(BadInput, match=message):
        build(resolve(str(tmp_path / "points.toml"), sets=sets))


def test_a_tracker_which_notes_times_is_refused_with_the_private_way(tmp_path: Path):
    (tmp_path / "points.toml").write_text(TASK.format(seed=1))
    config = resolve(str(tmp_path / "points.toml"))
    with pytest.raises(BadInput, match=r"--track mlflow .* metrics.jsonl and tensorboard/ in the"):
        run(config, tmp_path / "run", track=["mlflow"])
    assert not (tmp_path / "run").exists()


def test_a_metric_of_all_outputs_at_once_is_refused(tmp_path: Path):
    (tmp_path / "points.toml").write_text(TASK.format(seed=1))
    config = resolve(str(tmp_path / "points.toml"))
    built = build(config)
    with pytest.raises(BadInput, match='choose one that is a mean, such as "loss", or state'):
        looks.build_looks(config, built.data, built.readings, ["accuracy"])


def test_what_was_learnt_from_training_clients_is_refused():
    data = build(resolve("toy")).data
    config = resolve("toy", sets=["dp.epsilon=9", "dp.delta=1e-5"])
    for learnt, way in (("vocabulary", "--vocab FILE"), ("preparation", "--like FILE")):
        about = data.about._replace(**{learnt: ("a", "b")})
        with pytest.raises(BadInput, match=f"the {learnt} of this data was .*{way}"):
            build_privacy(config, build(config).model, data._replace(about=about), None)
        given = data._replace(about=about._replace(given=(learnt,)))
        assert build_privacy(config, build(config).model, given, None) is not None


def test_looks_stay_within_their_budget_though_vectors_are_rounded(tmp_path: Path):
    """Many domains and much noise: rounding to whole numbers makes a vector of norm 1 longer."""
    (tmp_path / "points.toml").write_text(TASK.format(seed=1))
    config = resolve(str(tmp_path / "points.toml"), sets=["dp.epsilon=0.1"])
    built, p = build(resolve(str(tmp_path / "points.toml"))), 400
    many = built.data.train._replace(domains=tuple(map(str, range(p))))
    planned = looks.build_looks(config, built.data._replace(train=many), built.readings, ())
    for look in planned.values():
        size, units = (1 + len(look.metrics)) * p, looks.SIGMA / look.noise
        longest = 1 + math.sqrt(size) / (2 * units)
        assert longest > 1.02
        counted = accounting.sampled_gaussian(1.0, lambda _, s=longest: s, lambda *_: 0.0)
        assert 0.098 < counted([Charge(look.noise, look.looks)], 1e-4) <= 0.1


def test_a_noised_look_is_near_what_clients_say():
    """200 clients with loss 1 in domain 0, 200 with loss 3 in domain 1, hardly any noise."""
    data = federated([[0.0]] * 400, [[0]] * 200 + [[1]] * 200, 2)
    owner = np.arange(400)
    loss = np.stack([np.where(owner < 200, 1.0, 3.0), np.ones(400)])
    measured = Measured(owner, (owner >= 200).astype(int), {"loss": loss})
    budget: Any = None
    look = looks.Look(1, 0.5, budget, {"loss": 5.0})
    secrets = Secrets(secret_of_a_test(1))
    found = looks.noised(look, data, measured, {"loss": Reading(False)}, secrets)
    means = [found.domains[domain]["loss"] or 0.0 for domain in data.domains]
    np.testing.assert_allclose(means, [1.0, 3.0], atol=0.1)
    assert found.overall["loss"] == pytest.approx(2.0, abs=0.1)
    # A client with both domains counts half in each: its vector has norm 1 like the others'.
    few = looks.noised(look._replace(noise=1e3), data, measured, {"loss": Reading(False)}, secrets)
    assert all(values["loss"] is None for values in few.domains.values())
