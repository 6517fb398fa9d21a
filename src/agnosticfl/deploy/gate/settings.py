# SPDX-License-Identifier: Apache-2.0
"""Where a gate stands and what is behind it, as whoever starts one tells it."""

import json
from typing import Any, NamedTuple

from agnosticfl.deploy.gate.limits import Limits


class Settings(NamedTuple):
    """What a gate is told."""

    host: str
    port: int
    keys: str  # the folder with server.pem, server.key and clients/
    superlink: str  # host:port
    authority: str  # the certificate that the SuperLink is known by
    limits: Limits


def as_json(settings: Settings) -> str:
    return json.dumps({**settings._asdict(), "limits": settings.limits._asdict()})


def from_json(text: str) -> Settings:
    raw: dict[str, Any] = json.loads(text)
    limits = Limits(**raw.pop("limits"))
    return Settings(**raw, limits=limits)
