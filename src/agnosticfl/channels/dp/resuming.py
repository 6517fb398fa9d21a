# SPDX-License-Identifier: Apache-2.0
"""A private run that starts, or goes on: the noise of the rounds that are left."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agnosticfl.channels.dp.clipping import PrivacyState
from agnosticfl.channels.dp.noise import ROOM, scale_for
from agnosticfl.channels.dp.private_run import Privacy
from agnosticfl.core.contribution import ChannelState
from agnosticfl.core.lazy_jax import jnp
from agnosticfl.errors import check
from agnosticfl.privacy import ledger
from agnosticfl.privacy.ledger import Plan

if TYPE_CHECKING:
    from agnosticfl.core.state import ServerState  # its module needs JAX


def going_on(
    privacy: Privacy,
    state: "ServerState",
    before: Mapping[str, Any] | None,
    rounds: int,
    place: str,
) -> "tuple[ServerState, list[Plan]]":
    """The state with the noise for the rounds that are left, and what stands in the ledger.

    Refused if nothing of the budget is left for them.

    Args:
      before: the statement that an interrupted run left, at `place`; None at the start.
    """
    done = int(state.round)
    check(
        privacy.strategy is None or before is None,
        "dp: a run with correlated noise cannot go on, since the noise that it would take back was"
        f" secret and is gone; what it spent stands in {place}: start anew, with a budget of its"
        " own",
    )
    if privacy.federation is not None:  # whose clients keep count of what the task says
        return state, [Plan((), privacy.scale.noise)]
    check(
        done == 0 or before is not None,
        f"{place} is missing: what {done} rounds of this run have spent is not known",
    )
    plans: list[Plan] = []
    for number, (group, own) in enumerate(_groups(privacy, state)):
        said = before if number == 0 or before is None else before.get("heldout", {})
        charges = () if said is None else ledger.from_rows(said, place)
        plans.append(ledger.plan(group.budget, charges, done, _noise(group, own), rounds))
        check(
            plans[-1].noise <= ROOM * _noise(group, own),
            f"dp: {sum(c.rounds for c in charges)} rounds were charged already; the"
            f" {rounds - done} that are left would need noise multiplier {plans[-1].noise:.3g} to"
            f" stay within epsilon {group.budget.epsilon}, and had {_noise(group, own):.3g}:"
            " start anew, with a budget of its own",
        )
    noises = [plan.noise for plan in plans]
    state = state._replace(channel_state=_with_noise(privacy, state.channel_state, noises[0]))
    if privacy.reports is not None:
        reporting = _with_noise(privacy.reports, state.report_state, noises[1])
        state = state._replace(report_state=reporting)
    fresh = [(group, own) for group, own in _groups(privacy, state)]
    return state, [
        plan._replace(noise=_noise(*both)) for plan, both in zip(plans, fresh, strict=True)
    ]


def _groups(privacy: Privacy, state: "ServerState") -> list[tuple[Privacy, ChannelState]]:
    """Those who train and, if they report, those who are held out, with their channel's state."""
    training = [(privacy, state.channel_state)]
    return (
        training if privacy.reports is None else [*training, (privacy.reports, state.report_state)]
    )


def _noise(privacy: Privacy, own: ChannelState) -> float:
    """z, as the run itself carries it: what was spent does not change with the configuration."""
    found = _own_state(own)
    return int(found.sigma) * math.sqrt(privacy.scale.shares) / float(found.units)


def _with_noise(privacy: Privacy, own: ChannelState, noise: float) -> ChannelState:
    """The same state, with more noise if that is wanted."""
    found = _own_state(own)
    if noise <= _noise(privacy, own):
        return own
    sigma = scale_for(noise, int(found.units), privacy.scale.shares).sigma
    return found._replace(sigma=jnp.int32(sigma))


def _own_state(own: ChannelState) -> PrivacyState:
    assert isinstance(own, PrivacyState)
    return own
