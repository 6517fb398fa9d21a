# SPDX-License-Identifier: Apache-2.0
"""The report in a real browser: headless Chromium, driven over its debugging protocol."""

import json
import math
import random
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agnosticfl.files import write_json
from agnosticfl.report import write_report
from agnosticfl.runs.config import as_table
from agnosticfl.runs.predictions import FOLDER, SUM
from agnosticfl.runs.records import METRICS
from agnosticfl.runs.resolve import resolve
from tests.helpers.browser import as_wide_as, browser_tests, chromium

waiting = pytest.importorskip("selenium.webdriver.support.wait", reason="needs selenium")

DOMAINS = ("questions <b>", "answers & more")

pytestmark = browser_tests


def write_synthetic_run(
    folder: Path, algorithm: str, seed: int, domains: Sequence[str] = DOMAINS
) -> None:
    """A run folder with everything that a report can show, and numbers that nobody trained."""
    rng = random.Random(f"{algorithm} {seed}")
    target = domains[1] if algorithm == "fedavg-target" else None
    config = resolve("toy", algorithm, target, seed, rounds=40)

    def values(t: int) -> dict[str, dict[str, float]]:
        return {d: {"loss": 2 + i + 5 / t + rng.random()} for i, d in enumerate(domains)}

    folder.mkdir(parents=True)
    write_json(folder / "config.json", as_table(config))
    records = [
        {
            "round": t,
            "domain_weights": [1 / len(domains)] * len(domains),
            "loss": [v["loss"] for v in values(t).values()],
            "count": [rng.randrange(90, 110), *(rng.randrange(3) for _ in domains[1:])],
            "bytes_down": 1000,
            "bytes_up": 1200,
            "seconds": 0.1,
            **({"heldout": values(t)} if t % 5 == 0 else {}),
        }
        for t in range(1, 41)
    ]
    (folder / METRICS).write_text("".join(json.dumps(record) + "\n" for record in records))
    spread = {"loss": {"variance": rng.random(), "worst_tenth": 5.0}}
    test = values(40)
    losses = [values["loss"] for values in test.values()]
    summary = {
        "domains": domains,
        "test": test,
        "heldout": values(40),
        "overall": {"test": {"loss": statistics.fmean(losses)}},
        "clients": {"test": spread},
        "examples": dict.fromkeys(("train", "test"), dict.fromkeys(domains, 1000)),
        "bytes": {"down_per_round": 1000, "up_per_round": 1200, "paper_per_round": 2000},
        "num_params": 1,
        "environment": {"python": "3"},
    }
    write_json(folder / "summary.json", summary)
    keep(folder, losses, domains)


def keep(folder: Path, losses: Sequence[float], domains: Sequence[str]) -> None:
    """Predictions of 10 clients in each domain, half of them better than its loss, half worse."""
    domain = np.repeat(np.arange(len(domains)), 10)
    values = np.array(losses)[domain] + np.tile([0.5, -0.5], 5 * len(domains))
    (folder / FOLDER).mkdir()
    arrays: dict[str, Any] = {
        "client": np.arange(len(domain)),
        "domain": domain,
        "by_example": np.array(True),
        "client_ids": np.arange(len(domain)).astype(str),
        "domains": np.array(domains),
        f"{SUM}loss": np.stack([values, np.ones(len(values))]),
    }
    np.savez(folder / FOLDER / "test-last.npz", **arrays)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    for algorithm in ("fedavg", "fedavg-target", "afa"):
        for seed in range(3):
            write_synthetic_run(folder / f"{algorithm}-{seed}", algorithm, seed)
    write_report([folder], folder)
    return folder / "report.html"


@pytest.fixture(scope="module", params=[8, 56])
def many(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of many domains."""
    folder = tmp_path_factory.mktemp("many")
    for algorithm in ("fedavg", "afa"):
        names = [f"東京 hospital {i}" for i in range(request.param)]
        write_synthetic_run(folder / algorithm, algorithm, 0, names)
    write_report([folder], folder)
    return folder / "report.html"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


def show(browser: Any, report: Path, width: int = 1200, **media: Any) -> None:
    """Opens the page in a window of that width."""
    as_wide_as(browser, width)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get(report.as_uri())


def test_all_plots_are_visible_and_nothing_is_fetched_or_complained_of(browser: Any, report: Path):
    show(browser, report)
    sizes = browser.execute_script(
        "return [...document.images].map(i => [i.id, i.naturalWidth, i.offsetHeight])"
    )
    names = {"curves", "bytes", "weights", "train", "heldout", "counts"}
    assert names <= {name for name, *_ in sizes}
    assert all(width > 0 and height > 100 for _, width, height in sizes)
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    own = [p["request"]["url"] for p in sent if p["documentURL"] == report.as_uri()]
    asked = {address.partition(":")[0] for address in own}
    assert asked == {"file", "data"}


def column(browser: Any, number: int) -> list[str]:
    return browser.execute_script(
        "return [...document.querySelector('table').tBodies[0].rows]"
        f".map(row => row.cells[{number}].textContent)"
    )


def heads(browser: Any) -> list[Any]:
    return browser.find_elements("css selector", "table:first-of-type thead button")


def test_tables_sort_by_mouse_and_by_keyboard(browser: Any, report: Path):
    show(browser, report)
    assert column(browser, 0) == ["FedAvg (uniform)", f"FedAvg ({DOMAINS[1]})", "AFA"]
    head = heads(browser)[0]
    head.click()
    assert column(browser, 0) == ["AFA", f"FedAvg ({DOMAINS[1]})", "FedAvg (uniform)"]
    head.send_keys("\ue007")  # Enter, on what has the focus
    assert column(browser, 0) == ["FedAvg (uniform)", f"FedAvg ({DOMAINS[1]})", "AFA"]
    number = heads(browser)[1]
    number.send_keys(" ")
    values = [float(text.split()[0]) for text in column(browser, 1)]
    assert values == sorted(values)
    states = [
        head.find_element("xpath", "..").get_attribute("aria-sort") for head in heads(browser)
    ]
    assert states[:3] == ["none", "ascending", "none"]
    number.click()
    assert [float(text.split()[0]) for text in column(browser, 1)] == values[::-1]
    assert browser.get_log("browser") == []


def test_counts_stay_below_when_a_table_is_sorted(browser: Any, report: Path):
    show(browser, report)
    heads(browser)[0].click()
    names = "[...document.querySelector('table').tFoot.rows].map(row => row.cells[0].textContent)"
    assert browser.execute_script(f"return {names}") == ["test examples"]
    assert "test examples" not in column(browser, 0)


def test_the_page_explains_bold_dashes_and_brackets(browser: Any, report: Path):
    show(browser, report)
    text = browser.find_element("css selector", ".reading").text
    for sign in ("Bold is", "– stands for", "In parentheses", "In brackets", "† marks"):
        assert sign in text
    assert "Thin lines are seeds" in browser.find_element("id", "training").text


def test_what_matters_is_seen_without_scrolling_and_the_rest_scrolls(browser: Any, many: Path):
    show(browser, many, 1400)
    seen = browser.execute_script(
        "const box = document.querySelector('.wide');"
        "const right = box.getBoundingClientRect().right;"
        "const heads = [...box.querySelectorAll('thead th')];"
        "return heads.filter(h => h.getBoundingClientRect().right <= right).map(h => h.textContent)"
    )
    assert seen[1:3] == ["worst", "difference"]
    assert len(seen) >= 10  # the page uses the window's width
    size = (
        "const box = document.querySelector('.wide');"
        "return [box.scrollWidth > box.clientWidth, box.classList.contains('more')]"
    )
    wide, marked = browser.execute_script(size)
    assert wide == marked
    show(browser, many, 400)
    assert browser.execute_script(size) == [True, True]
    browser.execute_script("document.querySelector('.wide').scrollLeft = 1e6")
    waiting.WebDriverWait(browser, 10).until(lambda b: b.execute_script(size) == [True, False])
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 400
    assert "Thin lines" not in browser.find_element("id", "training").text


@pytest.mark.parametrize(
    ("width", "media"), [(320, "screen"), (375, "screen"), (1200, "screen"), (703, "print")]
)
def test_nothing_sticks_out_on_a_phone_or_on_paper(
    browser: Any, report: Path, width: int, media: str
):
    """Paper: A4 without the margins, at 96 dots an inch."""
    show(browser, report, width, media=media)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


def test_all_settings_are_printed(browser: Any, report: Path):
    show(browser, report)
    opened = "return document.querySelector('details').open"
    assert not browser.execute_script(opened)
    assert browser.execute_cdp_cmd("Page.printToPDF", {})["data"]
    assert browser.execute_script(opened)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_by_day_and_by_night(browser: Any, report: Path, scheme: str):
    show(browser, report, features=[{"name": "prefers-color-scheme", "value": scheme}])
    colours = browser.execute_script(
        "const html = getComputedStyle(document.documentElement);"
        "const note = getComputedStyle(document.querySelector('figcaption'));"
        "return [html.backgroundColor, html.color, note.color]"
    )
    back, *texts = map(luminance, colours)
    assert (back < 0.1) == (scheme == "dark")
    for text in texts:  # WCAG 2 asks for a contrast of 4.5 at least
        assert (max(back, text) + 0.05) / (min(back, text) + 0.05) > 4.5


def luminance(colour: str) -> float:
    """WCAG's relative luminance of `rgb(r, g, b)`."""
    parts = [int(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    linear = [p / 12.92 if p <= 0.03928 else math.pow((p + 0.055) / 1.055, 2.4) for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
