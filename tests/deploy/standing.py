# SPDX-License-Identifier: Apache-2.0
"""A real gate on loopback, before a SuperLink that only says what it was asked."""

import contextlib
import threading
import time
from collections.abc import Generator, Mapping
from pathlib import Path

import uvicorn

from agnosticfl.deploy.gate.limits import Limits
from agnosticfl.deploy.gate.serve import configured
from agnosticfl.deploy.gate.settings import Settings
from agnosticfl.deploy.supervise import children
from tests.deploy.knocking import StubSuperLink

NONSENSE = {"": b"\xff" * 32}  # which no message of Flower's is; a digest may be one by chance
PATIENCE = 60.0  # seconds for anything, on a machine that has other things to do


@contextlib.contextmanager
def standing(keys: Path, answers: Mapping[str, bytes] = NONSENSE) -> Generator[str]:
    """The address of a gate with the certificate and the clients in `keys`.

    The SuperLink behind it says `answers`, by path.
    """
    port = children.free_port()
    served = str(keys / "served.json")
    settings = Settings("127.0.0.1", port, str(keys), "127.0.0.1:1", "", Limits(), served)
    server = uvicorn.Server(configured(settings, StubSuperLink(answers).way))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until = time.monotonic() + PATIENCE
        while not server.started:
            assert time.monotonic() < until
            time.sleep(0.02)
        time.sleep(0.05)  # what was signed before the gate was open does not pass
        yield f"127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
