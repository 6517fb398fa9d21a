# SPDX-License-Identifier: Apache-2.0
"""The trials of a search: ordinary runs, judged by their last looks at held-out clients."""

import functools
import re
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from agnosticfl.core.evaluate import rows_of, some_clients, worst_domain
from agnosticfl.core.federated import FederatedData, Splits
from agnosticfl.core.model import Model
from agnosticfl.engines.helpers.tuning import Tuner
from agnosticfl.errors import BadInput
from agnosticfl.registry import MODELS, SOURCES
from agnosticfl.runs.ahead import MakeBuilt
from agnosticfl.runs.axes import Setting
from agnosticfl.runs.build import Built, assemble, build_engine
from agnosticfl.runs.config import Config, as_text
from agnosticfl.runs.rates import rates_among, with_rates, without_rates
from agnosticfl.runs.resolve import find_method
from agnosticfl.runs.shared import Shared
from agnosticfl.runs.told_apart import standard_error

Load: TypeAlias = Callable[[Config], tuple[Model, Splits]]


class Outcome(NamedTuple):
    """What one trial came to."""

    score: float | None  # mean of the worst domain's metric over the last looks; None: diverged
    domain: str | None  # the worst one in most of these looks
    gap: float | None  # mean distance between the worst and the best domain


class Trial(NamedTuple):
    """What a trial left: enough to judge it anew when others turn out to see less."""

    records: Sequence[dict[str, Any]]  # those with a look
    summary: dict[str, Any]
    domains: Sequence[str]  # those that count
    hidden: Sequence[str] = ()  # of these, by noise; of one that diverged nobody asks


Trials: TypeAlias = Mapping[Setting, Sequence[Trial]]  # one per seed


class Tried(NamedTuple):
    """What one setting came to, over its seeds."""

    setting: Setting
    outcomes: list[Outcome]

    @property
    def scores(self) -> list[float] | None:
        """One per seed; None if any of them diverged."""
        found = [outcome.score for outcome in self.outcomes if outcome.score is not None]
        return found if len(found) == len(self.outcomes) else None

    @property
    def mean(self) -> float | None:
        """Over the seeds."""
        return None if self.scores is None else statistics.fmean(self.scores)

    @property
    def error(self) -> float | None:
        """The standard error of the mean; unknown for a single seed."""
        scores = self.scores
        return standard_error(scores) if scores is not None and len(scores) > 1 else None

    @property
    def domain(self) -> str | None:
        """The worst one with most seeds."""
        return statistics.mode(outcome.domain for outcome in self.outcomes)

    @property
    def gap(self) -> float | None:
        """Over the seeds."""
        gaps = [outcome.gap for outcome in self.outcomes if outcome.gap is not None]
        return statistics.fmean(gaps) if len(gaps) == len(self.outcomes) else None


def loading() -> Load:
    """Model and data of a task, each made once for all trials that have the same."""

    @functools.cache
    def model(table: bytes) -> Model:
        return MODELS.build(msgspec.json.decode(table), "model")

    @functools.cache
    def data(table: bytes) -> Splits:
        found: Splits = SOURCES.build(msgspec.json.decode(table), "data")
        return found

    return lambda config: (  # the model first: data may take a while
        model(msgspec.json.encode(config.model)),
        data(msgspec.json.encode(config.data)),
    )


def sharing(load: Load, keys: Collection[str]) -> MakeBuilt:
    """Builds trials. Those that differ only in rates that are data share programs, plans and pools.

    Args:
      keys: what the search changes.
    """
    kept: list[tuple[dict[str, Any], Built]] = []
    common = Shared()

    def shared(config: Config, rates: list[str], lanes: int | None, tuner: Tuner | None) -> Built:
        program = without_rates(config, rates)
        for known, built in kept:
            if known == program and lanes in (None, built.algorithm.choices.get("lanes")):
                return built
        model, data = load(config)
        engine = build_engine(config, lanes, tuner, common)
        built = assemble(config, model, data, engine, rates, shared=common)
        kept.append((program, built))
        return built

    def make_built(config: Config, lanes: int | None, tuner: Tuner | None) -> Built:
        rates = rates_among(config, keys)
        built = shared(config, rates, lanes, tuner)
        found = {"data_digest": built.config.data_digest, "model_shapes": built.config.model_shapes}
        init = built.algorithm.init
        own = built.algorithm._replace(init=lambda: with_rates(init(), config, rates))
        return built._replace(
            config=msgspec.structs.replace(config, **found), algorithm=own, judged_by="heldout"
        )

    return make_built


def heldout_of(data: Splits, task: str) -> FederatedData:
    """The clients to search on, or one line on how to get some."""
    if data.heldout is None or data.heldout.num_examples == 0:
        raise BadInput(
            f"the data of task {task!r} has no split 'heldout' to search on; prepare it with"
            " --heldout-fraction 0.1"
        )
    return data.heldout


def seen_domains(heldout: FederatedData, config: Config) -> list[str]:
    """The domains of which the looks of a run see any example."""
    clients = some_clients(heldout, config.evaluation_clients, config.seed)
    there = np.unique(heldout.domain[rows_of(heldout, clients)])
    return [heldout.domains[i] for i in there]


def outcome(
    records: Sequence[dict[str, Any]],
    summary: dict[str, Any],
    metric: str,
    domains: Sequence[str],
    looks: int,
    references: Mapping[str, float] | None = None,
) -> Outcome:
    """What a trial came to, from its last looks.

    A domain whose examples leave the metric undefined (a c-index without an event) has no part in
    it; `undefined_in` names it.

    Args:
      domains: those that count.
      references: domain -> a loss; if given, it is judged by how far the losses are above them.
    """
    last = [record["heldout"] for record in records if "heldout" in record][-looks:]
    if references is None:
        without = undefined_in(records, metric, domains)
        domains = [domain for domain in domains if domain not in without]
    results = [{domain: look[domain] for domain in domains} for look in last]
    names = ("loss", metric) if references is None else ("loss",)
    numbers = [result[d][name] for result in results for d in domains for name in names]
    # A file has no infinities.
    if summary["diverged"] is not None or None in numbers or not numbers:
        return Outcome(None, None, None)
    if references is not None:
        results = [
            {d: {**result[d], metric: result[d]["loss"] - references[d]} for d in domains}
            for result in results
        ]
    higher = references is None and summary["higher_is_better"][metric]
    worst = [worst_domain(result, metric, higher) for result in results]
    return Outcome(
        statistics.fmean(w.value for w in worst),
        statistics.mode(w.domain for w in worst),
        statistics.fmean(w.gap for w in worst),
    )


def judged_alike(
    trials: Trials, metric: str, looks: int, references: Mapping[str, float] | None = None
) -> dict[Setting, Tried]:
    """What all settings came to, by the domains that noise hides in none of their trials.

    Otherwise one could win because noise hides its worst domain.
    """
    hidden = hidden_among(trials)

    def judged(trial: Trial) -> Outcome:
        domains = [domain for domain in trial.domains if domain not in hidden]
        return outcome(trial.records, trial.summary, metric, domains, looks, references)

    return {setting: Tried(setting, list(map(judged, own))) for setting, own in trials.items()}


def hidden_among(trials: Trials) -> dict[str, dict[Setting, list[int]]]:
    """The domains that noise hides in any trial -> the settings and their seeds where it does."""
    found: dict[str, dict[Setting, list[int]]] = {}
    for setting, own in trials.items():
        for seed, trial in enumerate(own):
            for domain in trial.hidden:
                found.setdefault(domain, {}).setdefault(setting, []).append(seed)
    return found


def hidden_in(records: Sequence[dict[str, Any]], domains: Sequence[str], looks: int) -> list[str]:
    """The domains of which noise hides the loss in one of the last looks, or hides every look."""
    last = [record["heldout"] for record in records if "heldout" in record][-looks:]
    return [d for d in domains if not last or any(look[d]["loss"] is None for look in last)]


def undefined_in(
    records: Sequence[dict[str, Any]], metric: str, domains: Sequence[str]
) -> list[str]:
    """The domains that have a loss in every look, and the metric in none."""
    looks = [record["heldout"] for record in records if "heldout" in record]
    return [
        domain
        for domain in domains
        if all(look[domain]["loss"] is not None for look in looks)
        and all(look[domain][metric] is None for look in looks)
    ]


def trial_folder(config: Config, keys: Sequence[str], setting: Setting) -> Path:
    """What the folder of a trial is called, below that of the search."""
    named = [f"{key}={as_text(value)}" for key, value in zip(keys, setting, strict=True)]
    name = "-".join([find_method(config.algorithm).name, *named, f"seed{config.seed}"])
    return Path("trials") / re.sub(r"[^\w.=+-]", "_", name)
