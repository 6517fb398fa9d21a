# SPDX-License-Identifier: Apache-2.0
"""Stack Exchange dumps: Posts.xml or Posts.csv, plain, .gz or .7z; domains question and answer."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from agnosticfl.data.formats.archives import chunks, members
from agnosticfl.data.formats.files import reading
from agnosticfl.data.formats.posts import Post, html_text, read_csv, read_xml
from agnosticfl.data.source import Source
from agnosticfl.data.splits import (
    Fractions,
    HeldoutFraction,
    Seed,
    TestFraction,
    check_fractions,
    split_of,
)
from agnosticfl.data.text import (
    Length,
    MaxSentences,
    Sentence,
    TextOptions,
    Vocab,
    VocabSize,
    first_sentences,
    split_sentences,
    text_source,
)
from agnosticfl.errors import BadInput, check
from agnosticfl.registry import LOADERS

DOMAIN_OF = {"1": 0, "2": 1}  # PostTypeId -> question, answer
POSTS_FILE = re.compile(r"(?:(?P<site>.+)[.-])?Posts\.(?P<form>xml|csv)(?:\.gz)?")
ARCHIVE = re.compile(r"(?P<site>[^-]+)(?:-Posts)?\.7z")  # not stackoverflow.com-Users.7z
OWNER = re.compile(r"-?[0-9]{1,18}")  # −1 is the community user


class Dump(NamedTuple):
    """One file of posts."""

    site: str
    path: Path
    form: str  # xml, csv or 7z


@LOADERS.add("stackexchange")
def load(
    sources: Sequence[Path],
    *,
    max_sentences_per_client: MaxSentences = None,
    vocab_size: VocabSize = 10_000,
    vocab: Vocab = None,
    length: Length = 20,
    heldout_fraction: HeldoutFraction = 0.1,
    test_fraction: TestFraction = 0.1,
    seed: Seed = 0,
) -> Source:
    """Sentences of posts; a client is one user of one site, `site:OwnerUserId`.

    Args:
      sources: files `<site>.Posts.xml`, `<site>.Posts.csv` (each also with .gz) or `<site>.7z`, or
        folders that hold such files.
    """
    fractions = check_fractions(Fractions(heldout_fraction, test_fraction))
    dumps = find_dumps(sources)

    def read(left_out: Counter[str]) -> Iterator[Sentence]:
        for dump in dumps:
            for post in read_posts(dump):
                for words, owner, domain in post_sentences(post, left_out):
                    client = f"{dump.site}:{owner}"
                    yield Sentence(split_of(client, fractions, seed), client, domain, words)

    return text_source(
        "stackexchange",
        "CC BY-SA",
        ("question", "answer"),
        first_sentences(read, max_sentences_per_client),
        TextOptions(vocab_size, vocab, length),
    )


def find_dumps(sources: Sequence[Path]) -> list[Dump]:
    """The files of posts among the sources; each site once."""
    dumps: list[Dump] = []
    for source in sources:
        with reading(source):
            inside = sorted(source.iterdir()) if source.is_dir() else [source]
        found = [dump for path in inside if (dump := _as_dump(path)) is not None]
        wanted = "<site>.Posts.xml, <site>.Posts.csv (also .gz) or <site>.7z"
        check(bool(found), f"{source} is no file of posts and holds none; needed: {wanted}")
        dumps += found
    for site, number in Counter(dump.site for dump in dumps).items():
        check(number == 1, f"the site {site!r} is given {number} times; give one file of each site")
    return dumps


def _as_dump(path: Path) -> Dump | None:
    if archive := ARCHIVE.fullmatch(path.name):
        return Dump(_short(archive["site"]), path, "7z")
    if posts := POSTS_FILE.fullmatch(path.name):
        # A dump unpacked as it comes is <site>/Posts.xml.
        return Dump(_short(posts["site"] or path.resolve().parent.name), path, posts["form"])
    return None


def _short(site: str) -> str:
    return site.removesuffix(".stackexchange.com")


def read_posts(dump: Dump) -> Iterator[Post]:
    """All posts of a dump, of every type."""
    if dump.form != "7z":
        check(dump.path.is_file(), f"{dump.path} does not exist")
        return _read(dump.form, chunks(dump.path), str(dump.path))
    return _read_archive(dump.path)


def _read(form: str, pieces: Iterator[bytes], place: str) -> Iterator[Post]:
    return read_xml(pieces, place) if form == "xml" else read_csv(pieces, place)


def _read_archive(path: Path) -> Iterator[Post]:
    found = False
    for member in members(path, lambda name: name in ("Posts.xml", "Posts.csv")):
        found = True
        yield from _read(member.name[-3:], member.chunks, f"{path}: {member.name}")
    check(found, f"{path} holds no Posts.xml and no Posts.csv")


def post_sentences(post: Post, left_out: Counter[str]) -> Iterator[tuple[list[str], str, int]]:
    """(words, owner, domain) of each sentence of a post; counts posts that have none."""
    if post.kind not in DOMAIN_OF:
        left_out["posts that are neither question nor answer"] += 1
    elif not post.owner:
        left_out["posts without an owner"] += 1
    elif not OWNER.fullmatch(post.owner):
        raise BadInput(f"{post.place}: OwnerUserId is {post.owner[:20]!r}, not a number")
    else:
        words = None
        for words in split_sentences(_text(post)):
            yield words, post.owner, DOMAIN_OF[post.kind]
        if words is None:
            left_out["posts without text"] += 1


def _text(post: Post) -> str:
    try:
        return html_text(post.body)
    except ValueError as error:
        raise BadInput(f"{post.place}: the Body is not HTML: {error}") from error
