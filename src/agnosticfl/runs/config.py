# SPDX-License-Identifier: Apache-2.0
"""The configuration of a run: every key, its type, its range and its meaning, in one place.

msgspec reads these definitions. Of the two libraries that would do, it is the one that loads at
once (every node of a federation reads a task), brings no others, and never turns a text into a
number; range and meaning stand beside the type. Whatever is said of a key elsewhere (`agnosticfl
show`, docs/tasks.md, the message about a bad value) is read from here.
"""

import json
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from agnosticfl.errors import BadInput
from agnosticfl.options import NEEDED, AtLeastOne, Normalisation, Option

Table: TypeAlias = dict[str, Any]

# What tells the data and the model of a run; the program finds it, and no task can set it.
FOUND = ("data_digest", "model_shapes")


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that a run's result depends on. A run folder holds it as `config.json`."""

    task: Annotated[str, Meta(description="the task's name")]
    data: Annotated[
        Table,
        Meta(description="where the examples come from: the name of a source, and its options"),
    ]
    model: Annotated[
        Table, Meta(description="what is trained: the name of a model, and its options")
    ]
    client_optimizer: Annotated[
        Table,
        Meta(
            description="the clients' local steps: the name of an Optax optimizer, "
            "learning_rate (γ_w), its other options; proximal (μ of FedProx) and l2"
            " add to the gradient"
        ),
    ]
    rounds: Annotated[int, Meta(description="T, how many", ge=1)]
    clients_per_round: Annotated[int, Meta(description="c, who take part in a round", ge=1)]
    batch_size: Annotated[int, Meta(description="B, examples of a local step", ge=1)]
    algorithm: Annotated[str, Meta(description="the name of a method, --algorithm")] = "afa"
    target: Annotated[
        str | None, Meta(description="the one domain to train on, --target, for fedavg-target")
    ] = None
    options: Annotated[
        Table, Meta(description="what the method takes for itself, such as q of q-fedavg")
    ] = msgspec.field(default_factory=dict)
    seed: Annotated[int, Meta(description="everything random follows from it, --seed", ge=0)] = 0
    epochs: Annotated[
        int, Meta(description="E, passes of a client over its examples in a round", ge=1)
    ] = 1
    local_steps: Annotated[
        AtLeastOne | None,
        Meta(description="the most local steps of a client; all of its E epochs if left out"),
    ] = None
    normalisation: Annotated[
        Normalisation,
        Meta(
            description="what the local loss is divided by: β^k of all the client's examples, "
            "as in the paper; β^k times the batch's share of them, which has FedAvg's rates; or "
            "the same sum over the batch, which has them too but bends λ towards the counts"
        ),
    ] = "client"
    server_optimizer: Annotated[
        Table,
        Meta(
            description="what takes the mean update as its gradient: the name of an Optax "
            "optimizer, its options"
        ),
    ] = msgspec.field(default_factory=lambda: {"name": "sgd", "learning_rate": 1.0})
    weight_rule: Annotated[
        Table,
        Meta(
            description="how λ moves: the name of a rule, its options; before and after list "
            "what is done to the losses and to λ"
        ),
    ] = msgspec.field(
        default_factory=lambda: {"name": "exponentiated_gradient", "learning_rate": 0.01}
    )
    weights_follow: Annotated[
        Literal["train", "heldout"],
        Meta(description="whose losses move λ: those of train or of heldout clients"),
    ] = "train"
    window_size: Annotated[
        int, Meta(description="r, rounds over which domain counts are averaged for α", ge=1)
    ] = 1
    init_domain_weights: Annotated[
        list[float] | None, Meta(description="λ_0; uniform if left out")
    ] = None
    sampling: Annotated[
        Table, Meta(description="who takes part in a round: the name of a sampler, its options")
    ] = msgspec.field(default_factory=lambda: {"name": "uniform"})
    secure: Annotated[
        Table | None,
        Meta(
            description="sums in fixed point, as under secure aggregation: {name = "
            '"simulate"}, and the bounds of a client: update, examples, loss'
        ),
    ] = None
    engine: Annotated[
        str, Meta(description="how the sum over clients is computed: the name of an engine")
    ] = "auto"
    lanes: Annotated[
        AtLeastOne | None,
        Meta(description="L of the engine lanes; what suits model and device if left out"),
    ] = None
    devices: Annotated[AtLeastOne | None, Meta(description="of each process; all if left out")] = (
        None
    )
    model_devices: Annotated[
        AtLeastOne | None,
        Meta(description="of these, how many hold a slice of the model each; 1 if left out"),
    ] = None
    precision: Annotated[
        Literal["float32", "tf32", "bf16"],
        Meta(description="of the factors of matrix products on accelerators"),
    ] = "float32"
    dp: Annotated[
        Table | None, Meta(description="differential privacy: epsilon, delta and other options")
    ] = None
    compress: Annotated[
        Table | None, Meta(description="smaller uploads: bits = 8 or 4, or top_k, a share")
    ] = None
    mean_model: Annotated[
        bool,
        Meta(
            description="keep and measure the mean of the models of all rounds, too: AFL's"
            " guarantee is about it"
        ),
    ] = False
    metric: Annotated[str, Meta(description="by which the worst domain is told")] = "loss"
    evaluation_every: Annotated[
        int, Meta(description="rounds between two looks at held-out clients; 0 for none", ge=0)
    ] = 0
    evaluation_clients: Annotated[
        int, Meta(description="held-out clients looked at, always the same", ge=1)
    ] = 100
    evaluation_by: Annotated[
        Literal["server", "clients"],
        Meta(
            description="who measures the model: the server, on splits heldout and test; or the"
            " clients, on examples that they keep from training"
        ),
    ] = "server"
    evaluation_share: Annotated[
        float,
        Meta(
            description="where clients evaluate: of each one's training examples, so many are kept"
            " by a hash, half for looks and half for the end; 0: its own splits heldout and test",
            ge=0,
            lt=1,
        ),
    ] = 0.2
    evaluation_batch_size: Annotated[int, Meta(description="examples measured at a time", ge=1)] = (
        512
    )
    client_spread: Annotated[
        bool,
        Meta(description="at the end, also the variance over clients and the worst tenth of them"),
    ] = False
    checkpoint_every: Annotated[int, Meta(description="rounds between two checkpoints", ge=1)] = 100
    data_digest: Annotated[
        str | None, Meta(description="found by the program: the checksum of the data")
    ] = None
    model_shapes: Annotated[
        Table | None, Meta(description="found by the program: the parameters' shapes")
    ] = None


def public_splits(config: Config) -> tuple[str, ...]:
    """Those whose clients may be measured without noise: all, in a run that is not private."""
    return ("heldout", "test") if config.dp is None else tuple(config.dp.get("public", ()))


def noised(config: Config, split: str) -> bool:
    """Whether what clients of a split say of a model is told as noised sums alone."""
    told = split in public_splits(config) and config.evaluation_by == "server"
    return config.dp is not None and not told


def most_clients(config: Config) -> int:
    """How many clients the numbers of a secure sum have room for."""
    return int((config.secure or {}).get("most_clients") or config.clients_per_round)


def config_keys() -> dict[str, Option]:
    """Every key there is, with type, default and meaning."""
    hints = typing.get_type_hints(Config, include_extras=True)
    found: dict[str, Option] = {}
    for field in msgspec.structs.fields(Config):
        default = NEEDED
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        elif field.default is not msgspec.NODEFAULT:
            default = field.default
        kind = hints[field.name]
        found[field.name] = Option(field.name, kind, default, kind.__metadata__[0].description)
    return found


def as_table(config: Config) -> Table:
    """The configuration as `config.json` has it."""
    return msgspec.to_builtins(config)


def from_table(raw: Any, place: str) -> Config:
    """The inverse; `place` says whose it is."""
    try:
        return msgspec.convert(raw, Config)
    except msgspec.ValidationError as error:
        raise BadInput(f"{place} is not a configuration: {error}") from None


def first_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """One line about the first setting in which two configurations differ.

    What an older version did not find out (`FOUND`) differs from nothing, and a key that it did not
    have was as it is by default.
    """
    known = config_keys()
    for key in [*new, *(k for k in old if k not in new)]:
        default = known[key].default if key in known else None
        before, now = old.get(key, None if default is NEEDED else default), new.get(key)
        if before == now or (key in FOUND and None in (before, now)):
            continue
        if key == "data_digest":
            return f"its data is not the data of now (digest {before[:12]}… and {now[:12]}…)"  # type: ignore[index]
        return f"{key} was {json.dumps(before)} and is now {json.dumps(now)}"
    return None


def flat(config: Config) -> dict[str, str]:
    """All settings as text, by the dotted keys that `--set` takes."""

    def walk(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
        for key, value in table.items():
            if isinstance(value, dict):
                yield from walk(value, f"{prefix}{key}.")
            else:
                yield prefix + key, as_text(value)

    return dict(walk(as_table(config)))


def as_text(value: Any) -> str:
    """A value as a person reads it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def get_dotted(table: Any, dotted: str) -> Any:
    """`table["a"]["b"]` for `"a.b"`; None if there is none."""
    for part in dotted.split("."):
        table = table.get(part) if isinstance(table, dict) else None
    return table
