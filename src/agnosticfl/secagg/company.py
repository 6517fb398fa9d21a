# SPDX-License-Identifier: Apache-2.0
"""That a client is not alone in what a sum shows of it: it counts who else is in it."""

from collections.abc import Collection

from agnosticfl.secagg.agreement import Member, num_with_domain
from agnosticfl.secagg.messages import Refused


def check_company(member: Member, clients: Collection[int], where: str) -> None:
    """The sums of a domain are open to the server: they must not be those of one client alone."""
    agreement = member.agreement
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
    if not agreement.holdings:
        return
    number = sum(not set(weighty).isdisjoint(agreement.holdings[client]) for client in clients)
    fewest, domains = agreement.fewest, ", ".join(map(repr, weighty)) or "no domain"
    if number < fewest:
        raise Refused(
            f"α gives weight to {domains}, with {number} holders {where}, fewer than {fewest}"
        )
