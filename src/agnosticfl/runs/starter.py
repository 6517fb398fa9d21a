# SPDX-License-Identifier: Apache-2.0
"""A first task for a store: `agnosticfl init`, and the models that `data info` says would fit.

The task runs as it is. Its numbers are where a search should start (`agnosticfl tune`), not what
it would find.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from agnosticfl.core.federated import FederatedData, clients_with
from agnosticfl.core.tokens import FIRST_WORD
from agnosticfl.data.balance import balances, number_of_classes
from agnosticfl.data.store import Store
from agnosticfl.errors import BadInput, check, choose
from agnosticfl.runs.config import Table

MANY_ROWS = 10_000  # training examples from which a network learns more than a linear model
MANY_SENTENCES = 200_000  # from which the paper's sizes pay
RARE = 0.1  # share of a class of two
SMALLEST_IMAGE = 6
LOOKS = 20  # at held-out clients
UNSEEN = 1e-3  # how likely a domain may be absent from the whole window
INTERVALS = 8  # of time, with about as many events in each


class Seen(NamedTuple):
    """What of a store decides about its task."""

    features: Mapping[str, tuple[int, ...]]  # name -> shape of one example
    rows: int  # training examples
    classes: int | None
    words: int | None  # of the vocabulary
    class_counts: np.ndarray | None  # [p, classes] training examples
    is_number: bool  # whether the label is one
    edges: tuple[float, ...] | None = None  # between intervals of time, if the label is survival


def seen_of(store: Store) -> Seen:
    """Reads labels and counts once."""
    words = store.vocabulary()
    label = store.meta.features.get("y")
    train = balances(store).get("train")
    return Seen(
        features={name: feature.shape for name, feature in store.meta.features.items()},
        rows=store.meta.splits["train"].examples if "train" in store.splits else 0,
        classes=number_of_classes(store),
        words=None if words is None else len(words) - FIRST_WORD - 1,
        class_counts=None if train is None else train.classes,
        is_number=label is not None and label.dtype.startswith("float") and label.shape == (),
        edges=_edges(store),
    )


def _edges(store: Store) -> tuple[float, ...] | None:
    """Times between which about as many events lie each; None if labels are not (time, event)."""
    label = store.meta.features.get("y")
    if label is None or not label.dtype.startswith("float") or label.shape != (2,):
        return None
    if "train" not in store.splits:
        return None
    time, event = np.asarray(store.splits["train"].examples["y"][:]).T
    if not (np.isin(event, (0, 1)).all() and event.any() and (time >= 0).all()):
        return None
    inner = np.quantile(time[event == 1], np.arange(1, INTERVALS) / INTERVALS)
    return tuple(dict.fromkeys(float(f"{edge:.3g}") for edge in inner if edge > 0)) or None


def fitting_models(seen: Seen) -> dict[str, Table]:
    """Name of each built-in model that fits, the one to begin with first -> its table."""
    x = seen.features.get("x")
    if "tokens" in seen.features and seen.words is not None:
        small = seen.rows < MANY_SENTENCES
        sizes = {"words": seen.words, **({"embedding": 64, "hidden": 128} if small else {})}
        return {"lstm": sizes, "cifg": sizes}
    if x is not None and len(x) == 1 and (seen.classes or seen.is_number):
        return _of_rows(seen, x[0])
    if x is not None and len(x) == 1 and seen.edges:
        return _of_survival(seen, x[0])
    if x is not None and len(x) in (2, 3) and seen.classes:
        return _of_images(seen, x)
    return {}


def _of_images(seen: Seen, shape: tuple[int, ...]) -> dict[str, Table]:
    """A network for images, and those for which an image is the row of its pixels."""
    sizes = dict(zip(("height", "width", "channels"), shape, strict=False))
    network: Table = {"classes": seen.classes, **sizes, "metrics": _metrics(seen)}
    large = min(shape[:2]) >= SMALLEST_IMAGE
    return {**({"cnn": network} if large else {}), **_of_rows(seen, math.prod(shape))}


def _of_rows(seen: Seen, features: int) -> dict[str, Table]:
    own: Table = {"features": features}
    if seen.classes:
        own |= {"classes": seen.classes, "metrics": _metrics(seen)}
    line: dict[str, Table] = {("logistic" if seen.classes else "linear"): own}
    network: dict[str, Table] = {"mlp": {**own, "hidden": [64]}}
    return {**line, **network} if seen.rows < MANY_ROWS else {**network, **line}


def _of_survival(seen: Seen, features: int) -> dict[str, Table]:
    """Cox's first where a store was made for it: only such a one has the others at risk."""
    assert seen.edges is not None
    by_risk_sets: dict[str, Table] = {"cox": {"features": features}}
    by_intervals: dict[str, Table] = {"hazard": {"features": features, "edges": list(seen.edges)}}
    return {**(by_risk_sets if "at_risk" in seen.features else {}), **by_intervals}


def _metrics(seen: Seen) -> list[str]:
    """Accuracy, and what cannot be deceived by a class that nearly all examples have."""
    return ["accuracy", "balanced_accuracy", *(["auroc"] if seen.classes == 2 else [])]


def metric_for(seen: Seen) -> tuple[str, str]:
    """The metric by which the worst domain is told, and why that one."""
    if seen.words is not None and "tokens" in seen.features:
        return "perplexity", "of the next word"
    if seen.edges:
        return "c_index", "whose risk is greater has the event first"
    if seen.class_counts is None:
        return "mae", "mean absolute error, in the label's own unit"
    shares = seen.class_counts.sum(axis=0) / max(seen.class_counts.sum(), 1)
    within = seen.class_counts / np.maximum(seen.class_counts.sum(axis=1, keepdims=True), 1)
    if seen.classes == 2 and shares.min() < RARE:
        return "auroc", f"the smaller class has {100 * shares.min():.0f} % of the examples"
    even = 1 / within.shape[1]  # the share of every class if all were alike
    if shares.min() < even / 2 or within.min() < even / 4:
        return "balanced_accuracy", "classes are lopsided, in all or in a domain"
    return "accuracy", "classes are balanced"


def starter_task(store: Store, path: str, model: str | None = None) -> str:
    """The TOML of a first task for the store at `path`.

    Args:
      model: one of those that fit; the first if None.
    """
    for split in ("train", "test"):
        check(
            split in store.splits,
            f"{path} has no split {split!r}; prepare it again, with --test-fraction 0.2, say",
        )
    seen = seen_of(store)
    models = fitting_models(seen)
    if not models:
        raise BadInput(f"no built-in model fits {path}: {_lacking(seen)}")
    name = next(iter(models)) if model is None else choose(model, models, f"model for {path}:")
    return "\n".join(_lines(store, path, seen, name, models)) + "\n"


def _lacking(seen: Seen) -> str:
    shapes = ", ".join(f"{name} {list(shape)}" for name, shape in seen.features.items())
    label = "" if "y" in seen.features else "; there is no label (prepare with --label COLUMN)"
    return f"its features are {shapes}{label}; name one's own as module:function in [model]"


def _lines(
    store: Store, path: str, seen: Seen, name: str, models: Mapping[str, Table]
) -> list[str]:
    train, heldout = store.splits["train"], store.splits.get("heldout")
    rounds = 300 if name in ("logistic", "linear", "mlp", "cox", "hazard") else 500
    clients = _clients_per_round(train.num_clients)
    metric, why = metric_for(seen)
    others = [other for other in models if other != name]
    return [
        _heading(store),
        "",
        f"rounds = {rounds}",
        f"clients_per_round = {clients}  # of {train.num_clients:,}",
        f"batch_size = {_batch_size(train)}",
        f"window_size = {_window(train, clients)}"
        "  # r: rounds until every domain has surely been seen",
        f'metric = "{metric}"  # tells the worst domain: {why}',
        *_looks(heldout, rounds),
        "",
        "[data]",
        'name = "store"',
        f"path = {_text(path)}",
        "",
        "[model]" + (f"  # {', '.join(others)} would fit too" if others else ""),
        f'name = "{name}"',
        *(f"{key} = {_text(value)}" for key, value in models[name].items()),
        *_class_weights(seen),
        "",
        "# Where to start; `agnosticfl tune` finds better rates on held-out clients.",
        "[client_optimizer]",
        'name = "sgd"',
        f"learning_rate = {_rate(name)}",
        "",
        "# FedAvg divides a step by its batch, AFA by all of a client's examples.",
        "[algorithms.fedavg.client_optimizer]",
        f"learning_rate = {_rate(name) / 5:g}",
        "",
        "[weight_rule]  # how fast λ moves to the domains that are served worst",
        'name = "exponentiated_gradient"',
        "learning_rate = 0.1",
    ]


def _heading(store: Store) -> str:
    """What `agnosticfl tasks` would say of it: one line."""
    train, domains = store.splits["train"], len(store.meta.domains)
    return (
        f"# {' '.join(store.meta.name.split())}: {domains} domains, {train.num_clients:,} training"
        f" clients, {train.num_examples:,} examples; written by agnosticfl init."
    )


def _looks(heldout: FederatedData | None, rounds: int) -> list[str]:
    if heldout is None:
        return ["# No held-out clients: no best model, and no tuning (--heldout-fraction 0.1)."]
    return [
        f"evaluation_every = {rounds // LOOKS}  # looks at held-out clients: the best is kept",
        f"evaluation_clients = {min(heldout.num_clients, 1000)}",
    ]


def _class_weights(seen: Seen) -> list[str]:
    """What would make every class count the same, as a comment: that is the user's to decide."""
    if seen.class_counts is None or seen.class_counts.sum(axis=0).min() == 0:
        return []
    counts = seen.class_counts.sum(axis=0)
    if counts.min() > counts.max() / 4:
        return []
    weights = counts.sum() / (len(counts) * counts)
    return [
        f"# class_weights = {[round(float(w), 3) for w in weights]}  # every class counts alike"
    ]


def _rate(model: str) -> float:
    return {"linear": 0.05, "lstm": 1.0, "cifg": 1.0}.get(model, 0.3)


def _clients_per_round(clients: int) -> int:
    return clients if clients <= 20 else max(10, min(100, clients // 10))


def _batch_size(train: FederatedData) -> int:
    usual = float(np.median(train.sizes))
    return int(2 ** np.clip(np.floor(np.log2(max(usual, 1))), 2, 5))


def _window(train: FederatedData, clients: int) -> int:
    """The rounds after which the rarest domain is absent from all with probability `UNSEEN`."""
    having = clients_with(train)
    rarest = float(having[having > 0].min()) / train.num_clients
    absent = (1 - rarest) ** clients if clients < train.num_clients else 0.0
    return 1 if absent == 0 else min(max(1, math.ceil(math.log(UNSEEN) / math.log(absent))), 50)


def _text(value: Any) -> str:
    """A value as TOML has it: JSON's texts, numbers and lists are the same."""
    return json.dumps(value, ensure_ascii=False)
