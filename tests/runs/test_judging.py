# SPDX-License-Identifier: Apache-2.0
"""Runs that clients evaluate, against the server's evaluation of the same examples."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from agnosticfl.core.keeping import kept_apart
from agnosticfl.errors import BadInput
from agnosticfl.files import read_json
from agnosticfl.registry import MODELS, SOURCES
from agnosticfl.report import load_runs, write_report
from agnosticfl.runs.build import Built, assemble, build, build_engine
from agnosticfl.runs.config import Config
from agnosticfl.runs.parts import kept_by_clients
from agnosticfl.runs.questions import Question, num_questions, question, split_asked
from agnosticfl.runs.resolve import resolve
from agnosticfl.runs.run import run
from tests.helpers.runs import results

METRICS = ["accuracy", "auroc", "f1", "calibration_error"]
SETS = ["data.clients=60", "data.examples=10", "evaluation_every=2", "mean_model=true"]


def config(*sets: str, task: str = "synthetic-points", rounds: int = 4) -> Config:
    named = [f"model.metrics={METRICS}".replace("'", '"')]
    return resolve(task, rounds=rounds, sets=[*SETS, *named, *sets])


def by_clients(*sets: str) -> Config:
    return config("evaluation_by=clients", "evaluation_share=0.4", *sets)


def played(folder: Path, own: Config, make: Any = build) -> dict[str, Any]:
    run(own, folder, make_built=make)
    return read_json(folder / "summary.json")


def at_one_place(own: Config, *_: Any) -> Built:
    """What clients keep, as splits of a server."""
    model, data = MODELS.build(own.model, "model"), SOURCES.build(own.data, "data")
    keeping = msgspec.structs.replace(own, evaluation_by="clients", evaluation_share=0.4)
    return assemble(own, model, kept_by_clients(keeping, data), build_engine(own, None, None))


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "clients"
    played(folder, by_clients())
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "server"
    played(folder, config("evaluation_share=0.4"), at_one_place)
    return folder


def assert_alike(found: dict[str, Any], expected: dict[str, Any], within: Any = None) -> None:
    """Domain by domain and metric by metric; counts exactly, AUROC within what is stated."""
    assert found.keys() == expected.keys()
    for domain, values in expected.items():
        assert found[domain].keys() == values.keys()
        for name, value in values.items():
            room = 0.03 if within is None else within.get(domain, {}).get(name, 0)
            other = found[domain][name]
            if name == "auroc":
                assert abs(other - value) <= room + 1e-12
            elif name in ("accuracy", "f1"):
                assert other == value
            else:
                assert other == pytest.approx(value, rel=1e-12)


def test_it_is_the_server_s_run_on_the_same_rows(clients: Path, server: Path):
    """So nothing that is kept is trained on, and looks see what they should."""
    here, there = results(clients), results(server)
    for mine, theirs in zip(here, there, strict=True):
        asked = {name: mine.pop(name) for name in [*mine] if name.startswith("evaluation_bytes")}
        assert len(asked) == (2 if "heldout" in mine else 0)  # a server's own look sends nothing
        assert mine.keys() == theirs.keys()
        for name in mine.keys() - {"heldout"}:
            assert mine[name] == theirs[name], name
        if "heldout" in mine:
            assert_alike(mine["heldout"], theirs["heldout"])
    assert sum("heldout" in record for record in here) == 2


@pytest.mark.parametrize("which", ["last", "mean", "best"])
def test_tables_of_all_its_models_are_those_of_the_server(clients: Path, server: Path, which: str):
    here, there = (read_json(folder / "summary.json") for folder in (clients, server))
    assert here["examples"]["test"] == there["examples"]["test"]
    assert here["examples"]["heldout"] == there["examples"]["heldout"]
    if which != "last":
        here, there = here[which], there[which]
        assert (here["round"], here.get("domain")) == (there["round"], there.get("domain"))
    for split in ("heldout", "test"):
        assert_alike(here[split], there[split], here["within"][split])
        all_of_them = {"": here["overall"][split]}
        assert_alike(all_of_them, {"": there["overall"][split]}, here["within"][split])


def test_the_server_s_own_test_split_is_shown_beside_and_can_differ(clients: Path):
    found = read_json(clients / "summary.json")
    expected = build(config()).data.test
    assert sum(found["examples"]["server"].values()) == expected.num_examples
    assert found["server"].keys() == found["test"].keys()
    assert found["server"] != found["test"]


def test_its_report_says_who_measured_and_how_exactly(clients: Path, tmp_path: Path):
    write_report([clients], tmp_path)
    notes = read_json(tmp_path / "comparison.json")["notes"]
    assert any("clients measured it, on examples that they keep" in n for n in notes["accuracy"])
    assert any("within ±0.0" in n for n in notes["auroc"])
    assert not any("within" in n for n in notes["accuracy"])
    assert load_runs([clients], "best")[0].summary["test"]
    assert not list((clients / "predictions").glob("*"))


@pytest.mark.slow
def test_secure_sums_say_the_same(clients: Path, tmp_path: Path):
    """In fixed point λ and w differ by little from those in the clear; the same rows are kept."""
    found = played(tmp_path / "run", by_clients("secure.name=simulate"))
    expected = read_json(clients / "summary.json")
    assert found["examples"] == expected["examples"]
    for domain, values in expected["test"].items():
        for name, value in values.items():
            assert found["test"][domain][name] == pytest.approx(value, abs=2e-2)
    limited = played(tmp_path / "few", by_clients("secure.name=simulate", "secure.examples=2"))
    kept = kept_apart({"train": build(config()).data.train}, 0.4, most=2)["test"]
    assert sum(limited["examples"]["test"].values()) == kept.num_examples < 120


def test_a_store_s_own_splits_can_be_kept(tmp_path: Path):
    """Then the clients of those splits are asked: the same table as the server's."""
    found = played(tmp_path / "a", config("evaluation_by=clients", "evaluation_share=0"))
    expected = played(tmp_path / "b", config())
    assert "server" not in found
    for split in ("heldout", "test"):
        assert found["examples"][split] == expected["examples"][split]
        assert_alike(found[split], expected[split], found["within"][split])


def test_held_out_weights_follow_what_clients_keep(tmp_path: Path):
    found = played(tmp_path / "a", by_clients("weights_follow=heldout"))
    expected = played(
        tmp_path / "b", config("weights_follow=heldout", "evaluation_share=0.4"), at_one_place
    )
    assert found["domain_weights"] == expected["domain_weights"]


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["client_spread=true"], "nobody sees a single one's values"),
        (["evaluation_share=1.0"], "evaluation_share in task"),
    ],
)
def test_what_clients_cannot_evaluate_is_refused(sets: list[str], message: str):
    with pytest.raises(BadInput, match=message):
        build(by_clients(*sets))


def test_looks_need_examples_to_look_at():
    own = config("evaluation_by=clients", "evaluation_share=0", "data.heldout_fraction=0.0")
    with pytest.raises(BadInput, match="clients have no split 'heldout'"):
        build(own)


def test_no_two_questions_have_one_number_and_they_come_in_order():
    own = config(rounds=7)
    looks = [question(own, "look", t, "heldout") for t in (2, 4, 6)]
    end = [question(own, "last", 7, split) for split in ("heldout", "test")]
    end += [question(own, "mean", 7, split) for split in ("heldout", "test")]
    end += [question(own, "best", 4, "test")]
    numbers = [asked.number for asked in (*looks, *end)]
    assert numbers == list(range(1, num_questions(own) + 1))
    for asked in (*looks, *end):
        assert split_asked(own, asked.number) == asked.split


def test_the_same_model_and_part_are_one_question():
    own = config(rounds=6)
    assert question(own, "best", 4, "heldout") == Question(2, "heldout", look=False)
    assert question(own, "last", 6, "heldout").number == 3
    last, best = (question(own, which, 6, "test") for which in ("last", "best"))
    assert last == best
    assert question(own, "mean", 6, "heldout").number > 3


def test_numbers_of_looks_are_those_of_the_kept_rows(clients: Path):
    kept = kept_by_clients(by_clients(), build(config()).data)
    assert kept.heldout is not None
    found = read_json(clients / "summary.json")["examples"]
    assert sum(found["heldout"].values()) == kept.heldout.num_examples
    assert sum(found["train"].values()) == kept.train.num_examples
    np.testing.assert_array_equal(kept.train.client_ids, build(config()).data.train.client_ids)
