# SPDX-License-Identifier: Apache-2.0
"""People with examples of their own, who set up a federation by the commands of docs/deploy.md."""

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from agnosticfl.core.federated import FederatedData, domain_counts
from agnosticfl.data.source import Feature, Rows, Source
from agnosticfl.data.store import write_store
from agnosticfl.deploy.node.examples import dealt_to
from agnosticfl.runs.build import build
from tests.deploy.federations import toy
from tests.helpers.command_line import called
from tests.helpers.deploy_page import Page, shell_commands

PEOPLE = ("ann", "bob", "cleo")
# What the page calls otherwise than these tests: a task that is played in a second.
NAMES = {
    "mnist-writers": "toy",
    "stores/mnist-writers": "stores/test",
    "idle,charging,unmetered": "",
    "student,employee": ",".join(toy().domains),
}


def write_stores(place: Path, people: Sequence[str] = PEOPLE) -> list[list[int]]:
    """Every person's examples as a store of her own, the server's to test on; N^k of each."""
    data = build(toy().config).data
    own = [dealt_to(data.train, number, len(people)) for number in range(len(people))]
    for name, part in zip(people, own, strict=True):
        store(place / name / "stores" / "own", train=part)
    store(place / "server" / "stores" / "test", train=own[0], test=data.test)
    return [domain_counts(part).tolist() for part in own]


def set_up(place: Path, people: Sequence[str], *init: str) -> Page:
    """Keys, app and roster, each in the folder of who has it, by the commands of the page.

    Args:
      init: more words for `deploy init`.
    """
    page, typed = Page({**NAMES, "20": str(len(people))}), shell_commands()
    cards = [f"{name}.card" for name in people]
    for name in ("server", "keeper", *people):
        (place / name).mkdir(exist_ok=True)
    _typed(place / "server", page.line("deploy keys server", typed))
    _typed(place / "server", [*page.line("deploy init app mnist-writers", typed), *init])
    for name, card in zip(people, cards, strict=True):
        _typed(place / name, page.line("deploy keys client", typed, **{"ann.key": f"{name}.key"}))
        shutil.copy(place / name / card, place / "keeper")
    _typed(place / "keeper", page.line("deploy keys keeper", typed))
    new = page.line("deploy roster new", typed)
    _typed(place / "keeper", [word for word in new if not word.endswith(".card")] + cards)
    for name in ("server", *people):
        shutil.copy(place / "keeper" / "roster", place / name)
    for name in people:
        shutil.copy(place / "server" / "keys" / "ca.pem", place / name)
        shutil.copytree(place / "server" / "app", place / name / "app")
    return page


def _typed(folder: Path, line: list[str]) -> None:
    with contextlib.chdir(folder):
        done = called(*line)
    assert done.returncode == 0, done.stderr


def store(path: Path, **splits: FederatedData) -> None:
    """A store whose domains come in another order than the task's."""

    def rows() -> Iterator[Rows]:
        for split, data in splits.items():
            last = len(data.domains) - 1
            yield Rows(split, ["somebody"] * len(data.domain), last - data.domain, data.examples)

    domains = splits["train"].domains[::-1]
    write_store(Source("toy", "none", domains, {"x": Feature("float32", ())}, rows), path)
