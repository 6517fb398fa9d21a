# SPDX-License-Identifier: Apache-2.0
"""What a node keeps between messages, and when it makes it anew."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from agnosticfl.core.federated import FederatedData
from agnosticfl.deploy.flower import client_app as app
from agnosticfl.deploy.flower.records import ARRAYS, ROUND, SUM, to_arrays, to_record
from agnosticfl.deploy.node import contribute
from agnosticfl.deploy.node.contribute import Call, jax_client
from agnosticfl.deploy.node.examples import dealt_to
from agnosticfl.deploy.node.file_cache import FileCache
from agnosticfl.deploy.task import write_task
from agnosticfl.runs.build import build
from tests.deploy.fake import FakeGrid
from tests.deploy.federations import toy, toy_store


def test_a_thing_is_made_anew_when_a_file_is_another(tmp_path: Path):
    folder, file = tmp_path / "folder", tmp_path / "file"
    (folder / "below").mkdir(parents=True)
    file.write_text("one")
    kept, made = FileCache[int](), list[int]()

    def get(name: str = "thing") -> int:
        return kept.get(
            name, [file, folder, tmp_path / "none"], lambda: made.append(1) or len(made)
        )

    assert [get(), get()] == [1, 1]
    assert get("another") == 2
    (folder / "below" / "new").write_text("x")
    assert [get(), get()] == [3, 3]
    before = file.stat()
    file.write_text("two")  # as long as before, and at the same time
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert get() == 3
    (tmp_path / "two").write_text("two")
    os.utime(tmp_path / "two", ns=(before.st_atime_ns, before.st_mtime_ns))
    (tmp_path / "two").replace(file)  # as files are replaced: this one is another
    assert get() == 4
    file.unlink()
    assert get() == 5


def test_what_could_not_be_made_is_tried_again(tmp_path: Path):
    kept = FileCache[int]()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            kept.get("thing", [tmp_path], lambda: 1 // 0)
    assert kept.get("thing", [tmp_path], lambda: 7) == 7


def call(data: FederatedData, t: int, w: float) -> Call:
    config = toy().config
    alpha = np.ones(len(toy().domains), np.float32)
    return Call(config, data, 1, config.seed, t, {"w": np.array(w, np.float32)}, alpha)


def test_a_client_s_program_is_compiled_once_for_the_same_examples(
    monkeypatch: pytest.MonkeyPatch,
):
    """With other examples anew; the answers are those of one that keeps nothing."""
    compiled: list[Call] = []
    make = contribute._program
    monkeypatch.setattr(contribute, "_program", lambda c: compiled.append(c) or make(c))
    train = build(toy().config).data.train
    data, other = dealt_to(train, 1, 4), dealt_to(train, 1, 2)
    client = jax_client()
    calls = [call(data, 1, 0.5), call(data, 2, -0.25), call(other, 2, -0.25)]
    answers = [client(asked) for asked in calls]
    assert [asked.data is data for asked in compiled] == [True, False]
    for asked, found in zip(calls, answers, strict=True):
        for one, two in zip(found, jax_client()(asked), strict=True):
            np.testing.assert_array_equal(np.asarray(one), np.asarray(two))


def ask(grid: FakeGrid, t: int = 1) -> RecordDict:
    alpha = np.ones(len(toy().domains), np.float32)
    arrays = {"params.w": np.array(0.5, np.float32), "alpha": alpha}
    content = RecordDict(
        {ROUND: ConfigRecord({"round": t, "token": "t"}), ARRAYS: to_record(arrays)}
    )
    (reply,) = grid.send_and_receive([Message(content, grid.nodes[0], "train")])
    return reply.content


def test_a_node_opens_its_store_once_and_again_when_it_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A node in the clear opened it twice for every message."""
    opened: list[Any] = []
    theirs = app.node_data
    monkeypatch.setattr(app, "node_data", lambda *a: opened.append(a) or theirs(*a))
    write_task(tmp_path, toy())
    store = toy_store(tmp_path / "store")
    grid = FakeGrid([app.client_app(tmp_path)], node_config=lambda _: {"data": str(store)})
    first, again = (to_arrays(ask(grid).array_records[SUM])["float32"] for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert len(opened) == 1
    toy_store(store)
    ask(grid, 2)
    assert len(opened) == 2
