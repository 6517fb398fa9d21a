# SPDX-License-Identifier: Apache-2.0
"""One of everything, as somebody else's package would have it: nothing in `src/` knows of it."""

import contextlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from msgspec import Meta

import agnosticfl as afl
from agnosticfl.data.source import Feature, Rows
from agnosticfl.methods.afa import agnostic_rounds
from agnosticfl.weights import LossTransform, WeightTransform


def network(width: Annotated[int, Meta(ge=1)], metrics: Sequence[str] = ()) -> afl.Model:
    """A model: the built-in classifier under a name of one's own, of `width` features.

    Args:
      width: numbers of an example.
      metrics: names of metrics.
    """
    return afl.models.logistic(features=width, classes=2, metrics=metrics)


@afl.metric("found", of="labels", higher_is_better=True)
def found(logits: Array, label: Array) -> afl.Mean:
    """Share of the positives that are found."""
    right = (jnp.argmax(logits, axis=-1) == label) & (label == 1)
    return afl.Mean(right.astype(jnp.float32), (label == 1).astype(jnp.float32))


def halfway(share: Annotated[float, Meta(ge=0, le=1)] = 0.5) -> afl.WeightRule:
    """A weight rule: λ goes a part of the way to the domain with the largest loss."""

    def update(weights: Array, stats: afl.DomainStats) -> tuple[Array, Array]:
        worst = jnp.arange(len(weights)) == jnp.argmax(stats.mean_loss)
        weights = (1 - share) * weights + share * worst.astype(weights.dtype)
        return weights, weights

    return afl.WeightRule(lambda weights: weights, update)


def careful_sgd(learning_rate: float) -> optax.GradientTransformation:
    """An optimizer that looks at the number that its rate is."""
    return optax.sgd(min(float(learning_rate), 1.0))


def doubled() -> LossTransform:
    """A loss transform."""
    return LossTransform(
        lambda _: (), lambda state, stats: (stats._replace(mean_loss=2 * stats.mean_loss), state)
    )


def unchanged() -> WeightTransform:
    """A weight transform."""
    return WeightTransform(lambda _: (), lambda state, weights: (weights, state))


def slow_engine(work: Any, data: afl.FederatedData, sampler: afl.Sampler, seed: int) -> Any:
    """An engine: the reference, which says its own name."""
    engine = afl.engines.reference_engine(work, data, sampler, seed)
    return engine._replace(choices={"engine": "slow"})


def first_clients() -> afl.SamplerBuilder:
    """A sampler: always the same clients."""
    return lambda _data, clients_per_round, _seed: lambda _t: np.arange(clients_per_round)


def points(clients: Annotated[int, Meta(ge=1)] = 6) -> afl.Splits:
    """A data source: two domains that disagree, ten points for each client."""
    rng = np.random.default_rng(0)

    def split() -> afl.FederatedData:
        owner = np.repeat(np.arange(clients), 10)
        x = rng.normal(size=(len(owner), 2)).astype(np.float32)
        y = (x[:, 0] * np.where(owner % 3 == 0, -1, 1) > 0).astype(np.int32)
        return afl.from_arrays({"x": x, "y": y}, owner, np.where(owner % 3 == 0, "few", "many"))

    return afl.Splits(split(), split())


def load(sources: Sequence[Path], *, times: int = 1) -> afl.Source:
    """A loader: lines of `client domain x y`.

    Args:
      times: what x is multiplied with.
    """
    lines = [line.split() for source in sources for line in Path(source).read_text().splitlines()]
    domains = tuple(sorted({line[1] for line in lines}))

    def rows() -> Iterator[Rows]:
        for split in ("train", "test"):
            yield Rows(
                split,
                [f"{split}-{line[0]}" for line in lines],
                np.array([domains.index(line[1]) for line in lines], np.int32),
                {
                    "x": np.array([[times * float(line[2])] for line in lines], np.float32),
                    "y": np.array([int(line[3]) for line in lines], np.int32),
                },
            )

    features = {"x": Feature("float32", (1,)), "y": Feature("int32", ())}
    return afl.Source("lines", "CC0-1.0", domains, features, rows)


def lines() -> Any:
    """A tracker: a line per round in the run folder."""

    @contextlib.contextmanager
    def start(config: Any, folder: Path, say: Any) -> Generator[Any]:
        del config, say
        with (folder / "lines.txt").open("a") as file:

            def write(t: int, scalars: Mapping[str, float]) -> None:
                file.write(f"{t} {len(scalars)}\n")

            yield write

    return start


@afl.method("mine", title="Mine", paper="nobody yet", settings={"normalisation": "batch"})
def mine(parts: afl.Parts, *, strength: Annotated[float, Meta(ge=0)] = 1.0) -> afl.Algorithm:
    """A method: Algorithm 1, but it can report another update norm.

    Args:
      strength: what the norm is multiplied with.
    """
    algorithm = agnostic_rounds(parts)

    def round(state: afl.ServerState, cohort: Any) -> tuple[afl.ServerState, afl.RoundInfo]:
        state, info = algorithm.round(state, cohort)
        return state, info._replace(update_norm=strength * info.update_norm)

    return algorithm._replace(round=round, block=None)
