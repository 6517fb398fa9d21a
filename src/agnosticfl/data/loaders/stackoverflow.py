# SPDX-License-Identifier: Apache-2.0
"""Stack Overflow as FedJAX (SQLite) and TFF (SQLite, HDF5) ship it; domains question and answer."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias

import numpy as np

from agnosticfl.data.formats import fedjax_sqlite, sqlite, tff_hdf5
from agnosticfl.data.formats.files import reading
from agnosticfl.data.formats.sqlite import client_text, open_sqlite
from agnosticfl.data.formats.tf_example import bytes_features
from agnosticfl.data.source import SPLITS, Source
from agnosticfl.data.splits import check_client_id
from agnosticfl.data.text import (
    Length,
    MaxSentences,
    Sentence,
    TextOptions,
    Vocab,
    VocabSize,
    first_sentences,
    text_source,
)
from agnosticfl.errors import BadInput, check, choose
from agnosticfl.registry import LOADERS

DOMAIN_OF = {b"question": 0, b"answer": 1}  # by the field `type`
SPLIT_IN_NAME = re.compile(r"train|held_?out|test")


class Record(NamedTuple):
    """One sentence as it is in the file."""

    place: str
    split: str
    client: str
    tokens: Any  # bytes: words with spaces between
    kind: Any  # bytes: question or answer


ReadRecords: TypeAlias = Callable[[], Iterator[Record]]


@LOADERS.add("stackoverflow")
def load(
    sources: Sequence[Path],
    *,
    max_sentences_per_client: MaxSentences = 1000,
    split: Annotated[
        str | None, "split of the files, where their names do not tell (train, heldout, test)"
    ] = None,
    vocab_size: VocabSize = 10_000,
    vocab: Vocab = None,
    length: Length = 20,
) -> Source:
    """Sentences of users, as tokenised by TFF.

    Args:
      sources: `*_train.sqlite`, `*_held_out.sqlite`, `*_test.sqlite` (FedJAX), `*_train.h5`, …
        (TFF), or TFF's one `stackoverflow.sqlite`, which names the split in each row.
    """
    readers = [_reader(path, split) for path in sources]

    def read(left_out: Counter[str]) -> Iterator[Sentence]:
        for records in readers:
            for record in records():
                sentence = _sentence(record)
                if sentence.words:
                    yield sentence
                else:
                    left_out["sentences without a word"] += 1

    return text_source(
        "stackoverflow",
        "CC BY-SA",
        ("question", "answer"),
        first_sentences(read, max_sentences_per_client),
        TextOptions(vocab_size, vocab, length),
    )


def _sentence(record: Record) -> Sentence:
    for name, value in (("tokens", record.tokens), ("type", record.kind)):
        check(isinstance(value, bytes), f"{record.place}: `{name}` is not text")
    try:
        words = record.tokens.decode().split()
    except UnicodeDecodeError as error:
        raise BadInput(f"{record.place}: `tokens` is not UTF-8 at byte {error.start}") from error
    if record.kind not in DOMAIN_OF:
        raise BadInput(f"{record.place}: `type` is {record.kind!r}; it must be question or answer")
    return Sentence(record.split, record.client, DOMAIN_OF[record.kind], words)


def _reader(path: Path, split: str | None) -> ReadRecords:
    """How to read a file, by what is in it."""
    with reading(path), path.open("rb") as stream:
        magic = stream.read(16)
    if magic.startswith(tff_hdf5.MAGIC):
        in_file = _split_of_file(path, split)
        return lambda: _by_client(tff_hdf5.clients(path, ("tokens", "type")), path, in_file)
    check(magic == sqlite.MAGIC, f"{path} is neither an SQLite nor an HDF5 file")
    tables = sqlite.tables(path)
    if fedjax_sqlite.TABLE in tables:
        in_file = _split_of_file(path, split)
        return lambda: _by_client(fedjax_sqlite.clients(path), path, in_file)
    check("examples" in tables, f"{path} has neither a table federated_data (FedJAX) nor examples")
    check(split is None, f"{path} names the split in each row; leave out --split")
    return lambda: _tff_sqlite(path)


def _split_of_file(path: Path, split: str | None) -> str:
    if split is not None:
        return choose(split, SPLITS, "split")
    found = {name.replace("_", "") for name in SPLIT_IN_NAME.findall(path.stem)}
    check(
        len(found) == 1,
        f"the name {path.name!r} does not tell the split; say --split train, heldout or test",
    )
    return found.pop()


def _by_client(
    clients: Iterator[tuple[str, dict[str, np.ndarray]]], path: Path, split: str
) -> Iterator[Record]:
    """The records of a file that holds one array a field for each client."""
    for client, arrays in clients:
        place = f"{path}, client {check_client_id(client, str(path))}"
        _check_fields(arrays, place)
        tokens, kinds = arrays["tokens"], arrays["type"]
        check(tokens.shape == kinds.shape, f"{place}: `tokens` and `type` differ in length")
        for number, pair in enumerate(zip(tokens, kinds, strict=True)):
            yield Record(f"{place}, sentence {number}", split, client, *pair)


def _tff_sqlite(path: Path) -> Iterator[Record]:
    query = "SELECT rowid, split_name, client_id, serialized_example_proto FROM examples"
    with open_sqlite(path) as database:
        for number, split, client, example in database.execute(query):
            place = f"{path}, row {number}"
            check(split in SPLITS, f"{place}: split_name is {split!r}; allowed: {SPLITS}")
            features = bytes_features(example, place)
            _check_fields(features, place)
            name = client_text(client, place)
            yield Record(place, split, name, features["tokens"], features["type"])


def _check_fields(features: Any, place: str) -> None:
    for name in ("tokens", "type"):
        check(name in features, f"{place}: there is no field {name!r}")
