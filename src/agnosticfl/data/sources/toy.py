# SPDX-License-Identifier: Apache-2.0
"""Points in R around five centres: the paper's toy regression (appendix B)."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated

import numpy as np
from msgspec import Meta

from agnosticfl.core.federated import FederatedData, Splits, from_arrays
from agnosticfl.errors import check
from agnosticfl.options import AtLeastOne, NotNegative
from agnosticfl.registry import SOURCES


@SOURCES.add("toy")
def toy(
    centres: Sequence[float],
    points: Sequence[int],
    clients: AtLeastOne = 50,
    spread: NotNegative = 0.3,
    seed: Annotated[int, Meta(ge=0)] = 0,
    heldout: bool = False,
) -> Splits:
    """Train and test points, spread over the clients at random.

    The points of domain i have mean `centres[i]` and standard deviation `spread` exactly. With the
    same variance in all domains, the mean of (x − w)² over a domain is (c_i − w)² plus a constant,
    so min over w of the largest of them is the middle between the two extreme centres.

    Args:
      centres: the mean of each domain's points.
      points: how many points each domain has, in every split.
      clients: over how many clients they are spread.
      spread: the standard deviation of each domain's points.
      seed: another seed gives other points.
      heldout: whether there are held-out points too, to search on; the others are the same.
    """
    check(
        len(centres) == len(points) and min(points, default=0) >= 2,
        f"toy data needs at least 2 points for each centre; got {list(points)} for {list(centres)}",
    )
    rng = np.random.default_rng([seed, 20210])
    draw = partial(_split, rng, centres, points, clients, spread)
    train, test = draw(), draw()
    return Splits(train, test, draw() if heldout else None)


def _split(
    rng: np.random.Generator,
    centres: Sequence[float],
    points: Sequence[int],
    clients: int,
    spread: float,
) -> FederatedData:
    x: list[np.ndarray] = []
    for centre, number in zip(centres, points, strict=True):
        noise = rng.standard_normal(number)
        x.append(centre + spread * (noise - noise.mean()) / noise.std())
    return from_arrays(
        {"x": np.concatenate(x).astype(np.float32)},
        clients=rng.integers(clients, size=sum(points)),
        domains=np.repeat(np.arange(len(points)), points),
        domain_names=[f"centre {centre:g}" for centre in centres],
    )
