# SPDX-License-Identifier: Apache-2.0
"""Tests are stricter than users need to be: no silent broadcasting, no silent change of dtype."""

import os
import signal
import tempfile
from pathlib import Path

import jax
import pytest
from hypothesis import settings

from agnosticfl.core import programs

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

# Properties compile the same round again and again with other data, and so do the processes that
# tests start; none of them touches the memory of the user's own runs. All who test together share
# one memory: the first process makes it, hands it on by a variable, and takes it away at the end.
SHARED = "AGNOSTICFL_TESTS_MEMORY"
own = None
if SHARED not in os.environ:
    own = tempfile.TemporaryDirectory(prefix="agnosticfl-tests-", ignore_cleanup_errors=True)
    os.environ[SHARED] = os.environ["AGNOSTICFL_CACHE"] = own.name
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(Path(own.name) / "compiled")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
# JAX is imported already, perhaps: it reads its variables only then.
jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)

# A shell has what goes on in the background ignore SIGINT, and so would all commands that tests
# start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Compilation makes the first example of a property slow, so there is no deadline; the same examples
# every time, so that a failure is one for everybody. `make test-all` looks at more of them.
settings.register_profile("agnosticfl", deadline=None, derandomize=True, max_examples=8)
settings.register_profile("thorough", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("agnosticfl")


def pytest_unconfigure() -> None:
    if own is not None:
        own.cleanup()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files at the top take longest: with them first, no worker ends alone with one."""
    items.sort(key=lambda item: item.path.parent != Path(__file__).parent)


@pytest.fixture(autouse=True)
def _no_programs_of_others():
    """A command that a test has called leaves no memory of programs to the next test."""
    yield
    programs.keep_in(None)


@pytest.fixture(autouse=True)
def _no_nan_from_jax(request: pytest.FixtureRequest):
    """Any NaN that a computation makes is an error, except where a test asks for bad numbers."""
    wanted = "nan_input" not in request.keywords
    with jax.debug_nans(wanted):
        yield
