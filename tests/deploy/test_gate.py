# SPDX-License-Identifier: Apache-2.0
"""The gate's application before a stub of a SuperLink: what passes, and every refusal."""

import hashlib
import time
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import httpx
import pytest

from agnosticfl.deploy.gate.desk import Desk
from agnosticfl.deploy.gate.limits import Buckets, Limits, limits_from, neighbourhood
from agnosticfl.deploy.gate.members import Members
from agnosticfl.deploy.gate.refusals import LINES, Refusals
from agnosticfl.deploy.gate.routes import (
    CALLS,
    CHECK,
    METHOD,
    PATHS,
    PUBLIC_KEY,
    REQUEST_HEADERS,
    RESPONSE_HEADERS,
    SIGNATURE,
    TIMESTAMP,
)
from agnosticfl.deploy.keys import make_node_key, make_signing_key, write_verify_key
from agnosticfl.errors import BadInput, quoted
from tests.deploy.knocking import PROTOBUF, PULL, Gate, Knock, flower_routes, mirrored


@pytest.fixture
def clients(tmp_path: Path) -> Path:
    make_node_key(tmp_path / "clients" / "ann.key")
    return tmp_path / "clients"


@pytest.fixture
def ann(clients: Path) -> Knock:
    return Knock(clients / "ann.key")


@pytest.fixture
def gate(clients: Path) -> Gate:
    return Gate(clients)


def refused(gate: Gate, answer: httpx.Response, status: int, why: str) -> bool:
    """Whether a request was turned away with nothing said, and never came to the SuperLink."""
    assert (answer.status_code, answer.content) == (status, b"")
    assert answer.headers["connection"] == "close"
    assert why in gate.said[-1]
    return not gate.superlink.requests


def test_only_the_fleet_s_routes_of_flower_pass(gate: Gate, ann: Knock):
    """A client's own signature is under all of them: it is no operator either."""
    passed: set[str] = set()
    routes = flower_routes()
    assert len(routes) > 70
    for method, path in routes:
        answer = gate.ask(path, ann.headers(), method)
        if answer.status_code == 200:
            assert method == METHOD
            passed.add(path)
        else:
            assert (answer.status_code, answer.content) == (404, b"")
    registering = {"/v1/fleet/register-node", "/v1/fleet/unregister-node"}
    assert passed == PATHS == {p for _, p in routes if p.startswith("/v1/fleet/")} - registering
    assert {request.url.path for request in gate.superlink.requests} == passed


def test_a_client_hears_who_it_is_and_a_stranger_nothing(gate: Gate, ann: Knock):
    """By the gate itself: nothing of it comes to the SuperLink."""
    answer = gate.ask(CHECK, ann.headers(), body=b"")
    assert (answer.status_code, answer.json()["client"]) == (200, "ann")
    assert refused(gate, gate.ask(CHECK, PROTOBUF, body=b""), 404, "no node key")
    assert refused(gate, gate.ask(CHECK, ann.headers(), body=b"x"), 413, "ann sends 1 bytes")
    assert refused(gate, gate.ask(CHECK, ann.headers(), "GET", b""), 404, "not for clients")


def test_the_headers_are_those_of_flower():
    from flwr.common import constant as common
    from flwr.supercore import constant as core

    assert TIMESTAMP.decode() == common.TIMESTAMP_HEADER
    assert PUBLIC_KEY.decode() == core.FLEET_HTTP_PUBLIC_KEY_HEADER
    assert SIGNATURE.decode() == core.FLEET_HTTP_SIGNATURE_HEADER
    for name in ("FLWR_PACKAGE_NAME", "FLWR_PACKAGE_VERSION", "FLWR_COMPONENT_NAME"):
        assert getattr(core, f"{name}_METADATA_KEY").encode() in REQUEST_HEADERS
    assert core.VERSION_INCOMPATIBILITY_MESSAGE_METADATA_KEY.encode() in RESPONSE_HEADERS


def test_a_client_passes_and_its_body_and_the_answer_are_whole(gate: Gate, ann: Knock):
    body = bytes(range(256)) * 1000
    extra = {"x-forwarded-for": "10.0.0.1", "flwr-task-token": "t", "te": "trailers", "cookie": "c"}
    answer = gate.ask(headers={**ann.headers(), **extra, "flwr-package-version": "1"}, body=body)
    assert (answer.status_code, answer.content) == (200, hashlib.sha256(body).digest())
    assert set(answer.headers) == {"content-type", "content-length"}
    (request,) = gate.superlink.requests
    assert gate.superlink.lengths == [len(body)]
    sent = {name.encode() for name in request.headers}
    assert not sent & {name.encode() for name in extra}
    own = {b"host", b"user-agent", b"accept-encoding", b"connection"}  # of the gate's own client
    assert sent - own <= REQUEST_HEADERS
    assert b"flwr-package-version" in sent


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/health", "/docs", "/openapi.json", "/v1/fleet", "/v1/fleet/", "/v1/fleet/new"),
        *("/v1/fleet/../control/list-runs", "/v1/fleet/pull-messages/", "//v1/fleet/pull-messages"),
        *("/v1/fleet/pull-messages?x=1", "/v1/fleet/pull%2Dmessages", "/V1/fleet/pull-messages"),
        *("/v1/fleet/pull-messages/../../control/stop-run", "/v1/control/list-runs#/v1/fleet"),
    ],
)
def test_a_path_that_is_not_exactly_one_of_them_is_not_there(gate: Gate, ann: Knock, path: str):
    assert refused(gate, gate.ask(path, ann.headers()), 404, "it is not for clients")


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "CONNECT", "TRACE"])
def test_other_methods_are_not_there(gate: Gate, ann: Knock, method: str):
    assert refused(gate, gate.ask(PULL, ann.headers(), method), 404, "it is not for clients")


def test_a_stranger_sees_the_same_whatever_he_tries(gate: Gate, clients: Path, ann: Knock):
    make_node_key(clients.parent / "eve.key")
    eve = Knock(clients.parent / "eve.key")
    assert refused(gate, gate.ask(headers=PROTOBUF), 404, "no node key")
    assert refused(gate, gate.ask(headers=eve.headers()), 404, "not in the folder of clients")
    for name in ("flwr-public-key", "flwr-timestamp", "flwr-signature"):
        headers = ann.headers()
        del headers[name]
        assert refused(gate, gate.ask(headers=headers), 404, "no node key")
        twice = [*ann.headers().items(), (name, eve.headers()[name])]
        assert refused(gate, gate.ask(headers=twice), 404, "no node key")
    nonsense = ann.headers() | {"flwr-signature": "not base64!"}
    assert refused(gate, gate.ask(headers=nonsense), 404, "no node key")
    stolen = eve.headers() | {"flwr-public-key": ann.headers()["flwr-public-key"]}
    assert refused(gate, gate.ask(headers=stolen), 401, "the signature is not that of ann")


def test_an_altered_signature_or_time_is_refused(gate: Gate, ann: Knock):
    headers = ann.headers()
    raw = bytearray(b64decode(headers["flwr-signature"]))
    raw[-1] ^= 1
    altered = headers | {"flwr-signature": b64encode(raw).decode()}
    assert refused(gate, gate.ask(headers=altered), 401, "the signature is not that of ann")
    moved = headers | {"flwr-timestamp": ann.headers(1)["flwr-timestamp"]}
    assert refused(gate, gate.ask(headers=moved), 401, "the signature is not that of ann")
    for text in ("now", "2026-01-01T00:00:00", "", "9999-12-31T23:59:59.999999-23:59"):
        answer = gate.ask(headers=ann.signed(text))
        assert (answer.status_code, gate.superlink.requests) == (401, [])
    assert gate.ask(headers=headers).status_code == 200  # what was refused is not used up


def test_a_signature_is_taken_once(gate: Gate, ann: Knock):
    """Also if it is written in the other way that ECDSA allows."""
    headers = ann.headers()
    assert gate.ask(headers=headers).status_code == 200
    gate.superlink.requests.clear()
    assert refused(gate, gate.ask(headers=headers), 401, "a signature of ann came twice")
    other = b64encode(mirrored(b64decode(headers["flwr-signature"]))).decode()
    again = headers | {"flwr-signature": other}
    assert refused(gate, gate.ask(headers=again), 401, "a signature of ann came twice")
    assert refused(gate, gate.ask(headers=ann.signed(headers["flwr-timestamp"])), 401, "twice")


def test_nothing_is_taken_that_was_signed_before_the_gate_was_open(clients: Path, ann: Knock):
    """It may have been used already; a SuperNode tries again by itself."""
    gate = Gate(clients)
    gate.members.opened = time.time()
    assert refused(gate, gate.ask(headers=ann.headers(-60)), 503, "before the gate was open")


@pytest.mark.parametrize("later", [7.0, -310.0])
def test_a_clock_that_differs_much_is_refused_as_flower_does(gate: Gate, ann: Knock, later: float):
    assert refused(gate, gate.ask(headers=ann.headers(later)), 401, "the clock of ann differs")


def test_used_times_are_forgotten_when_they_are_too_old_anyway(clients: Path, ann: Knock):
    now = [time.time()]
    members = Members(clients, lambda: now[0])
    for step in range(5):
        now[0] += 200.0
        headers = ann.headers(now[0] - time.time())
        members.check([(name.encode(), value.encode()) for name, value in headers.items()])
        (used,) = members._used.values()
        assert len(used.known) == len(used.order) == min(step + 1, 2)


def test_the_folder_of_clients_is_read_again(clients: Path, ann: Knock):
    gate = Gate(clients)
    now = [time.time()]
    gate.members.clock = lambda: now[0]
    make_node_key(clients.parent / "bob.key")
    bob = Knock(clients.parent / "bob.key")
    assert gate.ask(headers=bob.headers()).status_code == 404
    (clients.parent / "bob.pub").rename(clients / "bob.pub")
    (clients / "ann.pub").rename(clients / "ann.gone")
    write_verify_key(clients / "no-node-key.pub", make_signing_key(clients.parent / "a.sign"))
    (clients / "nonsense.pub").write_text("ssh-ed25519 nonsense")
    now[0] += 2.5
    assert gate.ask(headers=bob.headers()).status_code == 200
    assert gate.ask(headers=ann.headers()).status_code == 404


def test_a_body_must_say_its_length_and_not_be_too_long(clients: Path, ann: Knock):
    gate = Gate(clients, Limits(message=1000))

    async def pieces() -> Any:
        yield b"x"

    assert refused(gate, gate.ask(headers=ann.headers(), body=pieces()), 411, "no length")
    both = ann.headers() | {"transfer-encoding": "chunked"}
    assert refused(gate, gate.ask(headers=both), 411, "no length")
    for length in ("-1", "1e3", "0x1", "1, 1", ""):
        odd = ann.headers() | {"content-length": length}
        assert refused(gate, gate.ask(headers=odd), 411, "no length")
    for length in ("1001", "9" * 4000):
        long = ann.headers() | {"content-length": length}
        assert refused(gate, gate.ask(headers=long), 413, "the limit message is 1000")
    assert gate.ask(headers=ann.headers(), body=bytes(1000)).status_code == 200


def test_rates_of_an_address_and_of_a_client(clients: Path, ann: Knock):
    """503, after which a SuperNode tries again."""
    gate = Gate(clients, Limits(node_rate=0.0001))
    assert gate.ask(headers=ann.headers()).status_code == 200
    gate.superlink.requests.clear()
    assert refused(gate, gate.ask(headers=ann.headers()), 503, "too many requests of ann")
    gate = Gate(clients, Limits(address_rate=0.0001))
    assert refused(gate, gate.ask(headers=PROTOBUF), 404, "no node key")
    assert refused(gate, gate.ask(headers=ann.headers()), 503, "requests of one address")


def test_a_client_that_sends_slowly_takes_its_own_places_only(clients: Path, ann: Knock):
    make_node_key(clients / "bob.key")
    gate = Gate(clients, Limits(node_requests=3))
    gate.app.busy["ann"] = 3  # that are under way
    assert refused(gate, gate.ask(headers=ann.headers()), 503, "too many requests of ann at once")
    assert gate.ask(headers=Knock(clients / "bob.key").headers()).status_code == 200
    gate.app.busy["ann"] = 2
    assert gate.ask(headers=ann.headers()).status_code == 200
    assert gate.app.busy == {"ann": 2, "bob": 0}


def test_a_superlink_that_is_away_is_a_reason_to_try_again(gate: Gate, ann: Knock):
    async def away(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    gate.superlink.handle_async_request = away  # type: ignore[method-assign]
    answer = gate.ask(headers=ann.headers())
    assert (answer.status_code, answer.content) == (502, b"")
    assert "not answered by the SuperLink: ConnectError" in gate.said[-1]


def test_buckets_fill_again_and_are_not_kept_for_ever():
    buckets = Buckets(2.0)
    assert [buckets.take("a", 0.0) for _ in range(21)] == [True] * 20 + [False]
    assert [buckets.take("a", 0.6) for _ in range(2)] == [True, False]
    assert buckets.take("b", 0.6)
    for number in range(30_000):
        buckets.take(number, 100.0 + number)
    assert len(buckets.held) < 11_000


def test_a_full_desk_sends_away_the_oldest_that_did_not_prove_itself():
    gone: list[str] = []
    limits = Limits(connections=3, address_connections=2)
    desk = Desk(limits)

    def enter(name: str, address: str) -> Any:
        return desk.enter(address, lambda: gone.append(name))

    first, second = enter("first", "a"), enter("second", "a")
    desk.prove(first)
    assert enter("third", "a") is not None  # a has two places
    assert gone == ["second"]
    assert enter("fourth", "b") is not None
    assert enter("fifth", "c") is not None  # there are three places in all
    assert gone == ["second", "third"]
    desk.leave(second)  # it is told of its end later
    assert desk.number == 3
    for visit in list(desk.unproven):
        desk.prove(visit)
    assert enter("sixth", "d") is None
    desk.leave(first)
    assert enter("seventh", "d") is not None
    assert sum(len(own) for own in desk.visits.values()) == desk.number == 3


def test_ipv6_counts_by_networks():
    same = {neighbourhood(host) for host in ("2001:db8::1", "2001:db8::ffff:1", "2001:db8::%eth0")}
    assert same == {"2001:db8::/64"}
    assert neighbourhood("::ffff:192.0.2.1") == neighbourhood("192.0.2.1") == "192.0.2.1"
    assert neighbourhood("unknown") == "unknown"


def test_refusals_cannot_fill_the_disc_or_forge_a_line():
    said: list[str] = []
    now = [0.0]
    refusals = Refusals(said.append, lambda: now[0])
    for _ in range(1000):
        refusals.note("a", "something")
    assert len(said) == LINES
    now[0] = 61.0
    refusals.note("a", "something")
    assert "970 more refusals in the minute before" in said[-2]
    assert quoted(b"/\r\n2026 refused\x1b[0m") == r"'/\r\n2026 refused\x1b[0m'"
    assert len(quoted("x" * 10_000)) < 150


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speed": 1}, "unknown limit 'speed'; there are connections, address-connections"),
        ({"connections": 0}, "the limit connections is 0; it must be a positive number"),
        ({"message": "much"}, "the limit message is 'much'; it must be a positive number"),
        ({"message": 1.5}, "the limit message is 1.5; it must be a whole number"),
    ],
)
def test_limits_are_checked(changes: dict[str, Any], message: str):
    with pytest.raises(BadInput, match=message):
        limits_from(changes, Limits())


def test_limits_are_changed_by_name():
    limits = limits_from({"address-connections": 1000, "node-rate": 5}, Limits())
    assert limits == Limits(address_connections=1000, node_rate=5)
    assert len(CALLS) == len(PATHS)
