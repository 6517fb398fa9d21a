# SPDX-License-Identifier: Apache-2.0
"""Tests are stricter than users need to be: no silent broadcasting, no silent change of dtype."""

import os
import shutil
import tempfile
from pathlib import Path

import jax
import pytest
from hypothesis import settings

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

# Properties compile the same round again and again with other data, and so do the processes that
# tests start; none of them touches the memory of the user's own runs.
memory = tempfile.mkdtemp(prefix="agnosticfl-tests-")
os.environ["AGNOSTICFL_CACHE"] = memory
jax.config.update("jax_compilation_cache_dir", memory)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)

# Compilation makes the first example of a property slow, so there is no deadline; the same examples
# every time, so that a failure is one for everybody.
settings.register_profile("agnosticfl", deadline=None, derandomize=True, max_examples=15)
settings.load_profile("agnosticfl")


def pytest_unconfigure() -> None:
    shutil.rmtree(memory, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files at the top take longest: with them first, no worker ends alone with one."""
    items.sort(key=lambda item: item.path.parent != Path(__file__).parent)


@pytest.fixture(autouse=True)
def _no_nan_from_jax(request: pytest.FixtureRequest):
    """Any NaN that a computation makes is an error, except where a test asks for bad numbers."""
    wanted = "nan_input" not in request.keywords
    with jax.debug_nans(wanted):
        yield
