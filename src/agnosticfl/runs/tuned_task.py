# SPDX-License-Identifier: Apache-2.0
"""A task with what a search found in it, as TOML that runs as it is."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agnosticfl.runs.config import Table

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_HEADER = re.compile(r"^\s*\[")
_OF_ALGORITHMS = re.compile(r"^\s*\[\[?\s*[\"']?algorithms[\"']?\s*[.\]]")


def tuned_file(out: Path, task: str) -> Path:
    """Where a search in the folder `out` puts its task; it keeps the name, which reports print."""
    return out / f"{Path(task).stem}.toml"


def tuned_task(
    text: str, table: Table, found: Mapping[str, Table], comments: Mapping[str, Sequence[str]]
) -> str:
    """The text of a task with these settings in its `[algorithms.NAME]`.

    Args:
      text: of the task, kept as it is but for `[algorithms.…]`. If it does not say what `table`
        does (`--set` changed it), its first comment alone is kept.
      table: what the task holds.
      found: method -> settings, as `[algorithms.NAME]` has them.
      comments: method -> lines about them.
    """
    others = {key: value for key, value in table.items() if key != "algorithms"}
    kept = _without_algorithms(text)
    if not _says(kept, others):
        kept = "\n".join([*_first_comment(text), "", *_lines(others, ())])
    before = table.get("algorithms", {})
    names = dict.fromkeys([*before, *found])
    methods = {name: merged(before.get(name, {}), found.get(name, {})) for name in names}
    parts = [kept.strip()]
    for name, own in methods.items():
        notes = [f"# {line}" for line in comments.get(name, ())]
        tables = "\n".join(_lines(own, ("algorithms", name))).strip()
        parts.append("\n".join([*notes, tables]))
    return "\n\n".join(parts) + "\n"


def _without_algorithms(text: str) -> str:
    """The text without the tables of methods, the comments in them and right above each."""
    kept: list[str] = []
    waiting: list[str] = []  # comments in such a table that may belong to the next one
    inside = False
    for line in text.splitlines():
        if _HEADER.match(line):
            inside = bool(_OF_ALGORITHMS.match(line))
            kept, waiting = (_less_comment(kept), []) if inside else ([*kept, *waiting], [])
        if not inside:
            kept.append(line)
        elif line.strip():
            waiting = [*waiting, line] if line.startswith("#") else []
    return "\n".join(kept)


def _less_comment(lines: list[str]) -> list[str]:
    end = next((i for i in range(len(lines), 0, -1) if not lines[i - 1].startswith("#")), 0)
    return lines[:end] or lines  # the file's own comment stays


def _says(text: str, table: Table) -> bool:
    try:
        return tomllib.loads(text) == table
    except tomllib.TOMLDecodeError:  # a text of several lines, say, that looks like a table
        return False


def _first_comment(text: str) -> list[str]:
    lines = text.splitlines()
    end = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return lines[:end]


def merged(settings: Mapping[str, Any], found: Mapping[str, Any]) -> Table:
    """A method's settings, with those that were found."""
    both = {**settings, **found}
    for key, value in found.items():
        below = settings.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            both[key] = {**below, **value}
    return both


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """A table: first what is no table in it, then one header for each that is."""
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    if path and (plain or not table):
        yield f"[{'.'.join(map(_key, path))}]"
    for key, value in plain.items():
        yield f"{_key(key)} = {_value(value)}"
    for key, value in table.items():
        if isinstance(value, dict):
            yield ""
            yield from _lines(value, (*path, key))


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _value(value: Any) -> str:
    """Numbers, texts, truth values, lists of them and tables in lists: all that tasks have."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
