# SPDX-License-Identifier: Apache-2.0
"""Downloads the public data sets: resumed after a break, checked, and in place only when whole."""

import base64
import hashlib
import http.client
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from agnosticfl.errors import BadInput, check, choose

# Called after each block with the file's name, the bytes there so far, and all (None: unknown).
Progress: TypeAlias = Callable[[str, int, int | None], None]

_FEDJAX = "https://storage.googleapis.com/gresearch/fedjax"
_BLOCK = 1 << 18
_TIMEOUT = 60.0  # seconds without a byte
_ATTEMPTS = 5  # in a row that bring nothing new
_PAUSE = 2.0  # seconds between attempts


class DataSet(NamedTuple):
    """Files of one data set below one address."""

    base: str
    files: tuple[str, ...]
    note: str


# FedJAX publishes no checksums. What arrives is held against the length and the MD5 that the host
# sends with it, and against the caller's SHA-256.
_DATA_SETS = {
    "emnist": DataSet(
        f"{_FEDJAX}/emnist",
        ("federated_emnist_train.sqlite", "federated_emnist_test.sqlite"),
        "EMNIST by writer, as FedJAX ships it",
    ),
    "stackoverflow": DataSet(
        f"{_FEDJAX}/stackoverflow",
        (
            "stackoverflow_train.sqlite",  # 5,506,732,032 bytes, as its users report
            "stackoverflow_held_out.sqlite",
            "stackoverflow_test.sqlite",
            "stackoverflow.word_count",
        ),
        "Stack Overflow sentences by user, as FedJAX ships it; train alone is 5.5 GB",
    ),
}


class _BrokenOffError(Exception):
    """The connection ended early; what arrived is kept."""


def names() -> dict[str, str]:
    """What can be fetched: name -> what it is."""
    return {name: data.note for name, data in _DATA_SETS.items()}


def fetch(
    name: str,
    out: Path,
    progress: Progress | None = None,
    base: str | None = None,
    sha256: Mapping[str, str] | None = None,
) -> list[Path]:
    """Downloads data set `name` into the folder `out` and returns its files.

    A file that is there already is not fetched again. A part that an earlier call left is resumed.

    Args:
      name: one of `names()`.
      out: the folder, made if needed.
      progress: is told how far each file is.
      base: address of a mirror that has files of the same names.
      sha256: file name -> hexadecimal SHA-256 it must have.
    """
    data = _DATA_SETS[choose(name, _DATA_SETS, "data set")]
    base, sha256 = base or data.base, sha256 or {}
    check(base.startswith(("http://", "https://")), f"{base!r} is no http or https address")
    for file in sha256:
        choose(file, data.files, f"file of {name}")
    urls = {file: f"{base.rstrip('/')}/{file}" for file in data.files}
    for file, url in urls.items():
        try:
            out.mkdir(parents=True, exist_ok=True)
            _fetch_file(url, out / file, sha256.get(file), progress or (lambda *_: None))
        except urllib.error.URLError as error:
            by_hand = (
                f"on another machine, download {' '.join(urls.values())} and put them in {out}"
            )
            raise BadInput(f"cannot reach {url} ({error.reason}); {by_hand}") from error
        except OSError as error:
            raise BadInput(f"cannot write {out / file} ({error.strerror or error})") from error
    return [out / file for file in urls]


def _fetch_file(url: str, target: Path, sha256: str | None, progress: Progress) -> None:
    if target.exists():
        problem = _wrong_digest(target, "sha256", sha256)
        check(not problem, f"{target} is there, but {problem}; delete it to fetch it again")
        return
    part = target.with_name(f"{target.name}.part")
    md5 = _receive_all(url, part, progress)
    problem = _wrong_digest(part, "sha256", sha256) or _wrong_digest(part, "md5", md5)
    if problem:
        part.unlink()
        raise BadInput(f"{url} sent wrong bytes: {problem}; they were deleted")
    part.replace(target)


def _receive_all(url: str, part: Path, progress: Progress) -> str | None:
    """Goes on after breaks until `part` is whole, as long as there is progress; returns its MD5."""
    idle = 0
    while True:
        before = _size(part)
        try:
            return _receive(url, part, progress)
        except _BrokenOffError as error:
            idle = idle + 1 if _size(part) <= before else 0
            if idle == _ATTEMPTS:
                kept = f"{part} keeps {_size(part)} bytes; run the command again to go on"
                raise BadInput(f"{url} broke off {idle} times ({error}); {kept}") from error
        time.sleep(_PAUSE)


def _receive(url: str, part: Path, progress: Progress) -> str | None:
    """Asks for what `part` lacks and writes it; returns the MD5 of the whole, if the host says it.

    The last byte is asked for again: so a part that is whole already needs no case of its own.
    """
    start = max(_size(part) - 1, 0)
    with _open(url, start, part) as response:
        start, total = _extent(response, start, url)
        with part.open("r+b" if start else "wb") as file:
            file.seek(start)
            while block := _read_block(response):
                file.write(block)
                progress(part.stem, file.tell(), total)
        if total is not None and _size(part) < total:
            raise _BrokenOffError(f"{_size(part)} of {total} bytes came")
        return _host_md5(response)


def _extent(response: Any, asked: int, url: str) -> tuple[int, int | None]:
    """At which byte the answer starts, and how long the whole file is (None: not said)."""
    if response.status != http.client.PARTIAL_CONTENT:
        return 0, response.length  # the host does not resume: the file comes from its beginning
    content_range = response.headers.get("Content-Range", "")
    match = re.fullmatch(rf"bytes {asked}-\d+/(\d+)", content_range)
    if match is None:
        raise BadInput(f"{url} sent the range {content_range!r}; bytes {asked}- were asked for")
    return asked, int(match[1])


def _open(url: str, start: int, part: Path) -> Any:
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        return urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        answer = f"{error.code} {error.reason}"
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            part.unlink(
                missing_ok=True
            )  # longer than the file of the host: a part of something else
            raise _BrokenOffError(answer) from error
        if error.code >= http.client.INTERNAL_SERVER_ERROR:
            raise _BrokenOffError(answer) from error
        raise BadInput(f"{url} cannot be had: the host answered {answer}") from error
    except urllib.error.URLError:
        raise
    except (OSError, http.client.HTTPException) as error:
        raise _BrokenOffError(repr(error)) from error


def _read_block(response: Any) -> bytes:
    try:
        return response.read(_BLOCK)
    except (OSError, http.client.HTTPException) as error:
        raise _BrokenOffError(repr(error)) from error


def _host_md5(response: Any) -> str | None:
    """Google's storage sends "x-goog-hash: crc32c=…, md5=…" of the whole file, in base64."""
    for value in ",".join(response.headers.get_all("x-goog-hash", [])).split(","):
        kind, _, digest = value.strip().partition("=")
        if kind == "md5":
            with suppress(ValueError):
                return base64.b64decode(digest).hex()
    return None


def _wrong_digest(path: Path, kind: str, expected: str | None) -> str:
    """What is wrong with the file's digest; empty when it is right or nothing is expected."""
    if expected is None:
        return ""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, kind).hexdigest()
    right = found == expected.lower()
    return "" if right else f"its {kind.upper()} is {found}, not {expected}"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
