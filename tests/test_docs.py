# SPDX-License-Identifier: Apache-2.0
"""What the pages in docs/ show is what the program is and does."""

import json
import re
import shlex
import shutil
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import agnosticfl
from tests.helpers.command_line import called, process, several
from tests.helpers.pages import script

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "agnosticfl"
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)


def test_every_line_of_the_algorithm_is_quoted_from_the_code():
    page = (ROOT / "docs" / "algorithm.md").read_text()
    code = {line.strip() for file in SOURCE.rglob("*.py") for line in file.read_text().splitlines()}
    for line in "".join(re.findall(r"```\n(.*?)```", page, re.DOTALL)).splitlines():
        assert line.strip() in code, line
    # Lines of Algorithm 1: all of both procedures but those that only begin or end a block.
    found = ", ".join(re.findall(r"^\*\*([\d, ]+)\.\*\*", page, re.MULTILINE))
    assert found == "2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 2, 3, 4, 5, 7, 8, 9, 10, 13"


def test_every_file_that_the_algorithm_page_names_is_there():
    page = (ROOT / "docs" / "algorithm.md").read_text()
    for name in set(re.findall(r"`([\w/]+\.py)`", page)):
        assert (SOURCE / name).is_file(), name


def test_the_map_names_every_file():
    page = (ROOT / "docs" / "design.md").read_text()
    files = [f for f in SOURCE.rglob("*.py") if f.name not in ("__init__.py", "__main__.py")]
    missing = [str(f.relative_to(SOURCE)) for f in files if f"{f.name}`" not in page]
    assert missing == []


@pytest.mark.parametrize("name", ["tasks", "commands"])
def test_a_page_that_a_script_makes_is_up_to_date(name: str):
    page = (ROOT / "docs" / f"{name}.md").read_text()
    assert script(name).page() == page, f"run .venv/bin/python docs/{name}.py"


def test_the_pictures_of_the_first_page_are_up_to_date():
    drawn, folder = script("images/ways"), ROOT / "docs" / "images"
    for name, made in {"way": drawn.way(), "round": drawn.one_round()}.items():
        assert (folder / f"{name}.svg").read_text() == made, (
            "run .venv/bin/python docs/images/ways.py"
        )


def test_every_picture_is_made_by_a_script():
    folder = ROOT / "docs" / "images"
    reports = [f"{name}.png" for name in script("images/reports").PICTURES]
    pictures = [file for file in folder.rglob("*.*g") if file.suffix in (".png", ".svg")]
    there = [file.relative_to(folder).as_posix() for file in pictures]
    assert sorted(["domains.png", "way.svg", "round.svg", *reports]) == sorted(there)


def test_pictures_of_runs_that_are_there_are_taken_from_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """One plot is copied; of the other the script draws the rows under titles of its own."""
    made, runs, images = script("images/reports"), tmp_path / "runs", tmp_path / "images"
    (images / "results").mkdir(parents=True)
    monkeypatch.setattr(made, "IMAGES", images)
    first, _ = made.PICTURES["toy-value"]
    ours, _ = made.PICTURES["results/stackexchange-weights"]
    done = called("run", "toy", "--rounds", "2", "--out", str(runs / first.folder))
    assert done.returncode == 0, done.stderr
    for row in ours.rows.values():
        shutil.copytree(runs / first.folder, runs / ours.folder / row / "seed0")
    made.main(["toy-value", "results/stackexchange-weights", "--runs", str(runs)])
    copied = (images / "toy-value.png").read_bytes()
    assert copied == (runs / first.folder / "plots" / "value.png").read_bytes()
    assert (images / "results" / "stackexchange-weights.png").read_bytes()[1:4] == b"PNG"
    folders = {title: runs / ours.folder / row for title, row in ours.rows.items()}
    assert [row.title for row in made.titled(folders).rows] == list(ours.rows)


def test_without_such_runs_the_commands_for_them_are_printed(capsys: pytest.CaptureFixture[str]):
    made = script("images/reports")
    made.main(["results/adult-curves"])
    report, _ = made.PICTURES["results/adult-curves"]
    assert "\n".join(report.commands) in capsys.readouterr().out


# A figure and its interval; the spread over seeds may stand between them.
FIGURE = re.compile(r"(\d+\.\d+)\*{0,2}(?: \([^()]*\))?\*{0,2} (\[[\d., ]+\])")


def test_the_first_table_of_the_results_has_the_figures_of_the_sections():
    page = (ROOT / "docs" / "results.md").read_text()
    start, sections = page.split("## How the tables were made")
    known = set(FIGURE.findall(sections))
    rows = [line.strip("|").split(" | ") for line in start.splitlines() if line.startswith("|")]
    found = [figure for row in rows[2:] for cell in row[1:5] for figure in FIGURE.findall(cell)]
    assert len(found) > 80
    assert [figure for figure in found if figure not in known] == []


def test_the_first_table_of_the_results_has_every_task_but_those_that_could_not_be_run():
    start, rest = (ROOT / "docs" / "results.md").read_text().split("## How the tables were made")
    unrun = rest.split("## What the paper has and we could not run")[1]
    names = {file.stem for file in (SOURCE / "tasks").glob("*.toml")}
    shown = {name for name in names if re.search(rf"^\| \[?`{name}`", start, re.MULTILINE)}
    assert {name for name in names - shown if f"agnosticfl compare {name} " not in unrun} == set()


def test_every_option_of_a_task_is_explained():
    page = (ROOT / "docs" / "tasks.md").read_text()
    assert re.findall(r"^ *- (?:\*\*)?`\w+`(?:\*\*:)? \([^:\n]*\)$", page, re.MULTILINE) == []


def test_every_public_name_is_in_the_reference():
    page = (ROOT / "docs" / "api.md").read_text()
    names = re.findall(r"^::: agnosticfl\.(.*)$", page, re.MULTILINE)
    assert sorted(names) == agnosticfl.__all__


def test_the_worked_task_is_complete_and_its_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    page = (ROOT / "docs" / "language.md").read_text()
    (task,) = re.findall(r"```toml\n(# Whether.*?)```", page, re.DOTALL)
    (tmp_path / "visits.toml").write_text(task)
    (columns,) = re.findall(r"```csv\n(.*?)\n", page)
    rng = np.random.default_rng(0)
    rows = [
        f"p{patient:03d},{'coast' if patient % 4 == 0 else 'north'},{age},{pressure},{glucose:.1f},"
        f"2020,{'yes' if glucose + age / 60 > 2 else 'no'}"
        for patient in range(120)
        for age, pressure, glucose in zip(
            rng.integers(30, 90, 3), rng.integers(100, 160, 3), rng.normal(1, 0.3, 3), strict=True
        )
    ]
    (tmp_path / "visits.csv").write_text("\n".join([columns, *rows]) + "\n")
    commands = re.findall(r"^agnosticfl (.*visits.*)$", page, re.MULTILINE)
    assert [words.split()[0] for words in commands] == ["data", "data", "show", "compare"]
    monkeypatch.chdir(tmp_path)
    for line in commands:
        words = line.split()
        # Fewer rounds, so that a test takes seconds; with looks at the held-out patients.
        done = called(*words, *["--rounds", "40"] * (words[0] == "compare"))
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "visits" / "report.html").exists()


def models_page() -> tuple[list[str], str, list[list[str]], str]:
    """The examples of models, the task, its commands, and the same from Python."""
    page = (ROOT / "docs" / "models.md").read_text()
    *models, python = PYTHON.findall(page)
    (task,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    lines = re.findall(r"^agnosticfl (.*my-task.*)$", page, re.MULTILINE)
    return models, task, [shlex.split(line) for line in lines], python


# The first is compiled soonest; the pages of the others are the same but for the model.
@pytest.mark.parametrize(
    "library",
    [
        "from_functions",
        pytest.param("from_nnx", marks=pytest.mark.slow),
        pytest.param("from_equinox", marks=pytest.mark.slow),
    ],
)
def test_a_model_of_one_s_own_is_trained_by_commands_and_from_python(library: str, tmp_path: Path):
    models, task, commands, python = models_page()
    (model,) = [code for code in models if f"afl.{library}(" in code]
    (tmp_path / "my_model.py").write_text(model)
    (tmp_path / "my-task.toml").write_text(task)
    lines = [[*words, *["--rounds", "3"] * (words[0] == "run")] for words in commands]
    wrong = ["run", "my-task.toml", "--set", "model.width=wide"]
    *done, refused = several(*lines, wrong, cwd=tmp_path)
    for each in done:
        assert each.returncode == 0, each.stderr
    printed = process([sys.executable, "-c", python], tmp_path)
    assert printed.returncode == 0, printed.stderr
    assert float(re.findall(r"rare.*'accuracy': ([\d.]+)", printed.stdout)[0]) > 0.9
    narrow, wide = (tmp_path / "runs" / name for name in ("narrow", "wide"))
    for folder, width in ((narrow, 32), (wide, 64)):
        config = json.loads((folder / "config.json").read_text())
        assert config["model"]["width"] == width
        assert any(f"{width}" in shape for shape in config["model_shapes"].values())
        summary = json.loads((folder / "summary.json").read_text())
        exact = {32: "auroc", 64: "balanced_accuracy"}[width]  # as the model has it, and --set
        assert {"loss", "accuracy", exact} <= set(summary["higher_is_better"])
    assert refused.returncode == 2
    assert "width of model 'my_model:net' is 'wide'; it must be a whole number" in refused.stderr


def test_contributing_quotes_a_model():
    quoted, _ = PYTHON.findall((ROOT / "CONTRIBUTING.md").read_text())
    assert quoted in (SOURCE / "models" / "toy_point.py").read_text()


@pytest.mark.slow
def test_the_module_of_one_s_own_in_contributing_works(tmp_path: Path):
    _, own = PYTHON.findall((ROOT / "CONTRIBUTING.md").read_text())
    (tmp_path / "mine.py").write_text(own)
    model = ["--set", 'model={name="mine:line", slope=2.0}']
    metrics = ["--set", "model.metrics=['accuracy', 'mine:top_two']", "--set", "metric=top_two"]
    line, metric = several(
        ["run", "toy", "--rounds", "2", *model, "--out", "line"],
        ["run", "synthetic-points", "--rounds", "2", *metrics, "--out", "metric"],
        cwd=tmp_path,
        path=tmp_path,
    )
    for each in (line, metric):
        assert each.returncode == 0, each.stderr
    assert json.loads((tmp_path / "line" / "config.json").read_text())["model"]["slope"] == 2
    summary = json.loads((tmp_path / "metric" / "summary.json").read_text())
    for values in summary["test"].values():
        assert values["top_two"] >= values["accuracy"]


def test_the_licences_of_all_that_is_needed_are_listed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    names = {re.split(r"\W*[\[=><]", each)[0] for needed in lists for each in needed}
    rows = re.findall(
        r"^\| ([a-z].*?) \|", (ROOT / "docs" / "licences.md").read_text(), re.MULTILINE
    )
    listed = [name for row in rows for name in row.split(", ") if name != "package"]
    assert sorted(listed) == sorted(names - {"agnosticfl"})


def test_the_page_on_security_lists_the_attacks_that_are_played():
    """As `make attack` does, without their results."""
    mark = re.compile(r'^@pytest\.mark\.attack\(\s*"([^"]+)",\s*"([^"]+)",?\s*\)', re.MULTILINE)
    files = (ROOT / "tests").rglob("test_*.py")
    played = {attack for file in files for attack in mark.findall(file.read_text())}
    page = (ROOT / "docs" / "security.md").read_text()
    *_, table = page.split("| attack | held off by |\n|---|---|\n")
    rows = [tuple(line.strip("| ").split(" | ")) for line in table.strip().splitlines()]
    assert rows == sorted(played)
