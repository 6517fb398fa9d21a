# SPDX-License-Identifier: Apache-2.0
"""A client that gets to its server through an HTTPS proxy only, and what it says if it does not."""

import contextlib
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Generator
from pathlib import Path
from unittest import mock

import httpx
import pytest
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.supernode.fleet_http_client import FleetHttpClient

from agnosticfl.deploy.keys import make_authority, make_node_key
from agnosticfl.deploy.node.proxy import proxy_of, refusal
from agnosticfl.deploy.node.reach import Reached, reach, trust
from agnosticfl.deploy.supervise import children
from agnosticfl.errors import BadInput
from tests.deploy.proxies import proxy
from tests.deploy.standing import standing
from tests.helpers.deploy_page import block

NAME = "fl.example.org"  # which only the proxy knows


@pytest.fixture(autouse=True)
def _no_proxy_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "http_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


class Place:
    """A gate that is known by a name, and a client's key that is registered there."""

    def __init__(self, folder: Path, address: str):
        self.authority, self.key = folder / "ca.pem", folder / "clients" / "ann.key"
        self.port = int(address.rpartition(":")[2])
        self.server = f"{NAME}:{self.port}"

    def reached(self) -> Reached:
        return reach(self.server, self.authority, self.key)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Generator[Place]:
    folder = tmp_path_factory.mktemp("keys")
    make_authority(folder, [NAME])
    make_node_key(folder / "clients" / "ann.key")
    with standing(folder) as address:
        yield Place(folder, address)


def test_a_client_is_let_in_through_a_proxy(place: Place, monkeypatch: pytest.MonkeyPatch):
    """Which knows the server's name, while the client does not, and wants an account."""
    with proxy({NAME: "127.0.0.1"}, "ann:se:cret", (place.port,)) as made:
        monkeypatch.setenv("HTTPS_PROXY", f"http://ann:se%3Acret@{made.address}")
        reached = place.reached()
        assert reached.wrong is None, reached.wrong
        assert reached.served is not None
        assert reached.served.client == "ann"
        through = f"{place.server} answers, through the proxy {made.address}"
        assert reached.findings[0].said == through  # without the password
        assert made.asked == [f"{place.server} 200 OK"]


def test_what_a_proxy_refuses_is_said(place: Place, monkeypatch: pytest.MonkeyPatch):
    def wrong(address: str) -> str:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{address}")
        found = place.reached().wrong
        assert found is not None
        assert found.waiting  # a proxy's administrator may change that at any time
        return found.line()

    with proxy(account="ann:secret") as made:
        assert wrong(made.address).startswith(f"proxy: {made.address} wants to know who asks (407")
    with proxy(allowed=(443,)) as made:
        line = wrong(made.address)
        assert f"does not let you out to {place.server} (403 Forbidden)" in line
        assert f"must allow CONNECT to {place.server}" in line
    with proxy({NAME: "127.0.0.256"}) as made:
        assert f"does not get to {place.server} (502 Bad Gateway)" in wrong(made.address)
    assert wrong("127.0.0.1:9").startswith("address: the proxy 127.0.0.1:9 does not answer")
    line = wrong("no-such-proxy.invalid:1")
    assert "the name of the proxy no-such-proxy.invalid:1 is not known here" in line
    assert "HTTPS_PROXY" in line


def test_a_proxy_that_opens_tls_is_thought_of(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What it shows is a certificate of its own."""
    make_authority(tmp_path, [NAME])
    with standing(tmp_path) as other, proxy({NAME: "127.0.0.1"}) as made:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{made.address}")
        server = f"{NAME}:{other.rpartition(':')[2]}"
        wrong = reach(server, place.authority, place.key).wrong
    assert wrong is not None
    assert (wrong.what, wrong.waiting) == ("certificate", False)
    assert "a proxy that opens TLS must let this server through unopened" in wrong.todo


@pytest.mark.parametrize(
    ("variables", "proxied"),
    [
        ({}, ""),
        ({"HTTPS_PROXY": "http://proxy:3128"}, "proxy:3128"),
        ({"https_proxy": "proxy:3128"}, "proxy:3128"),
        ({"ALL_PROXY": "http://u:p@proxy:3128/"}, "proxy:3128"),
        ({"HTTP_PROXY": "http://proxy:3128"}, ""),
        ({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "example.org"}, ""),
        ({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "other.org"}, "proxy:3128"),
    ],
)
def test_the_proxy_is_the_one_that_httpx_takes(
    variables: dict[str, str], proxied: str, monkeypatch: pytest.MonkeyPatch
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert proxy_of(NAME) == proxied
    with httpx.Client() as client:
        usual = client._transport_for_url(httpx.URL(f"https://{NAME}/")) is client._transport
    assert usual == (proxied == "")


def test_a_proxy_of_another_kind_is_refused_without_its_password(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HTTPS_PROXY", "socks5://ann:secret@proxy:1080")
    with pytest.raises(BadInput, match="by socks5://; it must be http://HOST:PORT") as caught:
        place.reached()
    assert "secret" not in str(caught.value)


def test_words_that_are_none_are_no_reason_to_fail():
    assert refusal("", "proxy:1", "server:2")[0] == "proxy:1 does not let you out to server:2 ()"


@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY"])
def test_what_is_on_this_machine_is_reached_past_proxies(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """Whichever of the two names the machine's administrator has set."""
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv(name, "example.org")
    with mock.patch.dict(os.environ, children.environment(tmp_path), clear=True):
        for host in ("127.0.0.1", "localhost", NAME):
            assert urllib.request.proxy_bypass(host)
        assert not urllib.request.proxy_bypass("other.org")


def test_flower_s_own_requests_take_the_same_way(place: Place, monkeypatch: pytest.MonkeyPatch):
    """By the client that Flower makes for a node; the gate does not let this one in."""
    with proxy({NAME: "127.0.0.1"}) as made:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{made.address}")
        trusted = place.authority.read_bytes()
        with (
            FleetHttpClient.from_server_address(place.server, False, trusted, []) as client,
            pytest.raises(httpx.HTTPStatusError, match="404"),
        ):
            client.PullMessages(PullMessagesRequest())
        assert made.asked == [f"{place.server} 200 OK"]


NGINX = """
include /etc/nginx/modules-enabled/*.conf;
daemon off;
pid {folder}/pid;
error_log {folder}/errors.log;
events {{}}
{block}
"""


@contextlib.contextmanager
def nginx(folder: Path, port: int, block: str, changed: dict[str, str]) -> Generator[None]:
    """nginx on a port with a block of the page, some names of which are others here.

    It is set up as Debian does, and is there while the block lasts.
    """
    program, file = shutil.which("nginx"), folder / "nginx.conf"
    if program is None:
        pytest.skip("nginx is not installed")
    for old, new in changed.items():
        assert old in block
        block = block.replace(old, new)
    file.write_text(NGINX.format(folder=folder, block=block))
    words = [program, "-c", str(file), "-e", str(folder / "errors.log")]
    tried = subprocess.run([*words, "-t"], capture_output=True, text=True, check=False)
    if 'unknown directive "stream"' in tried.stderr:
        pytest.skip("nginx is installed without its module for streams")
    assert tried.returncode == 0, tried.stderr
    process = subprocess.Popen(words)
    try:
        until = time.monotonic() + 60
        while not children.listening(f"127.0.0.1:{port}"):
            assert time.monotonic() < until
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait(60)


def test_the_nginx_of_the_page_passes_tls_through(tmp_path: Path):
    """By the name of the server; other names go elsewhere. The certificate is the gate's own."""
    make_authority(tmp_path, ["localhost"])
    make_node_key(tmp_path / "clients" / "ann.key")
    port, key = children.free_port(), tmp_path / "clients" / "ann.key"
    with standing(tmp_path) as gate:
        changed = {"fl.example.org 127.0.0.1:8443": f"localhost {gate}"}
        changed |= {"listen 443": f"listen 127.0.0.1:{port}", "127.0.0.1:8444": "127.0.0.1:9"}
        with nginx(tmp_path, port, block("conf"), changed):
            reached = reach(f"localhost:{port}", tmp_path / "ca.pem", key)
            assert reached.wrong is None, reached.wrong
            other = reach(f"127.0.0.1:{port}", tmp_path / "ca.pem", key).wrong
            assert other is not None
            assert other.what == "address"


def test_the_nginx_of_the_page_that_opens_tls_lets_clients_through(tmp_path: Path):
    """With the federation's own certificate, to a gate that has the same."""
    make_authority(tmp_path, ["localhost", "127.0.0.1"])
    make_node_key(tmp_path / "clients" / "ann.key")
    port, key = children.free_port(), tmp_path / "clients" / "ann.key"
    with standing(tmp_path) as gate:
        changed = {"127.0.0.1:8443": gate, "listen 8000": f"listen 127.0.0.1:{port}"}
        changed |= {"/srv/keys": str(tmp_path), "fl.example.org": "localhost"}
        with nginx(tmp_path, port, f"http {{ access_log off; {block('nginx')} }}", changed):
            reached = reach(f"localhost:{port}", tmp_path / "ca.pem", key)
            assert reached.wrong is None, reached.wrong
            with httpx.Client(verify=trust(tmp_path / "ca.pem"), trust_env=False) as client:
                assert client.get(f"https://localhost:{port}/").status_code == 404
