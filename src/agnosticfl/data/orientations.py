# SPDX-License-Identifier: Apache-2.0
"""Images upright, turned by 90° and by 180°: every client has one orientation, its domain."""

from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple, TypeAlias

import numpy as np

from agnosticfl.data.in_memory import generator, in_pieces
from agnosticfl.data.source import Feature, Rows
from agnosticfl.errors import check
from agnosticfl.options import Share

DOMAINS = ("upright", "sideways", "upside-down")  # turned by 0, 1 and 2 times 90°
FEATURES = {"x": Feature("uint8", (28, 28)), "y": Feature("int32", ())}

Sideways: TypeAlias = Annotated[Share, "share of the training clients that is turned by 90°"]
UpsideDown: TypeAlias = Annotated[Share, "share of the training clients that is turned by 180°"]
HeldoutOfDomains: TypeAlias = Annotated[
    Share, "share of each domain's training clients that is kept apart as the heldout split"
]


class Oriented(NamedTuple):
    """Whose each image is, which way it is turned, and whether it is held out; [n] each."""

    clients: np.ndarray
    domain: np.ndarray  # int32
    heldout: np.ndarray  # bool


def training_clients(
    clients: Sequence[str], sideways: float, upside_down: float, heldout: float, seed: int
) -> Oriented:
    """Turns random clients in these shares, and holds out the same share of each domain.

    Args:
      clients: of each image, [n].
    """
    for what, share in {
        "sideways": sideways,
        "upside down": upside_down,
        "heldout": heldout,
    }.items():
        check(0 <= share < 1, f"{what} fraction is {share}; it must be at least 0 and below 1")
    # From the last one on: so were the stores dealt that the figures in docs/results.md are of.
    names = generator(seed, 10).permutation(sorted(set(clients)))[::-1].tolist()
    turned = [round(share * len(names)) for share in (sideways, upside_down)]
    counts = [len(names) - sum(turned), *turned]
    domain_of: dict[str, int] = {}
    apart: set[str] = set()
    start = 0
    for domain, count in enumerate(counts):
        held = round(heldout * count)
        check(
            held < count,
            f"{DOMAINS[domain]}: {max(count, 0)} of {len(names)} training clients, and a heldout"
            f" fraction of {heldout}; at least one must be left to train on",
        )
        own = names[start : start + count]
        start += count
        apart |= set(own[:held])
        domain_of |= dict.fromkeys(own, domain)
    return _of_images(clients, domain_of, apart)


def even_clients(clients: Sequence[str], seed: int) -> Oriented:
    """A third of the clients for each domain, so that all three are measured equally well."""
    names = generator(seed, 11).permutation(sorted(set(clients))).tolist()
    check(len(names) >= len(DOMAINS), f"{len(names)} test clients are too few for three domains")
    return _of_images(clients, {name: i % len(DOMAINS) for i, name in enumerate(names)}, set())


def turned_rows(
    split: str, part: Oriented, images: np.ndarray, labels: np.ndarray
) -> Iterator[Rows]:
    """The images, [n, side, side], as their clients have them; what is held out comes first."""
    for name, kept in (("heldout", part.heldout), (split, ~part.heldout)):
        domain = part.domain[kept]
        features = {"x": turned(images[kept], domain), "y": labels[kept].astype(np.int32)}
        yield from in_pieces(name, part.clients[kept].tolist(), domain, features)


def turned(images: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Each image turned by so many times 90°, counter-clockwise."""
    result = images.copy()
    for quarter in np.unique(times).tolist():
        chosen = times == quarter
        result[chosen] = np.rot90(images[chosen], quarter, axes=(1, 2))
    return result


def _of_images(clients: Sequence[str], domain_of: dict[str, int], apart: set[str]) -> Oriented:
    return Oriented(
        np.array(clients),
        np.array([domain_of[client] for client in clients], np.int32),
        np.array([client in apart for client in clients]),
    )
