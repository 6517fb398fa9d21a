# SPDX-License-Identifier: Apache-2.0
"""Stays in intensive care as the PhysioNet challenge of 2012 publishes them, a text file each.

A file has lines `Time,Parameter,Value` of the first 48 hours, in the order of time. Six descriptors
stand at 00:00, and −1 means that one is not known.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from agnosticfl.data.formats.archives import Member, members
from agnosticfl.data.formats.limits import short
from agnosticfl.errors import BadInput, check

STAY = re.compile(r"(?:^|/)set-([abc])/(\d{1,9})\.txt$", re.ASCII)
OUTCOMES = re.compile(r"(?:^|/)Outcomes-([abc])\.txt$", re.ASCII)
FILE_LIMIT = 1 << 22  # bytes; a real stay has 20 thousand
DESCRIPTORS = ("RecordID", "Age", "Gender", "Height", "ICUType")
# Of each stay, in the order of the challenge's list; MechVent is 1 whenever it is there.
SERIES = (
    *("ALP", "ALT", "AST", "Albumin", "BUN", "Bilirubin", "Cholesterol", "Creatinine"),
    *("DiasABP", "FiO2", "GCS", "Glucose", "HCO3", "HCT", "HR", "K", "Lactate", "MAP"),
    *("MechVent", "Mg", "NIDiasABP", "NIMAP", "NISysABP", "Na", "PaCO2", "PaO2", "Platelets"),
    *("RespRate", "SaO2", "SysABP", "Temp", "TroponinI", "TroponinT", "Urine", "WBC"),
    *("Weight", "pH"),
)
# What a body can have; the files have a pH of 735 and a height of 462 cm. Nothing is below 0.
POSSIBLE = {
    "pH": (6.0, 8.0),
    "Temp": (20.0, 45.0),
    "Weight": (20.0, 400.0),
    "Height": (100.0, 230.0),
    "WBC": (0.0, 500.0),
}
UNNAMED = "values without a parameter's name"
IMPOSSIBLE = "values that no body can have"


class Stay(NamedTuple):
    """What is known of one stay."""

    part: str  # a, b or c
    record: str
    descriptors: Mapping[str, float]  # those that are known
    series: Mapping[str, Sequence[float]]  # in the order of time; absent if never measured


class Files(NamedTuple):
    """All files of the challenge, read."""

    stays: list[Stay]
    died: dict[tuple[str, str], int]  # (part, record) -> in hospital
    left_out: Counter[str]


def read_stays(sources: Sequence[Path]) -> Files:
    """The stays and their outcomes in folders or archives."""
    files = Files([], {}, Counter())
    for source in sources:
        for member in members(
            source, lambda name: bool(STAY.search(name) or OUTCOMES.search(name))
        ):
            place = f"{source}: {member.name}"
            if found := STAY.search(member.name):
                stay = _stay(found[1], found[2], _lines(member, place), place, files.left_out)
                files.stays.append(stay)
            elif found := OUTCOMES.search(member.name):
                for record, death in _outcomes(_lines(member, place), place):
                    files.died[found[1], record] = death
    places = ", ".join(map(str, sources))
    check(bool(files.stays), f"{places}: there is no file set-a/NUMBER.txt, set-b/… or set-c/…")
    _check_pairs(files)
    return files


def _check_pairs(files: Files) -> None:
    seen = Counter((stay.part, stay.record) for stay in files.stays)
    for (part, record), number in seen.items():
        check(number == 1, f"stay {record} of set-{part} is there {number} times")
        check((part, record) in files.died, f"stay {record} has no line in Outcomes-{part}.txt")


def _lines(member: Member, place: str) -> list[str]:
    data = bytearray()
    for chunk in member.chunks:
        data += chunk
        check(len(data) <= FILE_LIMIT, f"{place} has more than {FILE_LIMIT} bytes")
    try:
        return data.decode("ascii").splitlines()
    except UnicodeDecodeError as error:
        raise BadInput(f"{place}: no plain text at offset {error.start}") from error


def _stay(part: str, record: str, lines: Sequence[str], place: str, left_out: Counter[str]) -> Stay:
    _check_header(lines, "Time,Parameter,Value", place)
    descriptors: dict[str, float] = {}
    series: dict[str, list[float]] = {}
    for number, line in enumerate(lines[1:], 2):
        _, _, rest = line.partition(",")
        name, _, text = rest.partition(",")
        if not name:
            left_out[UNNAMED] += 1
            continue
        value = _number(text, name, f"{place}, line {number}")
        if value == -1:  # how the files say that nothing is known
            continue
        least, most = POSSIBLE.get(name, (0.0, float("inf")))
        if not least <= value <= most:
            left_out[IMPOSSIBLE] += 1
        elif name in DESCRIPTORS:
            descriptors[name] = value
        else:
            series.setdefault(name, []).append(value)
    unknown = series.keys() - set(SERIES)
    check(
        not unknown, f"{place} has a parameter {short(min(unknown, default=''))}, which is unknown"
    )
    check(
        descriptors.get("RecordID") == float(record),
        f"{place} does not say RecordID {record} in its descriptors",
    )
    return Stay(part, record, descriptors, series)


def _outcomes(lines: Sequence[str], place: str) -> Iterator[tuple[str, int]]:
    """(record, died in hospital) of each line."""
    _check_header(lines, "RecordID,SAPS-I,SOFA,Length_of_stay,Survival,In-hospital_death", place)
    for number, line in enumerate(lines[1:], 2):
        record, *_, death = line.split(",")
        check(
            death in ("0", "1"),
            f"{place}, line {number}: In-hospital_death is {short(death)}; it must be 0 or 1",
        )
        yield record, int(death)


def _check_header(lines: Sequence[str], header: str, place: str) -> None:
    first = lines[0] if lines else ""
    check(first == header, f"{place} starts with {short(first)}; it must start with {header}")


def _number(text: str, name: str, place: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadInput(f"{place}: {short(name)} is {short(text)}, which is no number") from None
