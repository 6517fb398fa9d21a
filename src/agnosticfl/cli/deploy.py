# SPDX-License-Identifier: Apache-2.0
"""`agnosticfl deploy …`: federations of real machines. Slow imports wait for their command."""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from agnosticfl.cli.arguments import (
    Algorithm,
    Dp,
    Resume,
    Roster,
    Rounds,
    Seed,
    Sets,
    State,
    SuperNode,
    Task,
    keys_of,
)
from agnosticfl.cli.joining import check_client, check_store, client
from agnosticfl.cli.plain import Program
from agnosticfl.cli.roster import fingerprint, keys_app, roster_app
from agnosticfl.errors import check, choose, require

deploy_app = Program(help="Run a federation of real machines.")
deploy_app.add_typer(keys_app, name="keys")
deploy_app.add_typer(roster_app, name="roster")
deploy_app.command()(fingerprint)
deploy_app.command("check")(check_client)
deploy_app.command()(client)

PAGE, NOWHERE = "127.0.0.1:8001", "none"  # where a server's page is; what to say for no page
WATCH = 1.0  # seconds between two looks of `status --watch`

Secure = Annotated[bool, typer.Option("--secure", help="The server learns sums only.")]


@deploy_app.callback()
def deploy() -> None:
    """Run a federation of real machines."""
    for name in ("flwr", "psutil"):
        require(name, "agnosticfl deploy", "deploy")
    os.umask(0o077)  # all that is written or started from here on is its user's alone


@deploy_app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    task: Task,
    clients: Annotated[int, typer.Option(help="Clients in a round (c).")],
    algorithm: Algorithm = "afa",
    rounds: Rounds = None,
    seed: Seed = 0,
    secure: Secure = False,
    keys: Annotated[
        Path | None,
        typer.Option(metavar="KEYS", help="What `keys server` made; --secure needs it."),
    ] = None,
    dp: Dp = None,
    sets: Sets = None,
) -> None:
    """Write the Flower app of a task, ready to be served.

    It also holds what the clients' data must be like and, if the task's data came from a raw table,
    the preparation.json for `data prepare arrays --like DIR`.
    """
    from agnosticfl.deploy.app import write_app
    from agnosticfl.deploy.flower.federation import RoundPolicy, num_asked
    from agnosticfl.deploy.keys import read_verify_key

    check(
        keys is not None or not secure,
        "--secure needs --keys KEYS, the folder that `deploy keys server` made",
    )
    server_key = ""
    if keys is not None:
        file = keys / "server.verify"
        check(file.is_file(), f"there is no {file}; `deploy keys server` makes it")
        server_key = read_verify_key(file).hex()
    # Room for the clients that are asked beyond those waited for, as the app has it.
    room = [f"secure.most_clients={num_asked(RoundPolicy(clients, clients))}"] if secure else []
    settings = [*room, *(sets or ()), *keys_of("dp", dp)]
    agreed = _make_task(task, clients, algorithm, rounds, seed, secure, settings)
    write_app(folder, agreed._replace(server_key=server_key))
    typer.echo(f"{folder}: the Flower app of {task} for {clients} clients per round")
    if secure:
        typer.echo(_borne(clients))
    _say_private(agreed.config)


def _say_private(config: Any) -> None:
    from agnosticfl.deploy.private import in_words

    if config.dp is not None:
        typer.echo(in_words(config))


def _borne(clients: int) -> str:
    from agnosticfl.secagg.agreement import Agreement, in_words

    usual = Agreement._field_defaults
    return in_words(clients, usual["dishonest"], usual["dropout"])


def _make_task(
    task: str,
    clients: int,
    algorithm: str,
    rounds: int | None,
    seed: int,
    secure: bool,
    sets: list[str] | None,
    dealing: bool = False,
) -> Any:
    from agnosticfl.deploy.node.examples import check_nodes
    from agnosticfl.deploy.private import separation
    from agnosticfl.deploy.task import federated_config, new_task
    from agnosticfl.runs.build import build
    from agnosticfl.runs.resolve import has_effect, resolve

    settings = [*(sets or ()), *(["secure.name=simulate"] if secure else ())]
    config = federated_config(resolve(task, algorithm, None, seed, rounds, settings), clients)
    for setting in settings:
        check(has_effect(config, setting), f"--set {setting} has no effect on a federation")
    check(
        separation(config) == 1 or not dealing,
        f"dp: separation is {separation(config)}; with `deploy local` all nodes take part in every"
        " round: use `deploy init`, and more clients than there are in a round",
    )
    rows = None if dealing else _of_clients(config)
    if rows is not None:
        return new_task(config, rows)
    # What is not allowed is refused here; what noise needs was, and one client has none.
    built = build(msgspec.structs.replace(config, clients_per_round=1, dp=None))
    _check_private(config, built.model, built.data)
    if dealing:
        check_nodes(built.data.train, clients)
    return new_task(config, built.data)


def _check_private(config: Any, model: Any, data: Any) -> None:
    from agnosticfl.deploy.private import check_private

    if config.dp is not None:
        check_private(config, model, data)


def _of_clients(config: Any) -> Any:
    """A store that only says what the clients' data is like, if clients evaluate; else None."""
    from agnosticfl.data.sources.store import whatever_there_is
    from agnosticfl.registry import MODELS
    from agnosticfl.runs.config import most_clients
    from agnosticfl.runs.features import check_features
    from agnosticfl.runs.judging import check_judged

    path = config.data.get("path", "")
    if (
        config.evaluation_by == "server"
        or config.data["name"] != "store"
        or not Path(path).exists()
    ):
        return None
    data = whatever_there_is(path)
    if data.train.num_examples and data.test.num_examples:
        return None
    model = MODELS.build(config.model, "model")
    check_features(model, data, config.model["name"])
    _check_private(config, model, data)
    check_judged(config, model, data.test, most_clients(config))
    return data


@deploy_app.command()
def local(
    task: Task,
    nodes: Annotated[int, typer.Option(help="Processes, each of which is one client.")] = 3,
    algorithm: Algorithm = "afa",
    rounds: Rounds = None,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option(help="Run folder; below runs/ by default.")] = None,
    secure: Secure = False,
    supernode: SuperNode = False,
    dp: Dp = None,
    sets: Sets = None,
    resume: Resume = False,
) -> None:
    """Try a federation on this machine: real processes, TLS, keys that are thrown away.

    The clients of the task are dealt to the nodes, and all examples of a node are those of one
    client. Ctrl-C ends everything.
    """
    from agnosticfl import report
    from agnosticfl.cli.console import print_message, print_report
    from agnosticfl.deploy.supervise.local import run_locally

    settings = [*(sets or ()), *keys_of("dp", dp)]
    agreed = _make_task(task, nodes, algorithm, rounds, seed, secure, settings, dealing=True)
    folder = out or Path("runs") / f"{agreed.config.task}-{algorithm}-deployed-seed{seed}"
    _check_new(folder, resume)
    if secure:
        typer.echo(_borne(nodes))
    _say_private(agreed.config)

    def serve(**watch: Any) -> bool:
        return run_locally(agreed, folder, nodes, supernode=supernode, say=print_message, **watch)

    _serve_watched(agreed.config, serve)
    print_report(report.write_report([folder], folder), folder)


@deploy_app.command()
def server(
    app: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that `init` wrote.")],
    keys: Annotated[Path, typer.Option(help="The folder that `keys server` made.")],
    out: Annotated[Path, typer.Option(help="Run folder.")],
    state: State = Path("deploy-state"),
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="STORE",
            help="Test on it, not on the task's own data; where clients evaluate, beside them.",
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(help="The one port that clients connect to.")] = 8000,
    roster: Roster = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Changes an option of the app's rounds."),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Changes a limit of the gate (docs/deploy.md)."),
    ] = None,
    page: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="Show status page and /metrics there; none for nowhere."
        ),
    ] = PAGE,
    password: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Who opens the page needs it; then it has TLS."),
    ] = None,
    log: Annotated[str, typer.Option(help="Form of the run's log: text or json lines.")] = "text",
    resume: Resume = False,
) -> None:
    """Serve a federation until its run is complete, whatever dies in between.

    Clients whose public keys are put in KEYS/clients, now or later, may connect; with a roster,
    its members are put there, and others are taken out, now and whenever the keeper's next one
    takes its place. All that the world reaches is a gate;
    Flower's SuperLink listens on this machine only.
    """
    from agnosticfl import report
    from agnosticfl.cli.console import print_message, print_report
    from agnosticfl.deploy.accepted import SERVED, accept
    from agnosticfl.deploy.app import PACKAGE
    from agnosticfl.deploy.gate.limits import MARGIN, Limits, limits_from
    from agnosticfl.deploy.registered import register_members
    from agnosticfl.deploy.roster import read_roster
    from agnosticfl.deploy.seeing.logs import FORMATS
    from agnosticfl.deploy.seeing.settings import address_of, page_settings
    from agnosticfl.deploy.supervise import children as processes
    from agnosticfl.deploy.supervise.supervisor import Service, Supervisor
    from agnosticfl.deploy.task import check_program, largest_message, read_task
    from agnosticfl.runs.tasks import parse_set

    agreed = read_task(app / PACKAGE)
    check_program(agreed, app)
    config = agreed.config
    for name in ("ca.pem", "server.pem", "server.key"):
        check((keys / name).is_file(), f"there is no {keys / name}; `deploy keys server` makes it")
    _check_new(out, resume)
    options = dict(map(parse_set, sets or ()))
    for name, path in {"data": data, "roster": roster}.items():
        options |= {} if path is None else {name: str(path.resolve())}
    if options.get("data"):
        looks = config.evaluation_every > 0 and config.evaluation_by == "server"
        for split in ("test", *(["heldout"] if looks else [])):
            check_store(agreed, Path(str(options["data"])), split)
    needed = config.secure is not None
    check((roster is not None) == needed, f"--roster is {'' if needed else 'not '}needed: {app}")
    if roster is not None:
        own = state / SERVED  # what is worked with: `roster` may change at any time
        processes.make_private_folder(state)
        for line in (
            *accept(roster, own, anew=True),
            *register_members(read_roster(own), keys / "clients"),
        ):
            typer.echo(line)
        options["roster"] = str(own.resolve())
        check((keys / "server.sign").is_file(), f"there is no {keys / 'server.sign'}")
        options["signing-key"] = str((keys / "server.sign").resolve())
    usual = Limits(message=MARGIN + largest_message(config))
    limits = limits_from(dict(map(parse_set, limit or ())), usual)
    options["log"] = choose(log, FORMATS, "form of the log")
    check(page != NOWHERE or password is None, "--password needs a --page")
    place = None if page == NOWHERE else page_settings(page, state, keys, password)
    service = Service(app, keys, state, out, host, port, options, limits, place, roster)
    if place is not None:
        print_message(f"status page: {address_of(place)}")

    def serve(**watch: Any) -> bool:
        with Supervisor(service, print_message) as supervisor:
            return supervisor.serve(**watch)

    _serve_watched(config, serve)
    print_report(report.write_report([out], out), out)


@deploy_app.command()
def status(
    state: State = Path("deploy-state"),
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it again and again, until Ctrl-C.")
    ] = False,
) -> None:
    """Show a server's clients and its run, on its own machine and as its own user."""
    from rich.console import Console
    from rich.live import Live

    from agnosticfl.deploy.seeing.status import view
    from agnosticfl.deploy.seeing.terminal import shown

    console = Console()
    if not watch:
        console.print(shown(view(state)))
        return
    with contextlib.suppress(KeyboardInterrupt), Live(console=console, auto_refresh=False) as live:
        while True:
            seen = shown(view(state))
            live.update(seen, refresh=True)
            if not console.is_terminal:  # there is nothing to draw over
                console.print(seen)
            time.sleep(WATCH)


def _check_new(folder: Path, resume: bool) -> None:
    there = (folder / "config.json").exists()
    check(
        resume or not there,
        f"{folder} holds a run already; go on with --resume or choose another --out",
    )


def _serve_watched(config: Any, serve: Callable[..., bool]) -> None:
    """Serves with progress shown, until it is done or the user has had enough."""
    from agnosticfl.cli.console import stop_on_signals, watch
    from agnosticfl.runs.run import Stopped

    answer = "stopping; a round that is not complete is given up"
    with stop_on_signals(answer) as should_stop, watch(config) as on_round:
        if not serve(on_round=on_round, should_stop=should_stop):
            raise Stopped("stopped; the state after the last complete round is saved")
