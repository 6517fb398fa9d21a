# SPDX-License-Identifier: Apache-2.0
"""The documentation as a site: whole, and readable from the file system, on a telephone too."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.browser import as_wide_as, browser_tests, chromium

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]


def build(project: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Builds the site of a project as `make docs` does."""
    line = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        line, cwd=project, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


def pages(site: Path) -> list[Path]:
    """All pages but that for addresses which are not there: a server shows it, from its root."""
    return sorted(page for page in site.rglob("*.html") if page.name != "404.html")


@browser_tests
@pytest.mark.parametrize("width", [400, 1400])
def test_every_page_fits_fetches_nothing_and_has_its_pictures(site: Path, browser: Any, width: int):
    as_wide_as(browser, width)
    for page in pages(site):
        browser.get(page.as_uri())
        wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert browser.execute_script(wide) <= 0, page.name
        unseen = "return [...document.images].filter(i => !i.naturalWidth).map(i => i.src)"
        assert browser.execute_script(unseen) == [], page.name
    complaints = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert complaints == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [m["params"]["request"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    asked = {request["url"].partition(":")[0] for request in sent}
    assert asked <= {"file", "data", "blob", "chrome"}


@browser_tests
def test_the_search_works_from_the_file_system(site: Path, browser: Any):
    as_wide_as(browser, 1400)
    browser.get((site / "index.html").as_uri())
    browser.find_element("css selector", "input[name=query]").send_keys("stratified")
    found = "return [...document.querySelectorAll('.md-search-result__link')].map(a => a.href)"
    end = time.monotonic() + 20
    while not (links := browser.execute_script(found)) and time.monotonic() < end:
        time.sleep(0.2)
    assert any("data.html" in link for link in links)


@browser_tests
def test_a_long_command_wraps_and_is_copied_as_it_was_written(site: Path, browser: Any):
    as_wide_as(browser, 400)
    browser.get((site / "tutorial.html").as_uri())
    code = "const code = document.querySelector('.language-sh code');"
    assert browser.execute_script(f"{code} return code.scrollWidth <= code.clientWidth")
    # As the button beside it does.
    copied = browser.execute_script(
        f"{code} code.setAttribute('data-md-copying', ''); return code.innerText.trimEnd()"
    )
    assert f"```sh\n{copied}\n```" in (ROOT / "docs" / "tutorial.md").read_text()


def copy(folder: Path) -> None:
    """Makes a folder a project with the same pages and sources."""
    pytest.importorskip("mkdocs")
    for file in ROOT.glob("*.*"):
        if file.suffix in (".md", ".yml"):
            shutil.copy(file, folder)
    for name in ("docs", "examples"):
        shutil.copytree(ROOT / name, folder / name)
    (folder / "src").symlink_to(ROOT / "src")


@pytest.mark.parametrize(
    ("page", "wrong", "named"),
    [
        ("tune.md", "[nowhere](nowhere.md)", "nowhere.md"),
        ("tune.md", "[no such part](data.md#no-such-part)", "no-such-part"),
        ("api.md", "::: agnosticfl.no_such_name", "no_such_name"),
    ],
)
def test_what_leads_nowhere_is_an_error(page: str, wrong: str, named: str, tmp_path: Path):
    """In a copy of the project in which one page says more than there is."""
    copy(tmp_path)
    with (tmp_path / "docs" / page).open("a") as file:
        file.write(f"\n{wrong}\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    assert named in done.stderr


def test_a_public_name_that_the_reference_lacks_is_an_error(tmp_path: Path):
    copy(tmp_path)
    page = tmp_path / "docs" / "api.md"
    page.write_text(page.read_text().replace("::: agnosticfl.worst_domain\n", ""))
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    assert "docs/api.md lacks these public names: worst_domain" in done.stderr
