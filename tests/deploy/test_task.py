# SPDX-License-Identifier: Apache-2.0
"""The file task.json: what it covers, and that nothing but itself is read from it."""

import copy
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agnosticfl import __version__
from agnosticfl.deploy.task import FederatedTask, new_task, read_task, terms, write_task
from agnosticfl.errors import BadInput
from agnosticfl.runs.build import build
from agnosticfl.runs.resolve import resolve
from tests.deploy.federations import toy
from tests.helpers.stores import source

KEY = "ab" * 32


@pytest.fixture(scope="module")
def task() -> FederatedTask:
    """With everything that a file can hold."""
    from agnosticfl.data.collect import collect_splits

    with pytest.warns(UserWarning, match="very few rows"):
        data = collect_splits(source("classes"))
    made = new_task(toy().config, data, KEY)
    return made._replace(run="toy-afa-seed0-00112233")


def write(folder: Path, raw: Any) -> None:
    (folder / "task.json").write_text(json.dumps(raw))


def written(folder: Path, task: FederatedTask) -> Any:
    write_task(folder, task)
    return json.loads((folder / "task.json").read_text())


def test_a_task_is_read_back(tmp_path: Path, task: FederatedTask):
    write_task(tmp_path, task)
    assert read_task(tmp_path) == task
    assert terms(read_task(tmp_path)) == terms(task)
    assert terms(task)["program"] == __version__


def test_runs_have_names_of_their_own():
    data = build(toy().config).data
    one, other = (new_task(toy().config, data).run for _ in range(2))
    assert one != other
    assert re.fullmatch(r"toy-afa-seed0-[0-9a-f]{8}", one)
    long = msgspec.structs.replace(toy().config, task="ü" * 100)
    names = [new_task(long, data).run for _ in range(2)]
    assert len(set(names)) == 2
    assert all(len(name.encode()) <= 64 for name in names)


def test_another_client_rate_is_another_task():
    rates = (resolve("toy", sets=[f"client_optimizer.learning_rate={r}"]) for r in (0.1, 7.0))
    one, other = (terms(toy()._replace(config=config)) for config in rates)
    assert one["task"] != other["task"]
    assert (one["schema"], one["program"]) == (other["schema"], other["program"])


def places(raw: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of a JSON value."""
    yield way
    items: Any = (
        raw.items() if isinstance(raw, dict) else enumerate(raw) if isinstance(raw, list) else ()
    )
    for key, value in items:
        yield from places(value, (*way, key))


def put(raw: Any, way: tuple[Any, ...], value: Any) -> Any:
    """`raw` with another value at a place."""
    if not way:
        return value
    raw = copy.deepcopy(raw)
    target = raw
    for key in way[:-1]:
        target = target[key]
    target[way[-1]] = value
    return raw


def read_or_refused(folder: Path) -> FederatedTask | None:
    """The task of a file; None if it is refused, which must be one line of bearable length."""
    try:
        return read_task(folder)
    except BadInput as error:
        line = str(error)
    assert "\n" not in line
    assert len(line) < 600
    return None


NONSENSE: list[Any] = [
    *(None, True, 0, -1, 7, 7.5, 1e300, "", "x", "\n", "\ud800", "é" * 70, [], {}, [[]], {"": {}}),
    *([1, "a"], {"name": "x"}, 2**70, "y" * 10_000),
]


def test_every_place_changed_is_refused_or_changes_the_terms(tmp_path: Path, task: FederatedTask):
    """So an operator cannot change anything in her copy that the others do not notice."""
    raw, agreed = written(tmp_path, task), terms(task)
    changed = refused = 0
    for way in places(raw):
        for value in NONSENSE:
            other = put(raw, way, value)
            if other == raw:
                continue
            write(tmp_path, other)
            found = read_or_refused(tmp_path)
            if found is None:
                refused += 1
            elif found != task:  # 7 for 7.0 and the like
                changed += 1
                assert terms(found) != agreed, (way, value)
    assert min(changed, refused) > 100


def test_every_place_removed_or_added_is_refused_or_changes_the_terms(
    tmp_path: Path, task: FederatedTask
):
    raw, agreed = written(tmp_path, task), terms(task)
    for way in places(raw):
        target: Any = raw
        for key in way:
            target = target[key]
        if isinstance(target, dict):
            smaller = [
                put(raw, way, {k: v for k, v in target.items() if k != key}) for key in target
            ]
            others = [*smaller, put(raw, way, target | {"more": 1})]
        elif isinstance(target, list):
            others = [
                put(raw, way, target[1:]),
                put(raw, way, target[::-1]),
                put(raw, way, target * 2),
            ]
        else:
            continue
        for other in others:
            write(tmp_path, other)
            found = read_or_refused(tmp_path)
            assert found is None or found == task or terms(found) != agreed, way


def test_damaged_bytes_are_refused_in_one_line_or_change_the_terms(
    tmp_path: Path, task: FederatedTask
):
    write_task(tmp_path, task)
    whole, agreed = (tmp_path / "task.json").read_bytes(), terms(task)
    rng = random.Random(0)
    for _ in range(1000):
        data = bytearray(whole)
        for _ in range(rng.choice([1, 1, 1, 4])):
            at = rng.randrange(len(data))
            cut = rng.choice([0, 1, 1, 50])
            data[at : at + cut] = bytes(
                rng.choice(b'0179.e-+{}[]",:\\ntu\x00\xff\n')
                for _ in range(rng.choice([0, 1, 1, 3]))
            )
        (tmp_path / "task.json").write_bytes(data)
        found = read_or_refused(tmp_path)
        assert found is None or found == task or terms(found) != agreed


@pytest.mark.parametrize(
    "text",
    ["", "[" * 100_000, '{"config":' * 50_000, "null", "NaN", "[]", "\ufeff{}", '{"config": {}}'],
)
def test_what_is_no_task_at_all_is_one_line(tmp_path: Path, text: str):
    (tmp_path / "task.json").write_text(text)
    assert read_or_refused(tmp_path) is None


def test_nesting_inside_a_task_is_one_line(tmp_path: Path, task: FederatedTask):
    text = json.dumps(written(tmp_path, task))
    for place in ('"name": "sgd"', '"missing": "impute"'):
        assert place in text
        deep = text.replace(place, f'{place}, "deep": {"[" * 5000}{"]" * 5000}', 1)
        (tmp_path / "task.json").write_text(deep)
        found = read_or_refused(tmp_path)
        assert found is None or terms(found) != terms(task)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"domains": ["a", "a"]}, "domains: a name is there twice"),
        ({"domains": []}, "length >= 1"),
        ({"run": "ü" * 40}, "run has over 64 bytes"),
        ({"run": "a\nb"}, "`str` matching regex"),
        ({"server_key": "ab" * 31}, "`str` matching regex"),
        ({"server_key": f"{KEY}\n"}, "`str` matching regex"),
        ({"schema": {}}, "Object missing required field `features`"),
        ({"more": 1}, "unknown field `more`"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, task: FederatedTask, change: Any, message: str):
    write(tmp_path, written(tmp_path, task) | change)
    with pytest.raises(BadInput, match=f"task.json is no task of a federation: .*{message}"):
        read_task(tmp_path)
