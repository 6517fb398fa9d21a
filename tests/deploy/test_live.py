# SPDX-License-Identifier: Apache-2.0
"""A live federation: a SuperLink with TLS and node authentication, and clients, on loopback.

All tests share one federation of four nodes; each is a run of one or two rounds on it.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from agnosticfl.deploy.app import PACKAGE, write_app
from agnosticfl.deploy.keys import (
    make_node_key,
    make_server_keys,
    make_signing_key,
    read_signing_key,
    read_verify_key,
)
from agnosticfl.deploy.supervise import children
from agnosticfl.deploy.supervise.children import Child, Failed
from agnosticfl.deploy.supervise.local import local_limits, secure_node
from agnosticfl.deploy.supervise.supervisor import Service, Supervisor
from agnosticfl.runs.build import build
from agnosticfl.runs.records import read_records
from agnosticfl.secagg.agreement import digest_of
from agnosticfl.secagg.derivation import private_key
from agnosticfl.secagg.memory import load
from agnosticfl.secagg.messages import Setup, parse
from agnosticfl.secagg.primitives import SEED
from tests.deploy.faulty import pattern
from tests.deploy.federations import (
    NODES,
    assert_close,
    assert_same,
    make_federation,
    simulate,
    toy,
)

ROOT = Path(__file__).parents[2]
PATIENCE = 900.0  # seconds for any run, on a machine that has other things to do

SIDE = """\
from pathlib import Path

from tests.deploy.faulty import {name}

app = {name}(Path({folder!r}))
"""


class Federation:
    """The SuperLink, its nodes, and what was said while they ran."""

    def __init__(self, place: Path):
        self.place, self.clients = place, place / "keys" / "clients"
        self.said: list[str] = []
        make_server_keys(place / "keys", ["127.0.0.1"], days=2)
        make_federation(self.clients, [str(number) for number in range(NODES)])
        port = children.free_port()
        service = Service(
            place,
            place / "keys",
            place / "server",
            place,
            "127.0.0.1",
            port,
            {},
            local_limits(toy(), NODES),
        )
        self.supervisor = Supervisor(service, self.said.append)
        self.nodes: dict[int, Child] = {}
        # The nodes' own app, which knows those of all runs to come.
        self.write_app("node", toy(), "client_app", "FaultyNode", place / "apps")

    def write_app(self, name: str, task: Any, side: str, made: str, folder: Path) -> Path:
        app = self.place / "apps" / name
        write_app(app, task)
        (app / PACKAGE / f"{side}.py").write_text(SIDE.format(name=made, folder=str(folder)))
        text = (app / "pyproject.toml").read_text()
        (app / "pyproject.toml").write_text(f'{text}fault = ""\n')
        return app

    def start_node(self, number: int, signing: Path | None = None, supernode: bool = False) -> None:
        home, key = self.place / f"node{number}", self.clients / f"{number}.key"
        config = {"partition-id": number, "num-partitions": NODES}
        config |= secure_node(self.clients, key, home)
        config |= {} if signing is None else {"signing-key": str(signing)}
        self.nodes[number] = self.start_as(home, key, config, supernode)

    def start_as(self, home: Path, key: Path, config: Any, supernode: bool = False) -> Child:
        home.mkdir(exist_ok=True)
        link, app = self.supervisor.entrance._replace(home=home), self.place / "apps" / "node"
        command = children.client_command(link, key, app, config, supernode=supernode)
        return children.start(command, home, home / "node.log")

    def prepare(self, name: str, rounds: int, secure: bool, fault: str, options: Any) -> Path:
        """The app of a run; its folder."""
        key = read_verify_key(self.place / "keys" / "server.verify")
        task = toy(rounds)._replace(server_key=key.hex())
        if secure:
            config = msgspec.structs.replace(task.config, secure={"name": "simulate"})
            task = task._replace(config=config)
        # A client opens one sum of each round of a run, and here every run has the same name.
        for memory in self.place.glob("node*/secure.memory"):
            memory.unlink()
        out, folder = self.place / "runs" / name, self.place / "apps" / name / PACKAGE
        app = self.write_app(name, task, "server_app", "faulty_server", folder)
        base = {"minimum": 3, "over-selection": 1.0, "attempts": 2, "step": 30.0, "deadline": 60.0}
        base |= {"roster": str(self.clients / "roster"), "wait": 120.0, "fault": fault}
        base |= {"signing-key": str(self.place / "keys" / "server.sign")}
        service = self.supervisor.service
        self.supervisor.service = service._replace(app=app, out=out, options={**base, **options})
        return out

    def run(
        self,
        name: str,
        rounds: int = 1,
        secure: bool = False,
        fault: str = "none:",
        on_round: Callable[[Any], Any] = lambda _: None,
        **options: Any,
    ) -> Path:
        """Plays a run to its end; its folder."""
        out = self.prepare(name, rounds, secure, fault, options)
        until = time.monotonic() + PATIENCE
        done = self.supervisor.serve(
            on_round=on_round, should_stop=lambda: time.monotonic() > until
        )
        assert done, f"not done in time: {self.said}"
        return out


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Generator[Federation]:
    place = tmp_path_factory.mktemp("federation")
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT), before])
    federation = Federation(place)
    try:
        with federation.supervisor:
            federation.supervisor.ensure_up()
            for number in range(NODES):
                federation.start_node(number)
            try:
                yield federation
            finally:
                for node in federation.nodes.values():
                    node.stop()
    finally:
        os.environ["PYTHONPATH"] = before


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[dict[str, Any]]]:
    """(clients, rounds) -> records of the simulation with the first clients."""
    done: dict[int, list[dict[str, Any]]] = {}

    def get(clients: int = NODES, rounds: int = 1) -> list[dict[str, Any]]:
        if clients not in done:
            folder = tmp_path_factory.mktemp("simulated") / "run"
            done[clients] = simulate(folder, toy(3).config, clients)
        return done[clients][:rounds]

    return get


def log_of(out: Path) -> str:
    return out.with_name(f"{out.name}.log").read_text()


def test_in_the_clear_it_is_the_simulation(federation: Federation, simulated: Any):
    """Within 2e-6, number by number: only the order of float32 sums differs.

    At its end the clients are told.
    """
    out = federation.run("clear", rounds=2)
    assert_same(read_records(out), simulated(rounds=2))
    ended = "the run toy-of-the-tests has ended, says the server: 2 rounds"
    for node in federation.nodes.values():
        assert ended in node.log.read_text()
    assert f"{NODES} of {NODES} clients know that the run has ended" in log_of(out)


def test_secure_it_is_the_simulation_and_the_server_gets_no_secret(
    federation: Federation, simulated: Any
):
    """Within 1e-5, the fixed point's unit; and in no byte that came is anything of a client."""
    out = federation.run("secure", secure=True)
    assert_close(read_records(out), simulated())
    received = received_in(out) + held_by_server(federation)
    secrets = signing_keys(federation)
    x = build(toy().config).data.train.examples["x"]
    secrets += [x[i : i + 2].tobytes() for i in range(len(x) - 1)]
    secrets += [b"partition-id", b"node0", str(federation.place / "node0").encode()]
    assert len(received) > 5000
    assert not [secret for secret in secrets if secret in received]


def signing_keys(federation: Federation) -> list[bytes]:
    paths = [federation.clients / f"{number}.sign" for number in range(NODES)]
    return [read_signing_key(path).private_bytes_raw() for path in paths]


def received_in(out: Path, *stages: str) -> bytes:
    """All that the ServerApp of a run received: before clients were asked to unmask, and then."""
    files = [out.with_name(f"{out.name}.{stage}") for stage in stages or ("received", "revealed")]
    return b"".join(file.read_bytes() for file in files if file.exists())


def held_by_server(federation: Federation) -> bytes:
    """All files of the server: the SuperLink's database and log, run folders and their logs."""
    folders = (federation.place / "server", federation.place / "runs")
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    return b"".join(file.read_bytes() for file in files)


def windows(vector: bytes) -> list[bytes]:
    """Every four words in a row of a vector, but for those that are nearly all zero."""
    parts = [vector[start : start + 16] for start in range(0, len(vector) - 15, 4)]
    return [part for part in parts if np.count_nonzero(np.frombuffer(part, np.uint32)) > 1]


def found(secrets: Iterable[bytes], heard: bytes) -> list[bytes]:
    return [secret for secret in secrets if secret in heard]


@pytest.mark.slow
@pytest.mark.parametrize("secure", [False, True])
def test_flower_s_own_supernode_takes_part_beside_warm_clients(
    federation: Federation, simulated: Any, secure: bool
):
    federation.nodes[3].stop()
    try:
        federation.start_node(3, supernode=True)
        out = federation.run(f"supernode-{secure}", secure=secure)
        assert "Receiving: train message" in federation.nodes[3].log.read_text()
    finally:
        federation.nodes[3].stop()
        federation.start_node(3)
    (assert_close if secure else assert_same)(read_records(out), simulated())


@pytest.mark.slow
def test_no_pattern_or_seed_of_a_client_reaches_the_server_before_it_may(federation: Federation):
    """Clients keep what they must not send; client 3 is lost before its masked vector comes."""
    out = federation.run("planted", secure=True, fault="all:plant,3:drop Masked")
    early, late = received_in(out, "received"), received_in(out, "revealed")
    heard = early + late + held_by_server(federation)
    nodes = [federation.place / f"node{place}" for place in range(NODES)]
    vectors = [file.read_bytes() for node in nodes for file in node.glob("witness-*/*.vector")]
    states = [
        [load(file.read_bytes()) for file in sorted(node.glob("witness-*/*.state"))]
        for node in nodes
    ]
    parts = [[part for state in own for part in state.rounds] for own in states]
    last = [[part for part in own if part.shares][-1] for own in parts]

    never = signing_keys(federation)
    never += [word for place in range(NODES) for word in windows(pattern(place)[1].tobytes())]
    never += [window for vector in vectors for window in windows(vector)]
    for part in last:
        round = digest_of(parse(part.setup, Setup))
        never += [part.box_private, part.mask_seed, private_key(part.mask_seed, round)]
        never += list(part.shares.values())  # both shares of anybody
    assert (len(vectors), len(early) > 2000, len(late) > 300) == (NODES, True, True)
    assert found(never, heard) == []

    alive = range(NODES - 1)
    seeds = [last[place].own_seed for place in alive]
    of_seeds = [last[place].shares[other][:SEED] for place in alive for other in last[place].shares]
    of_keys = [last[place].shares[other][SEED:] for place in alive for other in last[place].shares]
    assert found([*seeds, *of_seeds, *of_keys], early) == []
    assert found(seeds, late) == seeds  # asked for at the end, and given: the search can find
    assert last[3].own_seed not in heard
    for place in alive:
        for other, pair in last[place].shares.items():
            assert (pair[SEED:] in late) == (other == 3)
            assert (pair[:SEED] in late) == (other != 3)

    clear = federation.run("planted-clear", fault="all:plant")  # the same search, without masks
    patterns = [pattern(place)[1].tobytes() for place in range(NODES)]
    assert found(patterns, received_in(clear)) == patterns


@pytest.mark.slow
def test_a_client_in_pytorch_takes_part_beside_the_others(federation: Federation, simulated: Any):
    """Within 2e-6, number by number."""
    pytest.importorskip("torch", reason="the extra 'torch' is not installed")
    out = federation.run("torch", fault="3:torch")
    assert_same(read_records(out), simulated())


GAVE_UP = "the run does not go on: failed .*no progress: round 1 was abandoned 1 times"
FAULTS = {
    "nan": "is refused: a number in its vector is not finite",
    "shape": "where {'float32': 13} is the right size",
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_reply_that_cannot_be_right_is_left_out(
    federation: Federation, simulated: Any, fault: str
):
    out = federation.run(fault, fault=f"3:{fault}")
    assert_same(read_records(out), simulated(3))
    assert [r["left_out"] for r in read_records(out)] == [1]
    assert FAULTS[fault] in log_of(out)


@pytest.mark.slow
def test_a_replayed_reply_is_refused(federation: Federation, simulated: Any):
    out = federation.run("replay", rounds=2, fault="3:replay")
    first, second = read_records(out)
    assert_same([first], simulated())
    assert second["left_out"] == 1
    assert "is refused: its answer belongs to another attempt or round" in log_of(out)


@pytest.mark.slow
def test_nonsense_in_the_place_of_a_masked_vector_is_left_out(
    federation: Federation, simulated: Any
):
    out = federation.run("nonsense", secure=True, fault="3:garble Masked")
    assert_close(read_records(out), simulated(3))
    assert "client 3 is dropped: masked vectors: bad message: it does not begin as one" in log_of(
        out
    )


@pytest.mark.slow
def test_the_keys_of_another_round_are_refused(federation: Federation, simulated: Any):
    """In its second round client 3 sends its signed keys of the first, word for word."""
    out = federation.run("old-keys", rounds=2, secure=True, fault="3:replay Keys")
    first, second = read_records(out)
    assert_close([first], simulated())
    assert second["count"] == simulated(3)[0]["count"]
    assert "client 3 is dropped: keys: Keys is of another round" in log_of(out)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "left"),
    [("Keys", 3), ("Shares", 3), ("Masked", 3), ("Confirmed", 4), ("Revealed", 4)],
)
def test_a_drop_at_any_step_leaves_the_sum_of_the_others(
    federation: Federation, simulated: Any, step: str, left: int
):
    out = federation.run(f"drop-{step}", secure=True, fault=f"3:drop {step}")
    assert_close(read_records(out), simulated(left))
    assert "client 3 is dropped" in log_of(out)
    assert "abandoned" not in log_of(out)


@pytest.mark.slow
def test_a_server_that_asks_for_both_shares_gets_neither(federation: Federation):
    with pytest.raises(Failed, match=GAVE_UP):
        federation.run("both", secure=True, fault="server:both shares", attempts=1)
    log = log_of(federation.place / "runs" / "both")
    assert log.count("is listed both alive and dead") >= NODES
    assert read_records(federation.place / "runs" / "both") == []


@pytest.mark.slow
def test_a_node_killed_in_mid_round_is_left_out_and_comes_back(
    federation: Federation, simulated: Any
):
    """SIGKILL while it works: the round ends at its deadline with the others."""
    node = federation.nodes[3]
    before = node.log.read_text().count("Receiving: train message")

    def kill_at_work() -> None:
        until = time.monotonic() + PATIENCE
        while node.log.read_text().count("Receiving: train message") == before:
            assert time.monotonic() < until
            time.sleep(0.05)
        os.killpg(node.process.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_at_work, daemon=True)
    killer.start()
    try:
        out = federation.run("killed", secure=True, fault="3:hang")
    finally:
        node.stop()
        federation.start_node(3)
    assert_close(read_records(out), simulated(3))
    assert "client 3 is dropped: masked vectors: no reply" in log_of(out)


@pytest.mark.slow
def test_a_superlink_that_is_killed_is_started_again_and_the_run_goes_on(
    federation: Federation, simulated: Any
):
    def kill(record: Any) -> None:
        superlink = federation.supervisor.superlink
        if record["round"] == 1 and superlink is not None:
            os.kill(superlink.process.pid, signal.SIGKILL)

    out = federation.run("superlink", rounds=3, on_round=kill)
    assert_same(read_records(out), simulated(rounds=3))
    assert any("the SuperLink died" in line for line in federation.said)


@pytest.mark.slow
def test_a_superlink_that_lost_its_memory_gets_its_clients_back(
    federation: Federation, simulated: Any
):
    """They have other numbers there, so that none of them is known by the one that it had."""

    def forget(record: Any) -> None:
        superlink = federation.supervisor.superlink
        if record["round"] == 1 and superlink is not None:
            for file in (federation.place / "server").glob("superlink.db*"):
                file.unlink()
            os.kill(superlink.process.pid, signal.SIGKILL)

    before = {node.process.pid for node in federation.nodes.values()}
    out = federation.run("forgetful", rounds=2, on_round=forget)
    assert_same(read_records(out), simulated(rounds=2))
    for node in federation.nodes.values():
        assert node.alive()
        assert "the server does not know this node any more" in node.log.read_text()
    assert {node.process.pid for node in federation.nodes.values()} == before


@pytest.mark.slow
def test_a_serverapp_that_is_killed_is_started_again_and_the_run_goes_on(
    federation: Federation, simulated: Any
):
    def kill(record: Any) -> None:
        if record["round"] == 1:
            home = str(federation.supervisor.link.home)
            for process in Path("/proc").glob("[0-9]*"):
                if "flwr-serverapp" in _read(process / "cmdline") and home in _read(
                    process / "environ"
                ):
                    os.kill(int(process.name), signal.SIGKILL)

    out = federation.run("serverapp", rounds=2, on_round=kill)
    assert_same(read_records(out), simulated(rounds=2))
    assert any("ended: failed" in line for line in federation.said)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


@pytest.mark.slow
def test_strangers_do_not_get_in(federation: Federation):
    """One with a key that is not registered, which waits, and one that speaks no TLS."""
    stranger = make_node_key(federation.place / "stranger.key").with_suffix(".key")
    one = federation.start_as(federation.place / "stranger", stranger, {"partition-id": 0})
    home = federation.place / "plain"
    home.mkdir()
    address = federation.supervisor.entrance.address
    command = ["flower-supernode", "--insecure", "--superlink", address]
    command += ["--max-retries", "1", "--host", "127.0.0.1", "--port", str(children.free_port())]
    other = children.start(command, home, home / "node.log")
    try:
        until = time.monotonic() + PATIENCE
        unknown = f"key: the server does not know {stranger}"
        while unknown not in one.log.read_text() or other.alive():
            assert time.monotonic() < until
            time.sleep(0.5)
        assert one.alive()
        for said in (one.log.read_text(), other.log.read_text()):
            assert "as node" not in said
            assert "SuperNode ID" not in said
        assert "Failed to initialize the connection to the SuperLink" in other.log.read_text()
        with federation.supervisor.operator() as operator:
            assert len(operator.nodes()) == NODES
    finally:
        one.stop()
        other.stop()


@pytest.mark.slow
def test_a_node_whose_signing_key_nobody_registered_does_not_join(
    federation: Federation, simulated: Any
):
    """It may connect, but it is not in the roster."""
    make_signing_key(federation.place / "nobody.sign")
    federation.nodes[3].stop()
    try:
        federation.start_node(3, signing=federation.place / "nobody.sign")
        out = federation.run("nobody", secure=True)
        assert "this signing key is not in the roster" in federation.nodes[3].log.read_text()
    finally:
        federation.nodes[3].stop()
        federation.start_node(3)
    assert_close(read_records(out), simulated(3))


@pytest.mark.slow
def test_a_run_in_which_nobody_answers_ends_in_failure(federation: Federation):
    with pytest.raises(Failed, match=GAVE_UP):
        federation.run("silence", minimum=NODES, fault="3:nan", attempts=1)
    assert not (federation.place / "runs" / "silence" / "summary.json").exists()
