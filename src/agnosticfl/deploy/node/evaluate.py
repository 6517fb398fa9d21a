# SPDX-License-Identifier: Apache-2.0
"""What a node says of a model: from w and the examples that it keeps to its part of the sum."""

import functools
import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from agnosticfl.channels.in_numpy import usable
from agnosticfl.core import tree
from agnosticfl.core.contribution import ClientSum
from agnosticfl.core.evaluate import Evaluation, Values, full_evaluator, measurer, metric_readings
from agnosticfl.core.federated import FederatedData, only_rows
from agnosticfl.core.lazy_jax import jax
from agnosticfl.core.model import Model, Params
from agnosticfl.core.tally import Form, Tally, form_of, tally, told
from agnosticfl.deploy import wire
from agnosticfl.deploy.node import noised
from agnosticfl.deploy.node.contribute import Place, answer_in_numpy
from agnosticfl.deploy.private import tally_noise
from agnosticfl.deploy.task import EVALUATION, REPORT
from agnosticfl.errors import check
from agnosticfl.files import finite
from agnosticfl.registry import MODELS
from agnosticfl.runs.config import Config, most_clients
from agnosticfl.runs.judging import build_tally_channel
from agnosticfl.runs.questions import num_questions, split_asked
from agnosticfl.secagg.messages import Refused

LOG = logging.getLogger("flwr")

MOST = 4096  # examples that metrics are measured on for the audit log's lines of training


class Asked(NamedTuple):
    """What the server asks of a client about a model."""

    config: Config
    kind: str  # an evaluation, or a report by which λ moves
    number: int  # of the question; of a report, the round
    model: Model  # in the precision of the run
    kept: Mapping[str, FederatedData]  # what this client keeps from training, by split
    params: dict[str, np.ndarray]  # w, by name
    seed: int
    client: int

    @property
    def split(self) -> str:
        """The part of what is kept that this is about."""
        return "heldout" if self.kind == REPORT else split_asked(self.config, self.number)


class Figures(NamedTuple):
    """What a client measured: its own part of the sum, and the same for its operator."""

    own: Tally
    evaluation: Evaluation
    form: Form


def judge_model(
    config: Config,
    kind: str,
    number: int,
    model: Model | None,
    own: Any,
    params: dict[str, np.ndarray],
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Measures a model: a node's answer, packed, and what its audit log says of it.

    Its operator sees the figures, in the log and in a file.

    Args:
      model: in place of the one that the task names.
      own: the node's `NodeData`.
    """
    asks = {
        EVALUATION: config.evaluation_by == "clients" and 1 <= number <= num_questions(config),
        REPORT: config.weights_follow == "heldout" and 1 <= number <= config.rounds,
    }
    if not asks[kind]:
        raise Refused(f"the task has no {kind} {number}")
    measured = measured_model(config, model)
    asked = Asked(config, kind, number, measured, own.kept, params, own.seed, own.number)
    figures = measure(asked)
    LOG.info(in_words(asked, figures))
    if own.figures is not None:
        write_figures(own.figures, asked, figures)
    found = figures.evaluation
    others = {name: value for name, value in found.overall.items() if name != "loss"}
    noted = {"examples": sum(found.examples), "loss": found.overall["loss"], "metrics": others}
    return encoded(asked, figures), noted


def trained_metrics(
    config: Config, model: Model | None, data: FederatedData, params: dict[str, np.ndarray]
) -> Values:
    """Metrics of w on the examples that it is about to be trained with, for the audit log.

    It takes one look at these, or at `MOST` of them, and none if the model has no metric but its
    loss. They are for the client's operator: nothing of them leaves, and no trouble with them keeps
    the client from its work.
    """
    try:
        measured, number = measured_model(config, model), data.num_examples
        if number == 0 or len(metric_readings(measured, data)) == 1:
            return {}
        rows = np.zeros(number, bool)
        rows[np.linspace(0, number - 1, min(number, MOST)).astype(int)] = True
        some = data if rows.all() else only_rows(data, rows)
        run = full_evaluator(measured, some, min(config.evaluation_batch_size, some.num_examples))
        found = run(_of_model(measured, params)).overall
        return {name: value for name, value in found.items() if name != "loss"}
    except Exception:
        LOG.exception("the metrics for this client's audit log cannot be measured")
        return {}


def measured_model(config: Config, model: Model | None = None) -> Model:
    """The model as it is measured.

    Args:
      model: in place of the one that the task names.
    """
    named = _named_model(msgspec.json.encode(config.model)) if model is None else model
    return _measuring(named, config.precision)


@functools.cache  # what is compiled for a model is found again by the model itself
def _named_model(table: bytes) -> Model:
    return MODELS.build(msgspec.json.decode(table), "model")


@functools.cache
def _measuring(model: Model, precision: str) -> Model:
    if model.eager:
        return model
    from agnosticfl.core.precision import model_in_precision  # here: it needs JAX

    return model_in_precision(model, precision)


def measure(asked: Asked) -> Figures:
    """This client's own figures; of a split that it has not, those of no examples."""
    data, model = asked.kept.get(asked.split), asked.model
    form = form_of(model, data if data is not None else next(iter(asked.kept.values())))
    own = form.zeros
    if data is not None and data.num_examples > 0:
        batch = asked.config.evaluation_batch_size
        own = tally(form, measurer(model, data, batch)(_of_model(model, asked.params)))
    return Figures(own, told(form, own), form)


def _of_model(model: Model, params: dict[str, np.ndarray]) -> Params:
    """w as the model has it."""
    if model.eager:
        return params
    return tree.from_named(params, jax.eval_shape(model.init, jax.random.key(0)))


def encoded(asked: Asked, figures: Figures) -> dict[str, np.ndarray]:
    """The same as it goes through the channel of the run; nothing of it is rounded at random."""
    if asked.kind == REPORT:
        loss, count = figures.own.means["loss"].astype(np.float32)
        none = np.zeros((), np.float32)
        place = Place(asked.seed, asked.number, asked.client)
        own = usable(ClientSum({}, none, loss, count, none))  # type: ignore[arg-type]
        if asked.config.dp is not None:
            return noised.private_answer(asked.config, own, None)
        return answer_in_numpy(asked.config, place, own, {})
    clients = most_clients(asked.config)
    noise = None if asked.config.dp is None else tally_noise(asked.config, figures.form.readings)
    channel = build_tally_channel(asked.config, figures.form, clients, noise)
    message = channel.encode((), figures.own, None)  # type: ignore[arg-type]
    return wire.pack(message) if noise is None else noised.with_noise(message, noise.scale)


def in_words(asked: Asked, figures: Figures) -> str:
    """One line for this client's log."""
    found = figures.evaluation
    number = sum(found.examples)
    values = ", ".join(
        f"{name} {value:.4g}" for name, value in found.overall.items() if value is not None
    )
    what = f"{asked.kind} {asked.number}: {number} own examples of {asked.split}"
    return f"{what}: {values}" if values else what


def write_figures(file: Path, asked: Asked, figures: Figures) -> None:
    """Adds a line to the file in which a client's operator finds what it measured, and when."""
    found = figures.evaluation
    check(not file.is_dir(), f"{file} is a folder; figures are written to a file")
    line = {
        "time": time.time(),
        "kind": asked.kind,
        "number": asked.number,
        "split": asked.split,
        "examples": dict(zip(figures.form.domains, found.examples, strict=True)),
        "domains": found.domains,
        "overall": found.overall,
        "within": {name: dict(errors) for name, errors in found.within.items()},
    }
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(finite(line), allow_nan=False) + "\n")
