# SPDX-License-Identifier: Apache-2.0
"""The one exception that users see: bad input, said in one line."""

import contextlib
import difflib
import importlib
import re
import sys
from collections.abc import Generator, Iterable
from typing import Any

# What JAX says of memory, on a CPU or on an accelerator.
NO_MEMORY = re.compile("out of memory|RESOURCE_EXHAUSTED", re.IGNORECASE)

LONGEST = 120  # characters of what came from outside


class BadInput(ValueError):
    """A value from the user that cannot be used.

    The message is one line that names the value, the place and what is allowed. The command-line
    program prints it and exits with status 2.
    """


def check(condition: bool, message: str) -> None:
    """Raises `BadInput(message)` unless `condition` holds."""
    if not condition:
        raise BadInput(message)


def choose(name: str, allowed: Iterable[str], what: str) -> str:
    """Returns `name` if it is one of `allowed`; otherwise says what is, nearest first."""
    allowed = list(allowed)
    if name in allowed:
        return name
    near = difflib.get_close_matches(name, allowed, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise BadInput(f"unknown {what} {name!r}{hint} (allowed: {', '.join(allowed)})")


def quoted(outside: object) -> str:
    """Something that came from outside, fit for one line of a log or of an error."""
    text = outside.decode("latin-1") if isinstance(outside, bytes) else str(outside)
    return ascii(text if len(text) <= LONGEST else f"{text[:LONGEST]}…")


def require(module: str, what: str, extra: str = "data") -> Any:
    """Imports an optional library, or says which command installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise BadInput(f"{what} needs {module}: pip install 'agnosticfl[{extra}]'") from error


@contextlib.contextmanager
def one_line_errors() -> Generator[None]:
    """Ends the program with one line: status 2 for bad input, 1 where the system refuses."""
    try:
        yield
    except (BadInput, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2 if isinstance(error, BadInput) else 1)
    except (MemoryError, RuntimeError) as error:  # JAX's are of the second kind
        if not isinstance(error, MemoryError) and not NO_MEMORY.search(str(error)):
            raise
        reason = str(error).partition("\n")[0]
        sys.stderr.write(f"error: no memory left for this model or data: {reason}\n")
        sys.exit(1)
