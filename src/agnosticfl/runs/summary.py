# SPDX-License-Identifier: Apache-2.0
"""What came out of a run: `summary.json`."""

import math
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from agnosticfl import __version__, weights
from agnosticfl.core import tree
from agnosticfl.core.evaluate import Evaluation, Measured, full_evaluator, worst_domain
from agnosticfl.core.federated import (
    FederatedData,
    clients_with,
    domain_counts,
)
from agnosticfl.core.model import Params
from agnosticfl.core.state import ServerState
from agnosticfl.runs.build import Built
from agnosticfl.runs.config import Config
from agnosticfl.runs.playing import small_params
from agnosticfl.runs.questions import question
from agnosticfl.runs.resolve import find_method

OFTEN_ABSENT = 0.1  # of the rounds: more, and λ tells of the draw rather than of the losses
SERVER = "server"  # what clients measure has the names of splits; this is the server's own
TOO_MUCH = 10.0  # times the worst loss of round 1: a model that ends so has learned nothing


def measured(built: Built, params: Params, which: str, t: int) -> dict[str, Evaluation]:
    """What a model is worth on all that it was not trained on and may look at, by split.

    Args:
      which: model of the run it is, and `t` the round that it is from.
    """
    config, judge = built.config, built.judge
    wanted = {"heldout", built.judged_by}
    if judge is None:
        splits = {split: data for split, data in _splits(built).items() if split in wanted}
        return {split: _on(built, data)(params) for split, data in splits.items()}
    if config.evaluation_every == 0:
        wanted = {built.judged_by}  # nobody looks at held-out examples
    asked = {split: question(config, which, t, split) for split in sorted(wanted)}
    found = {split: judge(params, each) for split, each in asked.items()}
    own = built.server_test
    return found if own is None else found | {SERVER: _on(built, own)(params)}


def _on(built: Built, data: FederatedData) -> Callable[[Params], Evaluation]:
    config = built.config
    return full_evaluator(
        built.model, data, config.evaluation_batch_size, spread=config.client_spread
    )


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
    worst = worst_domain(results[built.judged_by].domains, config.metric, higher)
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
        "examples": {
            split: dict(zip(built.data.train.domains, numbers, strict=True))
            for split, numbers in _examples(built, results).items()
        },
        **_test_clients(built),
        **(_classes(built, results["test"].measured) if "test" in results else {}),
        "worst_domain": worst.domain,
        "gap": worst.gap,
        "clients_left_out": sum(r["left_out"] for r in records),
        "clients_clipped": sum(r.get("clients_clipped", 0) for r in records),
        "seconds_per_round": statistics.median(r["seconds"] for r in records),
        "bytes": {
            "down_per_round": last["bytes_down"],
            "up_per_round": last["bytes_up"],
            "paper_per_round": _paper_bytes(config, built, state),
        },
        "num_params": tree.size(state.params),
        **small_params(state),
        "environment": _environment(),
    }


def _splits(built: Built) -> dict[str, FederatedData]:
    splits = {"train": built.data.train, "heldout": built.data.heldout, "test": built.data.test}
    return {name: data for name, data in splits.items() if data is not None}


def _examples(built: Built, results: Mapping[str, Evaluation]) -> dict[str, Sequence[int]]:
    """Split -> how many examples each domain has; where clients keep them, as these say."""
    if built.judge is None:
        return {split: domain_counts(data).tolist() for split, data in _splits(built).items()}
    judged = {split: result.examples for split, result in results.items()}
    return {"train": domain_counts(built.data.train).tolist(), **judged}


def _test_clients(built: Built) -> dict[str, Any]:
    """How many test clients have examples of a domain; sums over clients do not say it."""
    if built.judge is not None:
        return {}
    test = built.data.test
    return {
        "clients_with": {"test": dict(zip(test.domains, clients_with(test).tolist(), strict=True))}
    }


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


def divergence(
    summary: dict[str, Any], records: list[dict[str, Any]], split: str = "test"
) -> str | None:
    """One line about a run whose loss exploded, or whose model was left as it was; or None."""
    first = [loss for loss in records[0]["loss"] if loss is not None]
    last = {
        domain: math.inf if values["loss"] is None else values["loss"]
        for domain, values in summary[split].items()
        if summary["examples"][split][domain] > 0
    }
    domain = max(last, key=lambda name: last[name])
    if first and not last[domain] <= TOO_MUCH * max(abs(max(first)), 1e-3):
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
