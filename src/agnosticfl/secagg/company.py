# SPDX-License-Identifier: Apache-2.0
"""That a client is not alone in what a sum shows of it: it counts who else is in it."""

from collections.abc import Collection

from agnosticfl.secagg.agreement import Member, num_with_domain, reckoned_dishonest
from agnosticfl.secagg.graph import quorum
from agnosticfl.secagg.messages import Refused


def check_company(member: Member, clients: Collection[int], where: str) -> None:
    """The sums of a domain are open to the server: they must not be those of one client alone.

    Noise, where clients add it, covers one client's part of every number, and so one holder too.
    """
    agreement = member.agreement
    if agreement.honest:
        return
    fewest = agreement.fewest
    own = agreement.holdings[member.place] if agreement.holdings else ()
    for domain in sorted(set(own) - set(member.alone)):
        number = num_with_domain(agreement, domain, clients)
        if number < fewest:
            raise Refused(
                f"domain {domain!r} has {number} holders {where}, fewer than {fewest}: its sums"
                " would show this client's own; its operator may allow it (--alone)"
            )


def check_weight(
    member: Member, clients: Collection[int], weighty: Collection[str], where: str
) -> None:
    """An α that leaves weight to one client alone would make the sum of updates its own."""
    agreement = member.agreement
    if not agreement.holdings or agreement.honest:
        return
    number = sum(not set(weighty).isdisjoint(agreement.holdings[client]) for client in clients)
    fewest, domains = agreement.fewest, ", ".join(map(repr, weighty)) or "no domain"
    if number < fewest:
        raise Refused(
            f"α gives weight to {domains}, with {number} holders {where}, fewer than {fewest}"
        )


def check_noise(member: Member, clients: Collection[int]) -> None:
    """Whatever becomes of this cohort, a sum of it must have enough honest clients' noise.

    Nobody unmasks unless a quorum of the cohort is in the sum, of which B may keep their noise back
    or know it. This is looked at before a vector leaves: whoever sends one may be in the sum though
    it signs nothing.
    """
    number = len(clients)
    sure = quorum(number) - reckoned_dishonest(member.agreement, number)
    honest = member.agreement.honest
    if sure < honest:
        raise Refused(
            f"of a cohort of {number} only {sure} are sure to be honest and in the sum, and the"
            f" noise of {honest} is needed"
        )
