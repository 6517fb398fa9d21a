# SPDX-License-Identifier: Apache-2.0
"""Settings as a process gets them from whoever starts it: one word of its command line.

Every user of the machine can read that, so nothing in it is secret.
"""

from typing import Any, TypeVar

import msgspec

from agnosticfl.errors import BadInput

T = TypeVar("T")


def as_json(settings: Any) -> str:
    return msgspec.json.encode(settings).decode()


def from_json(text: str, kind: type[T], whose: str) -> T:
    """The inverse of `as_json`, or `BadInput`.

    Args:
      whose: settings they are.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadInput(f"{whose} settings cannot be read: {error}") from None
