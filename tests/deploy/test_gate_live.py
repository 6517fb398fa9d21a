# SPDX-License-Identifier: Apache-2.0
"""A real server and a stranger who has what anybody can have: its address and `ca.pem`."""

import ssl
from collections.abc import Generator

import httpx
import pytest

from agnosticfl.deploy.keys import make_authority
from agnosticfl.deploy.supervise import children
from agnosticfl.deploy.supervise.supervisor import Service, Supervisor

PROTOBUF = {"content-type": "application/protobuf", "accept": "application/protobuf"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Supervisor]:
    place = tmp_path_factory.mktemp("server")
    make_authority(place / "keys", ["127.0.0.1"], days=2)
    port = children.free_port()
    service = Service(place, place / "keys", place / "state", place, "127.0.0.1", port, {})
    with Supervisor(service) as supervisor:
        supervisor.up()
        yield supervisor


@pytest.fixture
def stranger(server: Supervisor) -> Generator[httpx.Client]:
    trusted = ssl.create_default_context(cafile=str(server.service.keys / "ca.pem"))
    address = f"https://127.0.0.1:{server.service.port}"
    with httpx.Client(base_url=address, verify=trusted, timeout=30.0, trust_env=False) as client:
        yield client


@pytest.mark.parametrize("call", ["list-runs", "list-nodes", "list-federations"])
def test_a_stranger_s_control_call_does_not_reach_the_superlink(stranger: httpx.Client, call: str):
    answer = stranger.post(f"/v1/control/{call}", headers=PROTOBUF)
    assert (answer.status_code, answer.content) == (404, b"")
