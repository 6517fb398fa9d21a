# SPDX-License-Identifier: Apache-2.0
"""A small web server as a process of its own: how the gate and the page start and end."""

import logging
import sys
from collections.abc import Callable
from typing import Any

import uvicorn

from agnosticfl.errors import one_line_errors

HEAD = 16 * 1024  # bytes of a request before its body
LAST = 2  # seconds for requests that are under way when it ends


def say(line: str) -> None:
    """To the process's log."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def web_server(app: Any, host: str, port: int, *, http: Any, **more: Any) -> uvicorn.Config:
    """An application as Uvicorn runs it.

    Args:
      http: what takes connections: Uvicorn's own, or a `Door`.
    """
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        http=http,
        loop="asyncio",
        ws="none",
        lifespan="off",
        interface="asgi3",
        h11_max_incomplete_event_size=HEAD,
        timeout_graceful_shutdown=LAST,
        proxy_headers=False,  # what a stranger says of his address is not believed
        server_header=False,
        access_log=False,
        log_config=None,
        **more,
    )


def serve(config: uvicorn.Config, what: str) -> None:
    """Serves until a signal ends it."""
    for name in ("uvicorn", "asyncio"):
        logging.getLogger(name).setLevel(logging.ERROR)  # warnings are what strangers cause
    say(f"{what} is open on {config.host}:{config.port}")
    uvicorn.Server(config).run()


def run_as_process(main: Callable[[str], None]) -> None:
    """Runs a program that is given its settings in one word; bad ones end it with one line."""
    with one_line_errors():
        main(sys.argv[1])
