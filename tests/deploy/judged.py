# SPDX-License-Identifier: Apache-2.0
"""A federation whose clients evaluate, held against the simulator in the same mode."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from agnosticfl.deploy.node.examples import dealt
from agnosticfl.files import read_json
from agnosticfl.registry import MODELS
from agnosticfl.runs.build import Built, assemble, build, build_engine
from agnosticfl.runs.config import Config
from agnosticfl.runs.records import read_records
from agnosticfl.runs.run import run


def simulate(folder: Path, config: Config, nodes: int) -> dict[str, Any]:
    """The same run in the simulator, whose clients are the nodes."""

    def make(config: Config, *_: Any) -> Built:
        whole = build(resolve_server(config)).data
        data = whole._replace(train=dealt(whole.train, nodes))
        model = MODELS.build(config.model, "model")
        return assemble(config, model, data, build_engine(config, None, None))

    run(config, folder, make_built=make)
    return read_json(folder / "summary.json")


def resolve_server(config: Config) -> Config:
    """The same task as its server would evaluate it, with all its splits."""
    return msgspec.structs.replace(config, evaluation_by="server", weights_follow="train")


def assert_alike(found: Any, expected: Any, rel: float = 2e-5) -> None:
    """Figures by domain; counts are equal unless training's rounding moved an example."""
    assert found.keys() == expected.keys()
    for domain, values in expected.items():
        for name, value in values.items():
            close = None if value is None else pytest.approx(value, rel=rel, abs=1e-7)
            assert found[domain][name] == close, (domain, name)


def assert_same_run(folder: Path, simulated: Path) -> None:
    here, there = read_records(folder), read_records(simulated)
    assert [r["count"] for r in here] == [r["count"] for r in there]
    for mine, theirs in zip(here, there, strict=True):
        np.testing.assert_allclose(mine["loss"], theirs["loss"], rtol=2e-5)
        assert ("heldout" in mine) == ("heldout" in theirs)
        if "heldout" in mine:
            assert_alike(mine["heldout"], theirs["heldout"])
    found, expected = (read_json(f / "summary.json") for f in (folder, simulated))
    for split in ("heldout", "test"):
        assert found["examples"][split] == expected["examples"][split]
        assert_alike(found[split], expected[split])
        assert_alike(found["best"][split], expected["best"][split])
    assert found["best"]["round"] == expected["best"]["round"]
