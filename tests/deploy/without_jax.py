# SPDX-License-Identifier: Apache-2.0
"""Processes in which JAX, and all else that a client in PyTorch does not install, is not there."""

import contextlib
import importlib
import pkgutil
import re
import tomllib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from agnosticfl.channels.dp.in_numpy import named_state
from agnosticfl.core.contribution import ClientSum
from agnosticfl.core.federated import from_arrays
from agnosticfl.core.keeping import kept_apart
from agnosticfl.deploy.node import noised
from agnosticfl.deploy.node.contribute import Call, answer
from agnosticfl.deploy.node.evaluate import Asked, encoded, measure
from agnosticfl.deploy.node.examples import one_client
from agnosticfl.deploy.node.pytorch import torch_client, torch_model
from agnosticfl.deploy.private import privacy_of
from agnosticfl.deploy.task import EVALUATION, REPORT
from agnosticfl.runs.config import Config

ROOT = Path(__file__).parents[2]
LIST = ROOT / "requirements" / "pytorch-client.txt"
# Where the module of a requirement has another name; JAX brings the second one.
MODULES = {"jax": ("jax", "jaxlib")}

# Python runs a module of this name before all else.
BLOCKER = """\
import sys


class NotThere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"{{name}} is not to be had here", name=name)
        return None


sys.meta_path.insert(0, NotThere())
"""


def requirements(lines: list[str]) -> dict[str, str]:
    """Name of each requirement -> which versions, of those that are of another project."""
    found: dict[str, str] = {}
    for line in lines:
        name, versions = re.fullmatch(r"([a-z0-9-]+)(?:\[.*\])?(.*)", line).groups()  # type: ignore[union-attr]
        if name != "agnosticfl":
            found[name] = versions
    return found


def listed() -> dict[str, str]:
    """What a client in PyTorch installs."""
    lines = LIST.read_text().splitlines()
    return requirements([line for line in lines if not line.startswith("#")])


def of_project(*extras: str) -> dict[str, str]:
    """What the project needs, with some of its extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    more = [line for extra in extras for line in project["optional-dependencies"][extra]]
    return requirements([*project["dependencies"], *more])


def blocked() -> list[str]:
    """The modules of what the project needs and such a client does not install."""
    names = of_project().keys() - listed().keys()
    return sorted(module for name in names for module in MODULES.get(name, (name,)))


def write_blocker(folder: Path) -> Path:
    """A folder to be first on PYTHONPATH."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(BLOCKER.format(names=blocked()))
    return folder


# The rooms that a client's commands go through, whole but for what servers need; and what of
# Flower a client is made of.
ROOMS = ("cli", "secagg", "deploy", "deploy.node", "deploy.supervise", "data", "data.store")
OF_SERVERS = ("cli.console", "deploy.supervise.local", "deploy.supervise.supervisor")
OF_FLOWER = ("warm", "client_app", "secure_answers", "own_app", "connection", "pinned", "decoy")


def on_the_way() -> Iterator[str]:
    """The modules on the way of a client: from its commands to what it sends."""
    for room in ROOMS:
        package = importlib.import_module(f"agnosticfl.{room}")
        for found in pkgutil.iter_modules(package.__path__):
            if not found.ispkg and f"{room}.{found.name}" not in OF_SERVERS:
                yield f"{package.__name__}.{found.name}"
    for name in OF_FLOWER:
        yield f"agnosticfl.deploy.flower.{name}"
    yield from ("agnosticfl.channels.in_numpy", "agnosticfl.channels.noised_tallies")


def create() -> Any:
    import torch  # pyright: ignore[reportMissingImports]

    torch.manual_seed(0)
    return torch.nn.Linear(2, 3)


def loss(module: Any, examples: Any) -> Any:
    import torch  # pyright: ignore[reportMissingImports]

    logits = module(examples["x"])
    return torch.nn.functional.cross_entropy(logits, examples["y"].long(), reduction="none")


def forward(module: Any, examples: Any) -> Any:
    return module(examples["x"])


def said_by_server(config: Config, sums: ClientSum) -> dict[str, np.ndarray]:
    """The state of the channel that comes with w and α."""
    if config.dp is None:
        return {}
    privacy = privacy_of(config, sums)
    return named_state(privacy.clip, privacy.scale)


@contextlib.contextmanager
def no_noise() -> Generator[None]:
    """In which private vectors have none, so that two can be compared."""
    theirs = noised.discrete_gaussian
    noised.discrete_gaussian = lambda _sigma, size, _bits: np.zeros(size, np.int64)
    try:
        yield
    finally:
        noised.discrete_gaussian = theirs


def messages(configs: list[Config]) -> Iterator[tuple[str, list[int | float]]]:
    """All that such a client sends in runs with these configurations, number by number."""
    rng = np.random.default_rng(0)
    arrays = {"x": rng.normal(size=(90, 2)).astype("float32"), "y": rng.integers(3, size=90)}
    data = from_arrays(arrays, np.zeros(90, int), rng.integers(3, size=90), ["a", "b", "c"])
    parts = kept_apart({"train": one_client(data)}, 0.5)
    model = torch_model(create, loss, forward=forward, metrics=["accuracy", "auroc", "f1"])
    params = {name: p.detach().numpy().copy() for name, p in create().named_parameters()}
    alpha = np.array([1.0, 0.5, 0.25], np.float32)
    for number, config in enumerate(configs):
        call = Call(config, parts["train"], 0, 7, 4, params, alpha)
        sums = torch_client(create, loss)(call)
        vectors = {"training": answer(call, sums, said_by_server(config, sums))}
        for kind in (EVALUATION, REPORT):
            asked = Asked(config, kind, 1, model, parts, params, 7, 0)
            vectors[kind] = encoded(asked, measure(asked))
        for kind, found in vectors.items():
            for dtype, vector in found.items():
                yield f"{number} {kind} {dtype}", vector.tolist()
