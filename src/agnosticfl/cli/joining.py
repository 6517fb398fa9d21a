# SPDX-License-Identifier: Apache-2.0
"""`agnosticfl deploy client` and `check`: taking part in a federation, and what would keep one out.

Slow imports wait for their command.
"""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from agnosticfl.cli.arguments import (
    Alone,
    App,
    Authority,
    Data,
    Dishonest,
    Fewest,
    MinExamples,
    MostEpsilon,
    NodeKey,
    Roster,
    Server,
    State,
    SuperNode,
    When,
)
from agnosticfl.deploy.node.settings import LONGEST, MOST
from agnosticfl.errors import check, choose


def client(
    server: Server,
    authority: Authority,
    app: App,
    key: NodeKey,
    data: Data,
    when: When = "",
    min_examples: MinExamples = 1,
    roster: Roster = None,
    fewest: Fewest = 3,
    alone: Alone = "",
    dishonest: Dishonest = 1,
    new_roster: Annotated[
        bool,
        typer.Option(
            "--new-roster", help="Take this roster, though it does not follow the accepted one."
        ),
    ] = False,
    audit: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where to write down what was asked and what left; STATE/audit.jsonl by default.",
        ),
    ] = None,
    most_rounds: Annotated[
        int,
        typer.Option(
            help="Take part in so many rounds of a run at most, each evaluation counted as one;"
            " 0: in all."
        ),
    ] = 0,
    most_epsilon: MostEpsilon = None,
    consent: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Take part only in runs whose names stand in FILE, one per line."
        ),
    ] = None,
    poll: Annotated[
        float,
        typer.Option(help="Seconds between two looks for work, when there was none for a while."),
    ] = LONGEST,
    supernode: SuperNode = False,
    state: State = Path("deploy-state"),
) -> None:
    """Take part in a federation with the training examples of a store.

    It stays one process, which keeps its examples and what it compiled, and connects again by
    itself when the server is gone for a while. It runs the app in DIR, not what the server sends,
    which is tried out first. With a roster it answers in secure rounds only; it says what changed
    in it since it was last accepted.
    """
    from agnosticfl.data.store import open_store
    from agnosticfl.deploy import accepted
    from agnosticfl.deploy.app import PACKAGE
    from agnosticfl.deploy.flower.secure_answers import member_settings, own_member
    from agnosticfl.deploy.node import eligibility
    from agnosticfl.deploy.node.allowance import LEDGER, ROUNDS
    from agnosticfl.deploy.node.audit import FILE as AUDIT
    from agnosticfl.deploy.node.examples import used_domains
    from agnosticfl.deploy.supervise import children as processes
    from agnosticfl.deploy.supervise.trial import check_flower
    from agnosticfl.deploy.task import FIGURES, check_program, read_task

    eligibility.conditions([name for name in when.split(",") if name], min_examples)
    check(0 < poll <= MOST, f"--poll is {poll}; it must be above 0 and at most {MOST:.0f} seconds")
    check(
        most_epsilon is None or most_epsilon > 0,
        f"--most-epsilon is {most_epsilon}; it must be a number above 0",
    )
    sign = key.with_suffix(".sign")
    for file in (authority, key, *((roster, sign) if roster else ())):
        check(file.is_file(), f"there is no file {file}")
    agreed = read_task(app / PACKAGE)
    check_program(agreed, app)
    check_store(agreed, data, "train")
    link = processes.Link(server, authority.resolve(), state.resolve())
    config: dict[str, str | int] = {"data": str(data.resolve())}
    config |= {"when": when, "min-examples": min_examples, "server": server}
    config |= {"figures": str(link.home / FIGURES)}
    processes.make_private_folder(link.home)
    log = (audit or link.home / AUDIT).resolve()
    check(log.parent.is_dir(), f"--audit is {log}, and there is no folder {log.parent}")
    check(most_rounds >= 0, f"--most-rounds is {most_rounds}; it must be at least 0")
    config |= {"audit": str(log), "most-rounds": most_rounds, "rounds": str(link.home / ROUNDS)}
    config |= {"ledger": str(link.home / LEDGER)}
    config |= {} if most_epsilon is None else {"most-epsilon": str(most_epsilon)}
    config |= {} if consent is None else {"consent": str(consent.resolve())}
    if roster is not None:
        own = link.home / accepted.FILE  # what is worked with: `roster` may change at any time
        for line in accepted.accept(roster, own, new_roster):
            typer.echo(line)
        config |= member_settings(own, key, fewest, dishonest, alone)
        config |= {"roster-file": str(roster.resolve())}
        config |= {"memory": str(link.home / "secure.memory")}
        own_member(agreed, config, used_domains(open_store(data).splits, agreed.config))
    command = processes.client_command(
        link, key.resolve(), app.resolve(), config, supernode=supernode, longest=poll
    )
    check_flower(link, key.resolve(), supernode)
    if supernode:  # a warm client does so itself, whenever it connects
        _let_in(link, key)
    processes.become(command, link.home)


def check_client(
    server: Server,
    authority: Authority,
    app: App,
    key: NodeKey,
    data: Data,
    when: When = "",
    min_examples: MinExamples = 1,
    roster: Roster = None,
    fewest: Fewest = 3,
    alone: Alone = "",
    dishonest: Dishonest = 1,
    most_epsilon: MostEpsilon = None,
    state: State = Path("deploy-state"),
) -> None:
    """Look at all that a client needs before it joins, with the options of `deploy client`.

    Versions, app, store, roster and conditions on this machine; then the server's address,
    certificate, host name, clock, whether it knows this client's key, and whether it serves the
    same task. Each is said with what to do. Nothing is written. Status 1 if something is wrong.
    """
    from agnosticfl.deploy.check import Joiner, findings

    joiner = Joiner(
        server,
        authority,
        app,
        key,
        data,
        state.resolve(),
        roster,
        when,
        min_examples,
        fewest,
        dishonest,
        alone,
        most_epsilon,
    )
    wrong = 0
    for finding in findings(joiner):
        wrong += not finding.right
        typer.echo(f"{'ok   ' if finding.right else 'WRONG'} {finding.line()}")
    if wrong:
        typer.echo(f"{wrong} wrong: this client would not take part", err=True)
        raise typer.Exit(1)


def _let_in(link: Any, key: Path) -> None:
    """Waits until the server lets a client in; ends the program if it never will."""
    from agnosticfl.deploy.node.reach import Waiting, reach

    waiting = Waiting()
    while (wrong := reach(link.address, link.authority, key).wrong) is not None:
        if not wrong.waiting:
            raise OSError(wrong.line())
        if waiting.new(wrong.line()):
            typer.echo(f"{wrong.line()}; it is tried again", err=True)
        time.sleep(waiting.next())


def check_store(agreed: Any, path: Path, split: str) -> None:
    """Ends the program if a store is not like the data that the machines agreed on."""
    from agnosticfl.data.store import open_store
    from agnosticfl.deploy.schema import differences, schema_of, shown
    from agnosticfl.runs.about import facts_of_store

    store = open_store(path)
    check(split in store.splits, f"the store {path} has no split {split!r}")
    found = shown(differences(agreed.schema, schema_of(facts_of_store(store))))
    for line in found:
        typer.echo(f"error: {path}: {line}", err=True)
    if found:
        raise typer.Exit(2)
    for name in store.meta.domains:
        choose(name, agreed.domains, f"domain of {path}:")
