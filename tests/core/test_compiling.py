# SPDX-License-Identifier: Apache-2.0
"""What the compiler is told beyond the program."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from agnosticfl.core import compiling
from agnosticfl.core.compiling import for_nvidia


def test_options_for_a_card_reach_no_other_compiler(monkeypatch: pytest.MonkeyPatch):
    assert for_nvidia(xla_gpu_enable_triton_gemm=False) is None  # on this CPU
    card = SimpleNamespace(client=SimpleNamespace(platform_version="PJRT C API\ncuda 13000"))
    monkeypatch.setattr(jax, "local_devices", lambda: [card])
    assert for_nvidia(xla_gpu_enable_triton_gemm=False) == {"xla_gpu_enable_triton_gemm": False}


def test_the_options_that_are_used_are_known_to_xla():
    """All of its compilers have one list of names; one that is not in it is refused."""
    used = {
        "xla_gpu_enable_triton_gemm": False,
        "xla_gpu_enable_command_buffer": "FUSION,WHILE",
        "xla_gpu_command_buffer_scheduling_mode": "CONCURRENT",
    }
    for name, value in used.items():
        jax.jit(lambda x: x + 1, compiler_options={name: value})(1.0)
    with pytest.raises(Exception, match="xla_gpu_no_such_option"):
        jax.jit(lambda x: x + 1, compiler_options={"xla_gpu_no_such_option": False})(1.0)


def test_kernels_of_our_own_are_for_cards_on_which_they_were_run(monkeypatch: pytest.MonkeyPatch):
    def card(capability: str, cores: int, version: str = "cuda 13000") -> Any:
        client = SimpleNamespace(platform_version=version)
        return SimpleNamespace(client=client, compute_capability=capability, core_count=cores)

    cases = [
        (card("9.0", 132), True),
        (card("9.0", 16), False),  # a small part of one
        (card("8.9", 142), False),
        (card("10.0", 148), False),
        (card("9.0", 132, "rocm"), False),
    ]
    for device, expected in cases:
        monkeypatch.setattr(jax, "local_devices", lambda device=device: [device])
        assert compiling.on_hopper() == expected
    monkeypatch.setattr(jax, "local_devices", lambda: [cases[0][0]])
    with compiling.in_slices():  # the compiler could not divide them
        assert not compiling.on_hopper()
    assert compiling.on_hopper()
    monkeypatch.setattr(Path, "exists", lambda _: False)  # a JAX that has them no more
    assert not compiling.on_hopper()
