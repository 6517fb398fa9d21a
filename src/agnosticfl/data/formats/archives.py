# SPDX-License-Identifier: Apache-2.0
"""Files in folders and archives, read as streams: nothing is ever extracted to the disk.

So a member called `../../x` is only a name, and a bomb costs time but no memory: whoever reads a
member stops at a limit of their own.
"""

import bz2
import gzip
import itertools
import lzma
import queue
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

from agnosticfl.data.formats.files import reading
from agnosticfl.errors import BadInput, check, require

CHUNK = 1 << 20
# Dumps shrink about fourfold; what shrinks this much is no text but a bomb.
HIGHEST_RATIO, RATIO_MATTERS_FROM = 200, 1 << 24

# How compressed files begin, and what reads them.
PACKED: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}
TAR_END = bytes(2 * tarfile.BLOCKSIZE)

Wanted: TypeAlias = Callable[[str], bool]  # path inside the archive -> read it?


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class Member(NamedTuple):
    """One file of an archive; `chunks` must be read before the next member is asked for."""

    name: str  # path inside the archive or folder, with forward slashes
    chunks: Iterator[bytes]


def chunks(path: Path) -> Iterator[bytes]:
    """The bytes of a file, unpacked if its name ends in .gz."""
    with reading(path), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
        yield from _stream_chunks(stream, path)


def lines(pieces: Iterator[bytes], place: object, limit: int) -> Iterator[bytes]:
    """The lines in a stream of bytes, with their ends, none longer than `limit`."""
    rest = b""
    number = 0
    for piece in pieces:
        *whole, rest = (rest + piece).splitlines(keepends=True) or [b""]
        if rest.endswith(b"\n"):
            whole, rest = [*whole, rest], b""
        number += len(whole)
        check(len(rest) <= limit, f"{place}: line {number + 1} is longer than {limit} bytes")
        yield from whole
    if rest:
        yield rest


def members(path: Path, wanted: Wanted) -> Iterator[Member]:
    """The wanted files of a folder, or of a .tar (.gz, .bz2, .xz), .zip or .7z archive."""
    if path.is_dir():
        return _folder(path, wanted)
    check(path.is_file(), f"{path} does not exist; a folder or an archive is needed")
    for suffixes, reader in (
        ((".zip",), _zip),
        ((".7z",), _seven_zip),
        ((".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz"), _tar),
    ):
        if path.name.lower().endswith(suffixes):
            return reader(path, wanted)
    raise BadInput(f"{path} is no folder, .tar, .tar.gz, .tar.bz2, .tar.xz, .tgz, .zip or .7z")


def _folder(path: Path, wanted: Wanted) -> Iterator[Member]:
    with reading(path):
        files = [file for file in sorted(path.rglob("*")) if file.is_file()]
    for file in files:
        name = file.relative_to(path).as_posix()
        if wanted(name):
            yield Member(name, chunks(file))


def _tar(path: Path, wanted: Wanted) -> Iterator[Member]:
    with reading(path), _unpacked(path) as unpacked:
        watched: Any = _Watched(unpacked)  # of a file it has what tarfile uses of a stream
        with tarfile.open(fileobj=watched, mode="r|") as archive:
            for info in archive:
                if info.isreg() and wanted(info.name):
                    stream = archive.extractfile(info)
                    assert stream is not None  # never, for a regular file
                    yield Member(info.name, _stream_chunks(stream, f"{path}: {info.name}"))
        while watched.read(CHUNK):  # to the end, where what packed it notes a checksum
            pass
        check(watched.tail == TAR_END, f"{path} is cut off: it does not end as an archive does")


def _unpacked(path: Path) -> Any:
    """The bytes of a .tar, whatever it is packed with; who packed it is seen by its beginning."""
    with path.open("rb") as file:
        beginning = file.read(max(map(len, PACKED)))
    for magic, opener in PACKED.items():
        if beginning.startswith(magic):
            return opener(path)
    return path.open("rb")


class _Watched:
    """A stream whose last bytes are known: Python takes a .tar that is cut off for its end."""

    def __init__(self, stream: Readable):
        self._stream, self.tail = stream, b""

    def read(self, size: int) -> bytes:
        piece = self._stream.read(size)
        self.tail = (self.tail + piece)[-len(TAR_END) :]
        return piece


def _zip(path: Path, wanted: Wanted) -> Iterator[Member]:
    with reading(path), zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if not info.is_dir() and wanted(info.filename):
                place = f"{path}: {info.filename}"
                _check_ratio(info.file_size, info.compress_size, place)
                with archive.open(info) as stream:
                    yield Member(info.filename, _stream_chunks(stream, place))


def _seven_zip(path: Path, wanted: Wanted) -> Iterator[Member]:
    pieces = pulled(lambda push: _push_seven_zip(path, wanted, push))
    for name, group in itertools.groupby(pieces, key=lambda piece: piece[0]):
        yield Member(name, (chunk for _, chunk in group))


def _push_seven_zip(path: Path, wanted: Wanted, push: Callable[[tuple[str, bytes]], None]) -> None:
    py7zr = require("py7zr", "reading .7z")
    names: set[str] = set()

    class Writer(py7zr.Py7zIO):
        """Where py7zr writes one member as it is unpacked."""

        def __init__(self, name: str) -> None:
            self.name = name
            push((name, b""))  # an empty member is one, too

        def write(self, s: bytes | bytearray) -> int:
            for start in range(0, len(s), CHUNK):
                push((self.name, bytes(s[start : start + CHUNK])))
            return len(s)

        def read(self, size: int | None = None) -> bytes:  # noqa: ARG002
            return b""

        def seek(self, offset: int, whence: int = 0) -> int:  # noqa: ARG002
            return 0

        def flush(self) -> None: ...

        def size(self) -> int:
            return 0

    class Writers(py7zr.WriterFactory):
        def create(self, filename: str) -> Any:
            # py7zr tidies names, and renames the second of two equal ones.
            check(
                filename in names, f"{path}: the file name {filename!r} is no plain path of its own"
            )
            return Writer(filename)

    # An open file instead of a path keeps py7zr from unpacking in several threads at once.
    with reading(path), path.open("rb") as stream, py7zr.SevenZipFile(stream) as archive:
        files = [info for info in archive.list() if not info.is_directory]
        total = sum(info.uncompressed for info in files)
        _check_ratio(total, path.stat().st_size, str(path))
        names.update(info.filename for info in files if wanted(info.filename))
        if names:
            archive.extract(targets=names, factory=Writers())


def _check_ratio(size: int, packed: int, place: str) -> None:
    check(
        size < RATIO_MATTERS_FROM or size <= HIGHEST_RATIO * packed,
        f"{place} would unpack from {packed} to {size} bytes: more than {HIGHEST_RATIO}-fold,"
        " so it is refused as a bomb",
    )


def _stream_chunks(stream: Readable, place: object) -> Iterator[bytes]:
    with reading(place):
        while chunk := stream.read(CHUNK):
            yield chunk


class _StoppedError(Exception):
    """Nobody takes what is pushed any more."""


def pulled(work: Callable[[Callable[[Any], None]], None]) -> Iterator[Any]:
    """What `work(push)` pushes, as an iterator; `work` runs in a thread, one item ahead."""
    items: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(maxsize=1)
    end, stopped = object(), threading.Event()

    def put(item: Any, error: BaseException | None = None) -> None:
        while not stopped.is_set():
            try:
                return items.put((item, error), timeout=0.1)
            except queue.Full:
                continue
        raise _StoppedError

    def run() -> None:
        failure = None
        try:
            work(put)
        except BaseException as error:  # carried to the thread that asked
            failure = error
        with suppress(_StoppedError):
            put(end, failure)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        while True:
            item, error = items.get()
            if error is not None:
                raise error
            if item is end:
                return
            yield item
    finally:
        stopped.set()
        thread.join()
