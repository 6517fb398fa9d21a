# SPDX-License-Identifier: Apache-2.0
"""A client as one process: what it takes from Flower, what it answers, and how it ends."""

import contextlib
import importlib
import inspect
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import pytest
from flwr.app import Message

from agnosticfl.deploy.app import PACKAGE
from agnosticfl.deploy.flower import connection as connections
from agnosticfl.deploy.flower import warm
from agnosticfl.deploy.flower.connection import Connection, Stopped
from agnosticfl.deploy.flower.decoy import app_files
from agnosticfl.deploy.flower.decoy import connection as decoy
from agnosticfl.deploy.flower.own_app import OwnApp
from agnosticfl.deploy.keys import make_authority, make_node_key
from agnosticfl.deploy.node.settings import Settings
from agnosticfl.deploy.process_settings import as_json, from_json
from agnosticfl.errors import BadInput
from tests.deploy.standing import NONSENSE, standing

ROOT = Path(__file__).parents[2]

APP = """\
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query()
def answer(message, context):
    if "fail" in context.node_config:
        raise ValueError("the patient's name is Ann")
    seen = context.state.config_records.setdefault("seen", ConfigRecord({"number": 0}))
    seen["number"] += 1
    said = {"number": seen["number"], "node": context.node_id, "when": context.run_config["wait"]}
    return Message(RecordDict({"said": ConfigRecord(said)}), reply_to=message)
"""


def write_own(place: Path, name: str = "trial") -> Path:
    """An app whose module nobody else has loaded."""
    folder = place / name
    for file, text in app_files(place / "mark").items():
        path = folder / file.replace(PACKAGE, f"{PACKAGE}_{place.name}".replace("-", "_"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace(f"{PACKAGE}.", f"{path.parent.name}."))
        if path.name == "client_app.py":
            path.write_text(APP)
        if path.name == "pyproject.toml":
            own = f"{PACKAGE}_{place.name}".replace("-", "_")
            path.write_text(text.replace(f"{PACKAGE}.", f"{own}.").replace("-trial", f"-{name}"))
    return folder


class Line:
    """A connection to a server that sends the decoy's two messages; keeps what is answered."""

    def __init__(self, parts: Connection):
        self.sent: list[Message] = []
        self.worked: list[float] = []  # seconds, as they are reported
        self.fabs = 0
        self.parts = parts._replace(send=self.send, get_fab=self.get_fab)

    def send(self, reply: Message, _: Any, seconds: float) -> tuple[set[str], str]:
        self.sent.append(reply)
        self.worked.append(seconds)
        return set(), ""

    def get_fab(self, *_: Any) -> Any:
        self.fabs += 1


@pytest.fixture
def line(tmp_path: Path) -> Generator[Line]:
    with decoy(tmp_path) as parts:
        yield Line(Connection(*parts))


def test_every_message_is_answered_by_the_client_s_own_app_which_stays(line: Line, tmp_path: Path):
    """The bundle is not even asked for; the app knows what it did before, and the run's options."""
    app = OwnApp(write_own(tmp_path), {})
    assert [warm.answer_next(line.parts, app) for _ in range(3)] == [True, True, False]
    said = [reply.content.config_records["said"] for reply in line.sent]
    assert [(s["number"], s["node"], s["when"]) for s in said] == [(1, 2, 3600.0)] * 2  # two runs
    assert (line.fabs, line.worked) == (0, [0.0, 0.0])  # how long it works is nobody's business
    assert not (tmp_path / "mark").exists()


def test_why_an_app_fails_stays_on_the_client(
    line: Line, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    warm.answer_next(line.parts, OwnApp(write_own(tmp_path), {"fail": 1}))
    assert line.sent[0].error.reason == "its own log says why"
    assert "the patient's name is Ann" in caplog.text


def test_a_run_of_another_app_is_not_answered(
    line: Line, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    warm.answer_next(line.parts, OwnApp(write_own(tmp_path, "other"), {}))
    assert line.sent[0].has_error()
    assert (
        "the server's run is of agnosticfl/agnosticfl-trial 1.0.0;"
        " this client has agnosticfl/agnosticfl-other 1.0.0"
    ) in caplog.text


def test_a_message_that_cannot_be_read_or_answered_is_let_go(line: Line, tmp_path: Path):
    """And the next one is answered."""
    app = OwnApp(write_own(tmp_path), {})

    def lost(*_: Any) -> bytes:
        raise OSError("the network is gone")

    def over(*_: Any) -> tuple[set[str], str]:
        raise Stopped

    assert warm.answer_next(line.parts._replace(pull_object=lost), app)
    assert warm.answer_next(line.parts._replace(send=over), app)
    assert line.sent == []


def test_a_server_in_trouble_is_asked_again_and_one_that_says_no_is_not(line: Line, tmp_path: Path):
    app = OwnApp(write_own(tmp_path), {})

    def answering(status: int) -> Connection:
        def receive() -> None:
            request = httpx.Request("POST", "https://server")
            raise httpx.HTTPStatusError(
                "no", request=request, response=httpx.Response(status, request=request)
            )

        return line.parts._replace(receive=receive)

    assert warm.answer_next(answering(500), app) is False
    with pytest.raises(httpx.HTTPStatusError):
        warm.answer_next(answering(404), app)


def test_settings_come_back_and_nonsense_does_not():
    settings = Settings(
        "host:1", "ca.pem", "a.key", "app", {"data": "here", "min-examples": 1}, 2.0
    )
    assert from_json(as_json(settings), Settings, "the client's") == settings
    with pytest.raises(BadInput, match="the client's settings cannot be read"):
        from_json("[]", Settings, "the client's")


# What is relied on in Flower's inside: names of functions and of what they take.
RELIED_ON = {
    "flwr.supernode.start_client_internal._init_connection": [
        "server_address",
        "insecure",
        "root_certificates",
        "authentication_keys",
        "max_retries",
        "max_wait_time",
    ],
    "flwr.clientapp.utils.get_load_client_app_fn": ["default_app_ref", "app_path", "multi_app"],
    "flwr.common.config.get_fused_config_from_dir": ["project_dir", "override_config"],
    "flwr.common.config.get_metadata_from_config": ["config"],
    "flwr.supercore.inflatable.inflatable_object.get_all_nested_objects": ["obj"],
    "flwr.supercore.inflatable.inflatable_object.get_object_tree": ["obj"],
    "flwr.supercore.inflatable.inflatable_object.iterate_object_tree": ["tree"],
    "flwr.supercore.inflatable.inflatable_utils.inflate_object_from_contents": [
        "object_id",
        "object_contents",
    ],
    "flwr.supercore.inflatable.inflatable_utils.pull_objects": ["object_ids", "pull_object_fn"],
    "flwr.supercore.inflatable.inflatable_utils.push_objects": ["objects", "push_object_fn"],
}


@pytest.mark.parametrize("name", RELIED_ON)
def test_flower_s_inside_is_what_is_relied_on(name: str):
    module, _, function = name.rpartition(".")
    found = inspect.signature(getattr(importlib.import_module(module), function))
    wanted = RELIED_ON[name]
    assert list(found.parameters)[: len(wanted)] == wanted


def test_flower_s_connection_has_the_parts_that_are_relied_on():
    """The eight that `Connection` names, in their order, as its own loop unpacks them."""
    source = inspect.getsource(connections._node.start_client_internal)
    names = source.split(") as conn:")[1].split(") = conn")[0].replace("(", "").replace(",", "")
    own = [*Connection._fields]
    assert names.split() == ["node_id", *own[1:-1], "confirm_message_received"]
    assert issubclass(Stopped, BaseException)
    assert not issubclass(Stopped, Exception)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    make_authority(tmp_path, ["127.0.0.1"], days=2)
    make_node_key(tmp_path / "ann.key")
    app = write_own(tmp_path)
    return Settings(
        "127.0.0.1:9", str(tmp_path / "ca.pem"), str(tmp_path / "ann.key"), str(app), {}
    )


@contextlib.contextmanager
def started(settings: Settings, log: Path) -> Generator[subprocess.Popen[bytes]]:
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "agnosticfl.deploy.flower.warm", as_json(settings)],
            env={**os.environ, "PYTHONPATH": path, "FLWR_TELEMETRY_ENABLED": "0"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_client_whose_server_is_not_there_tries_again_until_it_is_told_to_end(
    settings: Settings, tmp_path: Path, number: signal.Signals
):
    log = tmp_path / "log"
    with started(settings, log) as process:
        until = time.monotonic() + 60
        while "127.0.0.1:9 does not answer" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until
            time.sleep(0.05)
        process.send_signal(number)
        assert process.wait(30) == 0
    assert "this client has left" in log.read_text()
    assert "Traceback" not in log.read_text()


def test_a_client_with_a_key_that_is_none_ends_with_one_line(settings: Settings, tmp_path: Path):
    Path(settings.key).write_text("nonsense")
    with started(settings, tmp_path / "log") as process:
        assert process.wait(60) == 2
    assert "error: " in (tmp_path / "log").read_text()
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_a_client_keeps_trying_until_its_key_is_registered(settings: Settings, tmp_path: Path):
    """And says what is missing; the SuperLink behind this gate knows nobody, which is said too."""
    keys, log = tmp_path / "keys", tmp_path / "log"
    make_authority(keys, ["127.0.0.1"], days=2)
    (keys / "clients").mkdir()
    with standing(keys) as address:
        own = settings._replace(server=address, authority=str(keys / "ca.pem"))
        with started(own, log) as process:
            until = time.monotonic() + 60
            said = f"key: the server does not know {settings.key}"
            while said not in log.read_text():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < until
                time.sleep(0.05)
            (keys / "clients" / "ann.pub").write_bytes((tmp_path / "ann.pub").read_bytes())
            while "Failed to initialize the connection" not in log.read_text():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < until
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
    assert log.read_text().count(said) == 1
    assert "Traceback" not in log.read_text()


def test_a_client_whose_server_says_nonsense_connects_again(settings: Settings, tmp_path: Path):
    keys, log = tmp_path / "keys", tmp_path / "log"
    make_authority(keys, ["127.0.0.1"], days=2)
    (keys / "clients").mkdir()
    (keys / "clients" / "ann.pub").write_bytes((tmp_path / "ann.pub").read_bytes())
    node = {"/v1/fleet/activate-node": b"\x08\x07"}  # node_id = 7
    with standing(keys, NONSENSE | node) as address:
        own = settings._replace(server=address, authority=str(keys / "ca.pem"))
        with started(own, log) as process:
            until = time.monotonic() + 60
            while log.read_text().count("connected as node 7") < 2:
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < until, log.read_text()
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
    assert "Invalid protobuf response payload; connecting again" in log.read_text()
    assert "Traceback" not in log.read_text()


def test_a_client_that_waiting_does_not_help_ends_with_the_reason(
    settings: Settings, tmp_path: Path
):
    keys, log = tmp_path / "keys", tmp_path / "log"
    make_authority(keys, ["127.0.0.1"], days=2)
    (keys / "clients").mkdir()
    with standing(keys) as address, started(settings._replace(server=address), log) as process:
        assert process.wait(60) == 1
    assert "error: certificate: it is not of the authority in --ca" in log.read_text()
    assert "Traceback" not in log.read_text()


def test_flower_s_connection_ends_by_the_function_that_is_replaced():
    module = importlib.import_module("flwr.supernode.fleet_http_connection")
    assert module.flwr_exit is connections._raise_not_let_in
    assert "flwr_exit(" in inspect.getsource(module.http_request_response)
