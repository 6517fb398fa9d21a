# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from agnosticfl.runs.cache import cache_folder


def test_where_the_memory_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AGNOSTICFL_CACHE", "off")
    assert cache_folder() is None
    monkeypatch.setenv("AGNOSTICFL_CACHE", "/somewhere")
    assert cache_folder() == Path("/somewhere")
    assert cache_folder(wanted=False) is None
    monkeypatch.delenv("AGNOSTICFL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache_folder() == Path("/caches/agnosticfl")
