# SPDX-License-Identifier: Apache-2.0
"""A search with real trials, of a problem whose best rate a reader can work out."""

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agnosticfl import tune, tune_study
from agnosticfl.core.federated import Splits
from agnosticfl.core.model import Model, from_functions
from agnosticfl.errors import BadInput
from agnosticfl.report import write_report
from agnosticfl.report.search import search_table
from agnosticfl.runs import tune as tuning
from agnosticfl.runs.compare import compare
from agnosticfl.runs.records import read_records
from agnosticfl.runs.resolve import resolve
from agnosticfl.runs.run import Stopped, run
from agnosticfl.runs.trials import Trial, hidden_in, judged_alike, outcome, undefined_in
from agnosticfl.runs.tune import Found, Watch
from agnosticfl.runs.tuned_task import tuned_task
from tests.helpers.problems import federated, quadratic

RATE = "client_optimizer.learning_rate"
# All examples are 2, so a local step of rate γ is w ← w − 2γ (w − 2): γ = 0.5 is there in one step,
# γ ≥ 1 never, and each factor of 10 below 0.5 is slower.
PART = federated([[2, 2], [2, 2]], [[0, 1], [0, 1]], num_domains=2)
DATA = Splits(PART, PART, PART)
SETTINGS: dict[str, Any] = {
    "rounds": 10, "clients_per_round": 2, "batch_size": 2, "evaluation_every": 1,
    "engine": "padded",
    "client_optimizer": {"name": "sgd", "learning_rate": 0.05},
}  # fmt: skip
FEDAVG: dict[str, dict[str, Any]] = {"fedavg": {}}

TASK = """# Points, few of them.

rounds = 20
clients_per_round = 10
batch_size = 10
metric = "accuracy"
evaluation_every = 2
engine = "padded"

[data]
name = "synthetic"
kind = "points"
clients = 60
examples = 20
shares = "0.8,0.2"
difficulty = "0.1,0.1"
heldout_fraction = 0.3
test_fraction = 0.2

[model]
name = "logistic"
features = 16
classes = 10

# FedAvg's own, which the search replaces.
[algorithms.fedavg.client_optimizer]
learning_rate = 0.01

# The clients' rate.
[client_optimizer]
name = "sgd"
learning_rate = 0.1
"""


def counted(model: Model) -> tuple[Model, list[int]]:
    """A model that counts how often its loss is traced."""
    traces = [0]

    def loss(params: Any, examples: Any) -> Any:
        traces[0] += 1
        return model.per_example_loss(params, examples, None)

    return from_functions(model.init, loss), traces


def searched(out: Path, **options: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What the search returns for the quadratic, and what is in its file."""
    given: dict[str, Any] = {"algorithms": FEDAVG, "seeds": 1, **SETTINGS, **options}
    found = tune_study(quadratic(start=1.0), DATA, out, **given)
    return found, json.loads((out / "trials.json").read_text())


@pytest.mark.nan_input
def test_the_grid_grows_to_the_rate_that_is_best(tmp_path: Path):
    found, (result,) = searched(tmp_path, keys={RATE: (0.005, 0.05)})
    assert found == {"fedavg": {"client_optimizer": {"learning_rate": 0.5}}}
    rates = [each["setting"][RATE] for each in result["settings"]]
    assert rates == [0.005, 0.05, 0.5, 5.0]
    means = [each["mean"] for each in result["settings"]]
    # The loss at look t is (1 − 2γ)^{2t}; of the last five of ten looks the mean.
    for rate, mean in zip(rates[:3], means[:3], strict=True):
        expected = np.mean([(1 - 2 * rate) ** (2 * t) for t in range(6, 11)])
        assert mean == pytest.approx(expected, rel=1e-4, abs=1e-12)
    assert means[3] is None  # 5 diverged
    assert "| 5.0 | diverged | – | – | 1 |" in (tmp_path / "table.md").read_text()
    assert result["inside"]
    said = (tmp_path / "table.md").read_text()
    assert "by one seed, with which no two can be told apart" in said
    assert {p.name for p in (tmp_path / "plots").iterdir()} == {"tune.png", "tune.svg"}


def test_all_methods_have_the_same_budget_and_it_is_said_when_it_is_spent(tmp_path: Path):
    both: dict[str, Any] = {"fedavg": {}, "afa": {}}
    _, results = searched(tmp_path, algorithms=both, keys={RATE: (1e-5, 1e-4)}, budget=3)
    for result in results:
        assert len(result["settings"]) == 3
        assert "the budget is spent: the next line has 1 more (3 of 3 settings)" in result["ended"]
        assert not result["inside"]


def test_rates_share_one_program_and_other_keys_have_their_own(tmp_path: Path):
    def traces_of(out: str, keys: dict[str, Any]) -> int:
        model, traces = counted(quadratic())
        options: dict[str, Any] = {"algorithms": FEDAVG, "seeds": 1, "budget": 6, **SETTINGS}
        tune_study(model, DATA, tmp_path / out, keys=keys, **options)
        return traces[0]

    rates = [0.1 * 2**i for i in range(-4, 2)]
    two, six = (traces_of(f"{n}", {RATE: rates[-n:]}) for n in (2, 6))
    assert two == six
    others = traces_of("others", {"epochs": [1, 2]})
    assert others > two


def test_a_trial_has_the_numbers_of_an_ordinary_run_with_that_rate(tmp_path: Path):
    (tmp_path / "small.toml").write_text(TASK)
    task = str(tmp_path / "small.toml")
    keys = {RATE: (0.1, 0.3), "weight_rule.learning_rate": (0.1, 0.3)}
    tune(task, tmp_path / "out", algorithms=["afa"], keys=keys, seeds=1, budget=4)
    sets = [f"{RATE}=0.3", "weight_rule.learning_rate=0.3"]
    run(resolve(task, sets=sets), tmp_path / "run")
    name = f"afa-{RATE}=0.3-weight_rule.learning_rate=0.3-seed0"
    trial, ordinary = tmp_path / "out" / "trials" / name, tmp_path / "run"
    for one, other in zip(*map(read_records, (trial, ordinary)), strict=True):
        # A constant rate is folded into the compiled round, a rate that is data is multiplied: the
        # last bits differ, and twenty rounds carry them on.
        losses = (np.array(each["loss"], float) for each in (one, other))  # NaN where absent
        np.testing.assert_allclose(*losses, rtol=1e-3)
        np.testing.assert_allclose(one["domain_weights"], other["domain_weights"], rtol=1e-3)
    configs = [json.loads((f / "config.json").read_text()) for f in (trial, ordinary)]
    assert configs[0] == configs[1]


def test_no_trial_looks_at_test_clients_and_a_report_refuses_trials(tmp_path: Path):
    searched(tmp_path, keys={RATE: (0.05, 0.5)}, budget=2)
    trials = sorted((tmp_path / "trials").iterdir())
    assert len(trials) == 2
    for trial in trials:
        summary = json.loads((trial / "summary.json").read_text())
        assert "heldout" in summary
        assert "test" not in summary
        assert set(summary["overall"]) == {"heldout"}
    with pytest.raises(BadInput, match="is a trial of a search: test is not measured"):
        write_report([tmp_path / "trials"], tmp_path / "report")


def test_a_stopped_search_goes_on_to_the_same_result(tmp_path: Path):
    (tmp_path / "small.toml").write_text(TASK)
    task = str(tmp_path / "small.toml")
    options: dict[str, Any] = {"algorithms": ["afa"], "seeds": 2, "budget": 3}
    whole = tuning.tune(task, tmp_path / "whole", **options)
    for stop_at in (7, 25, 60):  # rounds of this process
        done: list[Any] = []
        watch = Watch(on_round=done.append, should_stop=lambda: len(done) >= stop_at)  # noqa: B023
        with pytest.raises(Stopped):
            tuning.tune(task, tmp_path / "stopped", watch=watch, **options)
        assert len(done) == stop_at
        assert not (tmp_path / "stopped" / "trials.json").exists()
    assert tuning.tune(task, tmp_path / "stopped", **options) == whole
    names = ("trials.json", Path(task).name)
    assert all(same(tmp_path / "whole" / name, tmp_path / "stopped" / name) for name in names)


def same(one: Path, other: Path) -> bool:
    return one.read_text() == other.read_text()


def test_the_task_that_it_writes_has_what_was_found_and_runs(tmp_path: Path):
    (tmp_path / "small.toml").write_text(TASK)
    keys = {RATE: (0.03, 0.3)}
    task = str(tmp_path / "small.toml")
    found = tune(task, tmp_path / "out", keys=keys, seeds=2, budget=3, rounds=10)
    tuned = tmp_path / "out" / "small.toml"
    text = tuned.read_text()
    for name in ("fedavg", "afa"):
        config = resolve(str(tuned), name)
        assert config.client_optimizer == {"name": "sgd", **found[name]["client_optimizer"]}
        assert config.rounds == 20  # --rounds was the search's
    assert text.startswith("# Points, few of them.\n\nrounds = 20\n")
    assert "# The clients' rate.\n[client_optimizer]" in text
    assert "FedAvg's own" not in text
    assert "standard error" in text
    assert "2 seeds" in text
    compare(str(tuned), tmp_path / "compared", run, algorithms=["afa"], seeds=1, rounds=2)


def test_tables_of_any_kind_come_back_from_the_text_of_a_task():
    table: dict[str, Any] = {
        "rounds": 3, "name": 'a "b" \\ ü\n', "yes": True, "some": [1, 2.5, "x"],
        "weight_rule": {"name": "n", "after": [{"name": "capped", "highest": 0.5}]},
        "algorithms": {"mine.own:method": {"epochs": 2, "options": {"q": 1e-07}}, "afa": {}},
    }  # fmt: skip
    text = tuned_task("# top\nrounds = 4\n", table, {"afa": {"epochs": 3}}, {"afa": ["why"]})
    table["algorithms"]["afa"] = {"epochs": 3}
    assert tomllib.loads(text) == table
    assert text.startswith("# top\n")
    assert "# why\n[algorithms.afa]" in text


def test_domains_that_the_search_cannot_see_are_named(tmp_path: Path):
    heldout = federated([[2, 2]], [[0, 0]], num_domains=2)
    options: dict[str, Any] = {"keys": {RATE: (0.05, 0.5)}, "budget": 2, "seeds": 1, **SETTINGS}
    with pytest.warns(UserWarning, match="does not see '1': no held-out client that seed 0 looks"):
        tune_study(quadratic(), Splits(PART, PART, heldout), tmp_path, algorithms=FEDAVG, **options)


def test_keys_that_a_method_does_not_use_are_left_out_and_said(tmp_path: Path):
    (tmp_path / "small.toml").write_text(TASK)
    said: list[str] = []
    found = tuning.tune(
        str(tmp_path / "small.toml"), tmp_path / "out", algorithms=["fedavg", "afa"], seeds=1,
        keys={"weight_rule.learning_rate": (), "window_size": (1, 2)}, budget=6,
        rounds=5, looks=1, watch=Watch(say=said.append),
    )  # fmt: skip
    no_effect = "weight_rule.learning_rate has no effect on fedavg, and is not searched there"
    assert said == [no_effect]
    keys = {each.algorithm: each.keys for each in found}
    assert keys == {"fedavg": ["window_size"], "afa": ["weight_rule.learning_rate", "window_size"]}
    # γ_λ around the default 0.01, times two windows; whole numbers go on by their ratio.
    assert len(found[1].result.measured) == 6
    assert [m.setting[0] for m in found[0].result.measured][:2] == [1, 2]


def test_too_few_looks_are_made_more_and_said(tmp_path: Path):
    (tmp_path / "small.toml").write_text(TASK.replace("evaluation_every = 2", ""))
    said: list[str] = []
    tuning.tune(
        str(tmp_path / "small.toml"), tmp_path / "out", algorithms=["afa"], seeds=1, rounds=40,
        keys={RATE: (0.1, 0.3)}, budget=2, watch=Watch(say=said.append),
    )  # fmt: skip
    assert said == ["evaluation_every is 0; trials look at held-out clients every 2 rounds"]


def test_a_private_search_tells_only_what_is_noised_of_held_out_clients(tmp_path: Path):
    """No held-out client has domain 1: the noise says so, and not the data."""
    pytest.importorskip("dp_accounting")
    text = TASK.replace("clients = 60", "clients = 200").replace("0.8,0.2", "0.99,0.01")
    table = tomllib.loads(text) | {"task": "private", "rounds": 4, "evaluation_every": 2}
    dp = {"epsilon": 20.0, "delta": 1e-5, "test_seed": 1}
    said: list[str] = []

    def searching(name: str, **more: Any) -> Found:
        (found,) = tuning.tune(
            {**table, "dp": {**dp, **more}},
            tmp_path / name,
            algorithms=["afa"],
            keys={RATE: (0.05, 0.1)},
            seeds=1,
            looks=1,
            budget=3,
            watch=Watch(say=said.append),
        )
        return found

    found = searching("private")
    assert not any("no held-out client" in text for text in said)
    hidden = "warning: the search does not see 'domain1' in every trial: it has too few held-out"
    assert any(text.startswith(hidden) for text in said)
    assert found.result.best is not None  # by the domain that is seen
    assert found.result.best.domain == "domain0"
    noised_away = searching("hidden", epsilon=0.05)
    assert noised_away.result.best is None
    assert noised_away.result.ended == f"{tuning.NOTHING_SEEN} (2 of 3 settings)"
    assert len(tuning.in_sentences(noised_away, 1)) == 2  # and nothing is chosen
    rows = search_table(noised_away, 1, 1).rows
    assert {row[1].text for row in rows} == {"no score"}
    said.clear()
    searching("public", public=["heldout"])  # whose data may be looked at
    assert any("no held-out client that seed 0 looks at" in text for text in said)


def test_all_trials_of_a_private_search_are_judged_by_the_domains_that_all_of_them_see(
    tmp_path: Path,
):
    """The same command again finds that noise hid the harder domain in one trial."""
    pytest.importorskip("dp_accounting")
    text = TASK.replace("clients = 60", "clients = 200").replace("0.8,0.2", "0.5,0.5")
    text = text.replace("0.1,0.1", "0.1,0.45").replace("rounds = 20", "rounds = 4")
    task = str(tmp_path / "small.toml")
    dp = "[dp]\nepsilon = 50.0\ndelta = 1e-5\ntest_seed = 1\n\n[data]"
    Path(task).write_text(text.replace("[data]", dp))
    out, said = tmp_path / "out", list[str]()

    def searching() -> Found:
        (found,) = tuning.tune(
            task, out, algorithms=["fedavg"], keys={RATE: (0.03, 0.3)}, seeds=2, looks=1, budget=2,
            watch=Watch(say=said.append),
        )  # fmt: skip
        return found

    before = searching()
    assert {m.domain for m in before.result.measured} == {"domain1"}
    assert not before.hidden
    assert len(tuning.in_sentences(before, 2)) == 2
    lines = out / "trials" / f"fedavg-{RATE}=0.3-seed1" / "metrics.jsonl"
    *earlier, last = map(json.loads, lines.read_text().splitlines())
    last["heldout"]["domain1"] = dict.fromkeys(last["heldout"]["domain1"])
    lines.write_text("".join(json.dumps(record) + "\n" for record in (*earlier, last)))
    after = searching()
    outcomes = [each for m in after.result.measured for each in m.outcomes]
    assert {(each.domain, each.gap) for each in outcomes} == {("domain0", 0.0)}
    line = "No trial is judged by a domain that noise hides in any: 'domain1' in 0.3 (seed 1)."
    assert tuning.in_sentences(after, 2)[1] == line
    assert line in " ".join((out / "small.toml").read_text().split("\n# "))
    (result,) = json.loads((out / "trials.json").read_text())
    assert result["hidden"] == {"domain1": [{"setting": {RATE: 0.3}, "seeds": [1]}]}
    assert sum("does not see 'domain1' in every trial" in text for text in said) == 1


def test_a_trial_does_not_win_because_noise_hides_its_worst_domain():
    def trial(easy: float, hard: float | None, diverged: str | None = None) -> Trial:
        look = {"easy": {"loss": easy}, "hard": {"loss": hard}}
        records, domains = [{"round": 1, "heldout": look}], list(look)
        summary = {"diverged": diverged, "higher_is_better": {"loss": False}}
        hidden = [] if diverged else hidden_in(records, domains, 1)
        return Trial(records, summary, domains, hidden)

    better, worse, lost = trial(0.2, 2.0), trial(0.3, None), trial(9.0, None, "it diverged")
    found = judged_alike({("better",): [better], ("worse",): [worse], ("lost",): [lost]}, "loss", 1)
    assert [each.mean for each in found.values()] == [0.2, 0.3, None]
    assert [each.domain for each in found.values()] == ["easy", "easy", None]
    seen = judged_alike({("better",): [better], ("lost",): [lost]}, "loss", 1)
    assert [each.mean for each in seen.values()] == [2.0, None]
    excess = judged_alike({("better",): [better], ("worse",): [worse]}, "loss", 1, {"easy": 0.1})
    assert [each.mean for each in excess.values()] == pytest.approx([0.1, 0.2])


def test_what_no_look_tells_is_hidden():
    """Where clients evaluate, a look of which noise leaves nothing is not in the records."""
    assert hidden_in([{"round": 1}], ["a", "b"], 1) == ["a", "b"]


def one(out: Path, **changes: Any) -> list[Found]:
    options: dict[str, Any] = {"keys": {RATE: (0.05, 0.5)}, "budget": 2, "seeds": 1, **changes}
    task = {
        "task": "t", "data": {"name": "given from Python"}, "model": {"name": "given from Python"},
        **SETTINGS,
    }  # fmt: skip
    task |= {"algorithms": options.pop("algorithms_table", {})}
    load = lambda _: (quadratic(), DATA)  # noqa: E731
    return tuning.tune(task, out, algorithms=["fedavg"], load=load, **options)


@pytest.mark.nan_input
def test_a_folder_takes_the_same_search_and_more_of_it_only(tmp_path: Path):
    out = tmp_path / "out"
    one(out)
    trials = (out / "trials").iterdir
    before = {path: (path / "metrics.jsonl").stat().st_mtime_ns for path in trials()}
    more = one(out, seeds=2, budget=4, keys={RATE: (0.05, 0.5, 5.0)}, looks=3)
    assert len(more[0].result.measured) == 3
    assert len(list(trials())) == 6
    for path, stamp in before.items():
        assert (path / "metrics.jsonl").stat().st_mtime_ns == stamp
    for changes, difference in (
        ({"seeds": 1, "budget": 4, "keys": {RATE: (0.05, 0.5, 5.0)}}, "seeds was 2 and is now 1"),
        ({"seeds": 2, "budget": 4}, f"{RATE} began with 0.05, 0.5, 5.0, and now with 0.05, 0.5"),
        ({"seeds": 2, "keys": {"epochs": (1, 2)}}, f"keys were {RATE} and are now epochs"),
        ({"seeds": 2, "rounds": 7}, "rounds was null and is now 7"),
    ):
        with pytest.raises(BadInput, match=f"holds another search: {difference}"):
            one(out, **changes)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("years of work")
    with pytest.raises(BadInput, match="exists and holds no search"):
        one(tmp_path / "thesis")


def test_a_search_can_be_judged_by_the_excess_over_reference_losses(tmp_path: Path):
    """Both domains have the same loss L, so the worst is the one whose reference is lower."""
    references = {"excess-risk": {"options": {"references": {"0": -1.0, "1": 2.0}}}}
    (plain,) = one(tmp_path / "plain", algorithms_table=references)
    (found,) = one(tmp_path / "out", algorithms_table=references, score="excess")
    assert found.metric == "excess loss"
    for by_loss, by_excess in zip(plain.result.measured, found.result.measured, strict=True):
        assert by_loss.mean is not None
        assert by_excess.mean == pytest.approx(by_loss.mean + 1)
        assert (by_excess.domain, by_excess.gap) == ("0", pytest.approx(3))
    assert found.settings == plain.settings  # the least of both
    with pytest.raises(BadInput, match='holds another search: score was "worst" and is now "exc'):
        one(tmp_path / "plain", algorithms_table=references, score="excess")
    old = json.loads((tmp_path / "plain" / "tune.json").read_text())
    del old["score"]  # as a version without scores wrote it
    (tmp_path / "plain" / "tune.json").write_text(json.dumps(old))
    (again,) = one(tmp_path / "plain", algorithms_table=references)
    assert again.settings == plain.settings


def test_a_domain_that_leaves_the_metric_undefined_is_no_divergence():
    """A c-index without an event, or AUROC of one class: the others decide."""
    look = {"a": {"loss": 1.0, "auroc": 0.7}, "b": {"loss": 2.0, "auroc": None}}
    records = [{"round": t, "heldout": look} for t in (1, 2)]
    summary = {"diverged": None, "higher_is_better": {"auroc": True}}
    assert undefined_in(records, "auroc", ["a", "b"]) == ["b"]
    assert outcome(records, summary, "auroc", ["a", "b"], 2) == (0.7, "a", 0.0)
    assert outcome(records, summary, "auroc", ["b"], 2) == (None, None, None)
    # Where the loss is gone too, or the metric was there once, the model is to blame.
    lost = [*records, {"round": 3, "heldout": {**look, "b": {"loss": None, "auroc": None}}}]
    assert undefined_in(lost, "auroc", ["a", "b"]) == []
    assert outcome(lost, summary, "auroc", ["a", "b"], 2).score is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keys": {"client_optimizer.learning_rat": ()}}, "'learning_rat'; did you mean 'learn"),
        ({"keys": {"windowsize": (1, 2)}}, "'windowsize'; did you mean 'window_size'"),
        ({"keys": {RATE: (0.1, "fast")}}, "learning_rate of client_optimizer 'sgd' is 'fast'"),
        ({"keys": {RATE: (0.1, -1.0)}}, "is -1.0; it must be a number above 0"),
        ({"keys": {"local_steps": ()}}, "there is no number to start from (it is None for fedavg"),
        ({"keys": {"weight_rule.learning_rate": (0.1, 1)}}, "has no effect on any of fedavg"),
        ({"budget": 1}, "--budget is 1, but the first grid of fedavg has 2 settings"),
        ({"seeds": 0}, "number of seeds is 0; it must be at least 1"),
        ({"looks": 0}, "number of looks is 0; it must be at least 1"),
        ({"looks": 11}, "--looks is 11, but a trial has only 10 rounds"),
        ({"target": "1"}, "none of fedavg takes a --target"),
        ({"score": "mean"}, "unknown --score 'mean' (allowed: worst, excess)"),
        ({"score": "excess"}, "--score excess needs a reference loss of 0, 1 in [algorithms.exc"),
        ({"sets": ["weight_rule.learning_rate=2"]}, "has no effect on any of fedavg"),
    ],
)
def test_bad_searches_are_refused_and_leave_nothing(
    tmp_path: Path, changes: dict[str, Any], message: str
):
    with pytest.raises(BadInput) as error:
        one(tmp_path / "out", **changes)
    assert message in str(error.value)
    assert not list(tmp_path.iterdir())


def test_data_without_held_out_clients_is_refused(tmp_path: Path):
    with pytest.raises(BadInput, match="has no split 'heldout' to search on; prepare it"):
        tuning.tune("toy", tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_target_only_training_is_judged_by_its_target(tmp_path: Path):
    (tmp_path / "small.toml").write_text(TASK)
    (found,) = tuning.tune(
        str(tmp_path / "small.toml"), tmp_path / "out", algorithms=["fedavg-target"], seeds=1,
        target="domain1", keys={RATE: (0.1, 0.3)}, budget=2,
    )  # fmt: skip
    assert {m.domain for m in found.result.measured} == {"domain1"}
    assert {m.gap for m in found.result.measured} == {0.0}
