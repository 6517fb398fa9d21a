# SPDX-License-Identifier: Apache-2.0
"""Run folders: finished ones, and what there is so far of one that is not."""

import functools
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agnosticfl.core.ledger import added
from agnosticfl.core.metrics import reading
from agnosticfl.errors import BadInput, check, choose
from agnosticfl.files import read_json
from agnosticfl.runs.compare import order_of
from agnosticfl.runs.config import Config, from_table, noised
from agnosticfl.runs.folder import DOMAINS
from agnosticfl.runs.kept_models import NEEDS, WHICH
from agnosticfl.runs.predictions import Predictions, read_predictions
from agnosticfl.runs.records import as_record, asked_in, read_records
from agnosticfl.runs.resolve import find_method
from agnosticfl.weights import from_table as rule_from_table

# What a summary says of the last model at its top, and of another one under its name.
OF_A_MODEL = ("test", "heldout", "server", "overall", "clients", "within")


class Run(NamedTuple):
    """A run, with the results of one of its models; none yet if it is not finished."""

    folder: Path
    config: Config
    summary: dict[str, Any]  # `OF_A_MODEL` is of the model that was asked for
    records: list[dict[str, Any]]
    which: str = "last"  # model

    def series(self, name: str) -> np.ndarray:
        """One value of every round, [rounds] or [rounds, p]; NaN where it is absent."""
        return np.array([record[name] for record in self.records], np.float64)

    def rounds(self) -> np.ndarray:
        """The numbers of its rounds."""
        return self.series("round")

    @property
    def unfinished(self) -> bool:
        """Whether rounds are still to come, so that nothing is tested."""
        return bool(self.summary.get("unfinished"))

    @property
    def epsilon(self) -> float:
        """The budget of its privacy; infinite without any."""
        return math.inf if self.config.dp is None else float(self.config.dp["epsilon"])

    def noised(self, split: str) -> bool:
        """Whether results of a split are noised sums: one that is missing was too small."""
        return noised(self.config, split)

    @property
    def looks(self) -> list[int]:
        """The numbers of the records with a look at held-out clients."""
        return [i for i, record in enumerate(self.records) if "heldout" in record]

    @property
    def round(self) -> int:
        """The round that its model is from."""
        last = self.which == "last"
        return self.records[-1]["round"] if last else self.summary[self.which]["round"]

    @property
    def test_examples(self) -> dict[str, int]:
        """Domain -> how many; empty if the summary does not say."""
        return self.summary.get("examples", {}).get("test", {})

    def predictions(self) -> Predictions | None:
        """What its model said of the test examples; None in runs of version 0.1."""
        return read_predictions(self.folder, "test", self.which)

    @property
    def order(self) -> int:
        """The place of its method in tables."""
        order = order_of(self.folder.parent)
        name = self.config.algorithm
        return order.index(name) if name in order else len(order)

    @property
    def is_reference(self) -> bool:
        """Whether the others are measured against its method."""
        return is_reference(self.config.algorithm)

    @property
    def follows_losses(self) -> bool:
        """Whether its λ moves by losses; a rule that this machine lacks is taken to do so."""
        try:
            return rule_from_table(self.config.weight_rule).follows_losses
        except BadInput:
            return True

    def higher_is_better(self, metric: str) -> bool:
        """Which way is better; runs of older versions have metrics that the program knows."""
        known: dict[str, bool] = self.summary.get("higher_is_better", {})
        return known[metric] if metric in known else reading(metric).higher_is_better

    def heldout(self, metric: str) -> np.ndarray:
        """The metric of each domain at each look, [looks, p]; NaN where it is absent."""
        looks = [self.records[i]["heldout"].values() for i in self.looks]
        return np.array([[values[metric] for values in look] for look in looks], np.float64)


def load_runs(folders: Iterable[Path], which: str = "last") -> list[Run]:
    """The finished runs in `folders`, each a run folder or a folder of run folders.

    Where none is finished, those of which a round is done, as far as they go.

    Args:
      which: model of each run: "last", "best" by its worst domain on held-out clients, or "mean".
    """
    choose(which, WHICH, "model of a run")
    runs: list[Run] = []
    for folder in folders:
        check(folder.is_dir(), f"{folder} is not a folder")
        places = [folder] if (folder / "config.json").exists() else sorted(folder.iterdir())
        ended = [place for place in places if (place / "summary.json").exists()]
        found = [_load(place) for place in ended] or [_begun(p) for p in places if _has_begun(p)]
        for run in found:
            check(
                "test" in run.summary,
                f"{run.folder} is a trial of a search: test is not measured",
            )
        check(bool(found), f"{folder} holds no finished run (no summary.json)")
        runs += found
    return runs if which == "last" else [with_model(run, which) for run in runs]


def with_model(run: Run, which: str) -> Run:
    """The same run, with the results of another model than its last."""
    check(which in run.summary, f"{run.folder} has no {which} model: that needs {NEEDS[which]}")
    model = run.summary[which]
    own = {part: model[part] for part in OF_A_MODEL if part in model}
    return run._replace(summary=run.summary | own, which=which)


def is_reference(algorithm: str) -> bool:
    """Whether a method is the one that others are measured against."""
    try:
        return find_method(algorithm).is_reference
    except BadInput:  # a method of somebody's own that this machine lacks
        return False


def _load(folder: Path) -> Run:
    try:
        config = from_table(read_json(folder / "config.json"), f"{folder / 'config.json'}")
        return Run(folder, config, read_json(folder / "summary.json"), read_records(folder))
    except (OSError, TypeError, ValueError) as error:
        raise BadInput(f"{folder} is not a readable run folder: {error}") from error


def _has_begun(folder: Path) -> bool:
    """Whether a round of an unfinished run is done, and the names of its domains are known."""
    return (folder / DOMAINS).exists() and bool(read_records(folder))


def _begun(folder: Path) -> Run:
    """What there is of a run that is not finished: its rounds, and no test."""
    try:
        config = from_table(read_json(folder / "config.json"), f"{folder / 'config.json'}")
        domains: list[str] = read_json(folder / DOMAINS)
        return Run(
            folder, config, _so_far(config, domains, read_records(folder)), read_records(folder)
        )
    except (OSError, TypeError, ValueError, KeyError) as error:
        raise BadInput(f"{folder} is not a readable run folder: {error}") from error


def _so_far(config: Config, domains: list[str], records: list[dict[str, Any]]) -> dict[str, Any]:
    """A summary in which all that needs the end is missing."""
    last, looks = records[-1], [record["heldout"] for record in records if "heldout" in record]
    metrics = list(looks[-1][domains[0]]) if looks else list(dict.fromkeys((config.metric, "loss")))
    return {
        "unfinished": True,
        "domains": domains,
        "test": {domain: dict.fromkeys(metrics) for domain in domains},
        **({"heldout": looks[-1]} if looks else {}),
        "bytes": {
            "down_per_round": last["bytes_down"],
            "up_per_round": last["bytes_up"],
            "paper_per_round": None,
            **as_record(functools.reduce(added, map(asked_in, records))),
        },
        "environment": {"rounds done": last["round"]},
    }
