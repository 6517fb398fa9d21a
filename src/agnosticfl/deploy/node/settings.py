# SPDX-License-Identifier: Apache-2.0
"""What a client's process is told by whoever starts it. Nothing in it is secret."""

from typing import NamedTuple

LONGEST = 3.0  # seconds between two looks for a message, when none came for a while
MOST = 3600.0  # that these may be


class Settings(NamedTuple):
    """What a client is told."""

    server: str  # host:port
    authority: str  # the certificate to trust
    key: str  # the file with the node key
    app: str  # the folder of the client's own app
    config: dict[str, str | int]  # what the app is told of this node
    longest: float = LONGEST
