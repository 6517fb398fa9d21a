# SPDX-License-Identifier: Apache-2.0
"""What a client writes down of a message and of its answer (`node/audit.py`)."""

import contextlib
import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Context, Message, RecordDict

from agnosticfl.deploy.flower.records import DECLINED, OVER, REQUEST, ROUND, SECURE
from agnosticfl.deploy.node import audit
from agnosticfl.deploy.node.allowance import Allowance
from agnosticfl.deploy.node.ledger import Ledger
from agnosticfl.deploy.private import correlated, cost, separation
from agnosticfl.deploy.task import FederatedTask
from agnosticfl.errors import check
from agnosticfl.runs.config import as_table
from agnosticfl.secagg.messages import Refused, kind_of

if TYPE_CHECKING:
    from agnosticfl.core.contribution import ClientSum

LOG = logging.getLogger("flwr")


def allowance_of(task: FederatedTask, node: Mapping[str, Any]) -> Allowance:
    """What the operator of a node allows in the run of `task`."""
    files = {name: Path(str(node[name])) for name in ("rounds", "consent") if node.get(name)}
    return Allowance(
        task.run,
        int(node.get("most-rounds", 0)),
        files.get("rounds"),
        files.get("consent"),
        ledger_of(task, node),
    )


def ledger_of(task: FederatedTask, node: Mapping[str, Any]) -> Ledger | None:
    """What a node has spent of its privacy; None if the run is not private."""
    dp = task.config.dp
    if dp is None:
        return None
    check("ledger" in node, "this node was started without its ledger")
    most = node.get("most-epsilon")
    return Ledger(
        Path(str(node["ledger"])),
        task.run,
        cost(task.config),
        float(dp["epsilon"]),
        float(dp["delta"]),
        None if most is None else float(most),
        separation(task.config) if correlated(task.config) else 0,
    )


def own_figures(examples: int, sums: "ClientSum") -> dict[str, Any]:
    """What a contribution says of the client's own examples."""
    loss, count = (float(np.asarray(part).sum()) for part in (sums.domain_loss, sums.domain_count))
    return {"examples": examples, "loss": loss / count if count else None}


def entry(
    message: Message,
    context: Context,
    task: FederatedTask,
    event: str,
    content: RecordDict | None,
    more: Mapping[str, Any],
) -> dict[str, Any]:
    """One line: what was asked, by whom and of what, and what left."""
    asked = message.content.config_records.get(ROUND, {})
    table = as_table(task.config)
    line: dict[str, Any] = {
        "event": event,
        "server": context.node_config.get("server"),
        "run": task.run,
        "task": task.config.task,
        "flower_run": str(message.metadata.run_id),
        "kind": asked.get("kind"),
        "round": asked.get("round"),
        "attempt": asked.get("number"),
        "asked": _asked(message),
        **more,
    }
    if content is not None and event in ("contributed", "answered"):
        line["left"] = size_and_digest(content)
    if event == "contributed":
        secure, dp = table.get("secure"), table.get("dp")
        line |= {"bounds": secure or table.get("compress"), "noise": dp, "privacy_spent": None}
        ledger = ledger_of(task, context.node_config)
        if ledger is not None:
            line["privacy_spent"] = ledger.spent()._asdict()
        line["readable_by_server"] = secure is None
    return line


def event_of(message: Message, content: RecordDict) -> str:
    """What an answer is."""
    if DECLINED in content:
        return "declined"
    if OVER in message.content:
        return "over"
    return "contributed" if message.metadata.message_type.startswith("train") else "answered"


def size_and_digest(content: RecordDict) -> dict[str, Any]:
    """Size and digest of what an answer holds: arrays and values by their names."""
    hashed, size = hashlib.sha256(), 0
    parts: list[tuple[str, bytes]] = []
    for name, record in content.array_records.items():
        parts += [(f"{name}/{key}", array.data) for key, array in record.items()]
    for name, values in content.config_records.items():
        for key, value in values.items():
            own = value if isinstance(value, bytes) else repr(value).encode()
            parts.append((f"{name}/{key}", own))
    for name, own in sorted(parts):
        hashed.update(f"{name} {len(own)}\n".encode() + own)
        size += len(own)
    return {"bytes": size, "sha256": hashed.hexdigest()}


def write(context: Context, line: dict[str, Any]) -> None:
    """To the file that the node was started with, if there is one."""
    path = context.node_config.get("audit")
    if path:
        audit.note(Path(str(path)), line)


def write_failure(context: Context, line: dict[str, Any]) -> None:
    """The same where nothing leaves: that it cannot be written is no more than said."""
    try:
        write(context, line)
    except OSError as error:
        LOG.error("the audit log cannot be written: %s", error)


def _asked(message: Message) -> str:
    record = message.content.config_records.get(SECURE)
    request = record.get(REQUEST) if record else None
    kind = message.metadata.message_type
    with contextlib.suppress(Refused):
        return f"{kind}: {kind_of(request)}" if isinstance(request, bytes) else kind
    return kind
