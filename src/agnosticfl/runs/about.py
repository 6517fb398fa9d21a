# SPDX-License-Identifier: Apache-2.0
"""What a model must be told of its data when it is in use: `about.json` of a run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from agnosticfl.core.federated import About, Splits
from agnosticfl.data.sources.store import about
from agnosticfl.errors import BadInput, check
from agnosticfl.files import read_json, write_json

FILE = "about.json"


class Facts(NamedTuple):
    """Of the data that a model was trained on."""

    data: About
    features: Mapping[str, tuple[str, tuple[int, ...]]]  # name -> type and shape of one example


def facts_of(data: Splits) -> Facts:
    """The facts of some data; a server whose clients are elsewhere has test examples only."""
    examples = data.train.examples or data.test.examples
    shapes = {name: (array.dtype.name, array.shape[1:]) for name, array in examples.items()}
    return Facts(data.about, shapes)


def facts_of_store(store: Any) -> Facts:
    """The same of a store."""
    return Facts(about(store), {name: tuple(form) for name, form in store.meta.features.items()})


def write_facts(folder: Path, facts: Facts) -> None:
    write_json(folder / FILE, {"data": facts.data._asdict(), "features": dict(facts.features)})


def read_facts(folder: Path) -> Facts:
    """The inverse."""
    file = folder / FILE
    check(file.exists(), f"{folder} has no {FILE}: a run of an older version; train again")
    try:
        raw = read_json(file)
        data: Any = {k: tuple(v) if isinstance(v, list) else v for k, v in raw["data"].items()}
        features = {name: (kind, tuple(shape)) for name, (kind, shape) in raw["features"].items()}
        return Facts(About(**data), features)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadInput(f"{file} cannot be read: {type(error).__name__} {error}") from None
