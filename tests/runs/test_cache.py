# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from typing import Any

import jax
import pytest

from agnosticfl.runs.cache import cache_folder, remember_compilations


def test_where_the_memory_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AGNOSTICFL_CACHE", "off")
    assert cache_folder() is None
    monkeypatch.setenv("AGNOSTICFL_CACHE", "/somewhere")
    assert cache_folder() == Path("/somewhere")
    assert cache_folder(wanted=False) is None
    monkeypatch.delenv("AGNOSTICFL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache_folder() == Path("/caches/agnosticfl")


def test_compilations_are_remembered_there_unless_jax_was_told_where(tmp_path: Path):
    config: Any = jax.config
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    told = {name: getattr(config, name) for name in names}
    remember_compilations(tmp_path)
    assert config.jax_compilation_cache_dir == told["jax_compilation_cache_dir"] is not None
    try:
        jax.config.update("jax_compilation_cache_dir", None)
        remember_compilations(None)
        assert config.jax_compilation_cache_dir is None
        remember_compilations(tmp_path)
        assert config.jax_compilation_cache_dir == str(tmp_path / "compiled")
    finally:
        for name, value in told.items():
            jax.config.update(name, value)
