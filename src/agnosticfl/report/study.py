# SPDX-License-Identifier: Apache-2.0
"""A comparison on a user's own model and data, from Python: runs and report in one call."""

import inspect
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agnosticfl.core.federated import Splits
from agnosticfl.core.model import Model, Params
from agnosticfl.core.signature import showing
from agnosticfl.engines.helpers.tuning import Tuner
from agnosticfl.errors import check
from agnosticfl.files import write_json
from agnosticfl.options import NEEDED
from agnosticfl.report import write_report
from agnosticfl.runs import checkpoint
from agnosticfl.runs.build import Built, assemble, build_engine
from agnosticfl.runs.compare import ORDER, run_folder
from agnosticfl.runs.config import Config, config_keys
from agnosticfl.runs.resolve import GIVEN, NOT_OF_A_TASK, find_method, resolve
from agnosticfl.runs.run import run


def task_keywords() -> list[inspect.Parameter]:
    """The keys of a task, those that must be given first."""
    there = (*NOT_OF_A_TASK, "data", "model")
    keys = [option for option in config_keys().values() if option.name not in there]
    keys.sort(key=lambda option: option.default is not NEEDED)
    return [
        inspect.Parameter(
            option.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=option.default,
            annotation=option.kind,
        )
        for option in keys
    ]


@showing(task_keywords())
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
    """Trains `model` by every method with every seed and writes a report.

    `out` gets a run folder for each, `report.html` and `table.md`. The same call goes on where an
    interrupted one ended; with other data or another model it is refused. Returns method -> the
    trained w of each seed.

    Args:
      algorithms: name -> settings that only this one should use, as `[algorithms.NAME]` in a task.
      target: the domain of FedAvg (target-only), if that is among them.
      seeds: how many, from 0 on.

    The other keywords are the keys of a task (docs/tasks.md); `client_optimizer` and its like are
    tables such as `{"name": "sgd", "learning_rate": 0.1}`.
    """
    out = Path(out)
    check(seeds >= 1, f"number of seeds is {seeds}; it must be at least 1")
    task = {"task": out.name, "data": GIVEN, "model": GIVEN, **settings, "algorithms": algorithms}

    def config(algorithm: str, seed: int) -> Config:
        wanted = target if find_method(algorithm).takes_target else None
        return resolve(task, algorithm, wanted, seed)

    wanted = {name: [config(name, seed) for seed in range(seeds)] for name in algorithms}
    trained = {
        name: [_train(each, model, data, out / run_folder(each)) for each in configs]
        for name, configs in wanted.items()
    }
    write_json(out / ORDER, {"algorithms": list(algorithms)})
    write_report([out], out)
    return trained


def _warn(text: str) -> None:
    """A run that exploded, or a checkpoint that is damaged: Python's way to say it."""
    if "complete already" not in text:
        warnings.warn(text, stacklevel=2)


def _train(config: Config, model: Model, data: Splits, folder: Path) -> Params:
    def built(config: Config, lanes: int | None, tuner: Tuner | None) -> Built:
        return assemble(config, model, data, build_engine(config, lanes, tuner))

    run(config, folder, make_built=built, resume=True, say=_warn)
    like = built(config, None, None).algorithm.init()
    state = checkpoint.restore(folder / "checkpoints", like, lambda _: None)
    check(state is not None, f"{folder} has no checkpoint that is whole")
    return state.params  # type: ignore[union-attr]
