# SPDX-License-Identifier: Apache-2.0
"""Posts of a Stack Exchange dump, as XML or CSV, and the text in their HTML."""

import csv
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from xml.parsers import expat

from agnosticfl.data.formats.archives import lines
from agnosticfl.errors import BadInput, check, require

ROW_LIMIT = 1 << 26  # bytes of one post: a bound on memory
COLUMNS = ("PostTypeId", "OwnerUserId", "Body")

CODE = frozenset({"pre", "code", "script", "style"})
# Stack Exchange allows few tags; these end a line of text, all others stand within one.
BLOCKS = frozenset(
    {"p", "br", "hr", "div", "blockquote", "pre", "ul", "ol", "li", "dl", "dt", "dd"}
    | {"table", "tr", "td", "th", "h1", "h2", "h3", "h4", "h5", "h6"}
)

WHITE_SPACE = re.compile(r"\s+")


class Post(NamedTuple):
    """One post, its fields as they are in the file ("" if absent)."""

    place: str  # file and line, for messages
    kind: str  # PostTypeId: 1 question, 2 answer
    owner: str  # OwnerUserId
    body: str  # HTML


def read_xml(chunks: Iterator[bytes], place: str) -> Iterator[Post]:
    """The posts of a Posts.xml, in constant memory.

    A DOCTYPE is refused, since it is the only way to define entities (bombs, files of the reader).
    """
    parser = expat.ParserCreate()
    found: list[Post] = []

    def start(tag: str, attributes: Mapping[str, str]) -> None:
        here = f"{place}, line {parser.CurrentLineNumber}"
        if tag == "row":
            check("PostTypeId" in attributes, f"{here}: the row has no PostTypeId")
            found.append(Post(here, *(attributes.get(name, "") for name in COLUMNS)))
        else:
            check(tag == "posts", f"{here}: <{tag[:60]}> in a file that may hold <posts> and <row>")

    def doctype(*_: Any) -> None:
        raise BadInput(f"{place}, line {parser.CurrentLineNumber}: a DOCTYPE is not allowed")

    parser.StartElementHandler = start
    parser.StartDoctypeDeclHandler = doctype
    read = 0
    for chunk in chunks:
        _parse(parser, chunk, place)
        read += len(chunk)
        behind = read - max(parser.CurrentByteIndex, 0)
        line = parser.CurrentLineNumber
        check(behind <= ROW_LIMIT, f"{place}, line {line}: a row of more than {ROW_LIMIT} bytes")
        yield from found
        found.clear()
    _parse(parser, b"", place, final=True)
    yield from found


def _parse(parser: expat.XMLParserType, chunk: bytes, place: str, final: bool = False) -> None:
    try:
        parser.Parse(chunk, final)
    except expat.ExpatError as error:
        reason = expat.ErrorString(error.code)
        where = f"line {error.lineno}, column {error.offset + 1}"
        raise BadInput(f"{place}, {where}: {reason} (cut short, or not UTF-8 XML?)") from error
    except BadInput:
        raise
    except (LookupError, ValueError) as error:  # an encoding that is unknown or of several bytes
        raise BadInput(f"{place}: {error}; UTF-8 is needed") from error


def read_csv(chunks: Iterator[bytes], place: str) -> Iterator[Post]:
    """The posts of a Posts.csv with a header line."""
    csv.field_size_limit(ROW_LIMIT)
    rows = csv.reader(_decoded(lines(chunks, place, ROW_LIMIT), place), strict=True)
    header = _next_row(rows, place)
    if header is None:
        raise BadInput(f"{place} is empty; a header with {', '.join(COLUMNS)} is needed")
    for name in COLUMNS:
        check(name in header, f"{place}, line 1: there is no column {name!r} in {header}"[:300])
    columns = [header.index(name) for name in COLUMNS]
    line = rows.line_num + 1
    while (row := _next_row(rows, place)) is not None:
        here = f"{place}, line {line}"
        line = rows.line_num + 1
        if not row:  # an empty line
            continue
        check(
            len(row) == len(header),
            f"{here}: {len(row)} fields, but the header has {len(header)} (cut short?)",
        )
        yield Post(here, *(row[column] for column in columns))


def _decoded(raw: Iterator[bytes], place: str) -> Iterator[str]:
    for number, line in enumerate(raw, 1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            where = f"line {number}, byte {error.start + 1}"
            raise BadInput(f"{place}, {where}: not UTF-8; convert the file to UTF-8") from error


def _next_row(rows: Any, place: str) -> list[str] | None:
    try:
        return next(rows, None)
    except csv.Error as error:
        raise BadInput(f"{place}, line {rows.line_num}: {error} (cut short?)") from error


class _Text:
    """Receives what the HTML parser finds: keeps text that is not code, a line a block."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.in_code = 0

    def start(self, tag: str, _: Mapping[str, str]) -> None:
        self.in_code += tag in CODE
        self._border(tag)

    def end(self, tag: str) -> None:
        self.in_code -= tag in CODE
        self._border(tag)

    def data(self, data: str) -> None:
        if not self.in_code:
            self.parts.append(WHITE_SPACE.sub(" ", data))  # a line break in a paragraph is a space

    def close(self) -> str:
        return "".join(self.parts)

    def _border(self, tag: str) -> None:
        if tag in BLOCKS:
            self.parts.append("\n")


def html_text(html: str) -> str:
    """The text of a piece of HTML without <pre>, <code>, scripts and styles; a line a block."""
    etree = require("lxml.etree", "reading HTML")
    if not html.strip():
        return ""
    parser = etree.HTMLParser(target=_Text(), remove_comments=True, remove_pis=True)
    try:
        return etree.fromstring(f"<div>{html.replace(chr(0), ' ')}</div>", parser)
    except etree.LxmlError as error:
        raise ValueError(" ".join(str(error).split())) from error
