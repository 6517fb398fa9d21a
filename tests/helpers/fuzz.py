# SPDX-License-Identifier: Apache-2.0
"""Damaged input for parsers, and the rule that they all keep.

    @fuzz.effort  # few inputs in `make test`, many in the slow twin (AGNOSTICFL_FUZZ says how many)
    def test_any_bytes_are_a_card_or_one_line_that_says_why(number: int):
        fuzz.survive(parse_card, fuzz.damaged([good, other], number), Refused)

`survive` calls the parser with each input. It may return, or raise what is documented, in one line;
any other exception fails the test and shows the input. Both are deterministic: input n of a seed is
always the same, so a failure can be repeated.

`peak_memory` is what a call takes: no parser makes more than some tens of megabytes of one. Feed it
`bombs(size)`, which are small inputs that claim, or unfold to, much.
"""

import os
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pytest

FEW, MANY = 300, int(os.environ.get("AGNOSTICFL_FUZZ", "5000"))

LONGEST = 100_000  # bytes of a damaged input

effort = pytest.mark.parametrize("number", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])

# One level of nesting, as JSON, msgpack (lists and maps), TOML and PEM have it.
OPENERS = (b"[", b'{"a":', b"\x91", b"\x81\xa1a", b"\x81\x01", b"a.", b"-----BEGIN ")
CLAIMS = (  # a length or a number that is far beyond what follows
    b"\xdd\xff\xff\xff\xff",  # msgpack: a list, a map, bytes, text and an extension of 2^32 − 1
    b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xc9\xff\xff\xff\xff\x01",
    b"\xcf" + b"\xff" * 8,  # msgpack: 2^64 − 1, −2^63, NaN, infinity
    b"\xd3\x80" + b"\0" * 7,
    b"\xcb\x7f\xf8" + b"\0" * 6,
    b"\xcb\x7f\xf0" + b"\0" * 6,
    b"9" * 5000,  # text: numbers that Python does not take, or takes as infinity
    b"-1",
    b"1e999",
    b"NaN",
    b"null",
    b"\\u0000",
    b"\xff\xfe",
    b"\0",
)


def damaged(samples: Sequence[bytes], number: int, seed: int = 0) -> Iterator[bytes]:
    """`number` inputs, each made of good ones by one to four random changes.

    Bits are flipped, pieces cut out, repeated, moved in from another sample, deep nesting and false
    claims put in, bytes overwritten. The first few are the samples' own extremes: nothing at all,
    and each sample cut short or with something behind it.
    """
    rng = np.random.default_rng([seed, 0xF022])
    extremes = [b"", *(s[:-1] for s in samples), *(s + b"\0" for s in samples)]
    yield from extremes[:number]
    for _ in range(number - len(extremes)):
        data = samples[int(rng.integers(len(samples)))]
        for _ in range(rng.integers(1, 5)):
            data = CHANGES[rng.integers(len(CHANGES))](data, samples, rng)[:LONGEST]
        yield data


def bombs(size: int) -> list[bytes]:
    """Inputs of about `size` bytes that are all nesting, all small items, or false claims."""
    nested = [opener * (size // len(opener)) for opener in OPENERS]
    flat = [  # JSON and msgpack: a list of empty lists; msgpack: as many ones, empty maps
        b"[" + b"[]," * (size // 3) + b"[]]",
        b"\xdd" + size.to_bytes(4, "big") + b"\x90" * size,
        b"\xdd" + size.to_bytes(4, "big") + b"\x01" * size,
        b"\xdd" + size.to_bytes(4, "big") + b"\x80" * size,
    ]
    return [*nested, *flat, *CLAIMS, b"\n" * size, b"\0" * size, b"A" * size]


def survive(
    parse: Callable[[bytes], object],
    inputs: Iterable[bytes],
    allowed: type[Exception] | tuple[type[Exception], ...] = (),
) -> None:
    """Calls `parse` with each input; an exception that is not `allowed`, in one line, fails."""
    for place, data in enumerate(inputs):
        try:
            parse(data)
        except allowed as refusal:
            text = str(refusal)
            if not text or "\n" in text:
                pytest.fail(f"input {place}, {shown(data)}: not one line: {text!r}")
        except Exception as error:
            raise AssertionError(f"input {place}, {shown(data)}: {error!r}") from error


def peak_memory(call: Callable[[], object]) -> int:
    """Bytes that Python and numpy held at once in a call, whatever came of it."""
    tracemalloc.start()
    try:
        call()
    except Exception:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


def shown(data: bytes) -> str:
    """An input in a message: its length and as much of it as one can look at."""
    return f"{len(data)} bytes {data[:100]!r}{'…' if len(data) > 100 else ''}"


Change = Callable[[bytes, Sequence[bytes], np.random.Generator], bytes]


def _piece(data: bytes, rng: np.random.Generator) -> slice:
    start, end = sorted(int(place) for place in rng.integers(0, len(data) + 1, 2))
    return slice(start, end)


def _flip(data: bytes, _: Sequence[bytes], rng: np.random.Generator) -> bytes:
    changed = bytearray(data)
    for place in rng.integers(0, max(len(data), 1), rng.integers(1, 4)) if data else ():
        changed[place] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def _overwrite(data: bytes, _: Sequence[bytes], rng: np.random.Generator) -> bytes:
    at = int(rng.integers(len(data) + 1))
    noise = rng.bytes(int(rng.integers(1, 9)))
    return data[:at] + noise + data[at + len(noise) :]


def _cut(data: bytes, _: Sequence[bytes], rng: np.random.Generator) -> bytes:
    piece = _piece(data, rng)
    return data[: piece.start] if rng.random() < 0.5 else data[: piece.start] + data[piece.stop :]


def _insert(data: bytes, _: Sequence[bytes], rng: np.random.Generator) -> bytes:
    at = int(rng.integers(len(data) + 1))
    return data[:at] + rng.bytes(int(rng.integers(1, 33))) + data[at:]


def _claim(data: bytes, _: Sequence[bytes], rng: np.random.Generator) -> bytes:
    piece = _piece(data, rng)
    end = piece.start if rng.random() < 0.5 else piece.stop
    return data[: piece.start] + CLAIMS[rng.integers(len(CLAIMS))] + data[end:]


def _repeat(data: bytes, _: Sequence[bytes], rng: np.random.Generator) -> bytes:
    piece = _piece(data, rng)
    return data[: piece.stop] + data[piece] * int(rng.integers(1, 20)) + data[piece.stop :]


def _splice(data: bytes, samples: Sequence[bytes], rng: np.random.Generator) -> bytes:
    other = samples[int(rng.integers(len(samples)))]
    at = int(rng.integers(len(data) + 1))
    return data[:at] + other[_piece(other, rng)] + data[_piece(data, rng).stop :]


def _nest(data: bytes, _: Sequence[bytes], rng: np.random.Generator) -> bytes:
    at, depth = int(rng.integers(len(data) + 1)), int(rng.choice([2, 50, 1100, 5000]))
    return data[:at] + OPENERS[rng.integers(len(OPENERS))] * depth + data[at:]


CHANGES: tuple[Change, ...] = (_flip, _overwrite, _cut, _insert, _claim, _repeat, _splice, _nest)
