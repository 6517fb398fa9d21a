# SPDX-License-Identifier: Apache-2.0
"""`agnosticfl deploy check`: what would keep this client out of its federation, and what helps."""

from pathlib import Path

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
    When,
)


def check(
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
