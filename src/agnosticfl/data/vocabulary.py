# SPDX-License-Identifier: Apache-2.0
"""The words of a text data set: counted from training sentences, or taken from a file."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from agnosticfl.errors import BadInput, check

SPECIALS, OOV_NAME = ("<pad>", "<bos>", "<eos>"), "<oov>"  # by their ids: see `core.tokens`

TABLE_LIMIT = 5_000_000  # entries of the count table: some 430 MB (words of ten letters)
LONGEST_WORD = 64  # characters; what is longer is no word and always OOV


def count_words(counts: Counter[str], words: Iterable[str]) -> None:
    """Adds `words` to `counts`, and prunes rare words when the table is over its limit.

    A word that was dropped and comes again starts from zero, so its count is too small by the few
    times it had been seen; the frequent words are never dropped and stay exact.
    """
    counts.update(word for word in words if len(word) <= LONGEST_WORD)
    if len(counts) > TABLE_LIMIT:
        _prune(counts)


def _prune(counts: Counter[str]) -> None:
    """Drops the words seen once, then twice, …, until at most half the limit is left."""
    rarest = 1
    while len(counts) > TABLE_LIMIT // 2:
        for word in [word for word, count in counts.items() if count <= rarest]:
            del counts[word]
        rarest += 1


def most_frequent(counts: Counter[str], size: int) -> list[str]:
    """The `size` (K) words with the highest counts; equal counts in alphabetical order."""
    return sorted(counts, key=lambda word: (-counts[word], word))[:size]


def with_specials(words: Iterable[str]) -> tuple[str, ...]:
    """The word of each token id: pad, bos, eos, the words, oov."""
    return (*SPECIALS, *words, OOV_NAME)


def read_word_counts(path: Path, size: int) -> list[str]:
    """The `size` most frequent words of a file with `word count` on each line, UTF-8.

    Words of equal count stay in the order of the file, so that a sorted file gives its first lines.
    """
    counts: dict[str, int] = {}
    for number, line in enumerate(_text_lines(path), 1):
        word, count = _word_count(line, f"{path}, line {number}")
        check(word not in counts, f"{path}, line {number}: the word {word!r} is there twice")
        counts[word] = count
    check(bool(counts), f"{path} holds no word; each line must be a word and its count")
    return sorted(counts, key=lambda word: -counts[word])[:size]


def _text_lines(path: Path) -> list[str]:
    try:
        return path.read_bytes().decode("utf-8-sig").rstrip("\n").split("\n")
    except OSError as error:
        raise BadInput(f"the word-count file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 at byte {error.start}") from error


def _word_count(line: str, place: str) -> tuple[str, int]:
    fields = line.split()
    good = len(fields) == 2 and fields[1].isascii() and fields[1].isdigit() and len(fields[1]) < 19
    check(good, f"{place}: {line[:60]!r} is not a word, a space or tab, and a count")
    return fields[0], int(fields[1])
