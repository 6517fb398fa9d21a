# SPDX-License-Identifier: Apache-2.0
"""What a command of training loads, and what it does not."""

import contextlib
import gc

import pytest

from agnosticfl.cli import loading


@pytest.mark.parametrize("fails", [False, True])
def test_garbage_is_looked_for_again(fails: bool):
    with pytest.raises(KeyError) if fails else contextlib.nullcontext(), loading.begun():
        assert not gc.isenabled()
        if fails:
            raise KeyError
    assert gc.isenabled()
