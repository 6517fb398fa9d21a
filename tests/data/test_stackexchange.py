# SPDX-License-Identifier: Apache-2.0
"""Stack Exchange dumps: XML and CSV; plain, .gz and .7z."""

import csv
import gzip
import io
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.sax.saxutils import quoteattr

import py7zr
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agnosticfl.data.formats import posts
from agnosticfl.data.formats.posts import Post, html_text, read_csv, read_xml
from agnosticfl.data.loaders.stackexchange import load
from agnosticfl.data.source import Source
from tests.data.real import real_data
from tests.data.texts import one_line, read_back, refusal, truncations_are_clean

ReadPosts = Callable[[Iterator[bytes], str], Iterator[Post]]

# PostTypeId, OwnerUserId, Body
POSTS = [
    ("1", "7", "<p>How do I sort?\nI tried <code>sort</code> it.</p>\n<pre><code>x</code></pre>"),
    ("2", "8", "<p>Like this:</p>\n<ul><li>first</li><li>second</li></ul>"),
    ("2", "7", '<p><img src="x.png" alt="no text"></p>'),
    ("2", "", "<p>nobody's</p>"),
    ("5", "9", "<p>a tag wiki</p>"),
    ("2", "-1", "<p>cañón &lt; &amp; más</p>"),
]
EXPECTED = [
    ("train", "ai:-1", "answer", "cañón < & más"),
    ("train", "ai:7", "question", "how do i sort ?"),
    ("train", "ai:7", "question", "i tried it ."),
    ("train", "ai:8", "answer", "first"),
    ("train", "ai:8", "answer", "like this :"),
    ("train", "ai:8", "answer", "second"),
]
LEFT_OUT = {
    "posts that are neither question nor answer": 1,
    "posts without an owner": 1,
    "posts without text": 1,
}


def as_xml(rows: list[tuple[str, str, str]] = POSTS) -> bytes:
    lines = [
        f'  <row Id="{number}" PostTypeId={quoteattr(kind)}'
        + (f" OwnerUserId={quoteattr(owner)}" if owner else "")
        + f" Body={quoteattr(body)} />\n"
        for number, (kind, owner, body) in enumerate(rows)
    ]
    text = f'<?xml version="1.0" encoding="utf-8"?>\n<posts>\n{"".join(lines)}</posts>'
    return b"\xef\xbb\xbf" + text.encode()  # real dumps start with a BOM


def as_csv(rows: list[tuple[str, str, str]] = POSTS) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["OwnerUserId", "Body", "Id", "PostTypeId", "Score"])
    writer.writerows([owner, body, n, kind, "3"] for n, (kind, owner, body) in enumerate(rows))
    return b"\xef\xbb\xbf" + text.getvalue().encode()


def as_7z(member: str, content: bytes) -> bytes:
    packed = io.BytesIO()
    with py7zr.SevenZipFile(packed, "w") as archive:
        archive.writestr(b"<badges></badges>", "Badges.xml")
        archive.writestr(content, member)
    return packed.getvalue()


FILES: dict[str, Callable[[], bytes]] = {
    "ai.Posts.xml": as_xml,
    "ai.Posts.xml.gz": lambda: gzip.compress(as_xml()),
    "ai.Posts.csv": as_csv,
    "ai.Posts.csv.gz": lambda: gzip.compress(as_csv()),
    "ai.stackexchange.com.7z": lambda: as_7z("Posts.xml", as_xml()),
    "ai-Posts.7z": lambda: as_7z("Posts.csv", as_csv()),
}


@pytest.fixture(params=FILES)
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / request.param
    path.write_bytes(FILES[request.param]())
    return path


def load_all_train(*paths: Path) -> Source:
    return load(paths, heldout_fraction=0, test_fraction=0)


def load_bytes(folder: Path, content: bytes, name: str = "ai.Posts.xml") -> Source:
    path = folder / name
    path.write_bytes(content)
    return load_all_train(path)


def test_every_form_gives_the_same_sentences(file: Path) -> None:
    source = load_all_train(file)
    assert read_back(source) == EXPECTED
    assert source.left_out == LEFT_OUT
    assert source.domains == ("question", "answer")


def test_a_client_is_capped(file: Path) -> None:
    source = load([file], max_sentences_per_client=2, heldout_fraction=0, test_fraction=0)
    assert read_back(source) == [line for line in EXPECTED if line[3] != "second"]
    assert source.left_out == {**LEFT_OUT, "sentences over 2 of a client": 1}


def test_every_truncation_is_refused_or_read(file: Path) -> None:
    truncations_are_clean(file, load_all_train)


def test_an_archive_can_be_left_half_read(tmp_path: Path) -> None:
    many = [("1", str(i), "<p>hello there</p>") for i in range(20_000)]
    path = tmp_path / "ai.7z"
    path.write_bytes(as_7z("Posts.xml", as_xml(many)))
    words = tmp_path / "words"
    words.write_text("hello 1")
    threads = threading.active_count()
    rows = load([path], vocab=words).rows()
    assert len(next(rows).clients) == 4096
    assert threading.active_count() == threads + 1  # the one that unpacks
    del rows
    assert threading.active_count() == threads


def test_several_sites_and_folders(tmp_path: Path) -> None:
    (tmp_path / "ai.Posts.xml").write_bytes(as_xml())
    (tmp_path / "beer.Posts.csv.gz").write_bytes(gzip.compress(as_csv()))
    (tmp_path / "README").write_text("not a dump")
    unpacked = tmp_path / "history.meta.stackexchange.com"
    unpacked.mkdir()
    (unpacked / "Posts.xml").write_bytes(as_xml())
    clients = {line[1] for line in read_back(load_all_train(tmp_path, unpacked))}
    sites = ("ai", "beer", "history.meta")
    assert clients == {f"{site}:{owner}" for site in sites for owner in ("7", "8", "-1")}
    again = tmp_path / "ai.Posts.xml"
    assert "site 'ai' is given 2 times" in one_line(lambda: load([tmp_path, again]))
    assert "is no file of posts" in one_line(lambda: load([tmp_path / "README"]))
    assert "does not exist" in one_line(lambda: load([tmp_path / "x.Posts.xml"]))


def test_clients_are_split_whole_and_by_seed(tmp_path: Path) -> None:
    path = tmp_path / "ai.Posts.xml"
    path.write_bytes(as_xml([("2", str(i % 300), "<p>hello</p>") for i in range(900)]))
    splits = {(split, client) for split, client, _, _ in read_back(load([path]))}
    assert len(splits) == 300  # no client in two splits
    # Means 240, 30, 30; the bounds are four standard deviations, √(300 · 0.1 · 0.9) = 5.2.
    found = Counter(split for split, _ in splits)
    assert abs(found["heldout"] - 30) < 21
    assert abs(found["test"] - 30) < 21
    assert splits != {line[:2] for line in read_back(load([path], seed=1))}
    assert "fraction" in one_line(lambda: load([path], test_fraction=1.5))


def test_xml_cut_in_a_row_names_file_and_line(tmp_path: Path) -> None:
    cut = as_xml()[: as_xml().index(b"first")]
    message = one_line(lambda: load_bytes(tmp_path, cut))
    assert f"{tmp_path / 'ai.Posts.xml'}, line 4, column 3" in message


def test_a_truncated_gzip_names_the_file(tmp_path: Path) -> None:
    cut = gzip.compress(as_xml())[:-10]
    message = one_line(lambda: load_bytes(tmp_path, cut, "ai.Posts.xml.gz"))
    assert "ai.Posts.xml.gz cannot be read" in message


BOMB = b"""<?xml version="1.0"?>
<!DOCTYPE posts [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;">]>
<posts><row PostTypeId="1" OwnerUserId="1" Body="&c;"/></posts>"""
OUTSIDE = b"""<!DOCTYPE posts [<!ENTITY x SYSTEM "file:///etc/hostname">]>
<posts><row PostTypeId="1" OwnerUserId="1" Body="x"/></posts>"""


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (BOMB, "line 2: a DOCTYPE is not allowed"),
        (OUTSIDE, "line 1: a DOCTYPE is not allowed"),
        (b'<posts><row PostTypeId="1" Body="&x;"/></posts>', "undefined entity"),
        (b'<posts>\n<row PostTypeId="1" Body="ca\xf1a"/></posts>', "line 2, column 29"),
        (b'<?xml version="1.0" encoding="klingon"?><posts/>', "unknown encoding"),
        (b'<posts>\n<row Id="1"/></posts>', "line 2: the row has no PostTypeId"),
        (b"<users></users>", "line 1: <users>"),
        (as_xml([("1", "12x", "<p>a</p>")]), "line 3: OwnerUserId is '12x'"),
        (as_xml([("1", "1" * 10_240, "<p>a</p>")]), "line 3: OwnerUserId is '1111"),
        (b"", "line 1, column 1: no element found"),
    ],
)
def test_bad_xml_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    message = one_line(lambda: load_bytes(tmp_path, content))
    assert message.startswith(str(tmp_path))
    assert reason in message


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"Id,Body,PostTypeId\n1,x,1\n", "line 1: there is no column 'OwnerUserId'"),
        (b"OwnerUserId,Body,PostTypeId\n1,x,1\n1,x\n", "line 3: 2 fields, but the header has 3"),
        (b'OwnerUserId,Body,PostTypeId\n1,"x\ny', "line 3: unexpected end of data"),
        (b"OwnerUserId,Body,PostTypeId\n1,ca\xf1a,1\n", "line 2, byte 5: not UTF-8"),
    ],
)
def test_bad_csv_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    message = one_line(lambda: load_bytes(tmp_path, content, "ai.Posts.csv"))
    assert message.startswith(str(tmp_path))
    assert reason in message


def test_a_row_without_end_is_refused_before_it_fills_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posts, "ROW_LIMIT", 1 << 21)
    bomb = gzip.compress(b'<posts><row Body="' + b"x" * (1 << 24))
    message = one_line(lambda: load_bytes(tmp_path, bomb, "ai.Posts.xml.gz"))
    assert "a row of more than 2097152 bytes" in message
    lines = gzip.compress(b"OwnerUserId,Body,PostTypeId\n" + b"x" * (1 << 24))
    message = one_line(lambda: load_bytes(tmp_path, lines, "ai.Posts.csv.gz"))
    assert "line 2 is longer than 2097152 bytes" in message


def test_a_7z_bomb_and_a_7z_without_posts_are_refused(tmp_path: Path) -> None:
    bomb = as_7z("Posts.xml", bytes(1 << 25))
    assert "refused as a bomb" in one_line(lambda: load_bytes(tmp_path, bomb, "ai.7z"))
    other = as_7z("Users.xml", b"<users/>")
    assert "holds no Posts.xml" in one_line(lambda: load_bytes(tmp_path, other, "ai.7z"))


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "py7zr", None)
    message = one_line(lambda: load_bytes(tmp_path, b"", "ai.7z"))
    assert message == "reading .7z needs py7zr: pip install 'agnosticfl[data]'"


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<p>a <b>b</b>c<br>d</p>e", "a bc|d|e"),
        ("one <code>two</code> three<pre>four</pre>five", "one three|five"),
        ("<pre><code>never closed", ""),
        ("a</pre></code>b", "ab"),
        ("x &lt; y &amp; z <!-- no --> w", "x < y & z w"),
        ("<script>no</script>a\nb", "a b"),
        ("<div>" * 5000 + "deep" + "</div>" * 5000, "deep"),
        ("\0a", "a"),
        ("", ""),
    ],
)
def test_html_to_text(html: str, text: str) -> None:
    lines = (" ".join(line.split()) for line in html_text(html).split("\n"))
    assert "|".join(filter(None, lines)) == text


@given(st.text())
def test_any_html_has_a_text(html: str) -> None:
    assert isinstance(html_text(html), str)


def noisy(content: bytes) -> st.SearchStrategy[bytes]:
    """`content` with a few bytes put in at a random place."""
    place = st.integers(0, len(content))
    return st.builds(
        lambda noise, at: content[:at] + noise + content[at:], st.binary(max_size=6), place
    )


@given(noisy(as_xml()), st.integers(1, 400))
def test_any_xml_is_refused_or_read(content: bytes, size: int) -> None:
    pieces = (content[i : i + size] for i in range(0, len(content), size))
    message = refusal(lambda: list(read_xml(pieces, "here")))
    assert message is None or message.startswith("here")


@given(noisy(as_csv()), st.integers(1, 400))
def test_any_csv_is_refused_or_read(content: bytes, size: int) -> None:
    pieces = (content[i : i + size] for i in range(0, len(content), size))
    message = refusal(lambda: list(read_csv(pieces, "here")))
    assert message is None or message.startswith("here")


@pytest.mark.parametrize(("read", "content"), [(read_xml, as_xml()), (read_csv, as_csv())])
def test_chunk_borders_do_not_matter(read: ReadPosts, content: bytes) -> None:
    single = [bytes([byte]) for byte in content]
    assert list(read(iter(single), "here")) == list(read(iter([content]), "here"))


@pytest.mark.slow
def test_the_real_dumps() -> None:
    source = load([real_data("stackexchange")])
    lines = read_back(source)
    assert len({line[1] for line in lines}) == 3306  # users with at least one sentence
    assert Counter(line[2] for line in lines) == {"question": 36_698, "answer": 94_418}
    assert source.left_out["posts that are neither question nor answer"] == 847
    assert source.left_out["posts without an owner"] == 159
    assert source.left_out["posts without text"] == 86
