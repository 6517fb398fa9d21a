# SPDX-License-Identifier: Apache-2.0
import base64
import re
import shutil
import subprocess
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agnosticfl.errors import BadInput
from agnosticfl.report import tables, write_report
from agnosticfl.report.comparison import compare_runs
from agnosticfl.report.details import counts, ledger, losses, times
from agnosticfl.report.grid import Entry, Grid, grid, in_bytes, latex, markdown, places
from agnosticfl.report.progress import progress
from agnosticfl.report.record import as_json
from agnosticfl.report.runs import Run
from agnosticfl.report.table import results
from agnosticfl.runs.records import read_records
from agnosticfl.runs.resolve import resolve
from agnosticfl.runs.run import Stopped, run
from tests.helpers.reports import synthetic_run


def by_accuracy(algorithm: str, accuracies: Sequence[float], seed: int = 0) -> Run:
    test = {d: {"accuracy": v} for d, v in zip("ab", accuracies, strict=True)}
    return synthetic_run(algorithm, seed, [0.0, 0.0], test=test)


def bold(grid: Grid) -> list[list[bool]]:
    return [[entry.bold for entry in row[1:]] for row in grid.rows]


def texts(grid: Grid) -> list[list[str]]:
    return [[entry.text for entry in row] for row in grid.rows]


def test_cells_are_means_and_sample_deviations_and_the_best_is_bold():
    runs = [
        synthetic_run("afa", 0, [2.0, 3.0]),
        synthetic_run("fedavg", 0, [1.0, 4.0]),
        synthetic_run("afa", 1, [2.0, 3.5]),
        synthetic_run("fedavg", 1, [1.0, 5.0]),
    ]
    (table,) = results(compare_runs(runs))
    assert markdown(table).splitlines() == [
        "toy: test loss, mean (standard deviation) of 2 seeds",
        "",
        "| algorithm | worst | difference | a | **b** |",  # b is the harder domain
        "| --- | ---: | ---: | ---: | ---: |",
        "| FedAvg (uniform) | 4.50 (0.71) | 3.50 (0.71) | **1.00 (0)** | 4.50 (0.71) |",
        "| AFA | **3.25 (0.35)** | **1.25 (0.35)** | 2.00 (0) | **3.25 (0.35)** |",
    ]


# The paper's tables 2 and 4 (accuracy in per cent): where it prints bold, row by row.
STACKOVERFLOW = ([24.5, 27.5], [24.9, 21.2], [25.1, 23.5])
EMNIST = ([82.6, 86.3], [88.2, 75.1], [85.7, 84.9])


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        (STACKOVERFLOW, [[False, True, False], [False, False, False], [True, False, True]]),
        # A model for one domain alone is best there, and the best model for all is bold as well.
        (EMNIST, [[False, True, False], [True, False, False], [True, False, True]]),
    ],
)
def test_bold_is_where_the_paper_prints_bold(
    accuracies: Sequence[Sequence[float]], expected: list[list[bool]]
):
    algorithms = ("fedavg", "fedavg-target", "afa")
    runs = [by_accuracy(a, values) for a, values in zip(algorithms, accuracies, strict=True)]
    (table,) = results(compare_runs(runs))
    paper = [2, 3, 1]  # a, b and the difference; it has no column of the worst
    assert [[row[i] for i in paper] for row in bold(table)] == expected
    assert [entry.bold for entry in table.header[3:5]] == [False, True]  # the target's name


def test_accuracy_is_better_when_higher_and_equal_prints_are_marked_alike():
    runs = [by_accuracy("fedavg", [0.9, 0.5]), by_accuracy("afa", [0.90001, 0.7])]
    (table,) = results(compare_runs(runs))
    assert [row[1] for row in texts(table)] == ["0.500", "0.700"]
    assert bold(table) == [[False, False, True, False], [True, True, True, True]]


def test_worst_and_difference_are_of_each_run_and_then_averaged():
    """Two seeds that swing: each domain has the mean 0.7, but every run a worst one at 0.5."""
    runs = [by_accuracy("afa", [0.5, 0.9]), by_accuracy("afa", [0.9, 0.4], seed=1)]
    comparison = compare_runs(runs)
    (row,) = comparison.rows
    assert row.worst["accuracy"].mean == pytest.approx((0.5 + 0.4) / 2)
    assert row.difference["accuracy"].mean == pytest.approx(((0.9 - 0.5) + (0.9 - 0.4)) / 2)
    assert row.worst_domains["accuracy"] == ["a", "b"]
    (table,) = results(comparison)
    assert texts(table)[0][1:3] == ["0.450 (0.071)", "0.450 (0.071)"]
    assert table.rows[0][1].hint == "a (1 of 2), b (1 of 2)"
    written = as_json(comparison)["algorithms"][0]
    assert written["worst"]["accuracy"]["domains"] == ["a", "b"]
    assert written["difference"]["accuracy"]["values"] == pytest.approx([0.4, 0.5])


def test_a_domain_without_test_examples_stays_in_the_table_and_a_note_names_it():
    test = {"a": {"loss": 1.0}, "b": {"loss": None}}
    run = synthetic_run("afa", 0, [1.0, 2.0], test=test, examples={"test": {"a": 7, "b": 0}})
    comparison = compare_runs([run])
    (table,) = results(comparison)
    assert [entry.text for entry in table.header] == ["algorithm", "worst", "difference", "a", "b"]
    assert texts(table)[0] == ["AFA", "1.00", "0.00", "1.00", "–"]
    assert [entry.text for entry in table.foot[0]] == ["test examples", "7", "", "7", "0"]
    assert table.notes == [
        "No test examples: 'b'; worst and difference are over the other 1 domains."
    ]
    assert as_json(comparison)["algorithms"][0]["test"]["loss"]["b"] is None


def test_a_diverged_model_is_the_worst_there_is():
    def run(algorithm: str, second: float | None) -> Run:
        test = {"a": {"loss": 1.0}, "b": {"loss": second}}
        return synthetic_run(
            algorithm, 0, [1.0, 2.0], test=test, examples={"test": {"a": 7, "b": 3}}
        )

    (table,) = results(compare_runs([run("fedavg", 2.0), run("afa", None)]))
    assert texts(table)[1] == ["AFA", "diverged", "diverged", "1.00", "diverged"]
    assert bold(table)[0] == [True, True, True, True]
    (alone,) = results(compare_runs([run("afa", None)]))  # it has examples, so a value was there
    assert texts(alone)[0] == ["AFA", "diverged", "diverged", "1.00", "diverged"]


def private_run(algorithm: str, second: float | None, **changes: Any) -> Run:
    """A run whose noise hides what the test clients of b say, if that is None."""
    test = {"a": {"loss": 1.0}, "b": {"loss": second}}
    overall = {"test": {"loss": 1.0 if second is None else None}}
    run = synthetic_run(
        algorithm, 0, [1.0, 2.0], test=test, overall=overall, examples={}, **changes
    )
    dp = {"epsilon": 8, "delta": 1e-5}
    records = [record | {"seconds": None} for record in run.records]
    return run._replace(config=msgspec.structs.replace(run.config, dp=dp), records=records)


def test_what_noise_hides_did_not_diverge_and_is_not_absent():
    """In one row alone, and where another row has a value: rows are worst over the same domains."""
    note = "Too few test clients for the noise: 'b'; worst and difference are over the other 1"
    alone = compare_runs([private_run("afa", None)])
    both = compare_runs([private_run("fedavg", 2.0), private_run("afa", None)])
    for comparison in (alone, both):
        (table,) = results(comparison)
        assert table.notes == [f"{note} domains."]
        for row in texts(table):
            assert dict(zip([e.text for e in table.header], row, strict=True))["b"] == "–"
            assert "diverged" not in row
    (table,) = results(both)
    average = [entry.text for entry in table.header].index("all")
    assert [row[average] for row in texts(table)] == ["–", "1.00"]
    assert "diverged" not in str(as_json(both))


def test_public_clients_of_a_private_run_are_never_hidden():
    run = private_run("afa", None)
    dp = {**(run.config.dp or {}), "public": ["test"]}
    run = run._replace(config=msgspec.structs.replace(run.config, dp=dp))
    (table,) = results(compare_runs([run]))
    assert table.notes[0].startswith("No test examples: 'b'")


def test_a_metric_that_private_clients_are_not_asked_for_is_said():
    test = {d: {"loss": 1.0, "accuracy": None} for d in "ab"}
    run = private_run("afa", 1.0)
    run = run._replace(summary=run.summary | {"test": test, "overall": {"test": test["a"]}})
    (_, table) = results(compare_runs([run]))
    said = "Private runs measure the loss and the task's metric alone, and no accuracy."
    assert table.notes == [said]


def test_a_private_run_does_not_say_how_long_it_took():
    table = times(compare_runs([private_run("afa", 1.0)]))
    assert texts(table) == [["AFA, ε = 8", "–", "–"]]
    assert table.notes == ["A private run does not say how long its rounds took."]


def test_a_metric_that_is_not_defined_on_a_domain_is_said_with_the_reason():
    test = {"a": {"loss": 1.0, "auroc": 0.8}, "b": {"loss": 2.0, "auroc": None}}
    classes = {"names": ["no", "yes"], "test": {"a": [4, 3], "b": [0, 5]}}
    run = synthetic_run(
        "afa",
        0,
        [1.0, 2.0],
        test=test,
        examples={"test": {"a": 7, "b": 5}},
        classes=classes,
        clients_with={"test": {"a": 2, "b": 4}},
        higher_is_better={"loss": False, "auroc": True},
    )
    by_loss, by_auroc = results(compare_runs([run]))
    assert by_loss.notes == []
    assert texts(by_auroc)[0] == ["AFA", "0.800", "0.000", "0.800", "–"]
    assert by_auroc.notes == [
        "auroc is not defined on the test examples of 'b' (all are of one class); worst and"
        " difference are over the other 1 domains."
    ]
    assert [[entry.text for entry in row] for row in by_loss.foot] == [
        ["test examples", "5", "", "7", "5"],
        ["of class no / yes", "0 / 5", "", "4 / 3", "0 / 5"],
        ["test clients", "4", "", "2", "4"],
    ]


def test_many_classes_are_counted_from_the_rarest_to_the_most_frequent():
    classes = {"names": list("vwxyz"), "test": {"a": [1, 2, 3, 4, 5], "b": [9, 9, 9, 9, 9]}}
    changes = {"examples": {"test": {"a": 15, "b": 45}}, "overall": {"test": {"loss": 1.5}}}
    run = synthetic_run("afa", 0, [1.0, 2.0], classes=classes, **changes)
    (table,) = results(compare_runs([run]))
    assert [e.text for e in table.foot[1]] == ["of each of 5 classes", "9", "", "10–14", "1–5", "9"]


def test_clients_and_all_examples_have_columns_if_they_were_measured():
    changes = {
        "overall": {"test": {"loss": 1.5}},
        "clients": {"test": {"loss": {"variance": 0.0321, "worst_tenth": 4.0}}},
    }
    (table,) = results(compare_runs([synthetic_run("afa", 0, [1.0, 2.0], **changes)]))
    names = [
        "worst",
        "difference",
        "all",
        "a",
        "b",
        "worst 10 % of clients",
        "variance over clients",
    ]
    assert [entry.text for entry in table.header[1:]] == names
    assert texts(table)[0][1:] == ["2.00", "1.00", "1.50", "1.00", "2.00", "4.00", "0.0321"]


def course(algorithm: str, seed: int, worst: Sequence[float], every: int = 10) -> Run:
    """A run whose held-out accuracy of domain b, the worse one, is given look by look."""
    run = synthetic_run(algorithm, seed, [1.0, 2.0])
    config = msgspec.structs.replace(run.config, metric="accuracy")
    test = {d: {"loss": 1.0, "accuracy": worst[-1]} for d in "ab"}
    record = run.records[0]
    looks = [
        {"a": {"loss": 1.0, "accuracy": 1.0}, "b": {"loss": 2.0, "accuracy": v}} for v in worst
    ]
    records = [
        {**record, "round": t} | ({"heldout": looks[t // every - 1]} if t % every == 0 else {})
        for t in range(1, every * len(worst) + 1)
    ]
    return run._replace(config=config, summary=run.summary | {"test": test}, records=records)


def test_rounds_and_bytes_until_the_worst_domain_stays_as_good_as_with_fedavg():
    comparison = compare_runs(
        [
            course("fedavg", 0, [0.1, 0.2, 0.3, 0.5]),
            course("fedavg", 1, [0.1, 0.2, 0.7, 0.6]),  # reached before its end
            course("fedavg-target", 0, [0.1, 0.2, 0.3, 0.4]),
            course("fedavg-target", 1, [0.1, 0.2, 0.3, 0.6]),
            course("afa", 0, [0.1, 0.5, 0.4, 0.7]),  # reached twice, and kept the second time
            course("afa", 1, [0.6, 0.6, 0.6, 0.6]),
        ]
    )
    costs = tables(comparison)[-1]
    assert "worst domain's accuracy, on held-out clients" in costs.caption
    # 3 bytes per round; 40 and 30 rounds: mean 35, deviation √50.
    assert texts(costs) == [
        ["FedAvg (uniform)", "0.550 (0.071)", "35 (7)", "105.0 (21.2) B"],
        ["FedAvg (b)", "0.500 (0.141)", "40, 1 of 2 seeds", "120.0 B, 1 of 2 seeds"],
        ["AFA", "0.650 (0.071)", "25 (21)", "75.0 (63.6) B"],
    ]


def test_what_was_never_reached_is_said():
    runs = [course("fedavg", 0, [0.1, 0.5]), course("afa", 0, [0.1, 0.4])]
    assert texts(tables(compare_runs(runs))[-1])[1] == ["AFA", "0.400", *["not reached"] * 2]
    runs = [course("fedavg", 0, [0.1, 0.5]), course("afa", 0, [0.6, 0.4])]  # and not kept
    assert texts(tables(compare_runs(runs))[-1])[1] == ["AFA", "0.400", *["not reached"] * 2]


def test_without_held_out_looks_training_losses_tell_the_course():
    runs = [synthetic_run("fedavg", 0, [1.0, 2.0]), synthetic_run("fedavg-target", 0, [1.0, 2.0])]
    costs = tables(compare_runs(runs))[-1]
    assert "loss, on training clients" in costs.caption
    assert texts(costs)[0][1:] == ["2.00", "1", "3.00 B"]
    assert texts(costs)[1][1:] == ["–", "–", "–"]
    (why,) = costs.notes
    assert why == "Trained on one domain, and measured on no other meanwhile: FedAvg (b)."


def test_training_losses_are_averaged_over_a_fiftieth_of_the_rounds():
    run = synthetic_run("fedavg", 0, [1.0, 2.0])
    losses = [[1.0, 4.0], [3.0, None]] * 49 + [[5.0, None], [7.0, 8.0]]  # two rounds at a time
    records = [run.records[0] | {"round": t, "loss": x} for t, x in enumerate(losses, 1)]
    (curve,) = progress(compare_runs([run._replace(records=records)])).curves["FedAvg (uniform)"]
    assert curve.rounds.tolist() == list(range(2, 101, 2))
    assert curve.values.tolist() == [4.0] * 49 + [8.0]
    assert curve.bytes[-1] == 300


def test_without_fedavg_there_is_nothing_to_reach():
    assert len(tables(compare_runs([synthetic_run("afa", 0, [1.0, 2.0])]))) == 1


def test_losses_of_all_splits_counts_and_bytes_stand_side_by_side():
    heldout = {"a": {"loss": 3.0}, "b": {"loss": None}}
    data = {"train": {"a": 1234, "b": 5}, "test": {"a": 1000, "b": 2}}
    run = synthetic_run("afa", 0, [1.0, 2.0], heldout=heldout, examples=data)
    absent = run.records[0] | {"round": 2, "loss": [1.0, None], "count": [4, 0]}
    comparison = compare_runs([run._replace(records=[*run.records, absent])])
    assert texts(losses(comparison)) == [
        ["AFA, a", "1.00", "3.00", "1.00", "1,000"],
        ["AFA, b", "–", "–", "2.00", "2"],
    ]
    assert texts(counts(comparison)) == [
        ["data, train", "1,234", "5"],
        ["data, test", "1,000", "2"],
        ["per round, AFA", "3.5", "0.5 (absent in 50.0 % of the rounds)"],
    ]
    assert texts(ledger(comparison)) == [["AFA", "1 B", "2 B", "3 B", "3 B", "6 B"]]
    assert texts(times(comparison)) == [["AFA", "0.250", "0.500"]]


def test_numbers_have_as_many_digits_as_say_something():
    assert places([53.12, 43.4, 64.2]) == 1
    assert places([101.0, 99.0]) == 1
    assert places([0.857, 0.9, 0.01]) == 3
    assert [in_bytes(n) for n in (0, 999, 999_600, 1.5e9)] == ["0 B", "999 B", "1 MB", "1.5 GB"]


def test_text_is_safe_in_every_form():
    table = grid("50 % of a_b", ("x|y", "{~}"), [[Entry("λ & \\"), Entry("1", bold=True)]])
    assert markdown(table).splitlines()[2:] == [
        r"| x\|y | {~} |",
        "| --- | ---: |",
        "| λ & \\ | **1** |",
    ]
    noted = table._replace(foot=[[Entry("n"), Entry("2")]], notes=["50 % of †"])
    assert markdown(noted).endswith("| n | 2 |\n\n50 % of †\n")
    assert "\\midrule\nn & 2" in latex(noted)
    assert r"50 \% of $\dagger$" in latex(noted)
    assert r"\caption{50 \% of a\_b}" in latex(table)
    assert r"$\lambda$ \& \textbackslash{} & \textbf{1} \\" in latex(table)


def test_runs_that_do_not_belong_together_are_refused():
    with pytest.raises(BadInput, match=r"two runs of AFA have the same seed: \[0, 0\]"):
        compare_runs([synthetic_run("afa", 0, [1.0, 2.0])] * 2)
    run = synthetic_run("afa", 0, [1.0, 2.0])
    other = run._replace(config=msgspec.structs.replace(run.config, task="emnist"))
    with pytest.raises(BadInput, match="runs of different tasks cannot be compared: emnist, toy"):
        compare_runs([run, other])
    other = run._replace(config=msgspec.structs.replace(run.config, seed=1, rounds=7))
    with pytest.raises(
        BadInput, match="AFA differ in more than their seed: rounds was 1000 and is now 7"
    ):
        compare_runs([run, other])


def test_folders_without_runs_are_refused(tmp_path: Path):
    with pytest.raises(BadInput, match="holds no finished run"):
        write_report([tmp_path], tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(BadInput, match="is not a readable run folder"):
        write_report([tmp_path], tmp_path)


class Page(HTMLParser):
    """Counts what a page holds."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_page_is_self_contained(tmp_path: Path):
    for algorithm in ("fedavg", "afa"):
        config = resolve("toy", algorithm, rounds=5, sets=["client_spread=true"])
        run(config, tmp_path / algorithm)
    write_report([tmp_path], tmp_path)
    page = Page((tmp_path / "report.html").read_text())
    names = {"value", "curves", "bytes", "weights", "train", "counts"}
    assert page.tags.count("img") == len(names)
    assert all(address.startswith("data:") for address in page.addresses)
    pictures = [a.split(",")[1] for a in page.addresses if a.startswith("data:image/svg")]
    shown = [base64.b64decode(picture) for picture in pictures]
    assert all(re.search(rb"<svg.*</svg>", picture, re.DOTALL) for picture in shown)
    assert set(shown) == {path.read_bytes() for path in (tmp_path / "plots").glob("*.svg")}
    files = {path.name for path in (tmp_path / "plots").iterdir()}
    assert files == {f"{name}.{form}" for name in names for form in ("png", "svg")}
    said = (tmp_path / "table.md").read_text()
    assert "variance over clients" in said
    assert "There are no looks at held-out clients." in said
    assert (tmp_path / "table.tex").read_text().count(r"\begin{tabular}") == 2


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_the_latex_table_compiles(tmp_path: Path):
    table = grid(
        r"a_b & 50 % of {λ χ²} #1 ~ ^ \ <x|y>", ("–", "$x"), [[Entry("×"), Entry("1", 1, True)]]
    )._replace(foot=[[Entry("ε ≤ 1"), Entry("2", interval="[1, 3]")]], notes=["† & ≥"])
    text = (
        r"\documentclass{article}\usepackage{booktabs}\begin{document}\input{table}\end{document}"
    )
    (tmp_path / "table.tex").write_text(latex(table))
    (tmp_path / "page.tex").write_text(text)
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "page.pdf").exists()


def test_a_run_that_is_not_finished_is_reported_as_far_as_it_goes(tmp_path: Path):
    """Rounds, λ, losses and bytes are there; of the test there is a note and no number."""
    out = tmp_path / "run"
    config = resolve("toy", "afa", rounds=6)
    played: list[object] = []
    with pytest.raises(Stopped):
        run(config, out, on_round=played.append, should_stop=lambda: len(played) >= 3)
    done = len(read_records(out))
    assert 3 <= done < 6
    comparison = write_report([out], out)
    table = (out / "table.md").read_text()
    assert f"Not finished: {done} of 6 rounds are done, and nothing is tested yet." in table
    assert "No test examples" not in table
    page = (out / "report.html").read_text()
    assert 'id="weights"' in page
    assert comparison.rows[0].worst == {}
    # And then it goes on as if nobody had looked.
    run(config, out, resume=True)
    write_report([out], out)
    assert "Not finished" not in (out / "table.md").read_text()
