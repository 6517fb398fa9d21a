# SPDX-License-Identifier: Apache-2.0
"""Where a gate stands and what is behind it, as whoever starts one tells it."""

from typing import NamedTuple

from agnosticfl.deploy.gate.limits import Limits


class Settings(NamedTuple):
    """What a gate is told."""

    host: str
    port: int
    keys: str  # the folder with server.pem, server.key and clients/
    superlink: str  # host:port
    authority: str  # the certificate that the SuperLink is known by
    limits: Limits
    served: str  # the file with what the server says of itself
