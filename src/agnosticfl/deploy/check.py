# SPDX-License-Identifier: Apache-2.0
"""All that a client needs to take part, looked at before it joins: `deploy check`.

What is wrong is said with what to do about it. Nothing is written, and nothing but a signature is
sent.
"""

from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from agnosticfl import __version__
from agnosticfl.data.store import open_store
from agnosticfl.deploy import accepted
from agnosticfl.deploy.agree import terms_of
from agnosticfl.deploy.app import PACKAGE
from agnosticfl.deploy.flower.secure_answers import member_settings, own_member
from agnosticfl.deploy.node import eligibility
from agnosticfl.deploy.node.examples import held_domains, used_domains
from agnosticfl.deploy.node.reach import Finding, reach
from agnosticfl.deploy.roster import Roster, read_roster
from agnosticfl.deploy.schema import check_schema, schema_of
from agnosticfl.deploy.served import Served, differing_terms
from agnosticfl.deploy.supervise.trial import TESTED
from agnosticfl.deploy.task import FederatedTask, check_program, read_task
from agnosticfl.errors import BadInput, check, choose
from agnosticfl.runs.about import facts_of_store


class Joiner(NamedTuple):
    """A client that wants to join, as its operator would start it."""

    server: str
    authority: Path
    app: Path
    key: Path
    data: Path
    state: Path  # its own, with the roster that it accepted
    roster: Path | None = None
    when: str = ""
    min_examples: int = 1
    fewest: int = 3
    dishonest: int = 1
    alone: str = ""
    most_epsilon: float | None = None


# What differs between a client and its server, and what helps.
HELPS = {
    "program": "install the same version of agnosticfl on both",
    "task": "get the folder `app` that the server has, and compare its words",
    "schema": "get the folder `app` that the server has, and prepare the store with it",
    "roster": "get the keeper's newest roster; the server's operator, too",
}


def findings(joiner: Joiner) -> Iterator[Finding]:
    """One after the other, those on this machine first."""
    yield _tried("versions", lambda: _versions(joiner), "install the versions that go together")
    tasks: list[FederatedTask] = []
    rosters: list[Roster] = []
    yield _tried("app", lambda: _app(joiner, tasks), "get `app` from the server's operator")
    if tasks:
        todo = "prepare it with `data prepare … --like` the folder of the app"
        yield _tried("store", lambda: _store(joiner, tasks[0]), todo)
        yield _tried("roster", lambda: _roster(joiner, tasks[0], rosters), HELPS["roster"])
        if tasks[0].config.dp is not None:
            todo = "it takes no part in this run, unless its operator allows more"
            yield _tried("privacy", lambda: _privacy(joiner, tasks[0]), todo)
    yield _conditions(joiner)
    reached = reach(joiner.server, joiner.authority, joiner.key)
    yield from reached.findings
    if reached.served and reached.served.terms and tasks:
        roster = rosters[0] if rosters else None
        yield from compared(terms_of(tasks[0], roster), reached.served)


def compared(own: dict[str, str], served: Served) -> Iterator[Finding]:
    """A client's terms, each beside the server's."""
    for name in sorted(own.keys() | served.terms.keys()):
        mine, theirs = (
            {name: terms[name]} if name in terms else {} for terms in (own, served.terms)
        )
        wrong = differing_terms(mine, theirs)
        what = f"{name} of the server"
        if wrong:
            yield Finding(what, False, wrong[0], HELPS.get(name, ""), waiting=name == "roster")
        else:
            yield Finding(what, True, "the same as here")


def _tried(what: str, look: Callable[[], str], todo: str) -> Finding:
    try:
        return Finding(what, True, look())
    except (BadInput, OSError) as error:
        return Finding(what, False, str(error), todo)


def _versions(joiner: Joiner) -> str:
    found = version("flwr")
    check(found in TESTED, f"Flower {found} is installed; tested is {', '.join(TESTED)}")
    check_program(read_task(joiner.app / PACKAGE), joiner.app)
    return f"agnosticfl {__version__}, Flower {found}"


def _app(joiner: Joiner, tasks: list[FederatedTask]) -> str:
    tasks.append(task := read_task(joiner.app / PACKAGE))
    secure = "secure sums" if task.config.secure is not None else "the server reads each update"
    return f"{joiner.app} is of run {task.run}, {task.config.rounds} rounds, {secure}"


def _store(joiner: Joiner, task: FederatedTask) -> str:
    store = open_store(joiner.data)
    check("train" in store.splits, f"the store {joiner.data} has no split 'train'")
    check_schema(task.schema, schema_of(facts_of_store(store)), f"the store {joiner.data}")
    for name in store.meta.domains:
        choose(name, task.domains, f"domain of {joiner.data}:")
    number = store.splits["train"].num_examples
    check(
        number >= joiner.min_examples,
        f"{joiner.data} has {number} examples; --min-examples is {joiner.min_examples}",
    )
    return f"{number} examples of {', '.join(held_domains(store.splits['train']))}"


def _roster(joiner: Joiner, task: FederatedTask, rosters: list[Roster]) -> str:
    needed = task.config.secure is not None
    check(
        needed == (joiner.roster is not None),
        f"--roster is {'' if needed else 'not '}needed for {joiner.app}",
    )
    if joiner.roster is None:
        return "none is needed"
    rosters.append(roster := read_roster(joiner.roster))
    before = joiner.state / accepted.FILE
    if before.exists():
        accepted.check_follows(read_roster(before), roster, str(joiner.roster))
    node = member_settings(joiner.roster, joiner.key, joiner.fewest, joiner.dishonest, joiner.alone)
    held = used_domains(open_store(joiner.data).splits, task.config)
    name = roster.members[own_member(task, node, held).place].name
    return f"number {roster.serial} of {roster.federation}, in which this client is {name}"


def _privacy(joiner: Joiner, task: FederatedTask) -> str:
    from agnosticfl.deploy.flower.audited import ledger_of
    from agnosticfl.deploy.node.allowance import LEDGER
    from agnosticfl.deploy.private import correlated

    most = joiner.most_epsilon
    node = {"ledger": joiner.state / LEDGER, **({} if most is None else {"most-epsilon": most})}
    ledger = ledger_of(task, node)
    assert ledger is not None
    reason = ledger.unwilling()
    check(reason is None, str(reason))
    own = ledger.spent()
    trusted = "; the server is trusted with the sum" if correlated(task.config) else ""
    return f"ε {own.epsilon:.3g} of {own.budget:g} is spent (δ {own.delta:g}){trusted}"


def _conditions(joiner: Joiner) -> Finding:
    """Now; they may be other ones in a minute."""
    names = [name for name in joiner.when.split(",") if name]
    unmet = eligibility.conditions(names, 0)(0)
    said = unmet or (f"{', '.join(names)}: met just now" if names else "none are set")
    todo = "it joins no round until they are met; --when sets them" if unmet else ""
    return Finding("conditions", unmet is None, said, todo, waiting=True)
