# SPDX-License-Identifier: Apache-2.0
"""What came out of a run: `summary.json`."""

import math
import platform
import statistics
from typing import Any

import jax

from agnosticfl import __version__
from agnosticfl.core import tree
from agnosticfl.core.evaluate import Evaluation, full_evaluator, worst_domain
from agnosticfl.core.federated import FederatedData, domain_counts
from agnosticfl.core.model import Params
from agnosticfl.core.state import ServerState
from agnosticfl.engines.helpers.shards import here
from agnosticfl.runs.build import Built
from agnosticfl.runs.config import Config
from agnosticfl.runs.playing import small_params
from agnosticfl.runs.resolve import find_method

TOO_MUCH = 10.0  # times the worst loss of round 1: a model that ends so has learned nothing


def summarise(
    config: Config, built: Built, state: ServerState, records: list[dict[str, Any]]
) -> dict[str, Any]:
    results = _final_results(config, built, here(state.params))
    domains = {split: result.domains for split, result in results.items()}
    higher = built.readings[config.metric].higher_is_better
    worst = worst_domain(domains[built.judged_by], config.metric, higher)
    last = records[-1]
    return {
        "task": config.task,
        "algorithm": config.algorithm,
        "target": config.target,
        "seed": config.seed,
        "rounds": config.rounds,
        "domains": list(built.data.train.domains),
        "domain_weights": last["domain_weights"],
        **domains,
        "overall": {split: result.overall for split, result in results.items()},
        **_client_spread(results),
        "higher_is_better": {m: how.higher_is_better for m, how in built.readings.items()},
        "examples": {
            split: dict(zip(data.domains, domain_counts(data).tolist(), strict=True))
            for split, data in _splits(built).items()
        },
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


def _final_results(config: Config, built: Built, params: Params) -> dict[str, Evaluation]:
    """What the model is worth on all the clients that it was not trained on, and may look at."""
    return {
        split: full_evaluator(
            built.model, data, config.evaluation_batch_size, spread=config.client_spread
        )(params)
        for split, data in _splits(built).items()
        if split in {"heldout", built.judged_by}
    }


def _client_spread(results: dict[str, Evaluation]) -> dict[str, Any]:
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
