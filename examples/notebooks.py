# SPDX-License-Identifier: Apache-2.0
"""Writes a notebook beside each example: `python examples/notebooks.py`.

An example is a program in cells: `# %%` begins a cell of code, `# %% [markdown]` one of words,
which stand in comments. So it runs as it is, opens as a notebook, and is a page of the
documentation.
"""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent
ABOUT = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


class Cell(NamedTuple):
    """A part of an example: words in Markdown, or code."""

    kind: str
    text: str


def programs() -> list[Path]:
    """The examples."""
    return sorted(file for file in FOLDER.glob("*.py") if file.name != Path(__file__).name)


def cells(program: str) -> list[Cell]:
    """The cells of a program, in their order."""
    _, *parts = re.split(r"^# %%(.*)\n", program, flags=re.MULTILINE)
    return [
        Cell("markdown", re.sub(r"^# ?", "", text, flags=re.MULTILINE).strip())
        if "[markdown]" in head
        else Cell("code", text.strip())
        for head, text in zip(parts[::2], parts[1::2], strict=True)
    ]


def notebook(program: str) -> str:
    """The notebook of a program."""
    found = [_entry(cell) for cell in cells(program)]
    whole = {"cells": found, "metadata": ABOUT, "nbformat": 4, "nbformat_minor": 4}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _entry(cell: Cell) -> dict[str, Any]:
    entry = {"cell_type": cell.kind, "metadata": {}, "source": cell.text.splitlines(keepends=True)}
    return entry | ({"execution_count": None, "outputs": []} if cell.kind == "code" else {})


def page(program: str) -> str:
    """The program as a page in Markdown."""
    texts = [f"```python\n{text}\n```" if kind == "code" else text for kind, text in cells(program)]
    return "\n\n".join(texts) + "\n"


if __name__ == "__main__":
    for file in programs():
        file.with_suffix(".ipynb").write_text(notebook(file.read_text("utf-8")), "utf-8")
