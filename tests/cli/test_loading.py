# SPDX-License-Identifier: Apache-2.0
"""What a command of training loads, and what it does not."""

import contextlib
import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agnosticfl.cli import loading

RUN = """
import sys
from agnosticfl.cli import main
try:
    main()
finally:
    print("flax" in sys.modules)
"""
# Its rounds are one program, as on an accelerator.
TASK = """
rounds = 1
clients_per_round = 2
batch_size = 4
window_size = 1
engine = "lanes"
lanes = 2

[data]
name = "synthetic"
kind = "images"
clients = 8
examples = 8
heldout_fraction = 0.25
test_fraction = 0.25

[model]
name = "cnn"
classes = 10

[client_optimizer]
name = "sgd"
learning_rate = 0.1

[weight_rule]
name = "exponentiated_gradient"
learning_rate = 0.05
"""


def test_who_finds_all_programs_does_not_load_flax(tmp_path: Path):
    task = tmp_path / "images.toml"
    task.write_text(TASK)
    # What JAX's own cache has is not kept again, so that is an empty one, too.
    variables = {"AGNOSTICFL_CACHE": "cache", "JAX_COMPILATION_CACHE_DIR": "compiled"}
    words = [sys.executable, "-c", RUN, "run", str(task), "--overwrite"]

    def loaded() -> str:
        done = subprocess.run(
            words,
            cwd=tmp_path,
            env=os.environ | variables,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.splitlines()[-1]

    assert loaded() == "True"
    assert loaded() == "False"


@pytest.mark.parametrize("fails", [False, True])
def test_garbage_is_looked_for_again(fails: bool):
    with pytest.raises(KeyError) if fails else contextlib.nullcontext(), loading.begun():
        assert not gc.isenabled()
        if fails:
            raise KeyError
    assert gc.isenabled()
