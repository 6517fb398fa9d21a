# SPDX-License-Identifier: Apache-2.0
"""What a reader accepts from a file it does not trust."""

# One client's examples when unpacked: a writer of EMNIST takes about 1 MB, 200,000 sentences of
# 200 bytes 40 MB. A bomb, which unpacks to a thousand times its size, is stopped here.
MAX_CLIENT_BYTES = 1 << 28


def short(value: object, length: int = 60) -> str:
    """`value` as it may stand in a one-line message, cut after `length` characters."""
    text = repr(value)
    return text if len(text) <= length else f"{text[:length]}…"


def reason(error: Exception, length: int = 120) -> str:
    """What another library says, which may quote the file over several lines, in one short line."""
    return " ".join(str(error).split())[:length]
