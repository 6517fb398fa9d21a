# SPDX-License-Identifier: Apache-2.0
"""What came out of a run: `summary.json`."""

import math
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from agnosticfl import __version__, weights
from agnosticfl.core import evaluate, tree
from agnosticfl.core.evaluate import Evaluation, Measured, Worst, full_evaluator, worst_domain
from agnosticfl.core.federated import (
    FederatedData,
    clients_with,
    domain_counts,
)
from agnosticfl.core.model import Params
from agnosticfl.core.state import ServerState
from agnosticfl.runs.build import Built
from agnosticfl.runs.config import Config, public_splits
from agnosticfl.runs.playing import small_params
from agnosticfl.runs.questions import question
from agnosticfl.runs.resolve import find_method

OFTEN_ABSENT = 0.1  # of the rounds: more, and λ tells of the draw rather than of the losses
SERVER = "server"  # what clients measure has the names of splits; this is the server's own
FIFTH = 5  # the first part of a run is compared with the last
FEW = 4  # rounds from which nothing can be told
STILL = 1e-6  # of the longest update: shorter ones move nothing
TOO_MUCH = 10.0  # times the worst loss of round 1: a model that ends so has learned nothing


def measured(built: Built, params: Params, which: str, t: int) -> dict[str, Evaluation]:
    """What a model is worth on all that it was not trained on and may look at, by split.

    Args:
      which: model of the run it is, and `t` the round that it is from.
    """
    config, judge = built.config, built.judge
    found: dict[str, Evaluation] = {}
    if judge is not None:
        # Nobody looks at held-out examples in a run without looks.
        wanted = [built.judged_by, *(["heldout"] if config.evaluation_every else [])]
        asked = {split: question(config, which, t, split) for split in sorted({*wanted})}
        found = {split: judge(params, each) for split, each in asked.items()}
    return found | {split: _on(built, data)(params) for split, data in _by_server(built).items()}


def compile_evaluations(built: Built, params: Params) -> None:
    """Compiles what measures models of this run on the server, looks at held-out clients too."""
    for data in _by_server(built).values():
        evaluate.compile_evaluation(built.model, params, data, built.config.evaluation_batch_size)


def _by_server(built: Built) -> dict[str, FederatedData]:
    """What the server measures models on."""
    if built.judge is not None:
        return {} if built.server_test is None else {SERVER: built.server_test}
    wanted = {"heldout", built.judged_by}
    return {
        split: data
        for split, data in _splits(built).items()
        if split in wanted and may_be_seen(built, split)
    }


def _on(built: Built, data: FederatedData) -> Callable[[Params], Evaluation]:
    config = built.config
    return full_evaluator(
        built.model, data, config.evaluation_batch_size, spread=config.client_spread
    )


def may_be_seen(built: Built, split: str) -> bool:
    """Whether the clients of a split are measured: with noise, or because they are public."""
    return split in built.looks or split in public_splits(built.config)


def as_summary(results: Mapping[str, Evaluation]) -> dict[str, Any]:
    """The same as `summary.json` has it, for the last model and for the best."""
    return {
        **{split: result.domains for split, result in results.items()},
        "overall": {split: result.overall for split, result in results.items()},
        **_client_spread(results),
        **_within(results),
    }


def summarise(
    built: Built,
    state: ServerState,
    records: list[dict[str, Any]],
    results: Mapping[str, Evaluation],
) -> dict[str, Any]:
    """What came out of a run whose last model had these results."""
    config = built.config
    higher = built.readings[config.metric].higher_is_better
    worst = _worst(results.get(built.judged_by), config.metric, higher)
    last = records[-1]
    return {
        "task": config.task,
        "algorithm": config.algorithm,
        "target": config.target,
        "seed": config.seed,
        "rounds": config.rounds,
        "domains": list(built.data.train.domains),
        "domain_weights": last["domain_weights"],
        **as_summary(results),
        "higher_is_better": {m: how.higher_is_better for m, how in built.readings.items()},
        **_counts(built, results),
        "worst_domain": None if worst is None else worst.domain,
        "gap": None if worst is None else worst.gap,
        "clients_left_out": sum(r["left_out"] for r in records),
        "clients_clipped": sum(r.get("clients_clipped", 0) for r in records),
        "seconds_per_round": _median([r["seconds"] for r in records]),
        "bytes": {
            "down_per_round": last["bytes_down"],
            "up_per_round": last["bytes_up"],
            "paper_per_round": _paper_bytes(config, built, state),
        },
        "num_params": tree.size(state.params),
        **small_params(state),
        "environment": _environment(),
    }


def _worst(result: Evaluation | None, metric: str, higher: bool) -> Worst | None:
    """The domain that is served worst, if noise leaves any."""
    if result is None or all(values[metric] is None for values in result.domains.values()):
        return None
    return worst_domain(result.domains, metric, higher)


def _counts(built: Built, results: Mapping[str, Evaluation]) -> dict[str, Any]:
    """How many examples, clients and classes there are; of a private run, of public splits.

    Where clients keep the examples it is what they say, and of clients nobody says anything.
    """
    private, public = built.privacy is not None, public_splits(built.config)
    counted = {s: data for s, data in _splits(built).items() if not private or s in public}
    if built.judge is not None:
        counted = {} if private else {"train": built.data.train}
    numbers = {split: domain_counts(data).tolist() for split, data in counted.items()}
    if built.judge is not None and not private:  # else they are noised numbers of clients
        numbers |= {split: result.examples for split, result in results.items()}
    names = built.data.train.domains
    examples = {split: dict(zip(names, each, strict=True)) for split, each in numbers.items()}
    if "test" not in counted:
        return {"examples": examples}
    test = built.data.test
    clients = dict(zip(test.domains, clients_with(test).tolist(), strict=True))
    classes = _classes(built, results["test"].measured) if "test" in results else {}
    return {"examples": examples, "clients_with": {"test": clients}, **classes}


def _median(seconds: Sequence[float | None]) -> float | None:
    known = [s for s in seconds if s is not None]
    return statistics.median(known) if known else None


def _splits(built: Built) -> dict[str, FederatedData]:
    splits = {"train": built.data.train, "heldout": built.data.heldout, "test": built.data.test}
    return {name: data for name, data in splits.items() if data is not None}


def _within(results: Mapping[str, Evaluation]) -> dict[str, Any]:
    """Split -> domain -> metric -> how far off it is at most, where sums do not tell it exactly."""
    errors = {split: result.within for split, result in results.items() if result.within}
    return {"within": errors} if errors else {}


def _classes(built: Built, test: Measured | None) -> dict[str, Any]:
    """How many test examples of each class every domain has, where the model tells classes."""
    if test is None:
        return {}
    if built.model.outputs != "labels" or test.outputs is None or test.wanted is None:
        return {}
    number, domains = test.outputs.shape[-1], built.data.test.domains
    counts = np.zeros((len(domains), number), int)
    np.add.at(counts, (test.domain, test.wanted.astype(int)), 1)
    names = built.data.about.labels or tuple(map(str, range(number)))
    by_domain = dict(zip(domains, counts.tolist(), strict=True))
    return {"classes": {"names": list(names), "test": by_domain}}


def _client_spread(results: Mapping[str, Evaluation]) -> dict[str, Any]:
    """Split -> metric -> how it differs between clients, if that was asked for."""
    spreads = {
        split: {metric: spread._asdict() for metric, spread in result.clients.items()}
        for split, result in results.items()
        if result.clients is not None
    }
    return {"clients": spreads} if spreads else {}


def _paper_bytes(config: Config, built: Built, state: ServerState) -> int | None:
    """By the paper's formula, for the methods that it is for."""
    count = find_method(config.algorithm).paper_bytes
    return None if count is None else count(state, built.algorithm.clients_per_round)


def _environment() -> dict[str, Any]:
    device = jax.devices()[0]
    return {
        "agnosticfl": __version__,
        "jax": jax.__version__,
        "python": platform.python_version(),
        "device": f"{jax.device_count()} × {device.device_kind}",
        "processes": jax.process_count(),
    }


def stalled(built: Built, records: list[dict[str, Any]]) -> str | None:
    """One line about a private run whose noised sums do not tell that it learns; or None."""
    part = len(records) // FIFTH
    if built.privacy is None or part < FEW:
        return None
    norms = [record["update_norm"] for record in records]
    if max(norms[-part:]) <= STILL * max(norms):
        return (
            f"the model no longer moves: its updates were {max(norms):.3g} long and are"
            f" {max(norms[-part:]):.3g} in the last {part} rounds"
        )
    first, last = (_mean_loss(some) for some in (records[:part], records[-part:]))
    if first is None or last is None:
        return "the noise hides the losses of all domains: this budget is too small for this cohort"
    if last.mean > first.mean - 2 * math.hypot(first.error, last.error):
        return (
            f"the run is not seen to learn: the noised training loss was {first.mean:.3g}"
            f" ± {first.error:.2g} in the first {part} rounds and {last.mean:.3g}"
            f" ± {last.error:.2g} in the last; more clients per round, fewer rounds, a larger"
            " epsilon or bounds that fit (`agnosticfl bounds`) leave less noise"
        )
    return None


class _Loss(NamedTuple):
    mean: float
    error: float  # standard error of the mean


def _mean_loss(records: Sequence[dict[str, Any]]) -> _Loss | None:
    """Of all domains together, over rounds; None if noise left too few of them."""
    values: list[float] = []
    for record in records:
        both = [
            (x, n) for x, n in zip(record["loss"], record["count"], strict=True) if x is not None
        ]
        if both:
            values.append(sum(x * n for x, n in both) / sum(n for _, n in both))
    if len(values) < FEW:
        return None
    return _Loss(statistics.mean(values), statistics.stdev(values) / math.sqrt(len(values)))


def absence(config: Config, records: list[dict[str, Any]], domains: Sequence[str]) -> str | None:
    """One line about domains whose λ sank because too few rounds had any of them; or None."""
    if not weights.from_table(config.weight_rule).sinks_absent:
        return None
    losses = [record.get("heldout_loss", record["loss"]) for record in records]
    missed = {name: sum(loss[i] is None for loss in losses) for i, name in enumerate(domains)}
    rare = [f"{n!r} ({k})" for n, k in missed.items() if k > OFTEN_ABSENT * len(records)]
    if not rare:
        return None
    return (
        f"absent from many of the {len(records)} rounds: {', '.join(rare)}; that counted as a loss"
        " of 0 (absent = 'zero', the paper's), so λ sank for want of clients;"
        " weight_rule.absent = 'presence' or 'hold' prevents it"
    )


def weights_kept(records: list[dict[str, Any]]) -> str | None:
    """One line about rounds whose λ was not finite, so that it stayed as it was; or None."""
    # A run that an older version began has records that do not say it.
    rounds = [r["round"] for r in records if not r.get("weights_taken", True)]
    if not rounds:
        return None
    return (
        f"λ was left as it was in {len(rounds)} of {len(records)} rounds, first in round"
        f" {rounds[0]}: what the rule made of the losses was not finite"
    )


def divergence(
    summary: dict[str, Any], records: list[dict[str, Any]], split: str = "test"
) -> str | None:
    """One line about a run whose loss exploded, or whose model was left as it was; or None."""
    first = [loss for loss in records[0]["loss"] if loss is not None]
    last = {
        domain: math.inf if values["loss"] is None else values["loss"]
        for domain, values in summary[split].items()
        if summary["examples"].get(split, {domain: values["loss"] is not None})[domain] > 0
    }
    domain = max(last, key=lambda name: last[name], default=None)
    if first and domain is not None and not last[domain] <= TOO_MUCH * max(abs(max(first)), 1e-3):
        return (
            f"the run diverged: the {split} loss of {domain!r} ended at {last[domain]:.3g}, where"
            f" the worst training loss began at {max(first):.3g}; try a smaller learning rate"
        )
    idle = sum(not record["step_taken"] for record in records)
    if idle > len(records) / 2:
        return (
            f"the model was left as it was in {idle} of {len(records)} rounds: no step was finite"
        )
    return None
