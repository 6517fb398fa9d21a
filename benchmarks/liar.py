# SPDX-License-Identifier: Apache-2.0
"""What one client in 50 can do by claiming losses that it does not have.

    python benchmarks/liar.py [--rounds 1000] [--json FILE]

The paper's toy regression: points of five domains on 50 clients, and AFA finds the w whose worst
domain is served best, the middle between the extreme centres −1 and 1. Client 0 adds a constant to
the losses of its examples around 1. It trains honestly: the constant has no gradient, and moves
nothing but λ. Its code is the same as everybody's, so its contribution is bounded like any other.
"""

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console
from rich.table import Table

from agnosticfl import agnostic_fedavg, exponentiated_gradient, from_functions
from agnosticfl.channels.bounds import Bounds, bounding
from agnosticfl.core.channel import plain
from agnosticfl.data.sources.toy import toy
from agnosticfl.weights import capped, chain

CENTRES, POINTS = [-1.0, -0.5, 0.25, 0.5, 1.0], [80, 120, 200, 250, 350]
LIAR, DOMAIN = 0, 4  # who lies, and about which centre
SPREAD = 0.3


class Outcome(NamedTuple):
    """Where training went."""

    w: float
    weight: float  # λ of the domain that is lied about
    worst: float  # the true loss of the domain that is served worst
    clipped: float  # clients that were clipped in the last round


def attacked(
    claim: float, loss_bound: float | None = None, cap: float | None = None, rounds: int = 1000
) -> Outcome:
    """Trains with a liar that claims `claim` more loss than it has, and 49 honest clients."""
    data = toy(CENTRES, POINTS).train
    liars = slice(data.offsets[LIAR], data.offsets[LIAR + 1])
    claims = np.zeros(data.num_examples, np.float32)
    claims[liars] = np.where(data.domain[liars] == DOMAIN, claim, 0)
    data = data._replace(examples={**data.examples, "claim": claims})
    model = from_functions(
        lambda _: {"w": jnp.float32(3.0)},
        lambda w, e: jnp.square(e["x"] - w["w"]) + e["claim"],
    )
    rule = exponentiated_gradient(0.0125)
    algorithm = agnostic_fedavg(
        model,
        data,
        clients_per_round=50,
        batch_size=10,
        client_optimizer=optax.sgd(0.05),
        weight_rule=rule if cap is None else chain(rule, capped(cap)),
        channel=plain if loss_bound is None else bounding(Bounds(loss=loss_bound)),
    )
    state, info = algorithm.init(), None
    while int(state.round) < rounds:
        state, info = algorithm.round(state, algorithm.cohort(int(state.round) + 1))
    w = float(state.params["w"])
    worst = max((centre - w) ** 2 for centre in CENTRES) + SPREAD**2
    clipped: Any = info.channel_report.get("clients_clipped", 0) if info else 0
    return Outcome(w, float(state.domain_weights[DOMAIN]), worst, float(clipped))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures: list[dict[str, Any]] = []
    table = Table(
        "claim", "bound of L/N", "cap of λ", "w", "λ of its domain", "worst loss", "clipped"
    )
    for claim, bound, cap in [
        (0.0, None, None),
        (0.0, 20.0, 0.6),
        (1e6, None, None),
        (1e6, 20.0, None),
        (1e6, None, 0.6),
        (1e6, 20.0, 0.6),
        (1e6, 5.0, 0.6),
    ]:
        outcome = attacked(claim, bound, cap, options.rounds)
        figures.append({"claim": claim, "loss_bound": bound, "cap": cap, **outcome._asdict()})
        numbers = (outcome.w, outcome.weight, outcome.worst)
        table.add_row(
            f"{claim:g}",
            *("none" if value is None else f"{value:g}" for value in (bound, cap)),
            *(f"{number:.3f}" for number in numbers),
            f"{outcome.clipped:.0f}",
        )
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
