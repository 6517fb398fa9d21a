# SPDX-License-Identifier: Apache-2.0
"""What MkDocs does beside its own work: pages that lie elsewhere are in the site too.

They are where a reader of the repository looks for them, with links that lead there: some at its
root, and the examples, whose cells become a page each. A public name that the reference
does not have ends the build.
"""

import importlib.util
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import agnosticfl

ROOT = Path(__file__).parents[1]
ROOTED = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "report-a-weakness.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
}
REFERENCE = "api.md"  # the page of the public names


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that lie elsewhere."""
    for rooted, name in ROOTED.items():
        text = (ROOT / rooted).read_text("utf-8").replace("](docs/", "](")
        files.append(File.generated(config, name, content=text))
    notebooks = _notebooks()
    for program in notebooks.programs():
        text = notebooks.page(program.read_text("utf-8")).replace("](../docs/", "](../")
        files.append(File.generated(config, f"examples/{program.stem}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Makes links to those pages lead to the site's, and checks that the reference is complete."""
    if page.file.src_uri == REFERENCE:
        shown = re.findall(r"^::: agnosticfl\.(\w+)$", markdown, re.MULTILINE)
        if missing := ", ".join(sorted(set(agnosticfl.__all__) - set(shown))):
            raise PluginError(f"docs/{REFERENCE} lacks these public names: {missing}")
    for rooted, name in ROOTED.items():
        markdown = re.sub(rf"\]\((\.\./)?{re.escape(rooted)}", f"]({name}", markdown)
    return re.sub(r"\]\((?:\.\./)?examples/(\w+)\.(py|ipynb)\)", r"](examples/\1.md)", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Keeps options of commands whole: a browser would end a line after their dashes."""
    return re.sub(r"<code[^>]*>.*?</code>", _with_whole_options, html, flags=re.DOTALL)


def _with_whole_options(code: re.Match[str]) -> str:
    return re.sub(
        r"(?<![^\s>(])(--[a-z][a-z0-9-]*)(?![^\s<=,.)])", r'<span class="whole">\1</span>', code[0]
    )


def _notebooks() -> Any:
    """The script that reads examples."""
    place = ROOT / "examples" / "notebooks.py"
    spec = importlib.util.spec_from_file_location("notebooks", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
