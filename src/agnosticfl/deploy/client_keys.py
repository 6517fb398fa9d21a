# SPDX-License-Identifier: Apache-2.0
"""The files of a client: its two keys and its card, made together and renewed together."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from agnosticfl.deploy.cards import check_texts, read_card, signed_card, vouched_card, write_card
from agnosticfl.deploy.keys import (
    check_new,
    make_node_key,
    make_signing_key,
    public_line,
    read_node_key,
    read_signing_key,
)
from agnosticfl.errors import check
from agnosticfl.files import sync
from agnosticfl.secagg.primitives import verify_key

ENDINGS = (".key", ".pub", ".sign", ".card")


def make_client_keys(key: Path, domains: Sequence[str], contact: str, name: str = "") -> Path:
    """The two keys of a client, at NAME.key and NAME.sign, and its card."""
    check(key.suffix == ".key", f"{key} must be NAME.key")
    files = {ending: key.with_suffix(ending) for ending in ENDINGS}
    check_new(*files.values())
    name = name or key.stem
    check_texts(name, domains, contact, str(key))
    public = make_node_key(key)
    signing = make_signing_key(files[".sign"])
    card = signed_card(signing, name, public.read_text(), domains, contact)
    write_card(files[".card"], card)
    return files[".card"]


def rotate_client_keys(
    key: Path, domains: Sequence[str] | None = None, contact: str | None = None
) -> Path:
    """New keys in place of a client's, with a card that the old ones vouch for.

    The old files are kept, with .old behind their names.
    """
    files = [key.with_suffix(ending) for ending in ENDINGS]
    old = read_card(key.with_suffix(".card"))
    signing = read_signing_key(key.with_suffix(".sign"))
    check(
        old.signing_key == verify_key(signing)
        and old.node_key == public_line(read_node_key(key).public_key()),
        f"{key.with_suffix('.card')} is not the card of {key}",
    )
    kept = [file.with_name(f"{file.name}.old") for file in files]
    check_new(*kept)
    with tempfile.TemporaryDirectory(dir=key.parent, prefix=".rotated-") as name:
        new = Path(name) / key.name
        said = (old.domains if domains is None else domains, contact or old.contact, old.name)
        made = make_client_keys(new, *said)
        write_card(made, vouched_card(read_card(made), signing))
        for file, keep in zip(files, kept, strict=True):
            if file.exists():
                file.rename(keep)
            new.with_suffix(file.suffix).rename(file)
    sync(key.parent)
    return key.with_suffix(".card")
