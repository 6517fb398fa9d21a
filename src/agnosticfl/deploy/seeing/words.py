# SPDX-License-Identifier: Apache-2.0
"""Numbers of the view as a person reads them, the same in a terminal and on the page."""

import time

DASH = "–"


def moment(seconds: float) -> str:
    """A time of day, with its date and in UTC, as in the logs."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))


def span(seconds: float) -> str:
    """How long something takes."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def size(number: float) -> str:
    """Bytes."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:,.3g} TB"


def value(number: float | None) -> str:
    return DASH if number is None else f"{number:.4g}"
