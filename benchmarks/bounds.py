# SPDX-License-Identifier: Apache-2.0
"""How far the bounds of private runs drift from where they would be without noise.

    python benchmarks/bounds.py --cohorts 20 200 2000 --epsilons 1 8 64 --rounds 500

Bounds are found on one synthetic data set (`agnosticfl bounds`) and used on another, of ten times
as many clients as take part in a round. Printed is the largest factor, over all rounds and bounds,
between a private run and one without noise, and of which bound; and whether the private run says
that it learns.
"""

import argparse

import numpy as np
import typer

from agnosticfl.channels.dp.clipping import ClipBounds
from agnosticfl.engines.auto import auto_engine
from agnosticfl.registry import MODELS, SOURCES
from agnosticfl.runs.build import Built, assemble
from agnosticfl.runs.playing import numbers, play
from agnosticfl.runs.public_bounds import find_bounds, following
from agnosticfl.runs.resolve import resolve
from agnosticfl.runs.summary import stalled

DELTA = 1e-6
PUBLIC, PRIVATE = 1, 2  # seeds of the data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cohorts", type=int, nargs="+", default=[20, 200, 2000])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 8.0, 64.0])
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--algorithm", default="fedavg")
    options = parser.parse_args()
    typer.echo("| c of K | ε | z | bounds | largest drift | learns |\n|---|---|---|---|---|---|")
    for clients in options.cohorts:
        name = options.algorithm
        first = find_bounds(resolve(*task(clients, PUBLIC, name)), min(options.rounds, 100))
        own = [f"dp.{name}={value}" for name, value in first.items()]
        free = following(clients, 0.5, first)
        wanted, _ = bounds_of(build(clients, name, [], options.rounds, lambda _, free=free: free))
        for epsilon in options.epsilons:
            sets = [f"dp.epsilon={epsilon}", f"dp.delta={DELTA}", *own]
            built = build(clients, name, sets, options.rounds)
            found, said = bounds_of(built)
            drifts = np.exp(np.abs(np.log(found / wanted)).max(axis=0))
            drift, which = drifts.max(), ClipBounds._fields[int(drifts.argmax())]
            assert built.privacy is not None
            z, words = built.privacy.scale.noise, built.privacy.bounds
            typer.echo(
                f"| {clients} of {10 * clients} | {epsilon:g} | {z:.3g} | {words} |"
                f" {drift:.2f} ({which}) | {'no' if said else 'yes'} |",
            )


def task(clients: int, data: int, algorithm: str) -> tuple[str, str, None, int, None, list[str]]:
    """Arguments of `resolve`: points of ten times as many clients, the model of the task."""
    sets = [f"data.clients={10 * clients}", f"data.seed={data}", "data.examples=10"]
    sets += ["data.heldout_fraction=0.0", "data.test_fraction=0.05", "evaluation_every=0"]
    return "synthetic-points", algorithm, None, 0, None, [*sets, f"clients_per_round={clients}"]


def build(
    clients: int, algorithm: str, sets: list[str], rounds: int, channel: object = None
) -> Built:
    name, _, target, seed, _, own = task(clients, PRIVATE, algorithm)
    config = resolve(name, algorithm, target, seed, rounds, [*own, *sets])
    data, model = SOURCES.build(config.data, "data"), MODELS.build(config.model, "model")
    return assemble(config, model, data, auto_engine, channel=channel)  # type: ignore[arg-type]


def bounds_of(built: Built) -> tuple[np.ndarray, str | None]:
    """[rounds, 3], and whether the run says that it does not learn."""
    algorithm, seen, records = built.algorithm, list[np.ndarray](), []
    for state, info, _ in play(algorithm, algorithm.init(), range(1, built.config.rounds + 1)):
        seen.append(np.array(state.channel_state.bounds, np.float64))  # type: ignore[union-attr]
        records.append(numbers(info))
    return np.array(seen), stalled(built, records)


if __name__ == "__main__":
    main()
