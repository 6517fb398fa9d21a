# SPDX-License-Identifier: Apache-2.0
"""How the program ends where a user or the system is at fault."""

import pytest

from agnosticfl.errors import BadInput, one_line_errors


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (
            BadInput("rounds is 0; it must be above 0"),
            2,
            "error: rounds is 0; it must be above 0\n",
        ),
        (OSError("no space left"), 1, "error: no space left\n"),
        (
            RuntimeError("INTERNAL: Out of memory allocating 128000000000 bytes.\nframes"),
            1,
            "error: no memory left for this model or data: INTERNAL: Out of memory allocating"
            " 128000000000 bytes.\n",
        ),
        (
            RuntimeError("RESOURCE_EXHAUSTED: 3 GiB"),
            1,
            "error: no memory left for this model or data: RESOURCE_EXHAUSTED: 3 GiB\n",
        ),
    ],
)
def test_what_users_and_systems_do_is_one_line(
    error: Exception, status: int, line: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as ended, one_line_errors():
        raise error
    assert ended.value.code == status
    assert capsys.readouterr().err == line


def test_a_fault_of_the_program_is_not_hidden():
    with pytest.raises(RuntimeError, match="a fault of ours"), one_line_errors():
        raise RuntimeError("a fault of ours")
