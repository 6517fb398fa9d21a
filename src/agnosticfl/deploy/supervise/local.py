# SPDX-License-Identifier: Apache-2.0
"""A whole federation on one machine: SuperLink, gate and clients on loopback, new keys."""

import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agnosticfl.deploy.app import write_app
from agnosticfl.deploy.cards import read_card
from agnosticfl.deploy.client_keys import make_client_keys
from agnosticfl.deploy.gate.limits import MARGIN, Limits
from agnosticfl.deploy.keys import (
    make_node_key,
    make_server_keys,
    make_signing_key,
    read_verify_key,
)
from agnosticfl.deploy.node.allowance import LEDGER
from agnosticfl.deploy.node.examples import domains_dealt
from agnosticfl.deploy.roster import first_roster, write_roster
from agnosticfl.deploy.supervise import children as processes
from agnosticfl.deploy.supervise.children import Child
from agnosticfl.deploy.supervise.supervisor import Service, Supervisor
from agnosticfl.deploy.task import FederatedTask, largest_message
from agnosticfl.registry import SOURCES
from agnosticfl.runs.records import Record
from agnosticfl.secagg.agreement import Agreement

FEWEST: int = Agreement._field_defaults["fewest"]


def run_locally(
    task: FederatedTask,
    out: Path,
    nodes: int,
    *,
    supernode: bool = False,
    on_round: Callable[[Record], Any],
    should_stop: Callable[[], bool],
    say: Callable[[str], Any] = lambda _: None,
) -> bool:
    """Plays the run of `task` in the folder `out`; False if it was stopped before its end.

    Args:
      supernode: the clients are Flower's own SuperNodes, and not warm processes.
    """
    children: list[Child] = []
    with tempfile.TemporaryDirectory(prefix="agnosticfl-") as name, processes.stopping(children):
        place = Path(name)
        make_server_keys(place / "keys", ["127.0.0.1"], days=2)
        server_key = read_verify_key(place / "keys" / "server.verify").hex()
        write_app(place / "app", task._replace(server_key=server_key))
        clients = place / "keys" / "clients"
        keys = [clients / f"node{number}.key" for number in range(nodes)]
        secure, alone = task.config.secure is not None, list[str]()
        if secure:
            held = domains_dealt(SOURCES.build(task.config.data, "data").train, nodes)
            make_members(keys, held, clients / "roster")
            alone = few_holders(held)
            if alone and task.config.dp is None:
                say(f"held by fewer than {FEWEST}, which is let pass here: {', '.join(alone)}")
        else:
            for key in keys:
                make_node_key(key)
        service = Service(
            app=place / "app",
            keys=place / "keys",
            state=place / "server",
            out=out,
            host="127.0.0.1",
            port=processes.free_port(),
            options={
                "over-selection": 1.0,
                "roster": str(clients / "roster"),
                "signing-key": str(place / "keys" / "server.sign"),
            },
            limits=local_limits(task, nodes),
        )
        with Supervisor(service, say) as supervisor:
            supervisor.ensure_up()
            for number, key in enumerate(keys):
                home = place / key.stem
                config = {"partition-id": number, "num-partitions": nodes}
                if secure:
                    config |= {**secure_node(clients, key, home), "alone": ",".join(alone)}
                children.append(start_node(supervisor, home, key, config, supernode))
            return supervisor.serve(on_round=on_round, should_stop=should_stop)


def make_members(keys: Sequence[Path], domains: Sequence[Sequence[str]], roster: Path) -> None:
    """The keys of nodes that hold these domains, and their roster, with a keeper of its own."""
    cards = [
        read_card(make_client_keys(key, held, "this machine"))
        for key, held in zip(keys, domains, strict=True)
    ]
    keeper = make_signing_key(roster.with_suffix(".sign"))
    write_roster(roster, first_roster("local", cards, keeper))


def few_holders(held: Sequence[Sequence[str]]) -> list[str]:
    """Domains whose sums no client of a real federation would show without being told to."""
    number = Counter(name for names in held for name in names)
    return sorted(name for name in number if number[name] < FEWEST)


def local_limits(task: FederatedTask, nodes: int) -> Limits:
    """Here all clients have one address."""
    limits = Limits(message=MARGIN + largest_message(task.config))
    connections = limits.address_connections + 8 * nodes
    return limits._replace(
        connections=limits.connections + connections,
        address_connections=connections,
        address_rate=limits.address_rate + limits.node_rate * nodes,
    )


def start_node(
    supervisor: Supervisor,
    home: Path,
    key: Path,
    config: Mapping[str, str | int],
    supernode: bool = False,
) -> Child:
    """A client of this machine, with the app that the server has.

    Args:
      supernode: as Flower's own SuperNode, and not as one process that stays warm.
    """
    link, app = supervisor.entrance._replace(home=home), supervisor.service.app.resolve()
    command = processes.client_command(link, key, app, config, supernode=supernode)
    return processes.start(command, home, home / "node.log")


def secure_node(clients: Path, key: Path, home: Path) -> dict[str, str]:
    """What a node needs for secure rounds."""
    return {
        "roster": str(clients / "roster"),
        "signing-key": str(key.with_suffix(".sign")),
        "memory": str(home / "secure.memory"),
        "ledger": str(home / LEDGER),
    }
