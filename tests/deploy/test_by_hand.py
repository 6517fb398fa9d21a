# SPDX-License-Identifier: Apache-2.0
"""Federations by command, as a person types them: to their ends, interrupted and killed."""

import json
import re
import shlex
import shutil
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agnosticfl.deploy.keys import make_node_key
from agnosticfl.deploy.supervise import children
from agnosticfl.runs.records import read_records
from tests.deploy.federations import NODES, assert_same, simulate, toy
from tests.deploy.people import NAMES, PEOPLE, write_stores
from tests.deploy.shell import Shell
from tests.helpers.deploy_page import Page, compose_commands, shell_commands, unit_commands

pytestmark = pytest.mark.slow

ROUNDS = 16  # of some tenths of a second: enough to be interrupted and killed within them


@pytest.fixture
def shell(tmp_path: Path) -> Generator[Shell]:
    shell = Shell(tmp_path)
    try:
        yield shell
    finally:
        shell.close()


def rounds(out: Path) -> int:
    return len(read_records(out)) if (out / "metrics.jsonl").exists() else 0


def test_a_local_federation_interrupted_and_killed_goes_on_to_the_simulation_s_end(
    shell: Shell, tmp_path: Path
):
    """Ctrl-C in a round, then SIGKILL in a later one, then to the end, by the same command."""
    out = tmp_path / "run"
    line = shlex.split(f"deploy local toy --nodes {NODES} --rounds {ROUNDS} --out {out}")

    interrupted = shell.start(line)
    interrupted.until(lambda: rounds(out) >= 1)
    interrupted.send(signal.SIGINT)
    assert interrupted.ends() == 130
    said = interrupted.said()
    assert "stopping; a round that is not complete is given up\n" in said
    assert "stopped; the state after the last complete round is saved; add --resume" in said
    assert "Traceback" not in said
    assert not shell.running()
    assert not list(shell.temporary.glob("agnosticfl-*"))  # the keys are thrown away
    first = rounds(out)

    killed = shell.start([*line, "--resume"])
    killed.until(lambda: rounds(out) > first)
    killed.send(signal.SIGKILL)
    assert killed.ends() == -signal.SIGKILL
    assert shell.quiet()
    second = rounds(out)
    assert 1 <= first < second < ROUNDS

    last = shell.start([*line, "--resume"])
    assert last.ends() == 0, last.said()
    found = re.search(r"starts after round (\d+)", last.said())
    # A round is written down before its state is saved, and SIGKILL may come between the two.
    assert found, last.said()
    assert int(found[1]) in (second - 1, second)
    assert not shell.running()
    expected: list[dict[str, Any]] = simulate(tmp_path / "simulated", toy(ROUNDS).config)
    assert_same(read_records(out), expected)
    assert "report.html" in last.said()


@pytest.mark.parametrize("line", [c for c in shell_commands() if " deploy local " in c])
def test_the_local_federations_of_the_page(shell: Shell, tmp_path: Path, line: str):
    said = shell.run(shlex.split(line)[1:])
    assert not shell.running()
    (out,) = (tmp_path / "runs").glob("*/")
    assert rounds(out) == int(line.split("--rounds ")[1].split()[0])
    assert (out / "report.html").exists()
    assert "centre -1" in said


def test_the_commands_of_the_page_make_a_federation(shell: Shell, tmp_path: Path):
    """Ann types the page's command, Bob has its unit and Flower's SuperNode, and Cleo has its
    compose file, and so has the server after it was killed."""
    counts = [sum(of_domain) for of_domain in zip(*write_stores(tmp_path), strict=True)]
    port = children.free_port()
    typed, unit, compose = shell_commands(), unit_commands(), compose_commands()
    address = f"127.0.0.1:{port}"
    page = Page(
        {
            **NAMES,
            "20": "3",
            "fl.example.org": "127.0.0.1",
            "fl.example.org:8000": address,
            "server:8000": address,
        }
    )
    server, out = tmp_path / "server", tmp_path / "server" / "runs" / "live"

    shell.run(page.line("deploy keys server", typed), "server")
    shell.run([*page.line("deploy init app mnist-writers", typed), "--rounds", "2"], "server")
    keeper = tmp_path / "keeper"
    keeper.mkdir()
    for name in PEOPLE:
        shell.run(page.line("deploy keys client", typed, **{"ann.key": f"{name}.key"}), name)
        shutil.copy(tmp_path / name / f"{name}.card", keeper)
    for beginning in ("deploy keys keeper", "deploy roster new"):
        shell.run(page.line(beginning, typed), "keeper")
    shutil.copy(keeper / "roster", server)
    words: set[str] = set()
    for name in PEOPLE:
        shutil.copy(keeper / "roster", tmp_path / name)
        shutil.copy(server / "keys" / "ca.pem", tmp_path / name)
        shutil.copytree(server / "app", tmp_path / name / "app")
        words.add(shell.run(page.line("deploy fingerprint app", typed), name))
    assert words == {shell.run(page.line("deploy fingerprint app", typed), "server")}

    place = f"127.0.0.1:{children.free_port()}"
    here = ["--host", "127.0.0.1", "--port", str(port), "--page", place]
    first = shell.start([*page.line("deploy server", typed), *here], "server")
    first.until(lambda: "starts after round 0" in first.said())
    for name in PEOPLE:
        assert f"{name} has the node key of roster 1\n" in first.said()
        assert f"client {name} may connect" in first.said()
    # A key that is put there by hand counts until the roster is looked at again.
    dora = make_node_key(tmp_path / "dora.key")
    dora.rename(server / "keys" / "clients" / "dora.pub")
    first.until(lambda: "client dora may connect" in first.said())
    lines = (
        page.line("deploy client", typed),
        [*page.line("deploy client", unit, **{"ann.key": "bob.key"}), "--supernode"],
        page.line("deploy client", compose, **{"ann.key": "cleo.key"}),
    )
    nodes = [shell.start(line, name) for name, line in zip(PEOPLE, lines, strict=True)]
    first.until(lambda: rounds(out) == 1)
    status = shell.run(page.line("deploy status", typed), "server")
    assert "4 clients" in status
    assert status.count("online") == 3
    assert "round 2 of 2" in status
    assert f"page: http://{place}/" in status
    metrics = httpx.get(f"http://{place}/metrics", trust_env=False).text
    assert "agnosticfl_rounds_done 1.0\n" in metrics
    for name in PEOPLE:
        assert name in status
        assert f'agnosticfl_client_online{{client="{name}"}} 1.0\n' in metrics
    assert shell.values("FLWR_TELEMETRY_ENABLED", "flwr", "flower-") == {"0"}
    assert shell.values("FLWR_DISABLE_UPDATE_CHECK", "flwr", "flower-") == {"1"}

    first.send(signal.SIGKILL)
    first.ends()
    assert shell.quiet("server")
    second = shell.start(
        [*page.line("deploy server", compose), *here, "--set", "deadline=120"], "server"
    )
    assert second.ends() == 0, second.said()
    assert "starts after round 1" in second.said()
    assert "dora is not in the roster: its key is in removed/" in second.said()
    for node in nodes:
        assert "roster 1: the first one here, of writers with 3 members" in node.said()
    assert [node.process.poll() for node in nodes] == [None] * 3
    for node in nodes:
        node.send(signal.SIGTERM)
        node.ends()
    assert shell.quiet()
    assert words == {shell.run(page.line("deploy fingerprint app", typed), "ann")}
    for name in PEOPLE:  # no bundle is unpacked
        assert not (tmp_path / name / "deploy-state" / "apps").exists()

    records = read_records(out)
    assert [r["count"] for r in records] == [counts] * 2
    assert [(r["left_out"], r["clients_clipped"]) for r in records] == [(0, 0)] * 2
    summary = json.loads((out / "summary.json").read_text())
    (w,) = summary["params"]
    for domain in summary["domains"]:
        centre = float(domain.removeprefix("centre "))
        expected = (centre - w) ** 2 + 0.3**2  # the mean of (x − w)² over the domain's points
        assert summary["test"][domain]["loss"] == pytest.approx(expected, rel=1e-5)
    assert "centre -1" in shell.run(page.line("report", ["agnosticfl report runs/live"]), "server")
