# SPDX-License-Identifier: Apache-2.0
"""`agnosticfl deploy keys`, `roster` and `fingerprint`: who is who in a federation."""

from pathlib import Path
from typing import Annotated, Any

import typer

from agnosticfl.cli.plain import Program

keys_app = Program(help="Make the keys of a federation.")
roster_app = Program(help="Keep the list of a federation's members.")

Roster = Annotated[Path, typer.Argument(metavar="ROSTER", help="The roster's file.")]
Keeper = Annotated[
    Path, typer.Option(metavar="FILE.sign", help="The key that `deploy keys keeper` made.")
]
Cards = Annotated[
    list[Path], typer.Argument(metavar="CARD...", help="Cards that `deploy keys client` made.")
]
Key = Annotated[Path, typer.Argument(metavar="NAME.key", help="A new file.")]


@keys_app.command("server")
def keys_server(
    folder: Annotated[Path, typer.Argument(metavar="KEYS", help="A folder for the keys.")],
    host: Annotated[
        list[str], typer.Option(help="A name or address by which clients reach the server.")
    ],
) -> None:
    """Make the keys of a server, and the certificate ca.pem that its clients trust."""
    from agnosticfl.deploy.keys import make_server_keys

    make_server_keys(folder, [*host, "127.0.0.1", "localhost"])
    public = f"{folder / 'ca.pem'} and {folder / 'server.verify'}"
    typer.echo(f"{public}: for every client; the rest stays on the server")


@keys_app.command("renew")
def keys_renew(
    folder: Annotated[Path, typer.Argument(metavar="KEYS", help="What `keys server` made.")],
    host: Annotated[
        list[str] | None,
        typer.Option(help="Names or addresses of the server, if they are others than before."),
    ] = None,
) -> None:
    """Renew a server's certificate. Clients keep their ca.pem, and a server that runs takes it."""
    from agnosticfl.deploy.keys import renew_certificate

    hosts = [*host, "127.0.0.1", "localhost"] if host else []
    until = renew_certificate(folder, hosts)
    typer.echo(f"{folder / 'server.pem'}: valid until {until:%Y-%m-%d}")


@keys_app.command("client")
def keys_client(
    key: Key,
    domains: Annotated[
        str, typer.Option(metavar="A,B", help="The domains that this client has examples of.")
    ],
    contact: Annotated[str, typer.Option(metavar="TEXT", help="Who answers for it, and how.")],
    name: Annotated[str, typer.Option(help="The member's name; by default that of the file.")] = "",
) -> None:
    """Make the keys of a client, and its card NAME.card, which goes to the roster's keeper.

    NAME.key and NAME.sign stay on the client. In a federation without a roster, NAME.pub goes to
    the server's folder KEYS/clients.
    """
    from agnosticfl.deploy.client_keys import make_client_keys

    _say_card(make_client_keys(key, domains.split(","), contact, name))


@keys_app.command("rotate")
def keys_rotate(
    key: Annotated[Path, typer.Argument(metavar="NAME.key", help="What `keys client` made.")],
    domains: Annotated[
        str | None, typer.Option(metavar="A,B", help="Its domains, if they are others now.")
    ] = None,
    contact: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Its contact, if it is another now.")
    ] = None,
) -> None:
    """Make new keys for a client, and a card that the old ones vouch for.

    The old files are kept as NAME.key.old and so on. The client is out of secure rounds until the
    keeper has put the card into the roster (`deploy roster rotate`).
    """
    from agnosticfl.deploy.client_keys import rotate_client_keys

    _say_card(rotate_client_keys(key, domains.split(",") if domains else None, contact))


@keys_app.command("keeper")
def keys_keeper(
    key: Annotated[Path, typer.Argument(metavar="FILE.sign", help="A new file.")],
) -> None:
    """Make the key of a roster's keeper, who is not the server's operator."""
    from agnosticfl.deploy.keys import check_new, make_signing_key, write_verify_key
    from agnosticfl.errors import check

    public = key.with_suffix(".verify")
    check(key.suffix == ".sign", f"{key} must be FILE.sign")
    check_new(key, public)
    write_verify_key(public, make_signing_key(key))
    fingerprint(public)


@roster_app.command("new")
def new(
    roster: Roster,
    cards: Cards,
    keeper: Keeper,
    federation: Annotated[str, typer.Option(metavar="NAME", help="What the federation is called.")],
) -> None:
    """Write and sign the first roster of a federation."""
    from agnosticfl.deploy.cards import read_card
    from agnosticfl.deploy.keys import check_new, read_signing_key
    from agnosticfl.deploy.roster import first_roster, write_roster

    check_new(roster)
    first = first_roster(federation, [*map(read_card, cards)], read_signing_key(keeper))
    write_roster(roster, first)
    show(roster)


@roster_app.command("add")
def add(roster: Roster, cards: Cards, keeper: Keeper) -> None:
    """Add members, at the end. Compare the words of each card with its owner first."""
    from agnosticfl.deploy.cards import read_card
    from agnosticfl.deploy.roster import read_roster

    old = read_roster(roster)
    _replace(roster, old, [*old.members, *map(read_card, cards)], keeper)


@roster_app.command("remove")
def remove(
    roster: Roster,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The member's name.")],
    keeper: Keeper,
) -> None:
    """Remove a member."""
    from agnosticfl.deploy.roster import read_roster, without

    old = read_roster(roster)
    _replace(roster, old, without(old, name), keeper)


@roster_app.command("rotate")
def rotate(
    roster: Roster,
    card: Annotated[Path, typer.Argument(metavar="CARD", help="What `keys rotate` made.")],
    keeper: Keeper,
    lost: Annotated[
        bool,
        typer.Option("--lost", help="The old keys are lost: you alone answer for the new ones."),
    ] = False,
) -> None:
    """Renew the keys of the member that a card names."""
    from agnosticfl.deploy.cards import read_card
    from agnosticfl.deploy.roster import read_roster, renewed

    old = read_roster(roster)
    _replace(roster, old, renewed(old, read_card(card), lost), keeper)


@roster_app.command("show")
def show(roster: Roster) -> None:
    """Show a roster, with the words to compare by telephone."""
    from agnosticfl.deploy.fingerprint import card_words, roster_words, verify_key_words
    from agnosticfl.deploy.roster import described, read_roster

    held = read_roster(roster)
    typer.echo(f"roster {held.serial} of {held.federation}: {roster_words(held)}")
    typer.echo(f"keeper: {verify_key_words(held.keeper)}")
    for card in held.members:
        typer.echo(f"{card.name} ({described(card)}): {card_words(card)}")


def fingerprint(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A roster, a card, a key, a certificate, or the folder of an app."
        ),
    ],
) -> None:
    """Show twelve words of a file or an app, to compare by telephone."""
    from agnosticfl.deploy.fingerprint import fingerprint as words_of

    what, words = words_of(file)
    typer.echo(f"{what} {file}: {words}")


def _say_card(card: Path) -> None:
    typer.echo(f"{card}: for the keeper of the roster")
    fingerprint(card)


def _replace(path: Path, old: Any, members: Any, keeper: Path) -> None:
    """Writes the next roster and says what changed."""
    from agnosticfl.deploy.fingerprint import roster_words
    from agnosticfl.deploy.keys import read_signing_key
    from agnosticfl.deploy.roster import changes, next_roster, replace_roster

    after = next_roster(old, members, read_signing_key(keeper))
    replace_roster(path, old, after)
    for line in changes(old, after):
        typer.echo(f"roster {after.serial}: {line}")
    typer.echo(f"roster {after.serial} of {after.federation}: {roster_words(after)}")
