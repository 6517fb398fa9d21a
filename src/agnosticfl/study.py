# SPDX-License-Identifier: Apache-2.0
"""A comparison on a user's own model and data, from Python: runs and report in one call."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agnosticfl import checkpoint, experiment
from agnosticfl.build import Parts, assemble, build_engine
from agnosticfl.config import ALGORITHMS, Config, resolve
from agnosticfl.data.federated import Splits
from agnosticfl.errors import check, choose
from agnosticfl.model import Model, Params
from agnosticfl.report import write_report

GIVEN = {"name": "given from Python"}  # what `config.json` says of the model and the data


def study(
    model: Model,
    data: Splits,
    out: Path | str,
    *,
    algorithms: Mapping[str, Mapping[str, Any]] = {"fedavg": {}, "afa": {}},
    target: str | None = None,
    seeds: int = 3,
    **settings: Any,
) -> dict[str, list[Params]]:
    """Trains `model` by every algorithm with every seed and writes a report.

    `out` gets a run folder for each, `report.html` and `table.md`. The same call goes on where an
    interrupted one ended. Returns algorithm -> the trained w of each seed.

    Args:
      algorithms: name -> settings that only this one should use, as `[algorithms.NAME]` in a task.
      target: the domain of FedAvg (target-only), if that is among them.
      settings: the keys of a task: `rounds`, `clients_per_round`, `batch_size`, `client_optimizer`
        (a table like `{"name": "sgd", "learning_rate": 0.1}`), and any other of `config.Config`.
    """
    out = Path(out)
    check(seeds >= 1, f"number of seeds is {seeds}; it must be at least 1")
    task = {"task": out.name, "data": GIVEN, "model": GIVEN, **settings, "algorithms": algorithms}

    def config(algorithm: str, seed: int) -> Config:
        entry = ALGORITHMS[choose(algorithm, ALGORITHMS, "algorithm")]
        return resolve(task, algorithm, target if entry.takes_target else None, seed)

    wanted = {name: [config(name, seed) for seed in range(seeds)] for name in algorithms}
    trained = {
        name: [_trained(each, model, data, out / f"{name}-seed{each.seed}") for each in configs]
        for name, configs in wanted.items()
    }
    write_report([out], out)
    return trained


def _trained(config: Config, model: Model, data: Splits, folder: Path) -> Params:
    def parts(config: Config, lanes: int | None, tuner: Any) -> Parts:
        return assemble(config, model, data, build_engine(config, lanes, tuner))

    experiment.run(config, folder, make_parts=parts, resume=True)
    like = parts(config, None, None).algorithm.init()
    state = checkpoint.restore(folder / "checkpoints", like, lambda _: None)
    check(state is not None, f"{folder} has no checkpoint that is whole")
    return state.params  # type: ignore[union-attr]
