# SPDX-License-Identifier: Apache-2.0
"""Text files by locale: folders, .tar.gz, .zip, .7z; ACTIV-ES out of the box."""

import io
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import py7zr
import pytest

from agnosticfl.data.loaders import text_by_locale
from agnosticfl.data.loaders.text_by_locale import load
from agnosticfl.data.source import Source
from tests.data.real import real_data
from tests.data.texts import one_line, read_back, truncations_are_clean

# Ten titles of one country and four of the other, in ACTIV-ES's naming, and a file that is none.
TITLES = {
    f"plain/es_{country}_19{i:02}_{country[0]}-título-{i}_movie_n_{i}.run": (
        f"Hola , {country} {i} . ¿ Qué tal ?".encode()
    )
    for country, number in (("Spain", 10), ("Mexico", 4))
    for i in range(number)
}
FILES = {**TITLES, "README.md": b"not a title"}
BOM = b"\xef\xbb\xbf"


def write_folder(path: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)


def write_tar(path: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def write_zip(path: Path, files: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)


def write_7z(path: Path, files: dict[str, bytes]) -> None:
    with py7zr.SevenZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(content, name)


WRITERS: dict[str, Callable[[Path, dict[str, bytes]], None]] = {
    "corpus": write_folder,
    "corpus.tar": write_tar,
    "corpus.tar.gz": write_tar,
    "corpus.zip": write_zip,
    "corpus.7z": write_7z,
}


@pytest.fixture(params=WRITERS)
def corpus(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    WRITERS[request.param](tmp_path / request.param, FILES)
    return tmp_path / request.param


def one_file(folder: Path, content: bytes = b"Hola .", **options: Any) -> Source:
    """Loads a folder of one file, all of it for training."""
    write_folder(folder / "one", {"es_Spain_2000_Hola_movie_n_1.run": content})
    return load([folder / "one"], heldout_fraction=0, test_fraction=0, **options)


def test_every_container_gives_the_same_sentences(corpus: Path) -> None:
    source = load([corpus])
    lines = read_back(source)
    assert source.domains == ("Mexico", "Spain")
    assert {line[1:3] for line in lines} == {
        (name.split("_")[3], name.split("_")[1]) for name in TITLES
    }
    assert len(lines) == source.total == 28
    assert Counter(line[3] for line in lines)["¿ qué tal ?"] == 14
    assert source.left_out == {"files that belong to no client": 1}


def test_splits_are_whole_titles_within_each_locale(corpus: Path) -> None:
    found = {line[:3] for line in read_back(load([corpus]))}
    assert len(found) == 14  # no title in two splits
    assert Counter((split, locale) for split, _, locale in found) == {
        # A tenth of ten is one; of four it rounds to none, but no split may be left empty.
        ("train", "Spain"): 8,
        ("heldout", "Spain"): 1,
        ("test", "Spain"): 1,
        ("train", "Mexico"): 2,
        ("heldout", "Mexico"): 1,
        ("test", "Mexico"): 1,
    }


def test_slices_of_a_title_are_clients_of_the_same_split(tmp_path: Path) -> None:
    text = " ".join(f"Frase {i} ." for i in range(5)).encode()
    source = one_file(tmp_path, text, sentences_per_client=2)
    assert Counter(line[1] for line in read_back(source)) == {"Hola#0": 2, "Hola#1": 2, "Hola#2": 1}

    write_folder(tmp_path / "corpus", dict.fromkeys(TITLES, text))
    lines = read_back(load([tmp_path / "corpus"], sentences_per_client=2))
    assert len({line[1] for line in lines}) == 14 * 3
    assert len({(line[0], line[1].split("#")[0]) for line in lines}) == 14


def test_a_title_is_capped_before_it_is_cut(tmp_path: Path) -> None:
    text = " ".join(f"Frase {i} ." for i in range(5)).encode()
    source = one_file(tmp_path, text, max_sentences_per_client=3, sentences_per_client=2)
    assert [line[1::2] for line in read_back(source)] == [
        ("Hola#0", "frase 0 ."),
        ("Hola#0", "frase 1 ."),
        ("Hola#1", "frase 2 ."),
    ]
    assert source.left_out == {"sentences over 3 of a client": 2}


def test_training_clients_can_be_thinned(corpus: Path) -> None:
    def clients(**options: Any) -> set[tuple[str, str]]:
        return {(line[0], line[1]) for line in read_back(load([corpus], **options))}

    everyone, few = clients(), clients(train_clients="Mexico=1,Spain=3")
    assert few < everyone
    assert {split for split, _ in everyone - few} == {"train"}
    assert sum(split == "train" and client[0] == "M" for split, client in few) == 1
    source = load([corpus], train_clients="Mexico=1")
    read_back(source)
    assert source.left_out["files of training clients that were not drawn"] == 1


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("Mexico=9", "Mexico has 2 training clients, fewer than 9"),
        ("Mexico", "'Mexico' is not LOCALE=NUMBER"),
        ("Mexico=0", "'Mexico=0' is not LOCALE=NUMBER"),
        ("Mexica=1", "did you mean 'Mexico'"),
    ],
)
def test_bad_numbers_of_training_clients(corpus: Path, value: str, reason: str) -> None:
    assert reason in one_line(lambda: load([corpus], train_clients=value))


def test_another_pattern_and_locales_as_folders(tmp_path: Path) -> None:
    write_folder(tmp_path, {"ar/ann.txt": b"Vos sos .", "es/bob.txt": b"Eres .", "x.md": b""})
    options: dict[str, Any] = {"heldout_fraction": 0, "test_fraction": 0}
    pattern = r"^(?P<locale>\w+)/(?P<client>\w+)\.txt$"
    assert read_back(load([tmp_path], pattern=pattern, **options)) == [
        ("train", "ann", "ar", "vos sos ."),
        ("train", "bob", "es", "eres ."),
    ]
    assert "no regular expression" in one_line(lambda: load([tmp_path], pattern="("))
    assert "no group (?P<locale>" in one_line(lambda: load([tmp_path], pattern="(?P<client>.)"))
    assert "none of 3 files fits" in one_line(lambda: load([tmp_path]))


def test_client_and_locale_from_a_csv(tmp_path: Path) -> None:
    write_zip(tmp_path / "texts.zip", {"1.txt": b"Vos sos .", "2.txt": b"Eres .", "3.txt": b"No ."})
    table = tmp_path / "table.csv"
    table.write_text("\ufefflocale,file,client\nar,1.txt,ann\nes,2.txt,ann\n", encoding="utf-8")
    source = load([tmp_path / "texts.zip"], csv=table, heldout_fraction=0, test_fraction=0)
    assert read_back(source) == [  # one client with two domains
        ("train", "ann", "ar", "vos sos ."),
        ("train", "ann", "es", "eres ."),
    ]
    assert source.left_out == {"files that belong to no client": 1}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"file,client\n1.txt,ann\n", "line 1: no column 'locale'"),
        (b"", "line 1: no column 'file'"),
        (b"file,client,locale\n", "names no file"),
        (b"file,client,locale\n9.txt,ann,ar\n", "names '9.txt', which no source holds"),
        (b"file,client,locale\n1.txt,ann,ar\n1.txt,bob,es\n", "line 3: the file '1.txt' is there"),
        (b"file,client,locale\n1.txt,ann\n", "line 2: the locale is empty"),
        (b"file,client,locale\n1.txt,,ar\n", "line 2: the client id is empty"),
        (b"file,client,locale\n1.txt," + b"x" * 10_240 + b",ar\n", "line 2: the client id 'xxx"),
        (b'file,client,locale\n1.txt,"ann', "cannot be read as CSV: unexpected end of data"),
        (b"file,client,locale\n1.txt,a\xf1a,ar\n", "cannot be read as CSV: 'utf-8'"),
    ],
)
def test_a_bad_csv_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    write_folder(tmp_path / "texts", {"1.txt": b"Hola ."})
    table = tmp_path / "table.csv"
    table.write_bytes(content)
    message = one_line(lambda: load([tmp_path / "texts"], csv=table))
    assert str(table) in message
    assert reason in message


def test_encodings_and_empty_files(tmp_path: Path) -> None:
    latin = "El niño .".encode("latin-1")
    assert read_back(one_file(tmp_path, latin, encoding="latin-1"))[0][3] == "el niño ."
    assert read_back(one_file(tmp_path, BOM + "Niño .".encode()))[0][3] == "niño ."
    message = one_line(lambda: one_file(tmp_path, "Niño .".encode() + latin))
    assert "es_Spain_2000_Hola_movie_n_1.run cannot be read as utf-8" in message
    assert "position 12" in message
    empty = tmp_path / "empty"
    write_folder(empty, {**TITLES, "es_Spain_2000_Nada_movie_n_1.run": BOM + b" \n"})
    source = load([empty])
    assert "Nada" not in {line[1] for line in read_back(source)}
    assert source.left_out == {"files without text": 1}
    assert "unknown encoding" in one_line(lambda: one_file(tmp_path, encoding="klingon"))
    assert "not a text encoding" in one_line(lambda: one_file(tmp_path, encoding="hex"))


@pytest.mark.parametrize("name", ["corpus.tar", "corpus.tar.gz", "corpus.zip", "corpus.7z"])
def test_every_truncation_is_refused_or_whole(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name, TITLES)
    truncations_are_clean(tmp_path / name, lambda path: load([path]), archive=True)


@pytest.mark.parametrize("name", ["corpus.tar.gz", "corpus.zip"])
def test_a_member_outside_of_the_archive_is_only_a_name(tmp_path: Path, name: str) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    evil = {"../../" + key.removeprefix("plain/"): value for key, value in TITLES.items()}
    WRITERS[name](inner / name, evil)
    before = sorted(tmp_path.rglob("*"))
    assert len(read_back(load([inner / name]))) == 28
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["corpus.zip", "corpus.7z"])
@pytest.mark.filterwarnings("ignore:Duplicate name")  # zipfile's, when the test writes it
def test_a_file_that_is_there_twice_is_refused(tmp_path: Path, name: str) -> None:
    path, title = tmp_path / name, "es_Spain_2000_Hola_movie_n_1.run"
    if name.endswith("zip"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(title, "Uno .")
            archive.writestr(title, "Dos .")
    else:
        with py7zr.SevenZipFile(path, "w") as archive:
            archive.writestr("Uno .", title)
            archive.writestr("Dos .", title)
    assert f"{path}: the file '{title}' is there 2 times" in one_line(lambda: load([path]))


def test_links_in_a_tar_are_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "corpus.tar"
    with tarfile.open(path, "w") as archive:
        info = tarfile.TarInfo("es_Spain_2000_Hola_movie_n_1.run")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/hostname"
        archive.addfile(info)
    assert "none of 0 files" in one_line(lambda: load([path]))


@pytest.mark.parametrize("name", ["corpus.zip", "corpus.7z"])
def test_a_bomb_is_refused_by_its_ratio(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name, {"es_Spain_2000_Hola_movie_n_1.run": bytes(1 << 25)})
    options: dict[str, Any] = {"heldout_fraction": 0, "test_fraction": 0}
    assert "refused as a bomb" in one_line(lambda: load([tmp_path / name], **options))


def test_a_file_over_the_limit_is_refused(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_by_locale, "FILE_LIMIT", 10)
    message = one_line(lambda: load([corpus]))
    assert message.endswith("has more than 10 bytes")
    assert f"{corpus}: plain/es_" in message


def test_other_files_and_options_are_refused(tmp_path: Path) -> None:
    (tmp_path / "corpus.rar").write_bytes(b"Rar!")
    assert "is no folder, .tar" in one_line(lambda: load([tmp_path / "corpus.rar"]))
    assert "does not exist" in one_line(lambda: load([tmp_path / "absent.zip"]))
    assert "at least 1" in one_line(lambda: one_file(tmp_path, sentences_per_client=0))
    write_folder(tmp_path / "two", {name: TITLES[name] for name in sorted(TITLES)[:2]})
    assert "'Mexico' has 2 clients" in one_line(lambda: load([tmp_path / "two"]))


# Tokens between white space, as ACTIV-ES is distributed: 1.10, 0.98 and 1.38 million.
ACTIV_ES_TOKENS = {"Argentina": 1_103_037, "Mexico": 976_192, "Spain": 1_380_924}


@pytest.mark.slow
def test_activ_es() -> None:
    source = load([real_data("activ_es") / "activ_es.tar.gz"], length=2000)
    assert source.domains == tuple(ACTIV_ES_TOKENS)
    found: Counter[str] = Counter()
    titles: dict[str, set[str]] = {name: set() for name in source.domains}
    for rows in source.rows():
        words = (rows.features["tokens"] > 2).sum(axis=1)
        for client, domain, number in zip(rows.clients, rows.domain, words.tolist(), strict=True):
            found[source.domains[domain]] += number
            titles[source.domains[domain]].add(client)
    assert {name: len(own) for name, own in titles.items()} == {
        "Argentina": 128,
        "Mexico": 119,
        "Spain": 183,
    }
    assert source.left_out == {"files that belong to no client": 2}  # so no word was cut off
    for name, tokens in ACTIV_ES_TOKENS.items():
        assert abs(found[name] - tokens) < 0.001 * tokens
