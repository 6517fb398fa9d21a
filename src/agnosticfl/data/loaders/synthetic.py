# SPDX-License-Identifier: Apache-2.0
"""Synthetic images, sentences and points, for demonstrations and load tests.

A client's examples do not come together: the first example of every client comes first, then the
second of every client that has one, as posts on a web site would. Each value is a function of the
seed and its place alone, made a few thousand at a time, so there is no limit on the size.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple, TypeAlias

import numpy as np
from msgspec import Meta

from agnosticfl.core.random import random_bits, random_unit
from agnosticfl.core.tokens import BOS, EOS, FIRST_WORD, PAD
from agnosticfl.data.source import Feature, Rows, Source
from agnosticfl.data.splits import Fractions, check_fractions
from agnosticfl.errors import BadInput, check, choose
from agnosticfl.options import Share
from agnosticfl.registry import LOADERS

PIECE = 8192  # cells of the grid of clients × examples that are filled at a time
CLASSES, DIMENSIONS, SIDE, LENGTH, WORDS = 10, 16, 28, 20, 10_000
# What the streams of random bits are for.
SIZE, CLIENT_DOMAIN, EXAMPLE_DOMAIN, SPLIT = range(4)

Make: TypeAlias = Callable[[np.random.Generator, np.ndarray, np.ndarray], dict[str, np.ndarray]]


class ExampleKind(NamedTuple):
    """What an example is, and how n of them are made from (generator, domain, confused)."""

    features: dict[str, Feature]
    make: Make
    vocabulary: tuple[str, ...] | None = None


@LOADERS.add("synthetic")
def load(
    sources: Sequence[Path] = (),
    *,
    kind: Annotated[str, "what the examples are: points, images or sentences"] = "points",
    clients: Annotated[int, Meta(ge=1, description="number of clients")] = 100,
    examples: Annotated[
        int, Meta(ge=1, description="examples per client on average; from 1 to twice as many")
    ] = 20,
    shares: Annotated[str, "share of each domain, separated by commas"] = "0.8,0.2",
    difficulty: Annotated[str, "part of each domain's labels or words left to chance"] = "0.1,0.3",
    partition: Annotated[str, "who has a domain: a client, or an example (data)"] = "client",
    words: Annotated[int | None, f"of the vocabulary of sentences; {WORDS} if not given"] = None,
    heldout_fraction: Annotated[Share, "part of the clients to hold out"] = 0.0,
    test_fraction: Annotated[Share, "part of the clients kept for the test"] = 0.1,
    seed: Annotated[int, Meta(ge=0, description="another seed gives other data")] = 0,
) -> Source:
    """Makes up domains of chosen sizes and difficulty."""
    check(not sources, f"synthetic data is made from nothing; {[*map(str, sources)]} not needed")
    check(clients >= 1 and examples >= 1, f"{clients} clients of {examples}: both must be positive")
    check(seed >= 0, f"seed is {seed}; it must be 0 or more")
    choose(partition, ("client", "data"), "partition")
    share = _numbers(shares, "shares")
    noise = _numbers(difficulty, "difficulty")
    check(
        len(share) == len(noise) and share.min() > 0 and noise.max() <= 1,
        f"shares {shares} and difficulty {difficulty}: one positive share and one number from 0"
        " to 1 for each domain",
    )
    check_fractions(Fractions(heldout_fraction, test_fraction))
    make_kind = KINDS[choose(kind, KINDS, "kind of synthetic data")]
    if words is not None:
        check(kind == "sentences", f"words is {words}, but only sentences have words, not {kind}")
        most = np.iinfo(np.int16).max - FIRST_WORD
        check(2 <= words <= most, f"words is {words}; it must be from 2 to {most}")
        make_kind = partial(_sentences, number=words)
    made = make_kind(seed, len(share))
    plan = Population(
        clients, examples, share / share.sum(), partition, test_fraction, heldout_fraction, seed
    )
    return Source(
        name=f"synthetic {kind}",
        licence="CC0-1.0",
        domains=tuple(f"domain{i}" for i in range(len(share))),
        features=made.features,
        rows=lambda: _rows(plan, made.make, noise),
        total=sum(int(_sizes(plan, cells).sum()) for cells in _blocks(clients)),
        vocabulary=made.vocabulary,
        given=("vocabulary",),
    )


class Population(NamedTuple):
    """Who has how much of what."""

    clients: int
    examples: int
    share: np.ndarray  # [p]
    partition: str
    test: float
    heldout: float
    seed: int


def _numbers(text: str, what: str) -> np.ndarray:
    try:
        numbers = np.array([float(part) for part in text.split(",")])
    except ValueError:
        raise BadInput(f"{what} {text!r} are not numbers separated by commas") from None
    check(
        bool((np.isfinite(numbers) & (numbers >= 0)).all()), f"{what} {text!r} must not be negative"
    )
    return numbers


def _blocks(length: int) -> Iterator[np.ndarray]:
    return (np.arange(first, min(first + PIECE, length)) for first in range(0, length, PIECE))


def _sizes(plan: Population, client: np.ndarray) -> np.ndarray:
    """Examples of each client: from 1 to 2m−1, all equally likely, so m on average."""
    bits = random_bits(plan.seed, SIZE, client)
    return 1 + (bits % np.uint64(2 * plan.examples - 1)).astype(np.int64)


def _rows(plan: Population, make: Make, noise: np.ndarray) -> Iterator[Rows]:
    for cells in _blocks(plan.clients * (2 * plan.examples - 1)):
        turn, client = np.divmod(cells, plan.clients)
        present = turn < _sizes(plan, client)
        turn, client = turn[present], client[present]
        domain = _domains(plan, turn, client)
        rng = np.random.default_rng([plan.seed, int(cells[0])])
        features = make(rng, domain, noise[domain])
        yield from _by_split(plan, client, domain, features)


def _domains(plan: Population, turn: np.ndarray, client: np.ndarray) -> np.ndarray:
    by_client = plan.partition == "client"
    words = (CLIENT_DOMAIN, client) if by_client else (EXAMPLE_DOMAIN, client, turn)
    edges = np.cumsum(plan.share)[:-1]
    return np.searchsorted(edges, random_unit(plan.seed, *words), side="right").astype(np.int32)


def _by_split(
    plan: Population, client: np.ndarray, domain: np.ndarray, features: dict[str, np.ndarray]
) -> Iterator[Rows]:
    """Test and held-out clients are others than those who train."""
    chance = random_unit(plan.seed, SPLIT, client)
    split = np.searchsorted([plan.test, plan.test + plan.heldout], chance, side="right")
    for number, name in enumerate(("test", "heldout", "train")):
        chosen = np.flatnonzero(split == number)
        if len(chosen):
            ids = [f"client{k:07}" for k in client[chosen].tolist()]
            columns = {key: values[chosen] for key, values in features.items()}
            yield Rows(name, ids, domain[chosen], columns)


def _labels(
    rng: np.random.Generator, true: np.ndarray, noise: np.ndarray, classes: int
) -> np.ndarray:
    """The true label, or with probability `noise` any."""
    chance = rng.random(len(true)) < noise
    return np.where(chance, rng.integers(classes, size=len(true)), true).astype(np.int32)


def _points(seed: int, domains: int) -> ExampleKind:
    """x in R^16 from N(0, 1); y is the largest of ten directions, which each domain turns a bit."""
    fixed = np.random.default_rng([seed, 1])
    shared = fixed.standard_normal((1, DIMENSIONS, CLASSES))
    own = fixed.standard_normal((domains, DIMENSIONS, CLASSES))
    directions = (shared + 0.5 * own).astype(np.float32)

    def make(
        rng: np.random.Generator, domain: np.ndarray, noise: np.ndarray
    ) -> dict[str, np.ndarray]:
        x = rng.standard_normal((len(domain), DIMENSIONS), np.float32)
        true = np.einsum("nd,ndc->nc", x, directions[domain]).argmax(axis=1)
        return {"x": x, "y": _labels(rng, true, noise, CLASSES)}

    features = {"x": Feature("float32", (DIMENSIONS,)), "y": Feature("int32", ())}
    return ExampleKind(features, make)


def _images(seed: int, domains: int) -> ExampleKind:
    """A pattern a class, bright on black, moved by a few pixels in each domain, with noise."""
    fixed = np.random.default_rng([seed, 2])
    coarse = fixed.random((CLASSES, 7, 7)) > 0.6
    patterns = 200.0 * np.kron(coarse, np.ones((4, 4)))
    moved = np.stack([np.roll(patterns, 3 * i, axis=(1, 2)) for i in range(domains)])

    def make(
        rng: np.random.Generator, domain: np.ndarray, noise: np.ndarray
    ) -> dict[str, np.ndarray]:
        true = rng.integers(CLASSES, size=len(domain))
        grain = 30.0 * rng.standard_normal((len(domain), SIDE, SIDE), np.float32)
        image = (moved[domain, true] + grain).clip(0, 255).astype(np.uint8)
        return {"x": image, "y": _labels(rng, true, noise, CLASSES)}

    features = {"x": Feature("uint8", (SIDE, SIDE)), "y": Feature("int32", ())}
    return ExampleKind(features, make)


def _sentences(seed: int, domains: int, number: int = WORDS) -> ExampleKind:
    """Words that follow each other in an order of their domain; a word of chance now and then.

    <bos>, 1 to 18 words, <eos>, then <pad>: 20 tokens. Words of chance are Zipf-like.
    """
    fixed = np.random.default_rng([seed, 3])
    after = np.stack([fixed.permutation(number) for _ in range(domains)])

    def make(
        rng: np.random.Generator, domain: np.ndarray, noise: np.ndarray
    ) -> dict[str, np.ndarray]:
        shape = (len(domain), LENGTH - 2)
        words = np.floor(number ** rng.random(shape)).astype(np.int64) % number
        follows = rng.random(shape) >= noise[:, None]
        for place in range(1, LENGTH - 2):
            next_word = after[domain, words[:, place - 1]]
            words[:, place] = np.where(follows[:, place], next_word, words[:, place])
        return {"tokens": _framed(words + FIRST_WORD, rng.integers(1, LENGTH - 1, len(domain)))}

    vocabulary = ("<pad>", "<bos>", "<eos>", *(f"word{i}" for i in range(number)), "<oov>")
    return ExampleKind({"tokens": Feature("int16", (LENGTH,))}, make, vocabulary)


def _framed(words: np.ndarray, length: np.ndarray) -> np.ndarray:
    """<bos>, the first `length` words, <eos>, and <pad> to the end."""
    tokens = np.full((len(words), LENGTH), PAD, np.int16)
    tokens[:, 0] = BOS
    tokens[:, 1:-1] = np.where(np.arange(LENGTH - 2) < length[:, None], words, PAD)
    tokens[np.arange(len(words)), length + 1] = EOS
    return tokens


KINDS: dict[str, Callable[[int, int], ExampleKind]] = {
    "points": _points,
    "images": _images,
    "sentences": _sentences,
}
