# SPDX-License-Identifier: Apache-2.0
"""What is said of a private run: what was spent, for whom, and who is trusted with what."""

from typing import Any

from agnosticfl.channels.dp.ftrl import Strategy
from agnosticfl.channels.dp.private_run import Federation, Privacy
from agnosticfl.privacy import accounting, ledger
from agnosticfl.privacy.accounting import Charge
from agnosticfl.privacy.ledger import Plan

NOT_PRIVATE = "NOT PRIVATE: the noise follows from dp.test_seed, and anybody can subtract it"


def statement(privacy: Privacy, plans: list[Plan], rounds: int) -> dict[str, Any]:
    """What is spent after `rounds` rounds since the run started or went on, for the run folder."""
    if privacy.federation is not None:
        return _spent_by_clients(privacy, privacy.federation)
    groups = [privacy] if privacy.reports is None else [privacy, privacy.reports]
    training, *reporting = (
        _spent(group, ledger.charged(plan, rounds))
        for group, plan in zip(groups, plans, strict=True)
    )
    return {**training, "heldout": reporting[0]} if reporting else training


def _spent(privacy: Privacy, charges: tuple[Charge, ...]) -> dict[str, Any]:
    budget = privacy.budget
    return {
        "private": privacy.test_seed is None,
        **({} if privacy.test_seed is None else {"warning": NOT_PRIVATE}),
        "epsilon": accounting.spent(budget, charges),
        "delta": budget.delta,
        "rounds": sum(charge.rounds for charge in charges),
        **(_for_clients(privacy) if privacy.silos is None else _for_owners(privacy, charges)),
        "noise_multiplier": charges[-1].noise if charges else privacy.scale.noise,
        "charged": ledger.as_rows(charges),
        "mode": privacy.mode,
        **_of_strategy(privacy.strategy),
        "bounds": privacy.bounds,
        "population": privacy.population,
        "budget": {"epsilon": budget.epsilon, "delta": budget.delta},
    }


def _spent_by_clients(privacy: Privacy, federation: Federation) -> dict[str, Any]:
    """What a client that took part in all it could has spent; none goes beyond the budget."""
    sums, strategy = federation.asked(), privacy.strategy
    if strategy is not None:
        sums = min(-(-sums // strategy.separation), strategy.participations)
    said = _spent(privacy, (Charge(privacy.scale.noise, sums),))
    for name in ("rounds", "charged", "population"):  # sums are counted; K does not matter
        del said[name]
    return {
        **said,
        "sums": sums,
        "epsilon": min(said["epsilon"], privacy.budget.epsilon),
        **(_by_shares(privacy) if strategy is None else {}),
        "amplification": "none is claimed: the server knows who takes part",
        "counted_by": "every client, which keeps a ledger of its own and stops at its budget",
    }


def _by_shares(privacy: Privacy) -> dict[str, Any]:
    """Of noise that clients add themselves."""
    honest = privacy.scale.shares
    return {"trusted": f"nobody, if {honest} clients in every sum are honest", "honest": honest}


def for_whom(owners: bool) -> dict[str, str]:
    """The unit of privacy, and what that means for the other one: both are in every statement.

    Args:
      owners: whether the data's clients are owners of examples, who are in silos.
    """
    if owners:
        return {
            "unit": "owner of examples (patient) within a silo",
            "silo_as_a_whole": "not covered",
            "adjacency": "one owner of one silo replaced by any other",
        }
    return {
        "unit": "client, with all that it holds",
        "owners_within_a_client": "covered by the client's epsilon",
        "adjacency": "one client replaced by any other",
    }


def _for_clients(privacy: Privacy) -> dict[str, Any]:
    return {
        **for_whom(owners=False),
        "trusted": "nobody" if privacy.mode == "distributed" else "the server, with the sum",
    }


def _for_owners(privacy: Privacy, charges: tuple[Charge, ...]) -> dict[str, Any]:
    assert privacy.silos is not None
    return {
        **for_whom(owners=True),
        "trusted": "each silo, with its own owners' sum"
        if privacy.mode == "central"
        else "each silo, with its own owners' sum; the server sees no silo's",
        "silos": {
            name: {
                "epsilon": accounting.spent(privacy.budget._replace(accountant=own), charges),
                "delta": privacy.budget.delta,
                "owners": owners,
                "owners_per_round": each,
            }
            for name, (owners, each, own) in privacy.silos.items()
        },
    }


def _of_strategy(strategy: Strategy | None) -> dict[str, Any]:
    if strategy is None:
        return {"noise": "independent"}
    return {
        "noise": strategy.words,
        "rounds_between_two_of_a_client": strategy.separation,
        "rounds_of_a_client": strategy.participations,
    }
