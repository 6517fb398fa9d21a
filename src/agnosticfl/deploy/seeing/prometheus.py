# SPDX-License-Identifier: Apache-2.0
"""The view as metrics, in the text format that Prometheus reads."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from agnosticfl.deploy.seeing.status import COMPLETE, FAILED, Status, View

PREFIX = "agnosticfl_"
TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Sample(NamedTuple):
    """A number, with what tells it from others of its name."""

    value: float
    labels: Mapping[str, str] = {}


class Family(NamedTuple):
    """A metric: its name, kind and meaning."""

    name: str
    kind: str  # gauge or counter
    meaning: str
    samples: list[Sample]


def metrics(view: View) -> str:
    """All that can be measured of a server."""
    families = [*_of_server(view), *(() if view.status is None else _of_run(view, view.status))]
    return "".join(map(_text, families))


def _of_server(view: View) -> Iterator[Family]:
    yield Family("up", "gauge", "Whether deploy server runs.", [Sample(view.up)])
    clients = [
        Sample(client.status == "online", {"client": client.name}) for client in view.server.clients
    ]
    yield Family("client_online", "gauge", "Whether a client is connected.", clients)
    yield Family("clients_online", "gauge", "Clients that are connected.", [Sample(view.online)])
    registered = [Sample(len(view.server.clients))]
    yield Family("clients_registered", "gauge", "Clients that may connect.", registered)


def _of_run(view: View, status: Status) -> Iterator[Family]:
    labels = {"run": status.run, "task": status.task, "method": status.method}
    yield Family("run_info", "gauge", "Which run it is.", [Sample(1, labels)])
    for phase in (COMPLETE, FAILED):
        own = [Sample(status.phase == phase)]
        yield Family(f"run_{phase}", "gauge", f"Whether the run is {phase} (1) or not (0).", own)
    yield Family("rounds", "gauge", "Rounds that the run will have.", [Sample(status.rounds)])
    yield Family("rounds_done", "gauge", "Rounds that are done.", [Sample(status.done)])
    yield Family("round_attempt", "gauge", "Attempt at this round.", [Sample(status.attempt)])
    changed = [Sample(status.changed)]
    yield Family("status_time_seconds", "gauge", "When the run last told of itself.", changed)
    sent = [Sample(status.bytes_down, {"way": "down"}), Sample(status.bytes_up, {"way": "up"})]
    yield Family("bytes_total", "counter", "Bytes of all rounds' messages.", sent)
    lost = [Sample(status.num_lost)]
    yield Family("lost_total", "counter", "Clients that did not stay to the end.", lost)
    stages: dict[str, float] = {}
    for stage in status.stages:  # one of an attempt that was abandoned comes again
        stages[stage.name] = stages.get(stage.name, 0.0) + stage.seconds
    times = [Sample(seconds, {"stage": name}) for name, seconds in stages.items()]
    yield Family("stage_seconds", "gauge", "Seconds of each stage of the last round.", times)
    if view.last is not None:
        took = [] if view.last.seconds is None else [Sample(view.last.seconds)]
        yield Family("round_seconds", "gauge", "The last round.", took)
        named = list(zip(status.domains, view.last.loss, view.last.domain_weights, strict=True))
        losses = [Sample(loss, {"domain": d}) for d, loss, _ in named if loss is not None]
        yield Family("domain_loss", "gauge", "Training loss in the last round.", losses)
        weights = [Sample(weight, {"domain": d}) for d, _, weight in named]
        yield Family("domain_weight", "gauge", "Weight of a domain (lambda).", weights)
    if status.privacy is not None:
        spent, budget = status.privacy.epsilon, status.privacy.budget
        yield Family("privacy_epsilon", "gauge", "Epsilon spent so far.", [Sample(spent)])
        yield Family("privacy_epsilon_budget", "gauge", "Epsilon allowed.", [Sample(budget)])


def _text(family: Family) -> str:
    name = f"{PREFIX}{family.name}"
    lines = [f"# HELP {name} {family.meaning}", f"# TYPE {name} {family.kind}"]
    lines += [f"{name}{_labels(each.labels)} {float(each.value)!r}" for each in family.samples]
    return "".join(f"{line}\n" for line in lines)


def _labels(labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
