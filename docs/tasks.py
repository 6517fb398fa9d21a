# SPDX-License-Identifier: Apache-2.0
"""Writes the reference in docs/tasks.md anew: `.venv/bin/python docs/tasks.py`.

What stands above the mark is written by hand; what stands below it is what the program says of its
own keys (`agnosticfl show --keys --markdown`).
"""

from pathlib import Path

from agnosticfl.runs.explain import keys_as_markdown

PAGE = Path(__file__).with_name("tasks.md")
MARK = "<!-- Below this line: `python docs/tasks.py`. -->\n"


def page() -> str:
    """The page as it should be."""
    written, _, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
    return f"{written}{MARK}\n{keys_as_markdown()}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
