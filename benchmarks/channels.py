# SPDX-License-Identifier: Apache-2.0
"""What privacy and compression cost: the same task through other channels, seed by seed.

    python benchmarks/channels.py stackexchange --dp epsilon=8,delta=1e-6 \
        --dp epsilon=2,delta=1e-6 --compress bits=8 --compress bits=4 --compress top_k=0.01

runs FedAvg (uniform) and AFA with three seeds in the clear and through each channel, and writes a
row for each: the worst domain's metric, the mean over domains, ε spent, bytes up of a client in a
round. A run that is complete is not run again. `--secure` is the fixed point of secure aggregation,
`--secure bits=8` the one with few bits.
"""

import argparse
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

from agnosticfl.files import write_json
from agnosticfl.runs.config import Config
from agnosticfl.runs.resolve import resolve
from agnosticfl.runs.run import run


class Row(NamedTuple):
    channel: str
    algorithm: str
    worst: list[float]  # of each seed
    mean: list[float]
    epsilon: float | None
    bytes_up: float  # of one client in one round


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("task")
    parser.add_argument("--algorithms", default="fedavg,afa")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--dp", action="append", default=[], metavar="epsilon=8,delta=1e-6")
    parser.add_argument("--compress", action="append", default=[], metavar="bits=8")
    parser.add_argument(
        "--secure", action="append", default=[], nargs="?", const="", metavar="bits=8"
    )
    parser.add_argument("--set", action="append", default=[], dest="sets", metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, default=Path("runs/channels"))
    options = parser.parse_args()
    channels = {"plain": list[str]()}
    channels |= {f"dp {text}": settings("dp", text) for text in options.dp}
    channels |= {f"compress {text}": settings("compress", text) for text in options.compress}
    channels |= {f"secure {text}".strip(): secure_settings(text) for text in options.secure}
    rows: list[Row] = []
    for name, sets in channels.items():
        for algorithm in options.algorithms.split(","):
            folder = options.out / name.replace(" ", "-").replace(",", "-")
            configs = [
                resolve(options.task, algorithm, None, seed, options.rounds, [*options.sets, *sets])
                for seed in range(options.seeds)
            ]
            rows.append(row(name, algorithm, configs, folder))
            sys.stdout.write(line(rows[-1]) + "\n")
            write_json(options.out / "channels.json", [r._asdict() for r in rows])
    (options.out / "channels.md").write_text(table(rows), encoding="utf-8")


def settings(kind: str, text: str) -> list[str]:
    return [f"{kind}.{option}" for option in text.split(",")]


def secure_settings(text: str) -> list[str]:
    return ["secure.name=simulate", *(settings("compress", text) if text else ())]


def row(name: str, algorithm: str, configs: list[Config], folder: Path) -> Row:
    runs = [
        run(config, folder / f"{algorithm}-seed{config.seed}", resume=True) for config in configs
    ]
    metric, first = configs[0].metric, runs[0]
    return Row(
        name,
        algorithm,
        [r["test"][r["worst_domain"]][metric] for r in runs],
        [statistics.mean(r["test"][d][metric] for d in r["domains"]) for r in runs],
        first["privacy"]["epsilon"] if "privacy" in first else None,
        first["bytes"]["up_per_round"] / configs[0].clients_per_round,
    )


def line(row: Row) -> str:
    epsilon = "–" if row.epsilon is None else f"{row.epsilon:.2f}"
    cells = (row.channel, row.algorithm, spread(row.worst), spread(row.mean), epsilon)
    return f"| {' | '.join(cells)} | {row.bytes_up:,.0f} |"


def spread(values: list[float]) -> str:
    """Mean and standard deviation over seeds."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.4g} ({deviation:.2g})"


def table(rows: list[Row]) -> str:
    head = "| channel | algorithm | worst domain | mean of domains | ε | bytes up |"
    return "\n".join([head, "|---|---|---|---|---|---|", *map(line, rows)]) + "\n"


if __name__ == "__main__":
    main()
