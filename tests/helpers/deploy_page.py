# SPDX-License-Identifier: Apache-2.0
"""The commands and files that docs/deploy.md shows."""

import re
from pathlib import Path

import yaml

DOCS = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()


def block(language: str) -> str:
    """The one block of the page in this language."""
    (text,) = re.findall(rf"```{language}\n(.*?)```", DOCS, re.DOTALL)
    return text


def shell_commands() -> list[str]:
    lines = "".join(re.findall(r"```sh\n(.*?)```", DOCS, re.DOTALL)).splitlines()
    return [line for line in lines if line.startswith("agnosticfl")]


def unit_commands() -> list[str]:
    return re.findall(r"ExecStart=\S+/(agnosticfl .*)", DOCS)


def compose_commands() -> list[str]:
    return [service["command"] for service in yaml.safe_load(block("yaml"))["services"].values()]
