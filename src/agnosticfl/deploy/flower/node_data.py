# SPDX-License-Identifier: Apache-2.0
"""What a node works on: its own examples, held against what was agreed on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from flwr.app import Context

from agnosticfl.core.federated import FederatedData, Splits
from agnosticfl.deploy.schema import check_schema, schema_of
from agnosticfl.deploy.task import FILE, FederatedTask, check_program
from agnosticfl.errors import check
from agnosticfl.registry import SOURCES
from agnosticfl.runs.about import facts_of, facts_of_store


class NodeData(NamedTuple):
    """What a node works on."""

    data: FederatedData  # with its own examples alone, those that it trains on
    number: int  # of this node among the clients
    seed: int
    kept: Mapping[str, FederatedData] = {}  # what it keeps from training, by split
    figures: Path | None = None  # where its operator finds what it measured


def node_data(task: FederatedTask, context: Context) -> NodeData:
    """The examples of this node, its number among the clients, and its seed.

    A node has a store of its own (`data`), all of whose training examples are its own; or, to try a
    federation on one machine, its share of the task's data (`partition-id` of `num-partitions`).
    It is compared with what is agreed on whenever it is opened: a store may change while the node
    runs.
    """
    from agnosticfl.core.random import random_bits
    from agnosticfl.data.store import open_store
    from agnosticfl.deploy.node.examples import dealt_to, one_client, with_domains

    check_program(task, FILE)
    node, seed = context.node_config, task.config.seed
    if "data" in node:
        store = open_store(str(node["data"]))
        check("train" in store.splits, f"the store {store.path} has no split 'train'")
        check_schema(task.schema, schema_of(facts_of_store(store)), f"the store {store.path}")
        splits = {name: with_domains(part, task.domains) for name, part in store.splits.items()}
        parts = {name: one_client(part) for name, part in splits.items()}
        number, seed = 0, int(random_bits(seed, context.node_id)) % 2**31
    else:
        number, nodes = int(node["partition-id"]), int(node["num-partitions"])
        data: Splits = SOURCES.build(task.config.data, "data")
        check_schema(task.schema, schema_of(facts_of(data)), "the task's own data")
        parts = {"train": dealt_to(data.train, number, nodes)}
        if task.config.evaluation_by == "clients" and task.config.evaluation_share == 0:
            given = {"heldout": data.heldout, "test": data.test}
            held = {name: part for name, part in given.items() if part is not None}
            parts |= {name: dealt_to(part, number, nodes) for name, part in held.items()}
    if task.config.evaluation_by == "server":
        return NodeData(parts["train"], number, seed)
    from agnosticfl.runs.judging import own_parts  # here: who only trains may have no JAX

    kept = own_parts(task.config, parts)
    figures = Path(str(node["figures"])) if "figures" in node else None
    train = kept.pop("train")
    return NodeData(train, number, seed, kept, figures)


def name_of(context: Context) -> tuple[Any, ...]:
    """What tells a node from others that the same app works for."""
    return context.node_id, *sorted(context.node_config.items())


def files_of(context: Context, *names: str) -> list[Path]:
    """The files that a node was started with, of those names."""
    return [Path(str(context.node_config[n])) for n in names if n in context.node_config]


def without_store(context: Context) -> str | None:
    """That the node's store was taken away; None if it is there."""
    gone = [str(path) for path in files_of(context, "data") if not path.exists()]
    return f"its store is not there: {gone[0]}" if gone else None
