# SPDX-License-Identifier: Apache-2.0
"""What a private run says of clients by whom it is measured: noised, unless they are public.

A model is measured on held-out and test clients, who are people too. In a private run each client
says for every domain that it has examples of what the model's mean loss on them is (and the metric
that is asked for), within bounds; the noised sums of that, divided, are means over clients. Those
who are measured are in no other group, so they spend what the looks at them cost.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from agnosticfl.channels.dp import for_whom
from agnosticfl.channels.dp.noise import rounding_sensitivity
from agnosticfl.core.evaluate import Evaluation, Measured, Results, Values
from agnosticfl.core.federated import FederatedData, Splits
from agnosticfl.core.metrics import Reading
from agnosticfl.errors import check
from agnosticfl.privacy import accounting
from agnosticfl.privacy.accounting import Budget, Charge
from agnosticfl.privacy.discrete import discrete_gaussian
from agnosticfl.privacy.entropy import Secrets
from agnosticfl.runs.config import Config, public_splits

SIGMA = 2**16  # of the noise, in units: the grid is fine enough for any number of clients
LARGEST_SHARE = 1.0  # of metrics for which more is better: they are shares


class Look(NamedTuple):
    """A split whose clients are measured with noise."""

    looks: int  # how many there will be at most
    noise: float  # z of each
    budget: Budget
    metrics: Mapping[str, float]  # metric -> the largest value of a client that counts


Looks: TypeAlias = Mapping[str, Look]  # split -> how it is measured, if its clients are not public


def build_looks(
    config: Config, data: Splits, readings: Mapping[str, Reading], exact: Collection[str]
) -> Looks:
    """How the clients of each split are looked at; refused where that would leak.

    Args:
      exact: metrics that need all outputs at once, and no sums tell.
    """
    if config.dp is None:
        return {}
    if config.evaluation_by == "clients":  # whose looks are sums like those of training
        _check_told(config, ["heldout", "test"], exact)
        return {}
    models = 1 + config.mean_model + (config.evaluation_every > 0)  # last, mean, best
    during = config.rounds // config.evaluation_every if config.evaluation_every else 0
    wanted = {"heldout": during + models, "test": models}
    there = {"heldout": data.heldout is not None, "test": True}
    hidden = [s for s in wanted if there[s] and s not in public_splits(config)]
    if "heldout" in hidden and config.weights_follow == "heldout":
        check(
            config.evaluation_every == 0,
            "dp: held-out clients report to move λ and spend their budget with that; set"
            " evaluation_every = 0, or state that their results are public, dp.public ="
            ' ["heldout"]',
        )
        hidden.remove("heldout")
        wanted["heldout"] = 0
    _check_told(config, hidden, exact)
    largest = largest_values(config, readings)
    size = (1 + len(largest)) * data.train.num_domains  # of a client's vector, see `_vectors`
    return {split: _planned(config, wanted[split], largest, size) for split in hidden}


def _check_told(config: Config, hidden: Sequence[str], exact: Collection[str]) -> None:
    """Refuses what means over clients do not tell."""
    public = ""
    if config.evaluation_by == "server":
        public = f", or state whose results are public, dp.public = {hidden}".replace("'", '"')
    check(
        not hidden or not config.client_spread,
        f"dp: client_spread tells of single clients; set it to false{public}",
    )
    check(
        not hidden or config.metric not in exact,
        f"dp: metric {config.metric!r} needs what the model says of every single example; choose"
        f' one that is a mean, such as "loss"{public}',
    )


def largest_values(config: Config, readings: Mapping[str, Reading]) -> dict[str, float]:
    """The metrics that noised looks tell, and of each the largest value of a client that counts."""
    return {name: _largest(config, readings[name]) for name in {"loss": 0, config.metric: 0}}


def _planned(config: Config, looks: int, metrics: Mapping[str, float], size: int) -> Look:
    assert config.dp is not None
    exact = accounting.sampled_gaussian(
        1.0,
        lambda z: rounding_sensitivity(size, SIGMA / z),
        lambda _, looks: accounting.off_lattice(SIGMA, size * looks),
    )
    budget = Budget(float(config.dp["epsilon"]), float(config.dp["delta"]), exact)
    accounting.check_budget(budget)
    return Look(looks, accounting.find_noise(budget, looks), budget, metrics)


def _largest(config: Config, how: Reading) -> float:
    assert config.dp is not None
    return LARGEST_SHARE if how.higher_is_better else float(config.dp.get("loss", 5.0))


def statement(config: Config, looks: Looks, charged: Mapping[str, int]) -> dict[str, Any]:
    """What the looks so far have spent, for `privacy.json`."""
    unit = for_whom(owners=(config.dp or {}).get("silos") is not None)
    return {
        split: {
            "epsilon": accounting.spent(look.budget, [Charge(look.noise, charged.get(split, 0))]),
            "delta": look.budget.delta,
            "looks": charged.get(split, 0),
            "noise_multiplier": look.noise,
            **unit,
        }
        for split, look in looks.items()
    }


def noised(
    look: Look,
    data: FederatedData,
    measured: Measured,
    readings: Mapping[str, Reading],
    secrets: Secrets,
) -> Evaluation:
    """What may be said of a model: means over clients, noised; no single item."""
    names = [name for name in look.metrics if name in measured.sums]
    vectors = _vectors(look, data, measured, names)
    sizes = np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors /= np.maximum(sizes, 1e-30) / np.minimum(sizes, 1)  # norms of 1 at most
    units = SIGMA / look.noise
    total = np.rint(vectors * units).astype(np.int64).sum(axis=0)
    noise = discrete_gaussian(SIGMA, total.size, secrets.bits("looks"))
    sums = ((total + noise) / units).reshape(1 + len(names), data.num_domains)
    results: Results = {
        domain: _means(look, readings, names, sums[:, i]) for i, domain in enumerate(data.domains)
    }
    none = dict.fromkeys(readings)
    everywhere = _means(look, readings, names, sums.sum(axis=1), math.sqrt(data.num_domains))
    domains = {domain: none | values for domain, values in results.items()}
    return Evaluation(domains, none | everywhere, None, measured, examples=())  # which are exact


def _vectors(look: Look, data: FederatedData, measured: Measured, names: list[str]) -> np.ndarray:
    """[clients, (1 + metrics) · p]: whether a client has a domain, and its values there."""
    p = data.num_domains
    place = measured.client * p + measured.domain
    there = np.bincount(place, minlength=data.num_clients * p) > 0
    rows = [there.astype(float)]
    for name in names:
        total, weight = (np.bincount(place, x, data.num_clients * p) for x in measured.sums[name])
        most = look.metrics[name]
        mean = np.nan_to_num(total / np.where(weight > 0, weight, 1))
        rows.append(np.where(there & (weight > 0), np.clip(mean, -most, most) / most, 0))
    stacked = np.stack(rows).reshape(1 + len(names), data.num_clients, p)
    return stacked.transpose(1, 0, 2).reshape(data.num_clients, -1) / math.sqrt(1 + len(names))


def _means(
    look: Look,
    readings: Mapping[str, Reading],
    names: list[str],
    sums: np.ndarray,
    wider: float = 1.0,
) -> Values:
    """Values of one domain; None where there are fewer clients than noise could make up."""
    clients, *values = sums
    if clients < 2 * look.noise * wider:
        return dict.fromkeys(names)
    return {
        name: readings[name].finish(float(np.clip(v / clients, -1, 1)) * look.metrics[name])
        for name, v in zip(names, values, strict=True)
    }
