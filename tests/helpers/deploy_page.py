# SPDX-License-Identifier: Apache-2.0
"""The commands that docs/deploy.md shows, and the files of packaging/ that it speaks of."""

import re
import shlex
from pathlib import Path
from typing import Any

import typer.main
import yaml

from agnosticfl.cli.commands import app

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs" / "deploy.md").read_text()
PACKAGING = ROOT / "packaging"


def block(language: str) -> str:
    """The one block of the page in this language."""
    (text,) = re.findall(rf"```{language}\n(.*?)```", DOCS, re.DOTALL)
    return text


def shell_commands() -> list[str]:
    lines = "".join(re.findall(r"```sh\n(.*?)```", DOCS, re.DOTALL)).splitlines()
    return [line for line in lines if line.startswith("agnosticfl")]


def host_commands() -> list[str]:
    """What root types on a host, as other users or in containers."""
    text = "".join(re.findall(r"```bash.*?\n(.*?)```", DOCS, re.DOTALL))
    return re.findall(r"\bagnosticfl deploy .*", text)


def unit_commands() -> list[str]:
    """Of the systemd units."""
    texts = [file.read_text() for file in sorted((PACKAGING / "systemd").glob("*.service"))]
    return [line for text in texts for line in re.findall(r"ExecStart=\S+/(agnosticfl .*)", text)]


def compose_commands() -> list[str]:
    """Of the compose file: what comes after the image's own `agnosticfl`."""
    services = yaml.safe_load((PACKAGING / "compose.yaml").read_text())["services"].values()
    return [f"agnosticfl {service['command']}" for service in services]


def manifests() -> list[dict[str, Any]]:
    """Of Kubernetes."""
    files = sorted((PACKAGING / "kubernetes").glob("*.yaml"))
    return [part for file in files for part in yaml.safe_load_all(file.read_text())]


def containers() -> list[dict[str, Any]]:
    """Those of the manifests that run the program, each with the pod that it is in."""
    pods = [m["spec"]["template"]["spec"] for m in manifests() if "template" in m["spec"]]
    return [{**one, "pod": pod} for pod in pods for one in pod["containers"]]


def manifest_commands() -> list[str]:
    return [f"agnosticfl {shlex.join(one['args'])}" for one in containers()]


def parsed(line: str) -> dict[str, Any]:
    """What the program itself makes of a command line, up to the point where it would act."""
    group: Any = typer.main.get_command(app)
    words = shlex.split(line, comments=True)[1:]
    context = group.make_context("agnosticfl", words, resilient_parsing=False)
    while hasattr(group, "commands"):
        name, group, rest = group.resolve_command(context, context._protected_args + context.args)
        context = group.make_context(name, list(rest), parent=context)
    files = {param.name for param in group.params if param.type.name == "path"}
    found: dict[str, Any] = context.params
    return {n: Path(v) if n in files and isinstance(v, str) else v for n, v in found.items()}


class Page:
    """The commands of docs/deploy.md, with this machine's names in place of the page's."""

    def __init__(self, names: dict[str, str]):
        self.names = names

    def line(self, beginning: str, lines: list[str], **more: str) -> list[str]:
        """The one of `lines` that begins so, as words; `more` are names of this line alone."""
        (text,) = (line for line in lines if line.startswith(f"agnosticfl {beginning}"))
        words = shlex.split(text, comments=True)[1:]
        return [more.get(word, self.names.get(word, word)) for word in words]
