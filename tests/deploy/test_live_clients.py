# SPDX-License-Identifier: Apache-2.0
"""One live federation as its people see it: secure sums, a server without data, clients who
evaluate, one of them in PyTorch without JAX, while its operator watches.
"""

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from agnosticfl.core.federated import FederatedData
from agnosticfl.data.source import Feature, Rows, Source
from agnosticfl.data.store import write_store
from agnosticfl.deploy.app import PACKAGE
from agnosticfl.deploy.node.examples import dealt_to
from agnosticfl.deploy.supervise import children
from agnosticfl.deploy.task import EVALUATION, TRAINING, FederatedTask, read_task
from agnosticfl.files import read_json
from agnosticfl.runs.build import build
from agnosticfl.runs.records import read_records
from tests.deploy.judged import assert_same_run, resolve_server, simulate
from tests.deploy.shell import Command, Shell
from tests.deploy.without_jax import write_blocker
from tests.helpers.browser import CHROMIUM, DRIVER, as_wide_as, chromium
from tests.helpers.command_line import called

pytestmark = pytest.mark.slow

PEOPLE = ("ann", "bob", "cleo")
TORCH = "cleo"  # trains with PyTorch, and has no JAX
METRICS = ("accuracy", "auroc", "f1")
# All of a client's examples in one batch: their order, which is each client's own, does not matter.
SETS = (
    "evaluation_by=clients",
    "evaluation_every=1",
    "evaluation_share=0.4",
    "data.clients=24",
    "data.examples=12",
    "data.shares=0.5,0.5",
    "batch_size=1000",
    f"model.metrics={json.dumps(METRICS)}",
)
ROUNDS = 20  # so many that they are seen as they go
APP = f"""\
from pathlib import Path

import torch

try:
    import jax
except ModuleNotFoundError:
    print("there is no JAX here", flush=True)

from agnosticfl.deploy.flower.client_app import client_app
from agnosticfl.deploy.node.pytorch import torch_client, torch_model


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.kernel = torch.nn.Parameter(torch.zeros(16, 10))
        self.bias = torch.nn.Parameter(torch.zeros(10))


class Logistic(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = Layer()


def forward(module, examples):
    return examples["x"] @ module.linear.kernel + module.linear.bias


def loss(module, examples):
    logits = forward(module, examples)
    return torch.nn.functional.cross_entropy(logits, examples["y"].long(), reduction="none")


model = torch_model(Logistic, loss, forward=forward, metrics={METRICS!r})
app = client_app(Path(__file__).parent, torch_client(Logistic, loss), model=model)
"""


class Seen(NamedTuple):
    """What was seen of a page: its text, and whether it is wider than its window."""

    text: str
    too_wide: bool
    picture: Path


class Played(NamedTuple):
    """A federation that has come to its end."""

    place: Path
    out: Path
    task: FederatedTask
    said: dict[str, str]  # by whom
    watched: str  # what `status --watch` showed
    during: dict[int, Seen]  # width -> the page while the run went on
    complaints: list[Any]  # of the browser


def store(path: Path, part: FederatedData) -> None:
    def rows() -> Iterator[Rows]:
        yield Rows("train", ["somebody"] * part.num_examples, part.domain, part.examples)

    features = {n: Feature(a.dtype.name, a.shape[1:]) for n, a in part.examples.items()}
    write_store(Source("points", "none", part.domains, features, rows), path)


def run(*words: str | Path) -> None:
    done = called("deploy", *words)
    assert done.returncode == 0, done.stderr


def prepare(place: Path) -> FederatedTask:
    """Keys, app, roster and stores, as the page of the docs has them made."""
    server = place / "server"
    run("keys", "server", server / "keys", "--host", "127.0.0.1")
    sets = [word for each in SETS for word in ("--set", each)]
    size = ["--clients", "3", "--rounds", str(ROUNDS), "--secure", "--keys", server / "keys"]
    run("init", server / "app", "synthetic-points", *size, *sets)
    task = read_task(server / "app" / PACKAGE)
    whole = build(resolve_server(task.config)).data.train
    for number, name in enumerate(PEOPLE):
        home = place / name
        home.mkdir()
        own = ["--domains", ",".join(task.domains), "--contact", name]
        run("keys", "client", home / f"{name}.key", *own)
        store(home / "own", dealt_to(whole, number, len(PEOPLE)))
        shutil.copytree(server / "app", home / "app")
        shutil.copy(server / "keys" / "ca.pem", home)
    (place / TORCH / "app" / PACKAGE / "client_app.py").write_text(APP)
    run("keys", "keeper", place / "keeper.sign")
    cards = [place / name / f"{name}.card" for name in PEOPLE]
    keeper = ["--keeper", place / "keeper.sign", "--federation", "points"]
    run("roster", "new", place / "roster", *keeper, *cards)
    for folder in ("server", *PEOPLE):
        shutil.copy(place / "roster", place / folder)
    return task


def client(shell: Shell, name: str, address: str) -> Command:
    files = {"--ca": "ca.pem", "--app": "app", "--key": f"{name}.key", "--data": "own"}
    words = [word for pair in files.items() for word in pair]
    line = ["deploy", "client", "--server", address, "--roster", "roster", *words, "--poll", "1"]
    return shell.start(line, name)


def look(browser: Any, width: int, folder: Path) -> Seen:
    as_wide_as(browser, width)
    wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    picture = folder / f"page-{width}.png"
    browser.save_screenshot(str(picture))
    text = browser.find_element("css selector", "main").text
    return Seen(text, browser.execute_script(f"return {wide}"), picture)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Generator[Played]:
    pytest.importorskip("torch", reason="the extra 'torch' is not installed")
    place = tmp_path_factory.mktemp("federation")
    task, out = prepare(place), place / "server" / "live"
    shell = Shell(place)
    address, page = (f"127.0.0.1:{children.free_port()}" for _ in range(2))
    words = ["deploy", "server", "app", "--keys", "keys", "--roster", "roster", "--out", "live"]
    here = ["--host", "127.0.0.1", "--port", address.split(":")[1], "--page", page]
    during, complaints = dict[int, Seen](), list[Any]()
    try:
        server = shell.start([*words, *here], "server")
        people = {name: client(shell, name, address) for name in PEOPLE if name != TORCH}
        server.until((place / "server" / "deploy-state" / "server.json").exists)
        watching = shell.start(["deploy", "status", "--watch"], "server")
        server.until(lambda: children.listening(page))
        with pytest.MonkeyPatch.context() as patch:
            nothing = write_blocker(place / "nothing")
            before = os.environ.get("PYTHONPATH", "")
            patch.setenv("PYTHONPATH", os.pathsep.join([str(nothing), before]))
            people[TORCH] = client(shell, TORCH, address)
        if CHROMIUM and DRIVER:
            with chromium(place / "profile") as browser:
                browser.get(f"http://{page}/")
                title = "return document.title"
                server.until(lambda: done_in(browser.execute_script(title))[-1:] > [1])
                during = {width: look(browser, width, place) for width in (400, 1400)}
                complaints = [e for e in browser.get_log("browser") if e["level"] == "SEVERE"]
        assert server.ends() == 0, server.said()
        time.sleep(1.5)  # for one more look
        watching.send(signal.SIGINT)
        assert watching.ends() == 0, watching.said()
        for person in people.values():
            person.send(signal.SIGTERM)
            person.ends()
        said = {name: each.said() for name, each in {**people, "server": server}.items()}
        yield Played(place, out, task, said, watching.said(), during, complaints)
    finally:
        shell.close()


def done_in(text: str) -> list[int]:
    """How many rounds are done or under way, wherever a text says it."""
    return [int(number) for number in re.findall(rf"(\d+) of {ROUNDS}\b", text)]


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_table_and_best_model_are_the_simulation_s(played: Played, tmp_path: Path):
    """Secure sums of two clients in JAX and one in PyTorch; the server has no example."""
    simulate(tmp_path / "run", played.task.config, len(PEOPLE))
    assert_same_run(played.out, tmp_path / "run")
    assert [r["left_out"] for r in read_records(played.out)] == [0] * ROUNDS
    assert "server" not in read_json(played.out / "summary.json")
    assert (played.out / "report.html").exists()


def test_an_operator_sees_its_own_site_s_figures(played: Played):
    """Those of all sites together make the table; what each site saw is not the table."""
    whole = read_json(played.out / "summary.json")
    sites = {name: lines(played.place / name / "deploy-state" / "figures.jsonl") for name in PEOPLE}
    last = {name: next(f for f in own if f["split"] == "test") for name, own in sites.items()}
    for domain, number in whole["examples"]["test"].items():
        counts = [own["examples"][domain] for own in last.values()]
        assert (sum(counts), min(counts) > 0) == (number, True)
        right = [own["domains"][domain]["accuracy"] for own in last.values()]
        assert whole["test"][domain]["accuracy"] == pytest.approx(np.dot(counts, right) / number)
    assert len({json.dumps(own["domains"]) for own in last.values()}) == len(PEOPLE)
    for name in PEOPLE:
        kept = lines(played.place / name / "deploy-state" / "audit.jsonl")
        given = [line for line in kept if line["event"] == "contributed"]
        trained = [line for line in given if line["kind"] == TRAINING]
        judged = [line for line in given if line["kind"] == EVALUATION]
        assert [set(line["metrics"]) for line in trained] == [set(METRICS)] * ROUNDS
        assert [{"loss": j["loss"], **j["metrics"]} for j in judged] == [
            f["overall"] for f in sites[name]
        ]
        assert "own examples of test" in played.said[name]


def test_the_client_in_pytorch_had_no_jax(played: Played):
    """Its own app says so, and it answered all the same."""
    assert "there is no JAX here" in played.said[TORCH]
    assert "Traceback" not in played.said[TORCH]
    assert "this client has left" in played.said[TORCH]


def test_status_watch_shows_the_run_as_it_goes(played: Played):
    shown = played.watched
    assert "Traceback" not in shown
    assert "3 connected" in shown
    done = [int(number) for number in re.findall(rf"(\d+) of {ROUNDS} rounds are done", shown)]
    assert done == sorted(done)
    assert {0, ROUNDS} < set(done)
    for name in (*PEOPLE, *played.task.domains):
        assert name in shown


@pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver")
def test_the_page_shows_the_run_as_it_goes(played: Played):
    for seen in played.during.values():
        assert not seen.too_wide
        assert any(0 < number < ROUNDS for number in done_in(seen.text))
        assert "3 of 3" in seen.text  # clients are online
        for name in (*PEOPLE, *played.task.domains):
            assert name in seen.text
        assert seen.picture.stat().st_size > 10_000
    assert played.complaints == []
    summary, records = read_json(played.out / "summary.json"), read_records(played.out)
    down = sum(r["bytes_down"] for r in records) + summary["bytes"]["evaluation_bytes_down"]
    state = read_json(played.place / "server" / "deploy-state" / "status.json")
    assert state["bytes_down"] == down
