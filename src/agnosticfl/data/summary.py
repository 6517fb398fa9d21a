# SPDX-License-Identifier: Apache-2.0
"""What is in a store: clients, examples and tokens, by split and domain."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agnosticfl.core.federated import FederatedData, client_domain_counts, pieces_of_clients, slices
from agnosticfl.data.store.reader import Store

QUANTILES = (0.0, 0.25, 0.5, 0.75, 0.95, 1.0)
NO_WORDS = ("<pad>", "<bos>", "<eos>")


class DomainSummary(NamedTuple):
    """One domain in one split."""

    clients: int  # those with at least one example of it
    examples: int
    tokens: int | None  # words; None if the data is no text


class SplitSummary(NamedTuple):
    """One split."""

    clients: int
    examples: int
    several_domains: int  # clients that have examples of more than one domain
    size_quantiles: Mapping[str, float]  # of examples per client
    domains: Mapping[str, DomainSummary]


def summarise(store: Store) -> dict[str, SplitSummary]:
    """Reads domains, offsets and tokens once, a piece at a time."""
    count_tokens = _token_counter(store)
    return {split: _split(data, count_tokens(data)) for split, data in store.splits.items()}


def as_json(store: Store, summary: Mapping[str, SplitSummary]) -> dict[str, Any]:
    """The summary and what meta.json says, for programs."""
    meta = store.meta
    return {
        "name": meta.name,
        "licence": meta.licence,
        "domains": list(meta.domains),
        "features": {name: feature._asdict() for name, feature in meta.features.items()},
        "labels": meta.labels,
        "left_out": dict(meta.left_out),
        "splits": {
            name: split._asdict()
            | {"domains": {key: domain._asdict() for key, domain in split.domains.items()}}
            for name, split in summary.items()
        },
    }


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


def _split(data: FederatedData, tokens: np.ndarray | None) -> SplitSummary:
    p = data.num_domains
    clients, examples, several = np.zeros(p, int), np.zeros(p, int), 0
    for part in pieces_of_clients(data):
        counts = client_domain_counts(data, part)
        clients += (counts > 0).sum(axis=0)
        examples += counts.sum(axis=0)
        several += int(((counts > 0).sum(axis=1) > 1).sum())
    domains = {
        name: DomainSummary(
            int(clients[i]), int(examples[i]), None if tokens is None else int(tokens[i])
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
