# SPDX-License-Identifier: Apache-2.0
"""Blogs in the corpus's format, all of them synthetic; of the real ones nothing but counts."""

import io
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agnosticfl.data.loaders.blogs import load
from agnosticfl.data.source import Source
from tests.data.real import real_data
from tests.data.texts import one_line, read_back, truncations_are_clean

ALL_TRAIN: dict[str, Any] = {"heldout_fraction": 0, "test_fraction": 0}


def blog(*posts: bytes) -> bytes:
    dated = [b"<date>01,May,2004</date>\r\n<post>\r\n" + p + b"\r\n</post>\r\n" for p in posts]
    return b"<Blog>\r\n\r\n" + b"".join(dated) + b"</Blog>\r\n"


def write_tar(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:xz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(f"blogs/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def one_blog(folder: Path, content: bytes) -> Source:
    return load(
        [write_tar(folder / "one.tar.xz", {"7.male.25.indUnk.Leo.xml": content})], **ALL_TRAIN
    )


BLOGS = {
    "11.female.13.Student.Leo.xml": blog(b"A cat .", b"A dog ."),
    "12.male.17.indUnk.Aries.xml": blog(b"A cat ."),
    "13.male.23.Arts.Virgo.xml": blog(b"Two birds . One fish ."),
    "14.female.48.Law-Legal.Libra.xml": blog(b"A house ."),
}


def test_a_blogger_is_a_client_and_the_age_group_a_domain(tmp_path: Path):
    source = load([write_tar(tmp_path / "blogs.tar.xz", BLOGS)], **ALL_TRAIN)
    assert source.domains == ("teens", "twenties", "older")
    assert read_back(source) == [
        ("train", "11", "teens", "a cat ."),
        ("train", "11", "teens", "a dog ."),
        ("train", "12", "teens", "a cat ."),
        ("train", "13", "twenties", "one fish ."),
        ("train", "13", "twenties", "two birds ."),
        ("train", "14", "older", "a house ."),
    ]
    assert source.left_out == {}
    assert source.licence == "research, not commercial"


def test_files_that_are_no_xml_are_read(tmp_path: Path):
    """As the corpus has them: entities without a declaration, stray signs, odd bytes."""
    odd = blog(b"Fish &amp; chips&nbsp;& more < less .\x00\x01", b"Caf\xe9 .", b"Caf\xc3\xa9 .")
    lines = [line[3] for line in read_back(one_blog(tmp_path, odd))]
    assert lines == ["caf � .", "café .", "fish & chips & more < less ."]


def test_what_is_left_out_is_counted(tmp_path: Path):
    files = {
        **BLOGS,
        "15.male.20.indUnk.Leo.xml": blog(b"No such age ."),
        "readme.xml": b"",
        "16.male.24.indUnk.Leo.xml": blog(b"  "),
        "17.male.24.indUnk.Leo.xml": blog(b"One .", b"Two .", b"Three ."),
    }
    path = write_tar(tmp_path / "blogs.tar.xz", files)
    source = load([path], max_sentences_per_client=2, **ALL_TRAIN)
    found = Counter(line[1] for line in read_back(source))
    assert found == {"11": 2, "12": 1, "13": 2, "14": 1, "17": 2}
    assert source.left_out == {
        "files whose name tells no blogger of these ages": 2,
        "bloggers without text": 1,
        "sentences over 2 of a client": 1,
    }


def test_words_come_from_training_bloggers_only(tmp_path: Path):
    names = {f"{k}.male.{(15, 25, 40)[k % 3]}.indUnk.Leo.xml": k for k in range(100, 160)}
    files = {name: blog(f"word{k} .".encode()) for name, k in names.items()}
    source = load([write_tar(tmp_path / "blogs.tar.xz", files)], test_fraction=0.3)
    assert source.vocabulary is not None
    lines = read_back(source)
    split_of = {line[1]: line[0] for line in lines}
    assert len(split_of) == len(lines) == 60
    assert len(set(split_of.values())) == 3
    for client, split in split_of.items():
        assert (f"word{client}" in source.vocabulary) == (split == "train")


def test_a_blogger_is_there_once(tmp_path: Path):
    files = {**BLOGS, "more/11.female.14.Student.Leo.xml": blog(b"A cow .")}
    path = write_tar(tmp_path / "blogs.tar.xz", files)
    assert "blogger 11 is there twice" in one_line(lambda: load([path], **ALL_TRAIN))


def test_refusals_do_not_quote_a_blog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("agnosticfl.data.loaders.blogs.FILE_LIMIT", 40)
    message = one_line(lambda: one_blog(tmp_path, blog(b"A secret .")))
    assert message.endswith("blogger 7 has more than 40 bytes")


def test_every_truncation_is_refused_or_whole(tmp_path: Path):
    whole = write_tar(tmp_path / "blogs.tar.xz", BLOGS)
    truncations_are_clean(whole, lambda path: load([path], **ALL_TRAIN), 15, archive=True)


@pytest.mark.slow
def test_the_real_corpus_has_the_published_counts():
    source = load([real_data("blogs") / "blogs.tar.xz"], max_sentences_per_client=1)
    bloggers: Counter[str] = Counter()
    for rows in source.rows():
        bloggers.update(source.domains[i] for i in rows.domain.tolist())
    assert source.left_out["bloggers without text"] == 1
    assert bloggers == {"teens": 8_240, "twenties": 8_086 - 1, "older": 2_994}
