# SPDX-License-Identifier: Apache-2.0
"""A lower bound on ε from one run with many canaries (Steinke, Nasr and Jagielski 2023).

    python benchmarks/audit.py --canaries 10000 --epsilon 8 --rounds 4

Every client is a canary with a direction of its own, drawn at random: its update goes along it or
against it with all its might. The attacker sees the noised updates of all rounds and guesses which
way each canary went, for as many as she dares to. Needs the extra `ftrl`.
"""

import argparse

import typer

from agnosticfl.runs.audit import audit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--canaries", type=int, default=10_000)
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    found = audit(options.canaries, options.epsilon, options.delta, options.rounds)
    typer.echo(
        f"{options.canaries} canaries, {options.rounds} rounds, delta {options.delta:g}: epsilon"
        f" claimed {found.claimed:.3g}, at least {found.one_run:.3g} (any mechanism) and"
        f" {found.gaussian:.3g} (if it is Gaussian), with 95 % confidence"
    )


if __name__ == "__main__":
    main()
