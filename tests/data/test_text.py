# SPDX-License-Identifier: Apache-2.0
"""Tokens, sentences, vocabulary and splits."""

import unicodedata
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agnosticfl.data import vocabulary
from agnosticfl.data.source import SPLITS, Source
from agnosticfl.data.splits import (
    Fractions,
    check_client_id,
    check_fractions,
    split_of,
    stratified_splits,
)
from agnosticfl.data.text import (
    Sentence,
    TextOptions,
    first_sentences,
    split_sentences,
    text_source,
)
from agnosticfl.data.vocabulary import count_words, most_frequent, read_word_counts
from tests.data.texts import one_line, refusal


def sentences(text: str) -> list[str]:
    return [" ".join(words) for words in split_sentences(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello, world! How are you?", ["hello , world !", "how are you ?"]),
        ("¿Qué tal? ¡Adiós!", ["¿ qué tal ?", "¡ adiós !"]),
        ("It isn't 3.14, e.g. at 10:30.", ["it isn't 3.14 , e.g. at 10:30 ."]),
        ("El Sr. López y Ud. en EE.UU. viven.", ["el sr. lópez y ud. en ee.uu. viven ."]),
        ("Bueno ... pues no ... Vale", ["bueno ... pues no ...", "vale"]),
        ("(Yes.) No?! «Ya.» Fin", ["( yes . )", "no ?!", "« ya . »", "fin"]),
        ("one\ntwo", ["one", "two"]),
        ("node.js file", ["node . js file"]),
        ("a\x93b\ufeff '' c", ["a b '' c"]),
        ("n\u0303", ["ñ"]),  # a combining tilde
        (" \t\n", []),
    ],
)
def test_sentences_and_tokens(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


@given(st.text())
def test_no_letter_or_digit_is_lost(text: str) -> None:
    letters = [c for c in unicodedata.normalize("NFC", text) if c.isalnum()]
    found = "".join("".join(words) for words in split_sentences(text))
    assert Counter("".join(letters).lower()) <= Counter(found)
    assert all(split_sentences(text))


def source_of(data: list[Sentence], size: int = 3, length: int = 4, vocab: Path | None = None):
    def read(left_out: Counter[str]) -> Iterator[Sentence]:
        left_out["nothing"] += 1
        yield from data

    return text_source("test", "none", ("a", "b"), read, TextOptions(size, vocab, length))


TRAIN = Sentence("train", "ann", 0, list("bacabd"))  # a 2, b 2, c 1, d 1
TEST = Sentence("test", "bob", 1, ["e", "e", "e"])


def tokens(source: Source) -> list[list[int]]:
    return [ids for rows in source.rows() for ids in rows.features["tokens"].tolist()]


def test_a_sentence_is_bos_words_eos_pad() -> None:
    short = Sentence("train", "ann", 0, ["a", "c"])
    exact = Sentence("train", "ann", 0, ["a", "b", "c", "d"])
    source = source_of([TRAIN, short, exact, TEST])
    # Top 3 words of train: a 4, b 3, c 3; d and the test word e share the OOV id 6.
    assert source.vocabulary == ("<pad>", "<bos>", "<eos>", "a", "b", "c", "<oov>")
    assert tokens(source) == [
        [1, 4, 3, 5, 3],  # b a c a, the rest is cut
        [1, 3, 5, 2, 0],
        [1, 3, 4, 5, 6],  # four words fill the length: no room for eos
        [1, 6, 6, 6, 2],
    ]
    assert source.total == 4
    assert source.left_out == {"nothing": 1, "words after the first 4 of a sentence": 2}


def test_the_first_sentences_of_each_client_and_split_are_kept() -> None:
    who = [("train", "ann"), ("train", "bob"), ("train", "ann"), ("test", "ann"), ("train", "ann")]
    data = [Sentence(split, client, 0, [str(i)]) for i, (split, client) in enumerate(who)]
    for maximum, kept, over in ((1, "013", 2), (2, "0123", 1), (3, "01234", 0), (None, "01234", 0)):
        left_out: Counter[str] = Counter()
        read = first_sentences(lambda _: iter(data), maximum)
        assert "".join(sentence.words[0] for sentence in read(left_out)) == kept
        assert left_out.total() == left_out[f"sentences over {maximum} of a client"] == over
    assert "at least 1" in one_line(lambda: first_sentences(lambda _: iter(data), 0))


def test_rows_can_be_read_again() -> None:
    source = source_of([TRAIN, TEST])
    assert tokens(source) == tokens(source)
    assert source.left_out["nothing"] == 1  # of the last pass, not of all


def test_a_piece_has_one_split_and_a_bounded_size() -> None:
    data = [TRAIN._replace(split=SPLITS[i % 3], client=str(i)) for i in range(13_000)]
    pieces = list(source_of(data).rows())
    assert max(len(piece.clients) for piece in pieces) == 4096
    for piece in pieces:
        assert {SPLITS[int(client) % 3] for client in piece.clients} == {piece.split}
    assert sorted(int(c) for piece in pieces for c in piece.clients) == list(range(13_000))


@pytest.mark.parametrize(("number", "dtype"), [(32_764, "int16"), (32_765, "int32")])
def test_ids_are_stored_in_16_bits_if_they_fit(number: int, dtype: str) -> None:
    words = [f"w{i}" for i in range(number)]  # OOV is number + 3
    source = source_of([TRAIN._replace(words=words)], size=10**6)
    assert source.features["tokens"].dtype == dtype
    (rows,) = source.rows()
    assert rows.features["tokens"].dtype == np.dtype(dtype)
    assert rows.domain.dtype == np.int32


def test_bad_options_and_no_training_words() -> None:
    assert "length is 0" in one_line(lambda: source_of([TRAIN], length=0))
    assert "vocabulary size is 0" in one_line(lambda: source_of([TRAIN], size=0))
    assert "no training client has a word" in one_line(lambda: source_of([TEST]))


def test_a_given_word_count_file(tmp_path: Path) -> None:
    path = tmp_path / "counts"
    path.write_text("\ufeffthe 9\nzoo\t9\nant 9\nrare 1\nmore 10\n", encoding="utf-8")
    # Equal counts keep the order of the file.
    assert read_word_counts(path, 3) == ["more", "the", "zoo"]
    source = source_of([TEST], vocab=path)
    assert source.vocabulary == ("<pad>", "<bos>", "<eos>", "more", "the", "zoo", "<oov>")
    assert source.given == ("vocabulary",)
    assert source_of([TRAIN]).given == ()
    assert source.total is None


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b"", "line 1"),
        (b"a 1\n\nb 2\n", "line 2"),
        (b"a 1\na 2\n", "line 2: the word 'a' is there twice"),
        (b"a one\n", "line 1"),
        (b"a 1 2\n", "line 1"),
        (b"a -1\n", "line 1"),
        (b"a " + b"9" * 5000, "line 1"),
        (b"ca\xf1a 1\n", "byte 2"),
    ],
)
def test_a_bad_word_count_file_is_refused(tmp_path: Path, content: bytes, place: str) -> None:
    path = tmp_path / "counts"
    path.write_bytes(content)
    message = one_line(lambda: read_word_counts(path, 10))
    assert str(path) in message
    assert place in message


@given(st.binary(max_size=60))
def test_any_word_count_file_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "counts"
    path.write_bytes(content)
    message = refusal(lambda: read_word_counts(path, 5))
    assert message is None or str(path) in message


def test_ties_are_alphabetical_and_long_words_are_not_counted() -> None:
    counts: Counter[str] = Counter()
    count_words(counts, ["b", "a", "c", "c", "x" * 65])
    assert most_frequent(counts, 10) == ["c", "a", "b"]


def test_the_count_table_is_pruned_of_rare_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "TABLE_LIMIT", 4)
    counts: Counter[str] = Counter()
    count_words(counts, list("aaabbcde"))  # five words: over the limit
    assert counts == {"a": 3, "b": 2}


def test_the_split_of_a_client_is_fixed_by_seed_and_id() -> None:
    # Written down so that a change of the hash, which would reshuffle everybody's data, is seen.
    found = " ".join(split_of(f"c{i}", Fractions(0.3, 0.3), seed=0) for i in range(8))
    assert found == "test test test test heldout train test test"
    many = Counter(split_of(f"c{i}", Fractions(0.1, 0.2), 7) for i in range(10_000))
    # Within four standard deviations, √(10 000 · 0.2 · 0.8) = 40.
    assert abs(many["test"] - 2000) < 160
    assert abs(many["heldout"] - 1000) < 120


def test_each_stratum_has_every_split() -> None:
    strata = {f"{s}{i}": s for s, n in (("big", 20), ("small", 3)) for i in range(n)}
    splits = stratified_splits(strata, Fractions(0.1, 0.1), seed=1)
    found = Counter((strata[client], split) for client, split in splits.items())
    assert found == {
        ("big", "train"): 16,
        ("big", "heldout"): 2,
        ("big", "test"): 2,
        ("small", "train"): 1,
        ("small", "heldout"): 1,
        ("small", "test"): 1,
    }
    assert splits != stratified_splits(strata, Fractions(0.1, 0.1), seed=2)
    message = one_line(lambda: stratified_splits({"a": "x", "b": "x"}, Fractions(0.1, 0.1), 0))
    assert "'x' has 2 clients" in message


@pytest.mark.parametrize("pair", [(-0.1, 0.1), (0.1, 1.0), (0.5, 0.5), (float("nan"), 0.1)])
def test_bad_fractions_are_refused(pair: tuple[float, float]) -> None:
    assert "fraction" in one_line(lambda: check_fractions(Fractions(*pair)))


def test_a_client_id_must_be_short_and_not_empty() -> None:
    assert check_client_id("é" * 500, "here") == "é" * 500
    assert "here: the client id 'xxx" in one_line(lambda: check_client_id("x" * 10_240, "here"))
    assert "here: the client id is empty" in one_line(lambda: check_client_id("", "here"))
