# SPDX-License-Identifier: Apache-2.0
"""Whether a server or a client works, for whatever watches over containers: status 0, or 1 and why.

    python -m agnosticfl.deploy.seeing.health STATE

A server does if its gate answers, a client if its server has answered in the last minutes. Nothing
is sent to anybody.
"""

import socket
import sys
import time
from pathlib import Path

from agnosticfl.deploy.seeing.status import SERVER, Server, read
from agnosticfl.errors import one_line_errors

ANSWERED = "answered"  # in a client's --state: touched as long as its server answers
OLD = 120.0  # seconds without an answer after which a client is not well
PATIENCE = 10.0  # seconds for a gate


def unwell(state: Path, now: float) -> str:
    """What is wrong with the server or client of that state; nothing if all is well.

    Args:
      now: the time, in seconds since 1970.
    """
    server = read(state, SERVER, Server)
    if server is not None:
        return _gate(server.address)
    if (state / ANSWERED).exists():
        age = now - (state / ANSWERED).stat().st_mtime
        return "" if age < OLD else f"the server has not answered for {age:.0f} s"
    return f"no server runs with {state}, and no client of it was let in"


def _gate(address: str) -> str:
    host, _, port = address.rpartition(":")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host.strip("[]"))
    try:
        socket.create_connection((host, int(port)), PATIENCE).close()
    except OSError as error:
        return f"the gate on {address} does not answer: {error}"
    return ""


def main(folder: str) -> None:
    wrong = unwell(Path(folder), time.time())
    if wrong:
        raise OSError(wrong)


if __name__ == "__main__":
    with one_line_errors():
        main(sys.argv[1])
