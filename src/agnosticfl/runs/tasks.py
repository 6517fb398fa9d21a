# SPDX-License-Identifier: Apache-2.0
"""Tasks: TOML files, those of the program and those of users."""

import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from agnosticfl.errors import BadInput, check, choose
from agnosticfl.runs.config import Table


def task_names() -> list[str]:
    """The built-in tasks."""
    names = [file.name for file in (resources.files("agnosticfl") / "tasks").iterdir()]
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def task_text(name: str) -> str:
    """The TOML of a built-in task, or of a file if `name` is the path of one."""
    if not name.endswith(".toml"):
        choose(name, task_names(), "task")
        file = resources.files("agnosticfl") / "tasks" / f"{name}.toml"
        return file.read_text(encoding="utf-8")
    path = Path(name)
    check(path.is_file(), f"task file {name!r} does not exist")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"task {name!r} is not a text in UTF-8 (byte {error.start})") from None


def task_description(name: str) -> str:
    """The first comment of a task."""
    lines = task_text(name).splitlines()
    end = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return " ".join(line.lstrip("# ").rstrip() for line in lines[:end])


def task_table(name: str) -> Table:
    """The keys of a task."""
    try:
        return tomllib.loads(task_text(name))
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"task {name!r} is not valid TOML: {error}") from None


def parse_set(text: str) -> tuple[str, Any]:
    """`a.b=1` as ("a.b", 1). The value is TOML; what is no TOML is a string."""
    key, sign, value = text.partition("=")
    check(bool(sign and key.strip()), f"--set {text!r} is not of the form key=value")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def put_dotted(table: Table, dotted: str, value: Any) -> None:
    """Sets a key of a task as `--set` does."""
    *path, last = dotted.split(".")
    for part in path:
        table = table.setdefault(part, {})
        check(type(table) is dict, f"--set {dotted}: {part!r} is not a table")
    table[last] = value
