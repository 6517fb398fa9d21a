# SPDX-License-Identifier: Apache-2.0
"""Looks at held-out clients while a run goes on: what they say of its model every few rounds."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from agnosticfl.core.evaluate import Evaluation, Results, beginner, some_clients
from agnosticfl.core.federated import FederatedData, absent_domains
from agnosticfl.core.ledger import Bytes
from agnosticfl.core.model import Params
from agnosticfl.errors import BadInput
from agnosticfl.runs import processes
from agnosticfl.runs.build import Built
from agnosticfl.runs.config import Config
from agnosticfl.runs.judging import Judge
from agnosticfl.runs.questions import question
from agnosticfl.runs.spending import Spending

AHEAD = 32  # batches of a look that may be on a device at a time


class Look(NamedTuple):
    """What held-out clients say of a model."""

    results: Results | None  # if there is anything to say
    sent: Bytes | None = None  # what went over the network for it


class Looking(NamedTuple):
    """A look that was begun."""

    wait: Callable[[], Look]
    under_way: bool = False  # whether a device still works at it, so that rounds may go on


Lookout: TypeAlias = Callable[[int, Params], Looking]  # (t, w_t) -> one, or none in this round


def no_look(_t: int, _params: Params) -> Looking:
    """For a round without one."""
    return Looking(lambda: Look(None))


def check_looks(built: Built) -> None:
    """Refuses looks at what is not there, before anything is written."""
    every, clients_look = built.config.evaluation_every, built.judge is not None
    if every and not clients_look and built.data.heldout is None:
        raise BadInput(f"evaluation_every is {every}, but the data has no split 'heldout'")


def make_lookout(
    built: Built, spending: Spending, say: Callable[[str], Any], ready: Callable[[], None]
) -> Lookout:
    """What looks every few rounds, when evaluations are `ready`."""
    config, heldout = built.config, built.data.heldout
    if config.evaluation_every == 0 or not processes.is_first():
        return no_look
    if built.judge is not None:
        return _asking_clients(config, built.judge, say)
    return no_look if heldout is None else _measuring(built, heldout, spending, say, ready)


def _measuring(
    built: Built,
    heldout: FederatedData,
    spending: Spending,
    say: Callable[[str], Any],
    ready: Callable[[], None],
) -> Lookout:
    """An accelerator measures while the host prepares the next round, so that neither waits.

    A private run is looked at before it goes on, since looks are charged.
    """
    config = built.config
    clients = some_clients(heldout, config.evaluation_clients, config.seed)
    unseen = absent_domains(heldout, clients)
    if unseen and "heldout" not in built.looks:
        say(
            f"warning: the {len(clients)} held-out clients that are looked at have no example of"
            f" {', '.join(unseen)}: looks, and the choice of the best model, cannot see it"
        )
    begin = beginner(built.model, heldout, config.evaluation_batch_size, clients)
    beside = processes.may_work_beside_rounds() and built.privacy is None

    def look(t: int, params: Params) -> Looking:
        if t % config.evaluation_every:
            return no_look(t, params)
        ready()
        wait = begin(params, AHEAD if beside else 1)
        return Looking(lambda: seen(wait()), under_way=beside)

    def seen(found: Evaluation) -> Look:
        shown = spending.charge_look("heldout", found)
        return Look(None if shown is None else shown.domains)

    return look


def _asking_clients(config: Config, judge: Judge, say: Callable[[str], Any]) -> Lookout:
    """The same where clients look at examples that they keep."""

    def look(t: int, params: Params) -> Looking:
        if t % config.evaluation_every:
            return no_look(t, params)
        found = judge(params, question(config, "look", t, "heldout"))
        if any(found.examples):
            return Looking(lambda: Look(found.domains, found.sent))
        hidden = "" if config.dp is None else ", or noise hides what they said"
        say(f"warning: no client had an example to look at after round {t}{hidden}")
        return Looking(lambda: Look(None, found.sent))

    return look
