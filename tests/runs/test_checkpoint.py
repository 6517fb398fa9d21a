# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agnosticfl.core.state import ServerState, init_state
from agnosticfl.errors import BadInput
from agnosticfl.runs import checkpoint
from agnosticfl.weights import exponentiated_gradient


def state(t: int) -> ServerState:
    optimizer = optax.adam(0.1)
    params = {"layer": {"kernel": jnp.full((3, 2), t, jnp.float32), "bias": jnp.zeros(2)}}
    first = init_state(params, optimizer, exponentiated_gradient(0.1), 2, 3)
    return first._replace(round=jnp.array(t, jnp.int32))


def files(folder: Path, t: int) -> list[Path]:
    return sorted(p for p in (folder / f"{t:08d}").rglob("*") if p.is_file())


def test_a_state_comes_back_bit_for_bit(tmp_path: Path):
    checkpoint.save(tmp_path, state(7))
    restored = checkpoint.restore(tmp_path, state(0), pytest.fail)
    assert restored is not None
    assert jax.tree.structure(restored) == jax.tree.structure(state(7))
    jax.tree.map(np.testing.assert_array_equal, restored, state(7))


def test_the_newest_are_kept_and_none_is_no_error(tmp_path: Path):
    assert checkpoint.restore(tmp_path / "nothing", state(0), pytest.fail) is None
    for t in range(1, 6):
        checkpoint.save(tmp_path, state(t))
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["00000003", "00000004", "00000005"]


def test_no_damage_to_any_file_goes_unnoticed(tmp_path: Path):
    """Each file of the newest checkpoint truncated, changed by one bit, or deleted."""
    checkpoint.save(tmp_path, state(1))
    checkpoint.save(tmp_path, state(2))
    for file in files(tmp_path, 2):
        whole = file.read_bytes()
        flipped = bytes([whole[0] ^ 1]) + whole[1:]
        for damaged in (whole[: len(whole) // 2], flipped, None):
            if damaged is None:
                file.unlink()
            else:
                file.write_bytes(damaged)
            said: list[str] = []
            restored = checkpoint.restore(tmp_path, state(0), said.append)
            assert restored is not None
            assert restored.round == 1, file
            assert len(said) == 1
            assert "checkpoint 00000002 is damaged" in said[0]
            assert "it is kept as 00000002.damaged" in said[0]
            (tmp_path / "00000002.damaged").rename(tmp_path / "00000002")
            file.write_bytes(whole)


def test_the_state_of_another_run_is_not_taken_for_this_one_s(tmp_path: Path):
    checkpoint.save(tmp_path, state(1)._replace(params={"w": jnp.zeros(3)}))
    said: list[str] = []
    assert checkpoint.restore(tmp_path, state(0), said.append) is None
    assert "it is the state of another run" in said[0]


def test_a_checkpoint_of_an_older_version_is_refused_and_left_as_it_is(tmp_path: Path):
    (tmp_path / "00000001" / "state").mkdir(parents=True)
    with pytest.raises(
        BadInput, match=r"00000001 was written by an older version.* begin it anew with --overwrite"
    ):
        checkpoint.restore(tmp_path, state(0), pytest.fail)
    assert [p.name for p in tmp_path.iterdir()] == ["00000001"]


def test_what_a_crash_left_behind_is_cleaned_up(tmp_path: Path):
    leftover = tmp_path / ".00000001.tmp" / "state"
    leftover.mkdir(parents=True)
    assert checkpoint.restore(tmp_path, state(0), pytest.fail) is None
    checkpoint.save(tmp_path, state(2))
    assert [p.name for p in tmp_path.iterdir()] == ["00000002"]
