# SPDX-License-Identifier: Apache-2.0
"""The pages of the documentation, and the blocks of commands and of Python in them."""

import importlib.util
import re
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
MADE = ("api.md", "commands.md")  # by scripts from the source, and no block of theirs is to be run
PAGES = [
    *(page for page in sorted(ROOT.glob("docs/*.md")) if page.name not in MADE),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
]
# What a block may say that it needs, as its title, and then no test runs it.
NEEDS = ("needs other machines", "needs files from elsewhere", "takes hours")
FENCE = re.compile(r'^```(\w*)(?: title="([^"\n]*)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """A block of a page: its language, what it says that it needs, and its text."""

    language: str
    needs: str
    text: str

    def lines(self) -> list[str]:
        """The commands of a block for a shell."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line for line in lines if line and not line.startswith("#")]


def blocks(page: Path) -> list[Block]:
    """All blocks of a page, in their order."""
    return [Block(*found) for found in FENCE.findall(page.read_text(encoding="utf-8"))]


def to_run(page: Path) -> list[Block]:
    """Those that a test should run."""
    return [b for b in blocks(page) if b.language in ("sh", "bash", "python") and not b.needs]


def script(name: str) -> Any:
    """A script in docs/, such as one that makes a page."""
    spec = importlib.util.spec_from_file_location(f"{name}_page", ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
