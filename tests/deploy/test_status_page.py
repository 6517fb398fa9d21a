# SPDX-License-Identifier: Apache-2.0
"""The status page: its real process, asked by strangers and by a real browser."""

import base64
import os
import re
import ssl
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
import pytest

from agnosticfl.deploy.gate.refusals import Refusals, Refused
from agnosticfl.deploy.keys import make_server_keys
from agnosticfl.deploy.process_settings import as_json
from agnosticfl.deploy.seeing.chart import chart, colours
from agnosticfl.deploy.seeing.page import policy
from agnosticfl.deploy.seeing.serve import GUESSES, Page, given
from agnosticfl.deploy.seeing.settings import (
    PageSettings,
    address_of,
    page_settings,
    read_password,
)
from agnosticfl.deploy.seeing.status import (
    PLAYING,
    SERVER,
    STATUS,
    Client,
    Line,
    Lost,
    Round,
    Server,
    Stage,
    Status,
    added,
    write,
)
from agnosticfl.deploy.supervise import children
from agnosticfl.errors import BadInput
from tests.helpers.browser import browser_tests, chromium

PASSWORD = "correct horse battery"
EVIL = "Chur <script>document.title='taken'</script>"


def status(rounds: int = 3) -> Status:
    history: tuple[Round, ...] = ()
    for t in range(1, rounds + 1):
        history = added(history, Round(t, 1e9 + t, 1.5, (1 / t, 2 / t, None), (0.2, 0.5, 0.3)))
    return Status(
        run="hearts-1",
        task="hearts",
        method="AFA",
        out="/runs/live",
        secure=True,
        rounds=9,
        domains=("Basel", EVIL, "empty"),
        phase=PLAYING,
        done=rounds,
        stage="keys",
        stage_begun=1e9,
        asked=3,
        history=history,
        stages=(Stage("masked vectors", 3, 2, 4.5),),
        lost=(Lost(1e9, 2, EVIL, "is dropped: masked vectors: no reply"),),
        num_lost=1,
        errors=(Line(1e9, "round 2 abandoned"),),
    )


def write_state(folder: Path, rounds: int = 3) -> None:
    folder.mkdir(exist_ok=True)
    clients = (Client("Basel", "1", "online"), Client(EVIL, "2", "offline"))
    started = psutil.Process().create_time()
    write(folder, SERVER, Server(os.getpid(), started, "/runs/live", "x:1", "", clients))
    write(folder, STATUS, status(rounds))


def started(settings: PageSettings) -> Generator[PageSettings]:
    """The page's own process."""
    process = subprocess.Popen(children.page_command(settings), stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        while not children.listening(f"{settings.host}:{settings.port}"):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        yield settings
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    write_state(folder / "state")
    make_server_keys(folder / "keys", ["127.0.0.1"], days=2)
    (folder / "password").write_text(f"{PASSWORD}\n")
    (folder / "password").chmod(0o600)
    return folder


@pytest.fixture(scope="module")
def local(place: Path) -> Iterator[PageSettings]:
    """For this user, on loopback."""
    port = children.free_port()
    yield from started(page_settings(f"127.0.0.1:{port}", place / "state", place / "keys", None))


@pytest.fixture(scope="module")
def locked(place: Path) -> Iterator[PageSettings]:
    """With a password and TLS."""
    port = children.free_port()
    yield from started(
        page_settings(f"127.0.0.1:{port}", place / "state", place / "keys", place / "password")
    )


def test_the_page_holds_everything_and_lets_nothing_else_in(local: PageSettings):
    answer = httpx.get(address_of(local), trust_env=False)
    assert answer.status_code == 200
    own = answer.headers["content-security-policy"]
    assert own == policy()
    assert "unsafe" not in own
    assert own.startswith("default-src 'none'; ")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    links = re.findall(r"""(?:src|href|action)=["']?([^"'> ]+)""", answer.text)
    assert links == ["data:,"]
    assert "<script>document" not in answer.text
    for words in ("round 4 of 9", "Basel", "masked vectors: no reply", "round 2 abandoned"):
        assert words in answer.text


def test_metrics_are_there_for_prometheus(local: PageSettings):
    answer = httpx.get(f"{address_of(local)}metrics", trust_env=False)
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "agnosticfl_rounds_done 3.0\n" in answer.text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_it_only_shows(local: PageSettings, method: str):
    assert httpx.request(method, address_of(local), trust_env=False).status_code == 405


@pytest.mark.parametrize(
    "path", ["server.json", "status.json", "../keys/server.key", "%2e%2e/state/server.json", "x"]
)
def test_there_is_nothing_else(local: PageSettings, path: str):
    answer = httpx.get(f"{address_of(local)}{path}", trust_env=False)
    assert (answer.status_code, answer.text) == (404, "")


def test_an_invented_host_name_is_refused(local: PageSettings):
    """By which a page of another site could read it in the operator's own browser."""
    for host in ("evil.example", f"evil.example:{local.port}", "127.0.0.1"):
        answer = httpx.get(address_of(local), headers={"host": host}, trust_env=False)
        assert answer.status_code == 404
    named = httpx.get(f"http://localhost:{local.port}/", trust_env=False)
    assert named.status_code in (200, 404)  # 404 where that name is another address


def test_another_user_of_the_machine_is_refused(place: Path):
    ours = {(("127.0.0.1", 1234), ("127.0.0.1", 8001))}
    settings = PageSettings("127.0.0.1", 8001, str(place / "state"))
    page = Page(settings, None, Refusals(lambda _: None), own=lambda *ends: ends in ours)
    scope: dict[str, Any] = {
        "method": "GET",
        "path": "/",
        "headers": [(b"host", b"127.0.0.1:8001")],
        "client": ("127.0.0.1", 1234),
        "server": ("127.0.0.1", 8001),
    }
    page.admit(scope, "127.0.0.1")
    ours.clear()
    with pytest.raises(Refused, match="for the user that serves"):
        page.admit(scope, "127.0.0.1")


def trusting(place: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(place / "keys" / "ca.pem"))


def test_with_a_password_it_is_asked_for_over_tls(place: Path, locked: PageSettings):
    with httpx.Client(
        base_url=address_of(locked), verify=trusting(place), trust_env=False
    ) as client:
        nothing = client.get("/")
        assert (nothing.status_code, "hearts" in nothing.text) == (401, False)
        assert nothing.headers["www-authenticate"].startswith("Basic ")
        assert client.get("/metrics").status_code == 401
        assert client.get("/", auth=("anybody", PASSWORD)).status_code == 200
        assert client.get("/metrics", auth=("prometheus", PASSWORD)).status_code == 200
        for wrong in ("", PASSWORD[:-1], f"{PASSWORD} ", PASSWORD.upper()):
            assert client.get("/", auth=("operator", wrong)).status_code == 401
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://127.0.0.1:{locked.port}/", trust_env=False)


def test_guessing_is_slow_even_when_the_last_guess_is_right(place: Path):
    settings = PageSettings("0.0.0.0", 1, str(place / "state"), password="x")
    page = Page(settings, PASSWORD, Refusals(lambda _: None))

    def tried(password: str, address: str) -> int:
        word = base64.b64encode(f"a:{password}".encode())
        scope = {"method": "GET", "path": "/", "headers": [(b"authorization", b"Basic " + word)]}
        try:
            page.admit(scope, address)
        except Refused as refused:
            return refused.status
        return 200

    assert [tried(PASSWORD, "a") for _ in range(20)] == [200] * 20  # costs no guess
    answers = [tried(f"guess number {i}", "a") for i in range(20)]
    allowed = int(10 * GUESSES)
    assert answers == [401] * allowed + [429] * (20 - allowed)
    assert tried(PASSWORD, "a") == 429
    assert tried(PASSWORD, "b") == 200


@pytest.mark.parametrize(
    "value", [b"", b"Basic", b"Basic !!", b"Bearer abc", b"Basic YWJj", b"\xff"]
)
def test_what_is_no_password_is_none(value: bytes):
    assert given([(b"authorization", value)]) == b""
    twice = (b"authorization", b"Basic " + base64.b64encode(f"a:{PASSWORD}".encode()))
    assert given([twice, twice]) == b""


def test_a_page_for_others_needs_a_password_that_is_kept_well(tmp_path: Path):
    with pytest.raises(BadInput, match="--password FILE is needed"):
        page_settings("0.0.0.0:8001", tmp_path, tmp_path, None)
    with pytest.raises(BadInput, match="it must be HOST:PORT, or none"):
        page_settings("8001", tmp_path, tmp_path, None)
    file = tmp_path / "password"
    with pytest.raises(BadInput, match="there is no file"):
        page_settings("0.0.0.0:8001", tmp_path, tmp_path, file)
    file.write_text("too short\n")
    file.chmod(0o600)
    with pytest.raises(BadInput, match="has 9 characters; it must have 12 to 1024"):
        read_password(file)
    file.write_text(f"{PASSWORD}\nsecond line\n")
    assert read_password(file) == PASSWORD
    file.chmod(0o640)
    with pytest.raises(BadInput, match="others can read"):
        page_settings("0.0.0.0:8001", tmp_path, tmp_path, file)


def test_settings_survive_the_command_line(locked: PageSettings):
    (python, option, module, text) = children.page_command(locked)
    assert (python, option, module) == (sys.executable, "-m", "agnosticfl.deploy.seeing.serve")
    assert text == as_json(locked)
    assert PASSWORD not in text
    assert msgspec.json.decode(text, type=PageSettings) == locked


def test_lines_keep_within_the_chart_and_absent_domains_leave_no_point():
    text = chart([1, 2, 4], [[1.0, 3.0, 2.0], [None, None, 5.0]], ["c0", "c1"], "losses")
    first, second = re.findall(r'points="([^"]*)"', text)
    assert len(first.split()) == 3
    assert len(second.split()) == 1
    places = [tuple(map(float, p.split(","))) for p in (*first.split(), *second.split())]
    assert all(0 <= x <= 420 and 0 <= y <= 220 for x, y in places)
    assert chart([1], [[None]], ["c0"], "nothing") == ""
    close = chart([7], [[0.5004], [0.4996]], ["c0", "c1"], "nearly the same")
    assert re.findall(r">([^<]*)</text>", close) == ["0.4996", "0.5", "0.5004", "round 7"]
    many = colours([float(i) for i in range(20)])
    assert (many.count("pale"), many[-1]) == (19, "c0")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    profile = tmp_path_factory.mktemp("profile")
    with chromium(profile, "--ignore-certificate-errors") as driver:
        yield driver


def until(done: Any, what: str) -> None:
    late = time.monotonic() + 30
    while not done():
        assert time.monotonic() < late, what
        time.sleep(0.1)


@browser_tests
def test_a_browser_shows_it_and_what_is_new(browser: Any, place: Path, local: PageSettings):
    write_state(place / "state")
    browser.get(address_of(local))
    text = browser.find_element("css selector", "main").text
    assert "round 4 of 9: keys" in text
    assert EVIL in text
    assert browser.title.startswith("round 4 of 9")
    assert len(browser.find_elements("css selector", "#loss polyline")) == 3
    drawn = "return getComputedStyle(document.querySelector('#loss polyline')).stroke"
    assert browser.execute_script(drawn) == "rgb(0, 114, 178)"
    # A new round comes by itself, without the page being loaded again.
    browser.execute_script("window.same = true")
    write_state(place / "state", rounds=5)
    until(lambda: browser.title.startswith("round 6 of 9"), "no new round came")
    assert browser.execute_script("return window.same")
    assert browser.find_element("id", "away").is_displayed() is False
    # No policy was broken, and nothing failed.
    bad = [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    assert bad == []


@browser_tests
@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_the_window_in_both_schemes(
    browser: Any, local: PageSettings, width: int, scheme: str
):
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    browser.get(address_of(local))
    assert browser.execute_script(
        "return document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    )
    back = browser.execute_script(
        "return getComputedStyle(document.documentElement).backgroundColor"
    )
    assert back == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(19, 20, 22)")


@browser_tests
def test_the_browser_says_when_the_server_is_gone(browser: Any, place: Path):
    port = children.free_port()
    settings = page_settings(f"127.0.0.1:{port}", place / "state", place / "keys", None)
    for _ in started(settings):
        browser.get(address_of(settings))
        assert browser.find_element("id", "away").is_displayed() is False
    until(lambda: browser.find_element("id", "away").is_displayed(), "it looks as if all were well")


@browser_tests
def test_a_browser_with_the_password_shows_it(browser: Any, place: Path, locked: PageSettings):
    write_state(place / "state")
    known = f"https://operator:{PASSWORD.replace(' ', '%20')}@"
    browser.get(address_of(locked).replace("https://", known))
    assert browser.title.startswith("round 4 of 9")
    write_state(place / "state", rounds=5)
    until(lambda: browser.title.startswith("round 6 of 9"), "no new round came")
