# SPDX-License-Identifier: Apache-2.0
"""Spans, and the timeline that is made of them."""

import threading

import pytest
from benchmarks.timeline import MAIN, compilations, self_seconds, table

from agnosticfl.spans import Span, listen, span


def test_spans_are_told_to_whoever_listens():
    heard: list[Span] = []
    with span("before"):
        pass
    listen(heard.append)
    try:
        with span("outer"), span("inner"):
            pass
        with pytest.raises(KeyError), span("failing"):
            raise KeyError
        thread = threading.Thread(target=_spanned, name="another")
        thread.start()
        thread.join()
    finally:
        listen(None)
    with span("after"):
        pass
    assert [one.name for one in heard] == ["inner", "outer", "failing", "there"]
    assert [one.thread for one in heard] == [MAIN, MAIN, MAIN, "another"]
    inner, outer = heard[:2]
    assert outer.start <= inner.start <= inner.end <= outer.end


def _spanned() -> None:
    with span("there"):
        pass


def test_every_instant_counts_for_the_innermost_span():
    spans = [
        ("rounds", 2.0, 5.0),
        ("tracing", 2.0, 3.0),  # starts with the one that it is in
        ("tracing", 2.5, 3.0),  # and has one of its own name within it, and with its end
        ("report", 6.0, 9.0),
        ("plots", 7.0, 8.0),
    ]
    found = self_seconds(spans, 1.0, 10.0)
    assert found == {"": 3.0, "rounds": 2.0, "tracing": 1.0, "report": 2.0, "plots": 1.0}
    assert sum(found.values()) == 9.0
    assert self_seconds([], 0.0, 2.0) == {"": 2.0}


def test_the_table_has_the_medians_of_what_took_time():
    def one(rounds: float) -> dict[str, object]:
        return {
            "wall_s": 10.0 * rounds,
            "cpu_s": 5.0,
            "main_thread_s": {"rounds": rounds, "looks": 0.001, "new": 0.5},
            "other_threads_s": {"checkpoints": 0.25},
            "compiling_s": {"jit(f), main thread": rounds, "jit(g), another": 0.1},
            "load": 2.0,
        }

    lines = table([one(1.0), one(4.0), one(2.0)], "run toy", empty=True).splitlines()
    assert lines[0] == "| `run toy`, empty caches | s, main thread | s, other threads |"
    assert lines[2:5] == [
        "| rounds | 2.00 |  |",
        "| checkpoints | 0.00 | 0.25 |",
        "| new | 0.50 |  |",
    ]
    assert lines[5] == "| **on the clock** (median of 3, load 2.0) | **20.00** | |"
    assert lines[7:] == ["| compiling of jit(f), main thread | 2.00 | |"]


def test_a_program_is_named_with_the_thread_that_compiled_it():
    spans = [
        ("compiling", 1.0, 3.0, MAIN, "jit(f)"),
        ("tracing", 3.0, 4.0, MAIN, "jit(f)"),
        ("compiling", 1.5, 2.0, "another", "jit(g)"),
        ("compiling", 4.0, 5.0, MAIN, "jit(f)"),  # for other shapes
    ]
    assert compilations(spans) == {"jit(f), main thread": 3.0, "jit(g), another": 0.5}
