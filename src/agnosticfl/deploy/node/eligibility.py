# SPDX-License-Identifier: Apache-2.0
"""Whether a client joins a round: its own conditions, read on its own machine.

The server learns only that a client does not join, never why.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from agnosticfl.errors import check, choose

# (number of examples) -> why this client does not join now; None if it does.
Policy: TypeAlias = Callable[[int], str | None]

BUSY = 0.5  # load of a core, above which a machine is not idle


class Readings(NamedTuple):
    """What a machine says of itself; None where it does not say."""

    load: float | None  # mean number of running processes in the last minute, for each core
    charging: bool | None  # on mains power; a machine without a battery is
    metered: bool | None  # whether the way to the network is one that is paid by the byte


def read(root: Path = Path("/")) -> Readings:
    """The readings of a Linux machine, from /proc and /sys."""
    return Readings(_load(root), _charging(root), _metered(root))


def _load(root: Path) -> float | None:
    text = _text(root / "proc/loadavg")
    return float(text.split()[0]) / (os.cpu_count() or 1) if text else None


def _charging(root: Path) -> bool | None:
    """True if some mains supply is online, or there is no battery that could be empty."""
    supplies = root / "sys/class/power_supply"
    if not supplies.is_dir():
        return None
    kinds = {supply: _text(supply / "type") for supply in supplies.iterdir()}
    # Batteries of mice and pens have the scope "Device".
    batteries = [
        supply
        for supply, kind in kinds.items()
        if kind == "Battery" and _text(supply / "scope") != "Device"
    ]
    mains = [supply for supply, kind in kinds.items() if kind not in ("Battery", "")]
    if any(_text(supply / "online") not in ("", "0") for supply in mains):
        return True
    return all(_text(supply / "status") not in ("Discharging", "Unknown") for supply in batteries)


def _metered(root: Path) -> bool | None:
    """True if the default route goes through a modem of a mobile network."""
    routes = [line.split() for line in _text(root / "proc/net/route").splitlines()[1:]]
    defaults = [fields[0] for fields in routes if len(fields) > 7 and fields[1] == "00000000"]
    if not defaults:
        return None
    kinds = [_text(root / "sys/class/net" / name / "uevent") for name in defaults]
    return any("DEVTYPE=wwan" in kind for kind in kinds)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


# What a condition asks of the readings. What a machine does not say is taken as a refusal.
CONDITIONS: dict[str, Callable[[Readings], bool]] = {
    "idle": lambda r: r.load is not None and r.load < BUSY,
    "charging": lambda r: r.charging is True,
    "unmetered": lambda r: r.metered is False,
}


def conditions(names: Sequence[str] = (), min_examples: int = 1, root: Path = Path("/")) -> Policy:
    """The policy of a client that joins when all named conditions hold, as phones do.

    Args:
      names: of `CONDITIONS`: idle, charging, unmetered.
      min_examples: with fewer of its own, a client does not join.
      root: where /proc and /sys are.
    """
    for name in names:
        choose(name, CONDITIONS, "condition")
    check(min_examples >= 0, f"smallest number of examples is {min_examples}; it must be ≥ 0")

    def policy(examples: int) -> str | None:
        if examples < min_examples:
            return f"it has {examples} examples, and {min_examples} are needed"
        readings = read(root)
        unmet = [name for name in names if not CONDITIONS[name](readings)]
        return f"not {', not '.join(unmet)} ({_said(readings)})" if unmet else None

    return policy


def _said(readings: Readings) -> str:
    load = "?" if readings.load is None else f"{readings.load:.2f}"
    words = {None: "?", True: "yes", False: "no"}
    return f"load {load}, charging {words[readings.charging]}, metered {words[readings.metered]}"
