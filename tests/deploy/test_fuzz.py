# SPDX-License-Identifier: Apache-2.0
"""Bytes of any kind for everything that a deployment reads, each through the code that reads it."""

import io
import json
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h11
import jax.numpy as jnp
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from agnosticfl.core.contribution import Broadcast
from agnosticfl.deploy import wire
from agnosticfl.deploy.flower import secure_answers
from agnosticfl.deploy.flower.records import SUM, to_arrays, to_record
from agnosticfl.deploy.flower.strategy import AgnosticStrategy
from agnosticfl.deploy.gate import members
from agnosticfl.deploy.gate.limits import Limits, limits_from
from agnosticfl.deploy.gate.passage import length_of
from agnosticfl.deploy.gate.refusals import Refused
from agnosticfl.deploy.gate.serve import server_context
from agnosticfl.deploy.gate.settings import Settings
from agnosticfl.deploy.keys import (
    make_authority,
    make_node_key,
    make_signing_key,
    read_signing_key,
    write_verify_key,
)
from agnosticfl.deploy.npy import array_from
from agnosticfl.deploy.process_settings import as_json, from_json
from agnosticfl.errors import BadInput
from agnosticfl.runs.build import build
from agnosticfl.runs.records import METRICS, read_records
from agnosticfl.secagg import memory
from tests.deploy.federations import POLICY, toy
from tests.deploy.knocking import PULL, Gate, Knock
from tests.helpers import fuzz

MEGABYTE = 2**20
MOST_MEMORY = 30 * MEGABYTE  # that one megabyte may become


def in_file(path: Path, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """A reader of files as one of bytes, whose refusals name the file."""

    def parse(data: bytes) -> object:
        path.write_bytes(data)
        try:
            return read(path)
        except BadInput as error:
            if str(path) not in str(error):
                raise AssertionError(f"the file is not named: {error}") from error
            raise

    return parse


# --- what clients send ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def strategy(tmp_path_factory: pytest.TempPathFactory) -> AgnosticStrategy:
    folder, task = tmp_path_factory.mktemp("run") / "run", toy()
    return AgnosticStrategy(task.config, folder, POLICY, build(task.config).data)


SENT = Broadcast(jnp.zeros(()), jnp.full(5, 0.2))


def good_sum() -> np.ndarray:
    """The toy's contribution of a client with 50 examples."""
    count = np.array([10, 20, 0, 5, 15], np.float32)
    parts = ([2.5], [0.2 * 50], 3 * count, count, [0])
    return np.concatenate(parts).astype(np.float32)


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def arrays() -> list[bytes]:
    """As numpy writes them: right ones, and such that are not numbers in our order."""
    grid, file = np.arange(6, dtype=np.int32).reshape(2, 3), io.BytesIO()
    np.savez(file, good_sum())
    own = [good_sum(), good_sum().astype(">f4"), grid, np.asfortranarray(grid), np.array(["a"])]
    return [*map(npy, own), file.getvalue()]


def replies(number: int) -> Iterator[RecordDict]:
    """Records of arrays that are damaged, of other names, types and numbers, or none at all."""
    rng = np.random.default_rng(5)
    kinds = ["float32", "float64", "int32", "object", "", "\n", "x" * 1000]
    for data in fuzz.damaged(arrays(), number):
        name, kind, how = (kinds[rng.integers(len(kinds))] for _ in range(3))
        stype = how if rng.random() < 0.3 else "numpy.ndarray"
        shape = tuple(int(n) for n in rng.integers(-(2**62), 2**62, rng.integers(4)))
        own = Array(kind, shape, stype, data)
        record = ArrayRecord({"float32" if rng.random() < 0.7 else name: own})
        if rng.random() < 0.1:
            record[name] = own
        yield RecordDict({SUM: record})
    for vector in (good_sum(), np.full(13, np.nan, np.float32), np.zeros(0, np.float32)):
        yield RecordDict({SUM: to_record({"float32": vector})})
    yield RecordDict({SUM: ConfigRecord({"float32": b"no array"})})
    yield RecordDict({SUM: ArrayRecord()})
    yield RecordDict()


@fuzz.effort
def test_any_reply_is_a_contribution_or_one_line_that_says_why(
    strategy: AgnosticStrategy, number: int
):
    taken = 0
    for content in replies(number):
        why = strategy.refusal(SENT, content)
        assert why is None or ("\n" not in why and 0 < len(why) < 500)
        if why is None:  # then it can be added, and is what it says
            taken += 1
            (vector,) = to_arrays(content.array_records[SUM]).values()
            assert (vector.dtype.str, vector.shape) == ("<f4", (13,))
            wire.unpack({"float32": vector}, strategy.message)
    assert taken >= 1


@fuzz.effort
def test_any_bytes_are_an_array_or_one_line(number: int):
    good = npy(good_sum())
    np.testing.assert_array_equal(array_from(good), good_sum())
    fuzz.survive(array_from, fuzz.damaged(arrays(), number), BadInput)


@pytest.mark.parametrize(
    ("header", "line"),
    [
        ("'<f4', 'fortran_order': False, 'shape': (1000000000000,), ", "has 52 bytes"),
        ("'<f4', 'fortran_order': False, 'shape': (999999999999999999, 0), ", "has 52 bytes"),
        ("'>f4', 'fortran_order': False, 'shape': (13,), ", "no array of little-endian numbers"),
        ("'|O', 'fortran_order': False, 'shape': (13,), ", "no array of little-endian numbers"),
        ("'<f4', 'fortran_order': False, 'shape': (-13,), ", "no array of little-endian numbers"),
    ],
)
def test_an_array_is_no_larger_than_what_came(header: str, line: str):
    data = b"\x93NUMPY\x01\x00\x76\x00" + f"{{'descr': {header}}}\n".encode() + bytes(52)
    assert fuzz.peak_memory(lambda: array_from(data)) < 10**5
    with pytest.raises(BadInput, match=line):
        array_from(data)


def test_a_megabyte_from_a_client_stays_some_megabytes(strategy: AgnosticStrategy):
    large = [npy(np.zeros(MEGABYTE // 4, np.float32)), npy(np.zeros((MEGABYTE, 0)))]
    for data in [*fuzz.bombs(MEGABYTE), *large]:
        record = ArrayRecord({"float32": Array("float32", (13,), "numpy.ndarray", data)})
        content = RecordDict({SUM: record})
        assert fuzz.peak_memory(lambda content=content: strategy.refusal(SENT, content)) < (
            MOST_MEMORY
        )
    many = ArrayRecord({str(n): Array("f", (), "", b"") for n in range(2000)})
    why = strategy.refusal(SENT, RecordDict({SUM: many}))
    assert why is not None
    assert len(why) < 500


def test_vectors_of_another_type_or_order_are_refused(strategy: AgnosticStrategy):
    for dtype in (">f4", "<f8", "<i4", object, "<c8"):
        why = wire.refusal({"float32": good_sum().astype(dtype)}, strategy.message)
        assert why is not None
        assert why.startswith("its vectors are")


# --- what strangers send to the gate --------------------------------------------------------------


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    make_node_key(tmp_path / "clients" / "ann.key")
    return Gate(tmp_path / "clients", Limits(address_rate=1e9, node_rate=1e9))


@fuzz.effort
def test_any_head_of_a_request_is_refused_or_a_client_s(tmp_path: Path, gate: Gate, number: int):
    """As Uvicorn's parser reads it."""
    knock = Knock(tmp_path / "clients" / "ann.key")
    headers = {"content-length": "5", "host": "gate", **knock.headers()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    good = f"POST {PULL} HTTP/1.1\r\n{lines}\r\n".encode()
    passed: list[str] = []

    def admit(data: bytes) -> None:
        parser = h11.Connection(h11.SERVER, max_incomplete_event_size=16 * 1024)
        try:
            parser.receive_data(data)
            event = parser.next_event()
        except h11.RemoteProtocolError:
            return
        if isinstance(event, h11.Request):
            scope = {
                "method": event.method.decode("ascii"),
                "path": event.target.decode("latin-1"),
                "raw_path": event.target.partition(b"?")[0],
                "query_string": event.target.partition(b"?")[2],
                "headers": list(event.headers),
            }
            passed.append(gate.app.admit(scope, "192.0.2.1"))

    admit(good)
    fuzz.survive(admit, fuzz.damaged([good], number), Refused)
    # Its signature is taken once, so nothing that was made of this request passes again.
    assert passed == ["ann"]


@fuzz.effort
def test_any_headers_are_a_claim_or_refused(tmp_path: Path, number: int):
    make_node_key(tmp_path / "ann.key")
    good = {
        name.encode(): value.encode()
        for name, value in Knock(tmp_path / "ann.key").headers().items()
    }
    names = [members.PUBLIC_KEY, members.SIGNATURE, members.TIMESTAMP]

    def claimed(data: bytes) -> None:
        for name in names:
            members.claim([*{**good, name: data}.items()])

    fuzz.survive(claimed, fuzz.damaged(list(good.values()), number), Refused)
    times = [b"2026-01-02T03:04:05.678901+00:00", b"0001-01-01T00:00:00+23:59", b"20260102T030405Z"]
    fuzz.survive(members._seconds, fuzz.damaged(times, number), Refused)  # pyright: ignore[reportPrivateUsage]

    def length(data: bytes) -> None:
        found = length_of([(b"content-length", data)])
        assert found == int(data) if len(data.lstrip(b"0")) <= 20 else found >= 10**19

    lengths = [b"5", b"1234567890123456789", b"0" * 25 + b"7"]
    fuzz.survive(length, fuzz.damaged(lengths, number), Refused)


@fuzz.effort
def test_any_file_in_the_folder_of_clients_is_a_key_or_none(tmp_path: Path, number: int):
    make_node_key(tmp_path / "ann.key")
    write_verify_key(tmp_path / "bob.verify", make_signing_key(tmp_path / "bob.sign"))
    good = [(tmp_path / name).read_bytes() for name in ("ann.pub", "bob.verify")]
    kind, content = good[0].split()[:2]
    # A point of the curve in its short form, which the library does not read.
    good.append(kind + b" " + b64encode(b64decode(content).replace(b"\0a\x04", b"\0a\x02")))
    read = in_file(tmp_path / "any.pub", members.read_member)
    assert [read(data) is not None for data in good] == [True, False, False]
    fuzz.survive(read, fuzz.damaged(good, number))


# --- what whoever starts a server or a client hands over ------------------------------------------


@fuzz.effort
def test_any_settings_of_a_gate_are_right_or_one_line(number: int):
    good = Settings("::1", 8443, "keys", "127.0.0.1:9092", "ca.pem", Limits(), "served.json")
    assert from_json(as_json(good), Settings, "the gate's") == good

    def read(data: bytes) -> None:
        settings = from_json(data.decode("latin-1"), Settings, "the gate's")
        assert [type(value) for value in settings] == [str, int, str, str, str, Limits, str]

    fuzz.survive(read, fuzz.damaged([as_json(good).encode()], number), BadInput)
    for bomb in fuzz.bombs(MEGABYTE):
        assert fuzz.peak_memory(lambda bomb=bomb: read(bomb)) < MOST_MEMORY


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 0, -1, True, "5", None, 10**30, []])
@pytest.mark.parametrize("name", ["connections", "head-seconds"])
def test_a_limit_is_a_positive_number(name: str, value: Any):
    with pytest.raises(BadInput, match=f"the limit {name} is .*; it must be a positive number"):
        limits_from({name: value}, Limits())


@fuzz.effort
def test_any_file_is_a_signing_key_or_one_line(tmp_path: Path, number: int):
    write_verify_key(tmp_path / "a.verify", make_signing_key(tmp_path / "a.sign"))
    make_node_key(tmp_path / "b.key")
    good = [(tmp_path / name).read_bytes() for name in ("a.sign", "b.key", "a.verify")]
    good += [protected(good[0])]
    read = in_file(tmp_path / "any.sign", read_signing_key)
    fuzz.survive(read, [*fuzz.damaged(good, number // 3), *fuzz.bombs(10_000)], BadInput)
    with pytest.raises(BadInput, match=r"any\.sign .*password"):
        read(good[-1])


def protected(key: bytes) -> bytes:
    """A key in OpenSSH's format that says that it is encrypted, as ssh-keygen -N makes them."""
    begin, *lines, end = key.decode().split("\n")[:-1]
    none = ssh_string(b"none") + ssh_string(b"none") + ssh_string(b"")
    options = ssh_string(ssh_string(b"salt") + (16).to_bytes(4, "big"))
    secret = ssh_string(b"aes256-ctr") + ssh_string(b"bcrypt") + options
    data = b64decode("".join(lines)).replace(none, secret)
    *_, last = (n for n in range(len(data)) if data[n : n + 4] == ssh_string(data[n + 4 :])[:4])
    data = data[:last] + ssh_string(data[last + 4 :] + bytes(8))  # a whole number of blocks
    content = b64encode(data).decode()
    return "\n".join([begin, content, end, ""]).encode()


def ssh_string(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


@fuzz.effort
def test_any_certificate_is_taken_or_one_line_that_names_it(tmp_path: Path, number: int):
    make_authority(tmp_path, ["localhost"])
    for name in ("server.pem", "server.key"):
        good = (tmp_path / name).read_bytes()

        def read(data: bytes, name: str = name) -> None:
            (tmp_path / name).write_bytes(data)
            server_context(tmp_path)

        fuzz.survive(read, fuzz.damaged([good], number // 10), BadInput)
        (tmp_path / name).write_bytes(good)
    server_context(tmp_path)


# --- what a client or a server has written itself -------------------------------------------------


@fuzz.effort
def test_a_damaged_memory_of_a_client_is_refused_by_its_name_and_never_read_wrong(
    tmp_path: Path, number: int
):
    """One flipped bit of `opened` would let it open a sum twice."""
    part = memory.Part(
        b"run",
        7,
        "Unmask",
        setup=b"s" * 90,
        own_seed=b"o" * 16,
        peers={3: (b"a" * 32, b"b" * 32)},
        shares={3: b"c" * 64},
        survivors=(0, 3),
    )
    state = memory.State(
        8, opened={b"run": 6}, rounds=(part, memory.Part(b"run", 8, "Setup", b"d"))
    )
    good = memory.dump(state)
    assert memory.load(good) == state
    remembered = secure_answers._remembered  # pyright: ignore[reportPrivateUsage]
    path = tmp_path / "secure.memory"
    assert remembered(path) == memory.IDLE
    read = in_file(path, remembered)
    damaged = [data for data in fuzz.damaged([good], number) if data != good]
    flipped = [good[:i] + bytes([good[i] ^ 1]) + good[i + 1 :] for i in range(len(good))]
    for data in [*damaged, *flipped, *fuzz.bombs(10_000)]:
        with pytest.raises(BadInput, match=r"secure\.memory, which says what .* is damaged"):
            read(data)


@fuzz.effort
def test_any_records_are_records_or_one_line_that_names_the_file(tmp_path: Path, number: int):
    line = json.dumps({"round": 1, "time": time.time(), "count": [1.0, 2.0], "loss": None}) + "\n"
    good = (line * 3).encode()
    read = in_file(tmp_path / METRICS, lambda path: read_records(path.parent))
    assert len(read(good)) == 3  # type: ignore[arg-type]
    fuzz.survive(read, [*fuzz.damaged([good], number), *fuzz.bombs(10_000)], BadInput)
    for bomb in fuzz.bombs(MEGABYTE):
        assert fuzz.peak_memory(lambda bomb=bomb: read(bomb)) < 2 * MOST_MEMORY
