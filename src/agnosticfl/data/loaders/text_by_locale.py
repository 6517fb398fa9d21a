# SPDX-License-Identifier: Apache-2.0
"""Text files whose paths, or a CSV, give client and locale; the locales are the domains.

The defaults fit ACTIV-ES: film and television dialogue of Argentina, Mexico and Spain.
"""

import csv as csv_module
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from agnosticfl.data.formats.archives import Member, members
from agnosticfl.data.source import Source
from agnosticfl.data.splits import (
    Fractions,
    HeldoutFraction,
    Seed,
    TestFraction,
    check_client_id,
    check_fractions,
    stratified_splits,
    uniform_hash,
)
from agnosticfl.data.text import (
    Length,
    MaxSentences,
    ReadSentences,
    Sentence,
    TextOptions,
    Vocab,
    VocabSize,
    first_sentences,
    split_sentences,
    text_source,
)
from agnosticfl.errors import BadInput, check, choose
from agnosticfl.registry import LOADERS

# es_<Country>_<year>_<title>_<type>_<genre>_<number>.run
ACTIV_ES = r"(^|/)es_(?P<locale>[^_/]+)_\d*_(?P<client>[^_/]+)_[^/]*\.run$"
FILE_LIMIT = 1 << 26  # bytes of one text file
CSV_COLUMNS = ("file", "client", "locale")


class File(NamedTuple):
    source: Path  # folder or archive
    name: str  # path inside it


class Owner(NamedTuple):
    """Whose text a file holds."""

    client: str
    locale: str


@LOADERS.add("text-by-locale")
def load(
    sources: Sequence[Path],
    *,
    pattern: Annotated[
        str, "regular expression searched in a file's path, with groups `client` and `locale`"
    ] = ACTIV_ES,
    csv: Annotated[
        Path | None, "CSV with columns file, client, locale to use instead of the pattern"
    ] = None,
    max_sentences_per_client: MaxSentences = None,
    sentences_per_client: Annotated[
        int | None, "cut each client into clients of so many sentences"
    ] = None,
    train_clients: Annotated[
        str | None, "keep so many training clients of a locale, at random: Argentina=20,Mexico=50"
    ] = None,
    encoding: Annotated[str, "encoding of the files"] = "utf-8",
    vocab_size: VocabSize = 10_000,
    vocab: Vocab = None,
    length: Length = 20,
    heldout_fraction: HeldoutFraction = 0.1,
    test_fraction: TestFraction = 0.1,
    seed: Seed = 0,
) -> Source:
    """Sentences of text files in folders or archives (.tar, .tar.gz, .zip, .7z).

    Clients are split within each locale, before they are cut by `sentences_per_client` and before
    `train_clients` thins the training ones: parts of one client never meet in two splits, and the
    test clients are the same for any number of training clients. `max_sentences_per_client` is of
    the clients before they are cut.
    """
    fractions = check_fractions(Fractions(heldout_fraction, test_fraction))
    files = [File(source, name) for source in sources for name in _names(source)]
    for file, number in Counter(files).items():
        check(number == 1, f"{file.source}: the file {file.name!r} is there {number} times")
    owners = _owners_from_csv(files, csv) if csv else _owners_by_pattern(files, pattern)
    # For the split, a client of several locales belongs to the alphabetically first.
    locale_of = dict(sorted(owners.values(), reverse=True))
    splits = stratified_splits(locale_of, fractions, seed)
    thinned = _thinned(splits, locale_of, _parse_numbers(train_clients or "", locale_of), seed)
    kept = {file: owner for file, owner in owners.items() if owner.client not in thinned}
    domains = tuple(sorted({owner.locale for owner in owners.values()}))
    passed_over = +Counter(  # without the zeros
        {
            "files that belong to no client": len(files) - len(owners),
            "files of training clients that were not drawn": len(owners) - len(kept),
        }
    )

    def read(left_out: Counter[str]) -> Iterator[Sentence]:
        left_out.update(passed_over)
        for file, text in _texts(sources, kept, encoding):
            owner, words = kept[file], None
            domain = domains.index(owner.locale)
            for words in split_sentences(text):
                yield Sentence(splits[owner.client], owner.client, domain, words)
            if words is None:
                left_out["files without text"] += 1

    return text_source(
        "text-by-locale",
        "GPL-2.0 (ACTIV-ES)" if pattern == ACTIV_ES and not csv else "not stated",
        domains,
        _cut(first_sentences(read, max_sentences_per_client), sentences_per_client),
        TextOptions(vocab_size, vocab, length),
    )


def _names(source: Path) -> list[str]:
    names: list[str] = []

    def note(name: str) -> bool:
        names.append(name)
        return False

    list(members(source, note))
    return names


def _owners_by_pattern(files: Sequence[File], pattern: str) -> dict[File, Owner]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise BadInput(f"the pattern {pattern!r} is no regular expression: {error}") from error
    for group in Owner._fields:
        check(group in compiled.groupindex, f"the pattern {pattern!r} has no group (?P<{group}>…)")
    owners = {
        file: _owner(match["client"], match["locale"], f"{file.source}: {file.name}")
        for file in files
        if (match := compiled.search(file.name))
    }
    check(bool(owners), f"none of {len(files)} files fits the pattern {pattern!r}")
    return owners


def _owners_from_csv(files: Sequence[File], path: Path) -> dict[File, Owner]:
    listed = _read_csv(path)
    owners = {file: listed[file.name] for file in files if file.name in listed}
    missing = listed.keys() - {file.name for file in owners}
    check(not missing, f"{path} names {min(missing, default='')!r}, which no source holds")
    check(bool(owners), f"{path} names no file")
    return owners


def _read_csv(path: Path) -> dict[str, Owner]:
    owners: dict[str, Owner] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            rows = csv_module.DictReader(stream, strict=True)
            for name in CSV_COLUMNS:
                check(name in (rows.fieldnames or ()), f"{path}, line 1: no column {name!r}")
            for row in rows:
                place = f"{path}, line {rows.line_num}"
                file, client, locale = (row[name] or "" for name in CSV_COLUMNS)
                check(file not in owners, f"{place}: the file {file!r} is there twice")
                owners[file] = _owner(client, locale, place)
    except (OSError, UnicodeDecodeError, csv_module.Error) as error:
        raise BadInput(f"{path} cannot be read as CSV: {error}") from error
    return owners


def _owner(client: str | None, locale: str | None, place: str) -> Owner:
    check(bool(locale), f"{place}: the locale is empty")
    return Owner(check_client_id(client or "", place), locale or "")


def _parse_numbers(text: str, locale_of: Mapping[str, str]) -> dict[str, int]:
    """`Argentina=20,Mexico=50` as a table, checked against the locales there are."""
    numbers: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        match = re.fullmatch("(.+)=([1-9][0-9]{0,8})", part)
        if match is None:
            raise BadInput(f"train clients: {part!r} is not LOCALE=NUMBER with a number from 1")
        numbers[choose(match[1], sorted(set(locale_of.values())), "locale")] = int(match[2])
    return numbers


def _thinned(
    splits: Mapping[str, str], locale_of: Mapping[str, str], numbers: Mapping[str, int], seed: int
) -> set[str]:
    """The training clients that are left out so that `numbers` of each locale remain."""
    gone: set[str] = set()
    for locale, number in numbers.items():
        train = [c for c in splits if splits[c] == "train" and locale_of[c] == locale]
        check(
            number <= len(train),
            f"train clients: {locale} has {len(train)} training clients, fewer than {number}",
        )
        gone.update(sorted(train, key=lambda client: uniform_hash(seed, f"thin {client}"))[number:])
    return gone


def _texts(
    sources: Sequence[Path], wanted: Mapping[File, Owner], encoding: str
) -> Iterator[tuple[File, str]]:
    for source in sources:
        for member in members(source, lambda name, source=source: File(source, name) in wanted):
            yield File(source, member.name), _decode(member, encoding, f"{source}: {member.name}")


def _decode(member: Member, encoding: str, place: str) -> str:
    data = bytearray()
    for chunk in member.chunks:
        data += chunk
        check(len(data) <= FILE_LIMIT, f"{place} has more than {FILE_LIMIT} bytes")
    try:
        return data.decode(encoding)
    except (LookupError, ValueError) as error:
        raise BadInput(f"{place} cannot be read as {encoding}: {error}") from error


def _cut(read: ReadSentences, size: int | None) -> ReadSentences:
    """`read`, with each client cut into clients of `size` sentences, unless that is None."""
    if size is None:
        return read
    check(size >= 1, f"sentences per client is {size}; it must be at least 1")

    def read_cut(left_out: Counter[str]) -> Iterator[Sentence]:
        taken: Counter[str] = Counter()
        for sentence in read(left_out):
            number = taken[sentence.client] // size
            taken[sentence.client] += 1
            yield sentence._replace(client=f"{sentence.client}#{number}")

    return read_cut
