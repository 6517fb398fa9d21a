# SPDX-License-Identifier: Apache-2.0
"""What a run writes down while it goes: one line per round, and the same as TensorBoard events."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from agnosticfl.core.ledger import Bytes, added
from agnosticfl.errors import check
from agnosticfl.files import write_bytes
from agnosticfl.runs.events import EventFile

Record: TypeAlias = Mapping[str, Any]
Sink: TypeAlias = Callable[[int, Mapping[str, float]], Any]  # (t, tag -> value)

METRICS = "metrics.jsonl"


class RecordBook:
    """Appends records to `metrics.jsonl` and to TensorBoard events in a run folder.

    Starting after round t forgets the records of later rounds: they will come again.
    """

    def __init__(self, folder: Path, domains: Sequence[str], after_round: int):
        kept = [r for r in read_records(folder) if r["round"] <= after_round]
        write_bytes(folder / METRICS, b"".join(map(_line, kept)))
        self._file = (folder / METRICS).open("ab", buffering=0)
        self._domains = domains
        self._events = EventFile(folder / "tensorboard")
        self._events.start(after_round + 1)

    def write(self, record: Record) -> None:
        self._file.write(_line(record))
        values = scalars(record, self._domains)
        self._events.add_scalars(record["round"], record["time"] or 0.0, values)

    def flush(self) -> None:
        """Puts what was written on the disk, before a checkpoint relies on it."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()
        self._events.close()


def scalars(record: Record, domains: Sequence[str]) -> dict[str, float]:
    """The numbers of a record, each with a tag that says which."""
    numbers: dict[str, float] = {}
    for name, value in record.items():
        if name in ("round", "time", "params") or value is None:
            continue
        if isinstance(value, list):
            named = zip(domains, value, strict=True)
            numbers |= {f"{name}/{domain}": v for domain, v in named if v is not None}
        elif isinstance(value, dict):  # domain -> metric -> value
            numbers |= {
                f"{name}/{metric}/{domain}": v
                for domain, values in value.items()
                for metric, v in values.items()
                if v is not None
            }
        else:
            numbers[name] = float(value)
    return numbers


def read_records(folder: Path) -> list[dict[str, Any]]:
    """The records of a run folder; a last line that a crash cut short is left out."""
    path = folder / METRICS
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    whole = [line for line in lines if line.endswith(b"\n")]
    return [_record(path, number, line) for number, line in enumerate(whole, start=1)]


def as_record(asked: Bytes) -> Record:
    """What went over the network for evaluations by clients, for a record or a summary."""
    return {"evaluation_bytes_down": asked.down, "evaluation_bytes_up": asked.up}


def asked_in(record: Record) -> Bytes:
    """The inverse of `as_record`; nothing, if clients evaluated nothing."""
    return Bytes(record.get("evaluation_bytes_down", 0), record.get("evaluation_bytes_up", 0))


def bytes_of(record: Record) -> Bytes:
    """All that went over the network in a round: to train, and to look at its model."""
    return added(Bytes(record["bytes_down"], record["bytes_up"]), asked_in(record))


def _record(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        record: Any = msgspec.json.decode(line)
    except (msgspec.DecodeError, ValueError, RecursionError):
        record = None
    known = isinstance(record, dict) and type(record.get("round")) is int
    check(known, f"{path}, line {number}, is no record of a round")
    return record


def _line(record: Record) -> bytes:
    """As JSON, with null in place of NaN and infinities, which it does not have."""
    return msgspec.json.encode(record) + b"\n"
