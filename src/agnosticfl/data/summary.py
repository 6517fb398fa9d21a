# SPDX-License-Identifier: Apache-2.0
"""What is in a store: clients, examples, tokens and labels, by split and domain."""

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agnosticfl.core.federated import FederatedData, client_domain_counts, pieces_of_clients, slices
from agnosticfl.data.balance import Balance, Target, balances, number_of_classes
from agnosticfl.data.preparation.record import to_json
from agnosticfl.data.store.reader import Store

QUANTILES = (0.0, 0.25, 0.5, 0.75, 0.95, 1.0)
NO_WORDS = ("<pad>", "<bos>", "<eos>")


class DomainSummary(NamedTuple):
    """One domain in one split."""

    clients: int  # those with at least one example of it
    examples: int
    tokens: int | None  # words; None if the data is no text
    classes: tuple[int, ...] | None  # examples of each class; None without classes
    target: Target | None  # the numbers to predict, if the label is a number


class SplitSummary(NamedTuple):
    """One split."""

    clients: int
    examples: int
    several_domains: int  # clients that have examples of more than one domain
    size_quantiles: Mapping[str, float]  # of examples per client
    domains: Mapping[str, DomainSummary]


def summarise(store: Store) -> dict[str, SplitSummary]:
    """Reads domains, offsets, tokens and labels, a piece at a time."""
    count_tokens, balance = _token_counter(store), balances(store)
    return {
        split: _split(data, count_tokens(data), balance[split])
        for split, data in store.splits.items()
    }


def as_json(store: Store, summary: Mapping[str, SplitSummary]) -> dict[str, Any]:
    """The summary and what meta.json says, for programs."""
    meta, steps = store.meta, store.preparation()
    return {
        "name": meta.name,
        "licence": meta.licence,
        "domains": list(meta.domains),
        "features": {name: feature._asdict() for name, feature in meta.features.items()},
        "labels": meta.labels,
        "number_of_features": number_of_features(store),
        "number_of_classes": number_of_classes(store),
        "columns": None if steps is None else steps.x_columns,
        "preparation": None if steps is None else to_json(steps),
        "left_out": dict(meta.left_out),
        "notes": meta.notes,
        "splits": {name: _split_json(split) for name, split in summary.items()},
    }


def number_of_features(store: Store) -> int | None:
    """How many numbers of an example a model of `x` reads; None if there is no `x`."""
    feature = store.meta.features.get("x")
    return None if feature is None else math.prod(feature.shape)


def plot(store: Store, summary: Mapping[str, SplitSummary], file: Path) -> None:
    """Draws the examples of each domain, and how many clients have how many examples."""
    from matplotlib.figure import Figure  # here: it takes a second to load

    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    place = np.arange(len(store.meta.domains))
    for number, (name, split) in enumerate(summary.items()):
        width = 0.8 / len(summary)
        heights = [domain.examples for domain in split.domains.values()]
        left.bar(place + (number - (len(summary) - 1) / 2) * width, heights, width, label=name)
        sizes = store.splits[name].sizes
        edges = np.unique(np.geomspace(1, sizes.max() + 1, 20).round())
        right.hist(sizes, bins=edges.tolist(), histtype="step", label=name)
    left.set(title=f"{store.meta.name}: examples by domain", yscale="log")
    left.set_xticks(place, store.meta.domains)
    right.set(title="clients by size", xlabel="examples per client", xscale="log", yscale="log")
    left.legend()
    figure.savefig(file, dpi=120)


def _split_json(split: SplitSummary) -> dict[str, Any]:
    domains = {
        name: domain._asdict() | {"target": domain.target and domain.target._asdict()}
        for name, domain in split.domains.items()
    }
    return split._asdict() | {"domains": domains}


def _split(data: FederatedData, tokens: np.ndarray | None, balance: Balance) -> SplitSummary:
    p = data.num_domains
    clients, examples, several = np.zeros(p, int), np.zeros(p, int), 0
    for part in pieces_of_clients(data):
        counts = client_domain_counts(data, part)
        clients += (counts > 0).sum(axis=0)
        examples += counts.sum(axis=0)
        several += int(((counts > 0).sum(axis=1) > 1).sum())
    domains = {
        name: DomainSummary(
            int(clients[i]),
            int(examples[i]),
            None if tokens is None else int(tokens[i]),
            None if balance.classes is None else tuple(balance.classes[i].tolist()),
            None if balance.targets is None else balance.targets[i],
        )
        for i, name in enumerate(data.domains)
    }
    sizes = np.quantile(data.sizes, QUANTILES)
    quantiles = {f"{q:g}": float(size) for q, size in zip(QUANTILES, sizes, strict=True)}
    return SplitSummary(data.num_clients, data.num_examples, several, quantiles, domains)


def _token_counter(store: Store) -> Callable[[FederatedData], np.ndarray | None]:
    """Counts the tokens of each domain in the feature `tokens`, if this is text."""
    words = store.vocabulary()
    if words is None or "tokens" not in store.meta.features:
        return lambda _: None
    no_words = [words.index(name) for name in NO_WORDS if name in words]

    def count(data: FederatedData) -> np.ndarray:
        return sum(_tokens(data, no_words), np.zeros(data.num_domains, int))

    return count


def _tokens(data: FederatedData, no_words: list[int]) -> Iterator[np.ndarray]:
    for part in slices(data.num_examples):
        length = np.isin(data.examples["tokens"][part], no_words, invert=True).sum(axis=1)
        counts = np.bincount(data.domain[part], weights=length, minlength=data.num_domains)
        yield counts.astype(int)
