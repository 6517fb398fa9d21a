# SPDX-License-Identifier: Apache-2.0
"""What a federation agreed on, as its secure rounds know it: from its task and its roster."""

from agnosticfl.deploy.roster import Roster, roster_digest
from agnosticfl.deploy.task import EVALUATION, TRAINING, FederatedTask, terms
from agnosticfl.errors import choose
from agnosticfl.runs.config import Config
from agnosticfl.runs.questions import num_questions
from agnosticfl.secagg.agreement import Agreement
from agnosticfl.secagg.primitives import digest


def agreement_of(task: FederatedTask, roster: Roster, fewest: int, dishonest: int) -> Agreement:
    """The same on the server and on every client, but for the last two.

    Args:
      fewest, dishonest: what this machine insists on.
    """
    for card in roster.members:
        for domain in card.domains:
            choose(domain, task.domains, f"domain of {card.name!r} in the roster")
    return Agreement(
        run=task.run.encode(),
        roster=tuple(card.signing_key for card in roster.members),
        server=bytes.fromhex(task.server_key),
        rounds=task.config.rounds,
        holdings=tuple(card.domains for card in roster.members),
        terms=terms_of(task, roster),
        fewest=fewest,
        dishonest=dishonest,
        honest=int((task.config.dp or {}).get("honest", 0)),
    )


def terms_of(task: FederatedTask, roster: Roster | None) -> dict[str, str]:
    """By name, what must be the same on all machines; with a roster if sums are secure."""
    if roster is None:
        return terms(task)
    return {**terms(task), "roster": f"number {roster.serial}, {roster_digest(roster).hex()}"}


def of_kind(agreement: Agreement, config: Config, kind: str) -> Agreement:
    """The same for sums of one kind.

    These have numbers of their own, of which a client opens each once, and no key or signature made
    for one kind serves for another: as if they were of another run.
    """
    if kind == TRAINING:
        return agreement
    rounds = num_questions(config) if kind == EVALUATION else agreement.rounds
    return agreement._replace(run=digest(kind.encode(), agreement.run), rounds=rounds)
