# SPDX-License-Identifier: Apache-2.0
"""The Blog Authorship Corpus: a file a blogger; the domains are three groups of age."""

import html
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from agnosticfl.data.formats.archives import Member, members
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
from agnosticfl.errors import check
from agnosticfl.registry import LOADERS

DOMAINS = ("teens", "twenties", "older")
AGES = (range(13, 18), range(23, 28), range(33, 49))  # of each domain; the corpus has no others
# <id>.<sex>.<age>.<industry>.<sign>.xml
BLOGGER = re.compile(r"(?:^|/)(?P<id>\d{1,12})\.[a-z]+\.(?P<age>\d{1,3})\.[^/]*\.xml$", re.ASCII)
POST = re.compile(r"<post>(.*?)</post>", re.DOTALL)
FILE_LIMIT = 1 << 26  # bytes of one blogger


@LOADERS.add("blogs")
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
    """Sentences of posts, from folders or archives of the corpus's own files.

    A client is a blogger, whose age is in the name of the file. The files look like XML but are
    none, so posts are found by their tags; bytes that are not UTF-8 are one unknown character each.
    """
    fractions = check_fractions(Fractions(heldout_fraction, test_fraction))

    def read(left_out: Counter[str]) -> Iterator[Sentence]:
        seen: set[str] = set()
        for source in sources:
            for member in members(source, lambda name: name.endswith(".xml")):
                found = BLOGGER.search(member.name)
                domain = None if found is None else _domain(int(found["age"]))
                if found is None or domain is None:
                    left_out["files whose name tells no blogger of these ages"] += 1
                    continue
                client = found["id"]
                check(client not in seen, f"{source}: blogger {client} is there twice")
                seen.add(client)
                split = split_of(client, fractions, seed)
                for words in _sentences(member, f"{source}: blogger {client}", left_out):
                    yield Sentence(split, client, domain, words)

    return text_source(
        "blogs",
        "research, not commercial",
        DOMAINS,
        first_sentences(read, max_sentences_per_client),
        TextOptions(vocab_size, vocab, length),
    )


def _domain(age: int) -> int | None:
    return next((i for i, ages in enumerate(AGES) if age in ages), None)


def _sentences(member: Member, place: str, left_out: Counter[str]) -> Iterator[list[str]]:
    data = bytearray()
    for chunk in member.chunks:
        data += chunk
        check(len(data) <= FILE_LIMIT, f"{place} has more than {FILE_LIMIT} bytes")
    words = None
    for post in POST.findall(data.decode("utf-8", errors="replace")):
        for words in split_sentences(html.unescape(post)):
            yield words
    if words is None:
        left_out["bloggers without text"] += 1
