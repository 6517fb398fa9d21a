# SPDX-License-Identifier: Apache-2.0
"""What the tests of text loaders share."""

from collections.abc import Callable
from pathlib import Path

from agnosticfl.core.tokens import BOS, EOS, PAD
from agnosticfl.data.source import Source
from agnosticfl.errors import BadInput

Line = tuple[str, str, str, str]  # split, client, domain, words


def read_back(source: Source) -> list[Line]:
    """Every example, its token ids as words again, sorted."""
    assert source.vocabulary is not None
    found: list[Line] = []
    for rows in source.rows():
        for client, domain, ids in zip(
            rows.clients, rows.domain, rows.features["tokens"].tolist(), strict=True
        ):
            words = [source.vocabulary[i] for i in ids if i not in (PAD, BOS, EOS)]
            found.append((rows.split, client, source.domains[domain], " ".join(words)))
    return sorted(found)


def refusal(call: Callable[[], object]) -> str | None:
    """The one line with which `call` refuses its input, or None if it does not."""
    try:
        call()
    except BadInput as error:
        message = str(error)
    else:
        return None
    assert "\n" not in message
    return message


def one_line(call: Callable[[], object]) -> str:
    """The one line with which `call` must refuse its input."""
    message = refusal(call)
    assert message is not None
    return message


def truncations_are_clean(
    whole: Path, load: Callable[[Path], Source], steps: int = 40, archive: bool = False
) -> None:
    """Cuts a file at many places: each must load or be refused as bad input, and some must.

    Args:
      archive: what loads must be the whole of it, since an archive says where it ends.
    """
    data, cut = whole.read_bytes(), whole.parent / "cut" / whole.name
    cut.parent.mkdir()
    messages: list[str | None] = []
    everything = read_back(load(whole))
    for size in range(0, len(data), max(1, len(data) // steps)):
        cut.write_bytes(data[:size])
        messages.append(refusal(lambda: read_back(load(cut))))
        if archive and messages[-1] is None:
            assert read_back(load(cut)) == everything
    assert any(messages)
    for message in filter(None, messages):
        assert str(cut) in message or "no training client" in message
