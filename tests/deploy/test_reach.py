# SPDX-License-Identifier: Apache-2.0
"""Whether a client is let in, at a real gate; if not, what is wrong is said and what to do."""

import datetime
import re
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509

from agnosticfl.core.federated import FederatedData
from agnosticfl.data.source import Feature, Rows, Source
from agnosticfl.data.store import write_store
from agnosticfl.deploy import check
from agnosticfl.deploy.app import write_app
from agnosticfl.deploy.gate import serve
from agnosticfl.deploy.keys import (
    make_authority,
    make_node_key,
    make_server_keys,
    renew_certificate,
)
from agnosticfl.deploy.node import reach as reaching
from agnosticfl.deploy.node.examples import dealt_to
from agnosticfl.deploy.node.reach import Finding, Waiting, reach
from agnosticfl.deploy.roster import read_roster
from agnosticfl.deploy.served import FILE, differing_terms, parse_served, write_served
from agnosticfl.deploy.task import FederatedTask
from agnosticfl.errors import BadInput
from agnosticfl.runs.build import build
from tests.deploy.federations import make_federation, toy
from tests.deploy.secure import secure_toy
from tests.deploy.standing import standing
from tests.helpers.command_line import called


class Place:
    """A gate's folder, its address, and a client's key that is registered there."""

    def __init__(self, folder: Path, address: str):
        self.folder, self.address = folder, address
        self.authority, self.key = folder / "ca.pem", folder / "clients" / "ann.key"

    def wrong(self, address: str = "", key: Path | None = None) -> Finding:
        found = reach(address or self.address, self.authority, key or self.key).wrong
        assert found is not None
        return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Generator[Place]:
    folder = tmp_path_factory.mktemp("keys")
    make_authority(folder, ["127.0.0.1", "fl.example.org"], days=400)
    make_node_key(folder / "clients" / "ann.key")
    with standing(folder) as address:
        yield Place(folder, address)


def test_a_client_that_is_let_in_hears_its_name_and_what_is_served(place: Place, tmp_path: Path):
    reached = reach(place.address, place.authority, place.key)
    assert reached.wrong is None
    assert [f.what for f in reached.findings] == [
        "address",
        "certificate",
        "host name",
        "clock",
        "key",
    ]
    assert reached.served is not None
    assert (reached.served.client, reached.served.terms) == ("ann", {})  # nothing is served yet
    year = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=400)).year
    assert f"valid until {year}" in reached.findings[1].said
    write_app(tmp_path / "app", toy())
    write_served(place.folder / FILE, tmp_path / "app", "")
    served = reach(place.address, place.authority, place.key).served
    assert served is not None
    assert served.run == "toy-of-the-tests"
    assert set(served.terms) == {"program", "task", "schema"}
    (place.folder / FILE).unlink()


def test_a_key_that_nobody_registered_may_be_waited_for(place: Place, tmp_path: Path):
    key = make_node_key(tmp_path / "bob.key").with_suffix(".key")
    wrong = place.wrong(key=key)
    assert (wrong.what, wrong.waiting) == ("key", True)
    assert wrong.said == f"the server does not know {key}"
    assert "must register bob.pub" in wrong.todo


@pytest.mark.parametrize(("seconds", "side"), [(60, "ahead of"), (-400, "behind")])
def test_a_clock_that_is_off_is_called_so(
    place: Place, monkeypatch: pytest.MonkeyPatch, seconds: int, side: str
):
    monkeypatch.setattr(reaching, "time", SimpleNamespace(time=lambda: time.time() + seconds))
    wrong = place.wrong()
    assert (wrong.what, wrong.waiting, wrong.todo) == ("clock", False, "set it (NTP)")
    found = re.search(rf"this machine's is (\d+) s {side} the server's", wrong.said)
    assert found is not None
    assert abs(int(found[1]) - abs(seconds)) <= 1  # a server tells its time to the second


def test_a_clock_that_is_behind_is_a_reason_to_wait_when_the_server_has_just_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What was signed before a gate was open may have been used then, so it is not taken."""
    make_authority(tmp_path, ["127.0.0.1"])
    make_node_key(tmp_path / "clients" / "ann.key")
    with standing(tmp_path) as address:
        monkeypatch.setattr(reaching, "time", SimpleNamespace(time=lambda: time.time() - 60))
        wrong = Place(tmp_path, address).wrong()
    assert (wrong.what, wrong.waiting) == ("clock", True)
    assert re.search(r"is (59|60) s behind the server's, which takes nothing that", wrong.said)


def test_a_certificate_that_expired_is_called_so(tmp_path: Path):
    make_authority(tmp_path, ["127.0.0.1"], days=0)
    make_node_key(tmp_path / "clients" / "ann.key")
    time.sleep(1.1)  # it holds to the second
    with standing(tmp_path) as address:
        wrong = Place(tmp_path, address).wrong()
    assert (wrong.what, wrong.waiting) == ("certificate", False)
    today = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
    assert wrong.said.startswith(f"it expired on {today} ")
    assert "the server's operator must renew the certificate" in wrong.todo


def test_a_certificate_that_was_renewed_counts_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The same ca.pem, the same gate: a client that was kept out is let in."""
    monkeypatch.setattr(serve, "LOOK", 0.0)
    make_server_keys(tmp_path, ["127.0.0.1"], days=0)
    make_node_key(tmp_path / "clients" / "ann.key")
    time.sleep(1.1)
    with standing(tmp_path) as address:
        place = Place(tmp_path, address)
        assert place.wrong().what == "certificate"
        (tmp_path / "server.pem").write_text("half a file")
        assert place.wrong().what == "certificate"  # it goes on with what it has
        (tmp_path / "server.pem").unlink()
        assert place.wrong().what == "certificate"
        make_server_keys(tmp_path / "other", ["127.0.0.1"])
        shutil.copy(tmp_path / "other" / "server.pem", tmp_path / "server.pem")
        renew_certificate(tmp_path)
        found = reach(address, place.authority, place.key)
        assert found.wrong is None, found.wrong


def test_a_certificate_that_newer_pythons_refuse_is_called_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As 0.1.0 made them; ours are taken by the strictest."""
    monkeypatch.setattr(reaching, "USUAL", ssl.VERIFY_X509_STRICT)
    make_authority(tmp_path / "today", ["127.0.0.1"])
    added = x509.CertificateBuilder.add_extension

    def left_out(self: Any, extension: Any, critical: bool) -> Any:
        if isinstance(extension, x509.AuthorityKeyIdentifier):
            return self
        return added(self, extension, critical)

    monkeypatch.setattr(x509.CertificateBuilder, "add_extension", left_out)
    make_authority(tmp_path / "before", ["127.0.0.1"])
    for folder in (tmp_path / "today", tmp_path / "before"):
        make_node_key(folder / "clients" / "ann.key")
        with standing(folder) as address:
            place = Place(folder, address)
            wrong = reach(address, place.authority, place.key).wrong
        if folder.name == "today":
            assert wrong is None, wrong
        else:
            assert wrong is not None
            assert wrong.line() == (
                "certificate: it does not name its authority's key, as Python 3.13 asks:"
                " agnosticfl 0.1 made it; the server's operator must make keys anew (`deploy keys"
                " server`), or use Python 3.12 here"
            )


def test_a_certificate_of_somebody_else_is_called_so(place: Place, tmp_path: Path):
    make_authority(tmp_path, ["127.0.0.1"])
    found = reach(place.address, tmp_path / "ca.pem", place.key).wrong
    assert found is not None
    assert (found.what, found.waiting) == ("certificate", False)
    assert "not of the authority in --ca" in found.said


def test_a_host_that_the_certificate_is_not_for_is_called_so(place: Place):
    wrong = place.wrong(place.address.replace("127.0.0.1", "localhost"))
    assert (wrong.what, wrong.waiting) == ("host name", False)
    assert "not for localhost, but for 127.0.0.1, fl.example.org" in wrong.said


def test_a_server_that_is_not_up_and_a_name_that_nobody_knows_may_be_waited_for(place: Place):
    wrong = place.wrong("127.0.0.1:9")
    assert (wrong.what, wrong.waiting) == ("address", True)
    assert "127.0.0.1:9 does not answer" in wrong.said
    wrong = place.wrong("no-such-host.invalid:1")
    assert (wrong.what, wrong.waiting) == ("address", True)
    assert "the name no-such-host.invalid is not known here" in wrong.said


def test_something_that_speaks_no_tls_is_called_so(place: Place):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection = listener.accept()[0]
            connection.recv(10)
            connection.sendall(b"HTTP/1.1 400 no\r\n\r\n")
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        wrong = place.wrong(f"127.0.0.1:{listener.getsockname()[1]}")
        thread.join()
    assert (wrong.what, wrong.waiting) == ("address", True)
    assert "does not speak TLS" in wrong.said


@pytest.mark.parametrize("server", ["nowhere", ":1", "host:0", "host:x"])
def test_an_address_that_is_none_is_refused(place: Place, server: str):
    with pytest.raises(BadInput, match="it must be HOST:PORT"):
        place.wrong(server)


def test_files_that_are_none_are_refused(place: Place, tmp_path: Path):
    (tmp_path / "ca.pem").write_text("nonsense")
    with pytest.raises(BadInput, match=r"ca\.pem is no certificate"):
        reach(place.address, tmp_path / "ca.pem", place.key)
    with pytest.raises(BadInput, match="cannot be read"):
        parse_served(b'{"client": 3}')


def test_pauses_grow_and_a_line_is_said_once_an_hour():
    now = [0.0]
    waiting = Waiting(lambda: now[0])
    assert waiting.new("a")
    assert not waiting.new("a")
    assert waiting.new("b")
    now[0] = 3600.0
    assert waiting.new("b")
    pauses = [waiting.next() for _ in range(20)]
    assert pauses[:2] == [2.0, 3.0]
    assert pauses[-1] == 60.0
    waiting.reset()
    assert waiting.next() == 2.0
    assert waiting.new("b")


def test_terms_that_differ_are_named():
    own = {"program": "1", "task": "a" * 64}
    assert differing_terms(own, dict(own)) == []
    theirs = {"program": "2", "task": "b" * 64, "roster": "number 2, " + "c" * 64}
    assert differing_terms(own, theirs) == [
        "program is 1 here, and 2 on the server",
        "roster is none here, and number 2, cccccccccccc… on the server",
        "task is aaaaaaaaaaaa… here, and bbbbbbbbbbbb… on the server",
    ]


class Client:
    """A client with a store, in a folder of its own, as `deploy check` gets it."""

    def __init__(self, place: Path, task: FederatedTask):
        self.place = place
        write_app(place / "app", task)
        self.roster = make_federation(place / "members", ["ann", "bob", "cleo"])
        data = dealt_to(build(toy().config).data.train, 0, 3)
        store(place / "store", data)

    def joiner(self, address: str, authority: Path, key: Path) -> check.Joiner:
        place = self.place
        return check.Joiner(
            address, authority, place / "app", key, place / "store", place, self.roster
        )


def store(path: Path, data: FederatedData) -> None:
    def rows() -> Iterator[Rows]:
        yield Rows("train", ["ann"] * len(data.domain), data.domain, data.examples)

    write_store(Source("toy", "none", data.domains, {"x": Feature("float32", ())}, rows), path)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Client:
    return Client(tmp_path_factory.mktemp("client"), secure_toy())


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, client: Client
) -> Generator[Callable[[], dict[str, Finding]]]:
    """What a check finds at a gate at which the member ann is registered."""
    keys = tmp_path_factory.mktemp("served")
    make_authority(keys, ["127.0.0.1"])
    (keys / "clients").mkdir()
    ann = client.place / "members" / "ann.key"
    (keys / "clients" / "ann.pub").write_bytes(ann.with_suffix(".pub").read_bytes())
    write_served(keys / FILE, client.place / "app", str(client.roster))
    with standing(keys) as address:
        joiner = client.joiner(address, keys / "ca.pem", ann)

        def look(**changes: object) -> dict[str, Finding]:
            found = list(check.findings(joiner._replace(**changes)))
            assert len({finding.what for finding in found}) == len(found)
            return {finding.what: finding for finding in found}

        yield look


def test_a_client_that_has_everything_is_ready(
    served: Callable[..., dict[str, Finding]], client: Client
):
    found = served()
    assert [f.line() for f in found.values() if not f.right] == []
    assert list(found) == [
        *("versions", "app", "store", "roster", "conditions"),
        *("address", "certificate", "host name", "clock", "key"),
        *(f"{term} of the server" for term in ("program", "roster", "schema", "task")),
    ]
    assert "in which this client is ann" in found["roster"].said
    examples = dealt_to(build(toy().config).data.train, 0, 3).num_examples
    assert found["store"].said.startswith(f"{examples} examples of ")
    assert read_roster(client.roster).serial == 1
    assert not (client.place / "accepted.roster").exists()  # nothing is written


def test_each_thing_that_is_wrong_is_named(
    served: Callable[..., dict[str, Finding]], tmp_path: Path
):
    def wrong(**changes: object) -> dict[str, str]:
        return {what: f.line() for what, f in served(**changes).items() if not f.right}

    assert set(wrong(roster=None)) == {"roster", "roster of the server"}
    assert set(wrong(min_examples=10**6)) == {"store"}
    assert "10" in wrong(min_examples=10**6)["store"]
    other = make_federation(tmp_path / "members", ["ann", "bob", "cleo"])
    assert set(wrong(roster=other)) == {"roster", "roster of the server"}
    write_app(tmp_path / "app", toy(rounds=7))
    found = wrong(app=tmp_path / "app", roster=None)
    assert set(found) == {"task of the server", "roster of the server"}
    assert "get the folder `app` that the server has" in found["task of the server"]


def test_the_command_says_all_and_ends_with_status_1(client: Client):
    """With a server that is not up; what is on this machine is in order."""
    members = client.place / "members"
    make_authority(client.place / "ca", ["127.0.0.1"])
    words = ("--server", "127.0.0.1:9", "--ca", client.place / "ca" / "ca.pem")
    words += ("--app", client.place / "app", "--key", members / "ann.key")
    words += ("--roster", client.roster, "--data", client.place / "store")
    done = called("deploy", "check", *words, "--state", client.place)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "WRONG address: 127.0.0.1:9 does not answer" in done.stdout
    assert "ok    store: " in done.stdout
    assert "1 wrong: this client would not take part" in done.stderr
