# SPDX-License-Identifier: Apache-2.0
"""Clients who judge a model with what they keep, as the server asks them: for sums, as always."""

from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from agnosticfl.channels.dp import Privacy
from agnosticfl.core.channel import Channel, message_shapes
from agnosticfl.core.contribution import ChannelState, Total, report_shapes
from agnosticfl.core.evaluate import Evaluation
from agnosticfl.core.federated import Splits
from agnosticfl.core.ledger import Bytes
from agnosticfl.core.model import Model, Params
from agnosticfl.core.precision import model_in_precision
from agnosticfl.deploy.flower.federation import LOG, NoProgress
from agnosticfl.deploy.private import tally_noise
from agnosticfl.deploy.task import NO_PROGRESS
from agnosticfl.engines.reporters import Reporters
from agnosticfl.runs.build_channel import build_report_channel
from agnosticfl.runs.config import Config, most_clients
from agnosticfl.runs.judging import Judge, build_tally_channel, bytes_asked, check_judged, said
from agnosticfl.runs.questions import Question, num_looks


class Way(NamedTuple):
    """How answers get into a sum, and what one looks like."""

    channel: Channel
    message: Any  # shapes of an answer, and of their sum


class Ask(Protocol):
    """Asks the clients about w, and gives the sum of their answers."""

    def __call__(self, number: int, params: Params, way: Way, /) -> Total: ...


def federated_judge(config: Config, model: Model, data: Splits, ask: Ask) -> Judge:
    """The clients of a federation, who evaluate with what they keep.

    Args:
      data: what the server knows of theirs: at least the shapes of an example of `data.test`.
    """
    room = most_clients(config)
    form = check_judged(config, model_in_precision(model, config.precision), data.test, room)
    noise = None if config.dp is None else tally_noise(config, form.readings)
    channel = build_tally_channel(config, form, room, noise)
    nobody = channel.encode((), form.zeros, jax.random.key(0))
    way = Way(channel, jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), nobody))
    known: dict[int, Evaluation] = {}  # a model at its end may be one that was looked at

    def judge(params: Params, asked: Question) -> Evaluation:
        if asked.number in known:
            return known[asked.number]
        LOG.info("evaluation %d begins, on what clients keep for %s", asked.number, asked.split)
        total = ask(asked.number, params, way)
        sent = bytes_asked(params, channel, form, config.clients_per_round)
        if not asked.look and asked.number <= num_looks(config):
            sent = Bytes(0, 0)  # it was asked before, as a look, and the sum was kept
        found = said(form, channel, total, noise)._replace(sent=sent)
        fields = {"event": "evaluation", "number": asked.number, "examples": sum(found.examples)}
        fields |= {"what": "examples" if noise is None else "clients, as far as noise tells"}
        fields |= {"bytes_down": sent.down, "bytes_up": sent.up}
        LOG.info("evaluation %(number)d: %(examples)d %(what)s", fields)
        if not asked.look and not any(found.examples) and noise is None:
            raise NoProgress(
                f"{NO_PROGRESS}: no sum came of evaluation {asked.number}, which no client answers"
                " twice; the last model is in the run folder"
            )
        known[asked.number] = found._replace(sent=None)  # once
        return found

    return judge


def federated_reports(
    config: Config, data: Splits, ask: Ask, privacy: Privacy | None = None
) -> Reporters:
    """The same clients, whose losses on what they hold out move λ."""
    like = report_shapes(data.train.num_domains)
    channel = build_report_channel(config, config.clients_per_round, privacy)(like)
    way = Way(channel, message_shapes(channel, like))

    def total(params: Params, state: ChannelState, t: int) -> Total:
        del state  # fixed bounds and noise, which stand in the task, or none
        return ask(t, params, way)

    return Reporters(lambda t: t, total, config.clients_per_round, channel, lambda _: None)  # type: ignore[arg-type]
