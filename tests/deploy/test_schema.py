# SPDX-License-Identifier: Apache-2.0
"""What gives numbers their meaning: in what two stores differ, and who is told."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from agnosticfl.core.federated import About
from agnosticfl.data.loaders import synthetic
from agnosticfl.data.loaders.arrays import load
from agnosticfl.data.store import open_store, write_store
from agnosticfl.deploy.flower.client_app import LOG, client_app
from agnosticfl.deploy.flower.node_data import node_data
from agnosticfl.deploy.flower.records import ROUND
from agnosticfl.deploy.flower.server_app import server_data
from agnosticfl.deploy.schema import differences, read_schema, schema_of, shown
from agnosticfl.deploy.task import write_task
from agnosticfl.errors import BadInput
from agnosticfl.runs.about import Facts, facts_of_store
from tests.deploy.fake import FakeGrid
from tests.deploy.federations import toy, toy_store

TABLE = """\
who,house,part,age,chol,cp,ill
a,north,train,40,200,typical,sick
b,north,train,50,,none,healthy
c,south,train,60,240,none,sick
d,south,test,61,250,typical,healthy
"""
HEALTHY = """\
who,house,part,age,chol,cp,ill
e,east,train,70,180,none,healthy
f,east,train,80,190,typical,healthy
"""
ROLES: dict[str, Any] = {"client": "who", "domain": "house", "split": "part", "label": "ill"}


def prepared(folder: Path, name: str, text: str = TABLE, **options: Any) -> Path:
    """A store of such a table."""
    (folder / f"{name}.csv").write_text(text)
    write_store(load([folder / f"{name}.csv"], **(ROLES | options)), folder / name)
    return folder / name


def schema(store: Path) -> dict[str, Any]:
    return schema_of(facts_of_store(open_store(store)))


@pytest.fixture
def agreed(tmp_path: Path) -> Path:
    return prepared(tmp_path, "agreed")


def test_a_schema_is_plain_json_and_has_every_name(agreed: Path):
    found = schema(agreed)
    assert read_schema(json.loads(json.dumps(found)), "here") == found
    assert found["features"] == {
        "x": {"dtype": "float32", "shape": [5]},
        "y": {"dtype": "int32", "shape": []},
    }
    assert [column["name"] for column in found["preparation"]["columns"]] == ["age", "chol", "cp"]
    assert found["preparation"]["label"]["classes"] == ["healthy", "sick"]


def test_hospitals_with_one_preparation_have_one_schema(tmp_path: Path, agreed: Path):
    """However many rows, clients, domains and splits they have, and if all are healthy."""
    own = prepared(tmp_path, "own", HEALTHY, like=str(agreed))
    assert schema(own) == schema(agreed)
    assert differences(schema(agreed), schema(own)) == []


@pytest.mark.attack(
    "a store that numbers classes otherwise",
    "the schema is compared, at start and at each opening",
)
def test_labels_the_other_way_round_are_named(tmp_path: Path, agreed: Path):
    own = prepared(tmp_path, "own", classes="sick,healthy")
    assert differences(schema(agreed), schema(own)) == [
        "label: class 0 is 'sick', the task has 'healthy'",
        "label: class 1 is 'healthy', the task has 'sick'",
    ]
    alone = prepared(tmp_path, "alone", HEALTHY.replace("healthy", "sick"))
    assert differences(schema(agreed), schema(alone))[:2] == [
        "label: class 0 is 'sick', the task has 'healthy'",
        "label: there is no class 1 here, the task has 'sick'",
    ]


def test_reversed_columns_are_named(tmp_path: Path, agreed: Path):
    own = prepared(tmp_path, "own", features="cp,chol,age")
    assert schema(own)["features"] == schema(agreed)["features"]  # the numbers look the same
    assert differences(schema(agreed), schema(own)) == [
        "column 1 is 'cp', the task has 'age' there",
        "column 3 is 'age', the task has 'cp' there",
    ]


def test_means_fills_and_categories_are_named(tmp_path: Path, agreed: Path):
    own = prepared(tmp_path, "own", TABLE.replace("40,200,typical", "70,200,odd"))
    lines = differences(schema(agreed), schema(own))
    assert lines == [
        "mean of 'age' is 60.0, the task has 50.0",
        "fill of 'age' is 60.0, the task has 50.0",
        "category 'odd' of column 'cp' is not in the task",
        "category 'typical' of column 'cp' is in the task, and not here",
    ]


def change(place: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Puts `value` at a place such as "columns.0.mean" of a preparation."""

    def put(raw: dict[str, Any]) -> None:
        *way, last = (int(part) if part.isdigit() else part for part in place.split("."))
        target: Any = raw["preparation"]
        for part in way:
            target = target[part]
        if value is None:
            del target[last]
        else:
            target[last] = value

    return put


@pytest.mark.parametrize(
    ("edit", "line"),
    [
        (change("columns.0.indicator", True), "whether a column says what is missing of 'age' is"),
        (change("columns.1.deviation", 3.0), "deviation of 'chol' is 3.0, the task has 20.0"),
        (change("columns.0", {"kind": "category", "name": "age", "categories": ["4"]}),
         "column 'age' is 'category', the task has 'number'"),
        (change("columns.0", {"kind": "array", "name": "age", "feature": "x", "dtype": "uint8",
                              "shape": [3]}), "column 'age' is 'array', the task has 'number'"),
        (change("columns.0.name", "years"), "column 'years' is not in the task"),
        (change("columns.1", None), "column 'chol' is in the task, and not here"),
        (change("columns.2.categories", ["typical", "none"]),
         "category 1 of column 'cp' is 'typical', the task has 'none' there"),
        (change("label.name", "state"), "the label is 'state', the task has 'ill'"),
        (change("label", {"name": "ill", "classes": None}),
         "label: there are no classes here, the task has some"),
        (change("label.threshold", ">0"), "label: its threshold is '>0', the task has none"),
        (change("missing", "refuse"), "what is done with missing values is 'refuse'"),
        (lambda raw: raw.update(preparation=None), "this data was not"),
        (lambda raw: raw.update(labels=["a"]), "label: there are classes here, the task has none"),
        (lambda raw: raw["features"].pop("y"), "feature 'y' is in the task, and not here"),
        (lambda raw: raw["features"]["x"].update(shape=[6]),
         "feature 'x' is 'float32 [6]', the task has 'float32 [5]'"),
    ],
)  # fmt: skip
def test_every_part_of_a_schema_is_compared(agreed: Path, edit: Any, line: str):
    """Either way round, so that a schema differs from whatever it is not equal to."""
    before, after = schema(agreed), copy.deepcopy(schema(agreed))
    edit(after)
    read_schema(after, "here")
    lines = differences(before, after)
    assert any(line in said for said in lines), lines
    assert differences(after, before)


def test_another_vocabulary_is_noticed_and_other_label_names_too():
    def of(**about: Any) -> dict[str, Any]:
        return schema_of(Facts(About(**about), {"tokens": ("int16", (21,))}))

    words = of(vocabulary=("<pad>", "the", "of"))
    assert "the" not in json.dumps(words)  # by digest alone
    (line,) = differences(words, of(vocabulary=("<pad>", "of", "the")))
    assert line == "the vocabulary has other words, or another order, than the task's"
    (line,) = differences(words, of(vocabulary=("<pad>", "of")))
    assert line == "the number of words in the vocabulary is 2, the task has 3"
    (line,) = differences(words, of())
    assert line == "the number of words in the vocabulary is none, the task has 3"
    one, other = of(labels=("cat", "dog")), of(labels=("dog", "cat", "hen"))
    assert differences(one, other) == [
        "label: class 0 is 'dog', the task has 'cat'",
        "label: class 1 is 'cat', the task has 'dog'",
        "label: class 2, 'hen', is not in the task",
    ]


def test_stores_of_sentences_with_their_own_words_differ(tmp_path: Path):
    for name, words in (("one", 20), ("other", 21)):
        options: Any = {"clients": 4, "examples": 3, "words": words}
        write_store(synthetic.load(kind="sentences", **options), tmp_path / name)
    lines = differences(schema(tmp_path / "one"), schema(tmp_path / "other"))
    assert lines == ["the number of words in the vocabulary is 25, the task has 24"]


def test_five_differences_are_shown_and_the_rest_counted():
    assert shown(list("abcde")) == list("abcde")
    assert shown(list("abcdefg")) == [*"abcde", "and 2 more differences"]


def context(**node_config: Any) -> Context:
    return Context(1, 2**63 + 1, node_config, RecordDict(), {})


def test_a_node_opens_a_store_only_if_it_is_what_was_agreed_on(tmp_path: Path):
    task, store = toy(), toy_store(tmp_path / "store")
    assert node_data(task, context(data=str(store))).data.num_examples == 5
    toy_store(store, "float64")  # the store is replaced while the node runs
    with pytest.raises(BadInput, match=r"store does not fit the task: feature 'x' is 'float64 "):
        node_data(task, context(data=str(store)))
    toy_store(store, labels=("a", "b"))
    with pytest.raises(BadInput, match="there are classes here, the task has none"):
        node_data(task, context(data=str(store)))


def test_the_client_s_log_says_why_and_the_server_hears_nothing_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(LOG, "propagate", True)
    write_task(tmp_path, toy())
    store = toy_store(tmp_path / "store", labels=("a", "b"))
    grid = FakeGrid([client_app(tmp_path)], node_config=lambda _: {"data": str(store)})
    asked = RecordDict({ROUND: ConfigRecord({"round": 1, "token": "t"})})
    message = Message(asked, grid.nodes[0], "train")
    (reply,) = grid.send_and_receive([message])
    assert reply.error.reason == "its own log says why"
    assert "label: there are classes here, the task has none" in caplog.text


def test_a_node_with_a_share_of_other_data_is_refused():
    share = {"partition-id": 0, "num-partitions": 2}
    assert node_data(toy(), context(**share)).data.num_examples > 0
    other = {**toy().schema, "features": {"x": {"dtype": "float32", "shape": [2]}}}
    with pytest.raises(BadInput, match="the task's own data does not fit the task: feature 'x'"):
        node_data(toy()._replace(schema=other), context(**share))


def test_a_node_of_another_version_is_refused():
    with pytest.raises(BadInput, match=r"this is agnosticfl .*, but the task .* made with 0.0.9"):
        node_data(toy()._replace(program="0.0.9"), context(**{"partition-id": 0}))
    with pytest.raises(BadInput, match=r"all machines of a federation need the same version"):
        server_data(toy()._replace(program="0.0.9"), {"data": ""})


def test_a_server_tests_on_what_was_agreed_on(tmp_path: Path):
    task, store = toy(), toy_store(tmp_path / "store")
    assert server_data(task, {"data": str(store)}).test.num_examples == 5
    toy_store(store, "float64")
    with pytest.raises(BadInput, match=r"store does not fit the task: feature 'x' is 'float64 "):
        server_data(task, {"data": str(store)})
    other = {**task.schema, "labels": ["a"]}
    with pytest.raises(BadInput, match="the task's own data does not fit the task"):
        server_data(task._replace(schema=other), {"data": ""})
