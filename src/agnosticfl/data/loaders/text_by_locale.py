# SPDX-License-Identifier: Apache-2.0
"""Text files whose names, or a CSV, give client and locale; the locales are the domains.

The defaults fit ACTIV-ES: film and television dialogue of Argentina, Mexico and Spain.
"""

import codecs
import csv
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple, TypeAlias

from agnosticfl.data.archives import Member, members
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
    Sentence,
    TextOptions,
    Vocab,
    VocabSize,
    split_sentences,
    text_source,
)
from agnosticfl.errors import BadInput, check, choose

# es_<Country>_<year>_<title>_<type>_<genre>_<number>.run
ACTIV_ES = r"(^|/)es_(?P<locale>[^_/]+)_\d*_(?P<client>[^_/]+)_[^/]*\.run$"
FILE_LIMIT = 1 << 26  # bytes of one text file
CSV_COLUMNS = ("file", "client", "locale")


class Owner(NamedTuple):
    """Whose text a file holds."""

    client: str
    locale: str


Identify: TypeAlias = Callable[[str], Owner | None]  # path of a file -> its owner, if it has one


def load(
    sources: Sequence[Path],
    *,
    pattern: Annotated[
        str, "regular expression on the path of a file, with groups `client` and `locale`"
    ] = ACTIV_ES,
    csv: Annotated[
        Path | None, "CSV with columns file, client, locale to use instead of the pattern"
    ] = None,
    sentences_per_client: Annotated[
        int | None, "cut each client into clients of so many sentences"
    ] = None,
    train_clients: Annotated[
        str | None, "keep so many training clients of a locale, at random: Argentina=20,Mexico=50"
    ] = None,
    encoding: Annotated[str, "encoding of the files"] = "utf-8",
    licence: Annotated[str, "licence of the texts"] = "GPL-2.0",
    vocab_size: VocabSize = 10_000,
    vocab: Vocab = None,
    length: Length = 20,
    heldout_fraction: HeldoutFraction = 0.1,
    test_fraction: TestFraction = 0.1,
    seed: Seed = 0,
) -> Source:
    """Sentences of text files in folders or archives (.tar, .tar.gz, .zip, .7z)."""
