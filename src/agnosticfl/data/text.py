# SPDX-License-Identifier: Apache-2.0
"""Sentences to token ids of a fixed length: what all text loaders share."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple, TypeAlias

import numpy as np

from agnosticfl.core.tokens import BOS, EOS, FIRST_WORD, PAD
from agnosticfl.data.source import SPLITS, Feature, Rows, Source
from agnosticfl.data.vocabulary import count_words, most_frequent, read_word_counts, with_specials
from agnosticfl.errors import check

PIECE = 4096  # sentences a piece of rows()
LONGEST_SENTENCE = 100_000  # words; the longest that may be asked for

VocabSize: TypeAlias = Annotated[int, "number K of words that get an id of their own"]
Vocab: TypeAlias = Annotated[
    Path | None, "word-count file to take the words from (`word count` a line)"
]
Length: TypeAlias = Annotated[int, "words of a sentence that are kept"]
MaxSentences: TypeAlias = Annotated[int | None, "sentences kept of a client, the first ones"]

# A token is the first of these that fits, in this order: a number with inner marks (3.14, 10:30);
# a dotted abbreviation (e.g., EE.UU.); a title or form of address with its full stop (Sr., Mrs.);
# a word with inner apostrophes (don't); a run of full stops, question and exclamation marks (...);
# a doubled quotation mark ('', ´´, ``); any other visible character. White space, control
# characters and byte-order marks only separate.
TOKEN = re.compile(
    r"\d+(?:[.,:]\d+)+"
    r"|(?:[^\W\d_]{1,2}\.){2,}"
    r"|(?:[Ss]r(?:a|ta|es)?|[Dd]ra?|[Uu]ds?|[Mm]rs?|[Mm]s)\."
    r"|\w+(?:['’]\w+)*"
    r"|[.!?…]+"
    r"|(['´`])\1"
    r"|[^\w\s\x00-\x1f\x7f-\x9f\ufeff]"
)
END_MARKS = ".!?…"
CLOSERS = frozenset(")]}»”’")  # belong to the sentence they follow
NEVER_FIRST = CLOSERS | frozenset(",;:")


class Sentence(NamedTuple):
    """One example before it is encoded."""

    split: str
    client: str
    domain: int
    words: Sequence[str]


class TextOptions(NamedTuple):
    """How sentences become token ids."""

    vocab_size: int  # K
    vocab: Path | None  # a given word-count file instead of the training words
    length: int  # words kept of a sentence


# Reads the raw data once, counting what it leaves out.
ReadSentences: TypeAlias = Callable[[Counter[str]], Iterator[Sentence]]


def split_sentences(text: str) -> Iterator[list[str]]:
    """The sentences of a text, each as its lower-case tokens.

    A sentence ends at a line break, and after a run of . ! ? … (with the closing marks behind it)
    unless the next token starts with a lower-case letter or is a comma, colon or semicolon.
    """
    for line in unicodedata.normalize("NFC", text).splitlines():
        sentence: list[str] = []
        ended = False
        for match in TOKEN.finditer(line):
            token = match.group()
            if ended and token not in NEVER_FIRST and not token[0].islower():
                yield sentence
                sentence = []
            sentence.append(token.lower())
            ended = token[0] in END_MARKS or (ended and token in CLOSERS)
        if sentence:
            yield sentence


def words_of(text: str) -> list[str]:
    """The lower-case tokens of a text, as one sentence."""
    return [word for sentence in split_sentences(text) for word in sentence]


def encoded(
    sentences: Sequence[Sequence[str]], ids: Mapping[str, int], width: int, dtype: np.dtype
) -> np.ndarray:
    """Sentences as ids, [n, width]: bos w_1 … w_n eos pad …, cut at the end."""
    tokens = np.full((len(sentences), width), PAD, dtype)
    oov = FIRST_WORD + len(ids)
    for row, words in zip(tokens, sentences, strict=True):
        own = [BOS, *(ids.get(word, oov) for word in words[: width - 1]), EOS][:width]
        row[: len(own)] = own
    return tokens


def ids_of(vocabulary: Sequence[str]) -> dict[str, int]:
    """Word -> its id, from the word of each id."""
    return {word: i for i, word in enumerate(vocabulary[FIRST_WORD:-1], FIRST_WORD)}


def first_sentences(read: ReadSentences, maximum: int | None) -> ReadSentences:
    """`read`, but of each client only the first `maximum` sentences in the order of the data.

    A client that is in two splits counts once in each. All sentences are kept if `maximum` is None.
    """
    if maximum is None:
        return read
    check(maximum >= 1, f"max sentences per client is {maximum}; it must be at least 1")

    def read_first(left_out: Counter[str]) -> Iterator[Sentence]:
        taken: Counter[tuple[str, str]] = Counter()
        for sentence in read(left_out):
            owner = (sentence.split, sentence.client)
            if taken[owner] == maximum:
                left_out[f"sentences over {maximum} of a client"] += 1
            else:
                taken[owner] += 1
                yield sentence

    return read_first


def text_source(
    name: str, licence: str, domains: tuple[str, ...], read: ReadSentences, options: TextOptions
) -> Source:
    """A source of `tokens` [length + 1]: bos w_1 … w_n eos pad …, cut at the end.

    A model takes tokens[:-1] as input and tokens[1:] as target. The raw data is read twice: here,
    to count the words of the training clients (not if a word-count file is given), and in rows().
    """
    check(
        options.vocab_size >= 1,
        f"the vocabulary size is {options.vocab_size}; it must be at least 1",
    )
    check(
        1 <= options.length <= LONGEST_SENTENCE,
        f"the length is {options.length}; it must be from 1 to {LONGEST_SENTENCE}",
    )
    if options.vocab is None:
        words, total = _training_words(name, read, options.vocab_size)
    else:
        words, total = read_word_counts(options.vocab, options.vocab_size), None
    oov = FIRST_WORD + len(words)
    dtype = "int16" if oov <= np.iinfo(np.int16).max else "int32"
    ids = {word: i for i, word in enumerate(words, FIRST_WORD)}
    left_out: Counter[str] = Counter()

    def rows() -> Iterator[Rows]:
        left_out.clear()
        for piece in _pieces(read(left_out)):
            yield _encode(piece, ids, options.length, np.dtype(dtype), left_out)

    return Source(
        name=name,
        licence=licence,
        domains=domains,
        features={"tokens": Feature(dtype, (options.length + 1,))},
        rows=rows,
        total=total,
        vocabulary=with_specials(words),
        given=() if options.vocab is None else ("vocabulary",),
        left_out=left_out,
    )


def _training_words(name: str, read: ReadSentences, size: int) -> tuple[list[str], int]:
    """The vocabulary and the number of sentences."""
    counts: Counter[str] = Counter()
    total = 0
    for sentence in read(Counter()):
        total += 1
        if sentence.split == "train":
            count_words(counts, sentence.words)
    check(bool(counts), f"{name}: no training client has a word, so there is no vocabulary")
    return most_frequent(counts, size), total


def _pieces(sentences: Iterator[Sentence]) -> Iterator[list[Sentence]]:
    """Groups sentences of one split."""
    waiting: dict[str, list[Sentence]] = {split: [] for split in SPLITS}
    for sentence in sentences:
        piece = waiting[sentence.split]
        piece.append(sentence)
        if len(piece) == PIECE:
            yield piece
            waiting[sentence.split] = []
    yield from filter(None, waiting.values())


def _encode(
    piece: list[Sentence],
    ids: dict[str, int],
    length: int,
    dtype: np.dtype,
    left_out: Counter[str],
) -> Rows:
    tokens = encoded([sentence.words for sentence in piece], ids, length + 1, dtype)
    for sentence in piece:
        if len(sentence.words) > length:
            left_out[f"words after the first {length} of a sentence"] += (
                len(sentence.words) - length
            )
    return Rows(
        split=piece[0].split,
        clients=[sentence.client for sentence in piece],
        domain=np.array([sentence.domain for sentence in piece], np.int32),
        features={"tokens": tokens},
    )
