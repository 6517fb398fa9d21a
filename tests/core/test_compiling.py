# SPDX-License-Identifier: Apache-2.0
"""What the compiler is told beyond the program."""

from types import SimpleNamespace

import jax
import pytest

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
