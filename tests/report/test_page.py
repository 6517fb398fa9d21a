# SPDX-License-Identifier: Apache-2.0
"""The report in a real browser: headless Chromium, driven over its debugging protocol."""

import json
import math
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agnosticfl.files import write_json
from agnosticfl.report import write_report
from agnosticfl.runs.config import as_table
from agnosticfl.runs.records import METRICS
from agnosticfl.runs.resolve import resolve

webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
DOMAINS = ("questions <b>", "answers & more")

pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason="needs chromium and chromedriver on the path"
)


def made_up_run(folder: Path, algorithm: str, seed: int) -> None:
    """A run folder with everything that a report can show, and numbers that nobody trained."""
    rng = random.Random(f"{algorithm} {seed}")
    target = DOMAINS[1] if algorithm == "fedavg-target" else None
    config = resolve("toy", algorithm, target, seed, rounds=40)

    def values(t: int) -> dict[str, dict[str, float]]:
        return {d: {"loss": 2 + i + 5 / t + rng.random()} for i, d in enumerate(DOMAINS)}

    folder.mkdir(parents=True)
    write_json(folder / "config.json", as_table(config))
    records = [
        {
            "round": t,
            "domain_weights": [0.5, 0.5],
            "loss": [v["loss"] for v in values(t).values()],
            "count": [rng.randrange(90, 110), rng.randrange(3)],
            "bytes_down": 1000,
            "bytes_up": 1200,
            "seconds": 0.1,
            **({"heldout": values(t)} if t % 5 == 0 else {}),
        }
        for t in range(1, 41)
    ]
    (folder / METRICS).write_text("".join(json.dumps(record) + "\n" for record in records))
    spread = {"loss": {"variance": rng.random(), "worst_tenth": 5.0}}
    summary = {
        "domains": DOMAINS,
        "test": values(40),
        "heldout": values(40),
        "overall": {"test": {"loss": 2.5}},
        "clients": {"test": spread},
        "examples": {"train": dict.fromkeys(DOMAINS, 1000)},
        "bytes": {"down_per_round": 1000, "up_per_round": 1200, "paper_per_round": 2000},
        "num_params": 1,
        "environment": {"python": "3"},
    }
    write_json(folder / "summary.json", summary)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    for algorithm in ("fedavg", "fedavg-target", "afa"):
        for seed in range(3):
            made_up_run(folder / f"{algorithm}-{seed}", algorithm, seed)
    write_report([folder], folder)
    return folder / "report.html"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    profile = tmp_path_factory.mktemp("profile")
    for option in (*OPTIONS, f"--user-data-dir={profile}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


def show(browser: Any, report: Path, width: int = 1200, **media: Any) -> None:
    """Opens the page in a window of that width."""
    screen = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
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
