# SPDX-License-Identifier: Apache-2.0
"""What is kept of a run while it goes on, from rounds that are really played, and what it says."""

import io
import json
import logging
import os
import re
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from rich.console import Console

from agnosticfl.deploy.flower import federation
from agnosticfl.deploy.flower.federation import LOG, NoProgress
from agnosticfl.deploy.seeing import keeper, logs
from agnosticfl.deploy.seeing.keeper import begun, first, spent, told, watched
from agnosticfl.deploy.seeing.logs import put_away
from agnosticfl.deploy.seeing.page import page
from agnosticfl.deploy.seeing.prometheus import metrics
from agnosticfl.deploy.seeing.status import (
    COMPLETE,
    FAILED,
    LINES,
    POINTS,
    SERVER,
    STATUS,
    Client,
    Round,
    Server,
    Status,
    View,
    added,
    read,
    view,
    write,
)
from agnosticfl.deploy.seeing.terminal import shown
from agnosticfl.errors import BadInput
from agnosticfl.files import write_json
from agnosticfl.runs.records import read_records
from tests.deploy import secure, test_strategy
from tests.deploy.federations import NODES, make_federation, toy
from tests.deploy.secure import secure_toy, silent_at

NODE = 2**63 + 2 * 3 + 1  # the last of a FakeGrid
NAMES = ("ann", "bob", "cleo", "dora")


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(federation, "SHORTEST", 0.01)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make_federation(folder, [str(node) for node in range(NODES)])
    return folder


def server(out: Path) -> Server:
    """This process, and four clients with the numbers of a FakeGrid's."""
    clients = [
        Client(name, str(2**63 + 2 * place + 1), "online") for place, name in enumerate(NAMES)
    ]
    started = psutil.Process().create_time()
    return Server(os.getpid(), started, str(out), "127.0.0.1:8000", "", tuple(clients))


def kept(state: Path) -> Status:
    status = read(state, STATUS, Status)
    assert status is not None
    return status


def lines_of(out: Path) -> list[str]:
    return out.with_name(f"{out.name}.log").read_text().splitlines()


def play_clear(folder: Path, form: str = "text", **more: Any) -> None:
    out = folder / "run"
    write(folder, SERVER, server(out))
    LOG.setLevel(logging.INFO)
    with watched(LOG, toy(), out, str(folder), form):
        test_strategy.play(folder, **more)


def test_the_status_of_a_run_is_what_its_records_say(tmp_path: Path):
    play_clear(tmp_path)
    status, records = kept(tmp_path), read_records(tmp_path / "run")
    assert (status.phase, status.done, status.rounds) == (COMPLETE, 3, 3)
    assert [each.round for each in status.history] == [1, 2, 3]
    assert [list(each.loss) for each in status.history] == [r["loss"] for r in records]
    weights = [list(each.domain_weights) for each in status.history]
    assert weights == [r["domain_weights"] for r in records]
    assert status.bytes_up == sum(r["bytes_up"] for r in records)
    assert [(s.name, s.asked, s.came) for s in status.stages] == [("work", NODES, NODES)]
    assert (status.errors, status.lost, status.privacy) == ((), (), None)


def test_it_is_there_while_the_run_goes_on(tmp_path: Path):
    seen: list[Status] = []

    def look(reply: Any) -> Any:
        seen.append(kept(tmp_path))
        return reply

    play_clear(tmp_path, faults={0: look})
    assert [(s.phase, s.done, s.stage, s.asked) for s in seen] == [
        ("playing", done, "work", NODES) for done in range(3)
    ]


def test_who_is_lost_is_named_with_the_reason_in_status_and_log(tmp_path: Path):
    play_clear(tmp_path, faults={3: lambda _: None, 2: test_strategy.nan})
    status, log = kept(tmp_path), "\n".join(lines_of(tmp_path / "run"))
    why = {lost.client: lost.why for lost in status.lost}
    assert set(why) == {"cleo", "dora"}
    assert why["cleo"].startswith("is refused: ")
    assert why["dora"] == "is no longer waited for"
    assert status.num_lost == 6
    assert "work: client dora is no longer waited for" in log
    assert str(NODE) not in log


def test_members_of_secure_rounds_have_their_names(tmp_path: Path, keys: Path):
    out = tmp_path / "run"
    write(tmp_path, SERVER, server(out))
    LOG.setLevel(logging.INFO)
    with watched(LOG, secure_toy(2), out, str(tmp_path), "text"):
        secure.play(tmp_path, keys, rounds=2, faults={3: silent_at("Masked")})
    status = kept(tmp_path)
    assert status.secure
    assert {"dora", "3"} >= {lost.client for lost in status.lost} != set()
    stages = [stage.name for stage in status.stages]
    assert stages[-3:] == ["masked vectors", "survivors", "unmasking"]
    # What the server may not know is nowhere: no vector, no count of a client's examples.
    fields = msgspec.to_builtins(status)
    assert set(fields["history"][0]) == {"round", "time", "seconds", "loss", "domain_weights"}
    assert set(fields["lost"][0]) == {"time", "round", "kind", "client", "why"}


def test_a_run_that_fails_says_why(tmp_path: Path):
    with pytest.raises(NoProgress):
        play_clear(tmp_path, faults=dict.fromkeys(range(NODES), lambda _: None), attempts=2)
    status = kept(tmp_path)
    assert (status.phase, status.done) == (FAILED, 0)
    assert "round 1 was abandoned 2 times" in status.errors[-1].text
    assert any("round 1 abandoned (attempt 1 of 2)" in line.text for line in status.errors)
    assert view(tmp_path).in_words == FAILED


def test_what_an_earlier_serverapp_met_is_not_forgotten(tmp_path: Path):
    with pytest.raises(NoProgress):
        play_clear(tmp_path, faults=dict.fromkeys(range(NODES), lambda _: None), attempts=1)
    play_clear(tmp_path)
    status = kept(tmp_path)
    assert (status.phase, status.done, status.num_lost) == (COMPLETE, 3, NODES)
    assert "round 1 was abandoned 1 times" in status.errors[-1].text


def test_a_disc_that_is_full_ends_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(keeper, "write", full)
    play_clear(tmp_path)
    assert len(read_records(tmp_path / "run")) == 3
    assert not (tmp_path / STATUS).exists()


def test_a_run_that_is_gone_on_with_has_its_history(tmp_path: Path):
    play_clear(tmp_path)
    again = begun(first(toy(), tmp_path / "run"), read_records(tmp_path / "run"), 5.0)
    before = kept(tmp_path)
    assert (again.history, again.done, again.bytes_up) == (
        before.history,
        before.done,
        before.bytes_up,
    )


def test_json_lines_have_the_fields_of_the_round_and_no_numbers_of_nodes(tmp_path: Path):
    play_clear(tmp_path, form="json", faults={3: lambda _: None})
    lines = [json.loads(line) for line in lines_of(tmp_path / "run")]
    assert all({"time", "level", "message"} <= set(line) for line in lines)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", e["time"]) for e in lines)
    done = [line for line in lines if line.get("event") == "round"]
    assert [line["record"]["loss"] for line in done] == [
        record["loss"] for record in read_records(tmp_path / "run")
    ]
    lost = [line for line in lines if line.get("event") == "lost"]
    assert {(line["client"], line["level"]) for line in lost} == {("dora", "warning")}
    assert not [line for line in lines if "node" in line]


def test_text_lines_have_a_time(tmp_path: Path):
    play_clear(tmp_path)
    lines = lines_of(tmp_path / "run")
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO ", line) for line in lines)


def test_logs_are_put_away_when_they_are_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logs, "MOST", 400)
    play_clear(tmp_path)
    sizes = {path.name: path.stat().st_size for path in tmp_path.glob("run.log*")}
    assert {"run.log", "run.log.1"} <= set(sizes)
    assert max(sizes.values()) <= 400
    # And that of a process which has it open: it goes on at the beginning.
    log = tmp_path / "gate.log"
    with log.open("ab", buffering=0) as file:
        for number in range(8):
            file.write(b"%d" % number * 2500)
            put_away(log)
        assert log.stat().st_size == 0
        file.write(b"more")
    assert log.read_bytes() == b"more"
    kept = sorted(path.name for path in tmp_path.glob("gate.log.*"))
    assert kept == [f"gate.log.{number}" for number in range(1, logs.KEPT + 1)]
    assert (tmp_path / "gate.log.1").read_bytes() == b"7" * 2500


def test_a_long_history_is_spread_evenly_and_ends_with_the_last_round():
    history: tuple[Round, ...] = ()
    for number in range(1, 1001):
        history = added(history, Round(number, 0.0, 0.0, (), ()))
    rounds = [each.round for each in history]
    assert rounds[-1] == 1000
    assert rounds[:-1] == list(range(8, 1000, 8))
    assert len(rounds) <= POINTS


def test_lists_of_a_status_stay_short():
    status = first(toy(), Path("/nowhere"))
    fields = {"event": "lost", "round": 1, "client": "ann", "why": "x" * 5000}
    for number in range(100):
        status = told(status, {**fields, "round": number}, 0.0)
    assert (len(status.lost), status.num_lost, len(status.lost[0].why)) == (LINES, 100, 300)


def test_a_client_counts_once_in_a_round_with_all_reasons():
    status = first(toy(), Path("/nowhere"))
    for why in ("failed", "is dropped", "failed"):
        status = told(status, {"event": "lost", "round": 1, "client": "ann", "why": why}, 0.0)
    assert [lost.why for lost in status.lost] == ["failed; is dropped"]
    assert status.num_lost == 1


def seen(tmp_path: Path, **changes: Any) -> View:
    """A view with everything in it, and names that no markup may take for its own."""
    play_clear(tmp_path, faults={3: lambda _: None})
    status = kept(tmp_path)
    names = ('a "b" \\ <i>&', *status.domains[1:])
    write(tmp_path, STATUS, msgspec.structs.replace(status, domains=names, **changes))
    return view(tmp_path)


def test_metrics_are_what_prometheus_reads(tmp_path: Path):
    write_json(
        tmp_path / "privacy.json", {"epsilon": 1.5, "delta": 1e-5, "budget": {"epsilon": 8.0}}
    )
    text = metrics(seen(tmp_path, privacy=spent(tmp_path)))
    name, label = r"[a-zA-Z_:][a-zA-Z0-9_:]*", r'[a-zA-Z_]\w*="(?:[^"\\\n]|\\["\\n])*"'
    sample = rf"({name})(\{{{label}(?:,{label})*\}})? (-?[\d.e+-]+|NaN|[+-]?Inf)"
    assert text.endswith("\n")
    values: dict[str, str] = {}
    kinds: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("# HELP"):
            continue
        if line.startswith("# TYPE"):
            _, _, which, kind = line.split(" ")
            assert which not in kinds
            kinds[which] = kind
            continue
        found = re.fullmatch(sample, line)
        assert found, line
        assert found[1] in kinds
        assert found[1] + (found[2] or "") not in values
        values[found[1] + (found[2] or "")] = found[3]
    assert values["agnosticfl_rounds_done"] == "3.0"
    assert values["agnosticfl_run_complete"] == "1.0"
    assert values['agnosticfl_client_online{client="ann"}'] == "1.0"
    assert values["agnosticfl_lost_total"] == "3.0"
    assert values["agnosticfl_privacy_epsilon"] == "1.5"
    assert 'agnosticfl_domain_loss{domain="a \\"b\\" \\\\ <i>&"}' in values
    assert {which for which in kinds if which.endswith("_total")} == {
        which for which, kind in kinds.items() if kind == "counter"
    }


def test_names_are_words_and_no_markup_on_the_page_and_in_the_terminal(tmp_path: Path):
    text = page(seen(tmp_path))
    assert "a &quot;b&quot; \\ &lt;i&gt;&amp;" in text
    assert "<i>" not in text
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(shown(view(tmp_path)))
    told_of = console.export_text()
    assert 'a "b" \\ <i>&' in told_of
    assert "4 clients, 4 connected" in told_of
    assert "is no longer waited for" in told_of
    assert told_of.startswith("complete")


def test_a_server_that_is_gone_is_not_running(tmp_path: Path):
    play_clear(tmp_path)
    write(tmp_path, STATUS, msgspec.structs.replace(kept(tmp_path), phase="playing"))
    assert view(tmp_path).up
    # Another process has its number by now.
    gone = msgspec.structs.replace(server(tmp_path / "run"), started=1.0)
    write(tmp_path, SERVER, gone)
    assert (view(tmp_path).up, view(tmp_path).in_words) == (False, "not running")
    # And the status of a run before is none of this one's.
    write(tmp_path, SERVER, msgspec.structs.replace(gone, out=str(tmp_path / "other")))
    assert view(tmp_path).status is None


@pytest.mark.parametrize("content", [b"", b"[]", b'{"pid": "x"}', b"[" * 10**5])
def test_a_damaged_file_is_one_line(tmp_path: Path, content: bytes):
    (tmp_path / SERVER).write_bytes(content)
    with pytest.raises(BadInput, match=r"server\.json cannot be read: "):
        view(tmp_path)
