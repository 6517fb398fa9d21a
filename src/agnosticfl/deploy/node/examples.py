# SPDX-License-Identifier: Apache-2.0
"""What a node of a federation holds: the examples of one client."""

from collections.abc import Mapping

import numpy as np

from agnosticfl.core.federated import FederatedData
from agnosticfl.core.keeping import KEPT
from agnosticfl.errors import check, choose
from agnosticfl.runs.config import Config


def one_client(data: FederatedData, number: int = 0) -> FederatedData:
    """All examples of `data` as those of the single client `number`.

    The clients before it are empty, so that its examples come in the same order, and its random
    bits are the same, as those of client `number` in a simulation.
    """
    return data._replace(
        offsets=np.concatenate([np.zeros(number + 1, np.int64), [data.num_examples]]),
        client_ids=range(number + 1),
    )


def check_nodes(data: FederatedData, nodes: int) -> None:
    """Refuses a number of nodes of which some would get nothing."""
    check(
        1 <= nodes <= data.num_clients,
        f"nodes is {nodes}; it must be from 1 to the number of clients, {data.num_clients}",
    )


def dealt(data: FederatedData, nodes: int) -> FederatedData:
    """The clients of `data` dealt to `nodes` nodes in turn, each node then being one client."""
    owner = _owner(data, nodes)
    order = np.argsort(owner, kind="stable")
    return data._replace(
        examples={name: array[order] for name, array in data.examples.items()},
        domain=data.domain[order],
        offsets=np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=nodes))]),
        client_ids=range(nodes),
    )


def domains_dealt(data: FederatedData, nodes: int) -> list[tuple[str, ...]]:
    """The names of the domains of which each node gets examples."""
    owner = _owner(data, nodes)
    return [held_domains(data._replace(domain=data.domain[owner == node])) for node in range(nodes)]


def held_domains(data: FederatedData) -> tuple[str, ...]:
    """The domains of which there are examples."""
    return tuple(data.domains[int(number)] for number in np.unique(data.domain))


def used_domains(splits: Mapping[str, FederatedData], config: Config) -> list[str]:
    """The domains of a client's store: of what it trains with and, if it has splits to measure
    with, of these."""
    keeps = config.evaluation_by == "clients" and config.evaluation_share == 0
    used = [name for name in ("train", *(KEPT if keeps else ())) if name in splits]
    return sorted({domain for name in used for domain in held_domains(splits[name])})


def _owner(data: FederatedData, nodes: int) -> np.ndarray:
    """The node of each example."""
    check_nodes(data, nodes)
    return np.repeat(np.arange(data.num_clients), data.sizes) % nodes


def dealt_to(data: FederatedData, node: int, nodes: int) -> FederatedData:
    """What `dealt` gives to one node, as `one_client`."""
    together = dealt(data, nodes)
    rows = slice(int(together.offsets[node]), int(together.offsets[node + 1]))
    own = together._replace(
        examples={name: array[rows] for name, array in together.examples.items()},
        domain=together.domain[rows],
    )
    return one_client(own, node)


def with_domains(data: FederatedData, domains: tuple[str, ...]) -> FederatedData:
    """`data` with its domains numbered as in `domains`, by their names."""
    numbers = [domains.index(choose(name, domains, "domain")) for name in data.domains]
    return data._replace(domain=np.array(numbers, np.int32)[data.domain], domains=domains)
