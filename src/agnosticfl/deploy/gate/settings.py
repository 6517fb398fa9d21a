# SPDX-License-Identifier: Apache-2.0
"""Where a gate stands and what is behind it, as whoever starts one tells it."""

from typing import NamedTuple

import msgspec

from agnosticfl.deploy.gate.limits import Limits
from agnosticfl.errors import BadInput


class Settings(NamedTuple):
    """What a gate is told."""

    host: str
    port: int
    keys: str  # the folder with server.pem, server.key and clients/
    superlink: str  # host:port
    authority: str  # the certificate that the SuperLink is known by
    limits: Limits
    served: str  # the file with what the server says of itself


def as_json(settings: Settings) -> str:
    return msgspec.json.encode(settings).decode()


def from_json(text: str) -> Settings:
    """The inverse of `as_json`, or `BadInput`."""
    try:
        return msgspec.json.decode(text, type=Settings)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadInput(f"the gate's settings cannot be read: {error}") from None
