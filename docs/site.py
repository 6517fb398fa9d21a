# SPDX-License-Identifier: Apache-2.0
"""What MkDocs does beside its own work: pages that lie at the repository's root are in the site too.

There they are where a reader of the repository looks for them, with links that lead there.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
ROOTED = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "report-a-weakness.md",
}


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages of the root."""
    for rooted, name in ROOTED.items():
        text = (ROOT / rooted).read_text().replace("](docs/", "](")
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links to pages of the root lead to the site's."""
    for rooted, name in ROOTED.items():
        markdown = re.sub(rf"\]\((\.\./)?{re.escape(rooted)}", f"]({name}", markdown)
    return markdown
