# SPDX-License-Identifier: Apache-2.0
"""What a method is, what it is made from, and what it makes: an algorithm that can be run."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import jax
import optax

from agnosticfl import weights
from agnosticfl.core.channel import Channel, ChannelBuilder, plain
from agnosticfl.core.cohorts import SamplerBuilder, uniform_cohorts
from agnosticfl.core.contribution import contribution_shapes
from agnosticfl.core.federated import FederatedData
from agnosticfl.core.ledger import Bytes
from agnosticfl.core.model import Model
from agnosticfl.core.precision import in_precision
from agnosticfl.core.sampling import Sampler
from agnosticfl.core.state import RoundInfo, ServerState, init_state
from agnosticfl.core.tree import PyTree
from agnosticfl.core.weight_rule import WeightRule
from agnosticfl.core.work import ClientWork, check_work
from agnosticfl.engines.auto import auto_engine
from agnosticfl.engines.base import Engine, EngineBuilder
from agnosticfl.errors import check
from agnosticfl.options import Option, options_of
from agnosticfl.registry import METHODS

M = TypeVar("M", bound=Callable[..., "Algorithm"])


# Algorithm 1's rule for λ; the default of a task's [weight_rule] is the same.
DEFAULT_RULE: dict[str, Any] = {"name": "exponentiated_gradient", "learning_rate": 0.01}


class Algorithm(NamedTuple):
    """A federated algorithm: `state = init()`, then `round(state, cohort(t))` for t = 1, 2, …"""

    init: Callable[[], ServerState]
    cohort: Callable[[int], PyTree]  # t -> what the clients of C_t bring to round t
    round: Callable[[ServerState, PyTree], tuple[ServerState, RoundInfo]]
    clients_per_round: int  # c, those who train
    bytes_per_round: Callable[[ServerState], Bytes]  # of all messages of a round
    choices: Mapping[str, Any] = MappingProxyType({})  # what the engine chose for itself
    # If not None: state -> the states and infos of the next rounds, stacked: the same, faster.
    block: Callable[[ServerState], tuple[ServerState, RoundInfo]] | None = None


@dataclasses.dataclass(frozen=True)
class Parts:
    """What every method is made from.

    Args:
      model: what is trained.
      data: the clients who train.
      clients_per_round: c.
      batch_size: B.
      client_optimizer: local steps with rate γ_w (the paper: `optax.sgd`).
      server_optimizer: takes the mean update as gradient; default `optax.sgd(1.0)`, plain
        averaging.
      weight_rule: how λ moves; default as the method has it, `exponentiated_gradient(0.01)` for
        AFA.
      window_size: r, the number of rounds over which the domain counts are averaged for α.
      epochs: E.
      normalisation: of the local loss, `"client"` (the paper's) or `"batch"`; see
        `core.algorithm1.local_loss`.
      init_domain_weights: λ_0; default uniform.
      init_domain_count: N_0; default ones.
      seed: everything random (w_0, cohorts, order of examples, dropout) follows from it.
      cohorts: how the clients of a round are chosen; default `uniform_cohorts()`.
      engine: how the sum over clients is computed; default `engines.auto_engine`.
      channel: what happens to a contribution on its way into the sum; default nothing at all.
      heldout: clients who do not train. If given, λ follows their losses; see `methods.heldout`.
      precision: of the factors of matrix products, `"float32"`, `"tf32"` or `"bf16"`; see
        `core.precision`.
      local_steps: the most local steps that a client takes; default all of its E epochs.
    """

    model: Model
    data: FederatedData
    _: dataclasses.KW_ONLY
    clients_per_round: int
    batch_size: int
    client_optimizer: optax.GradientTransformation
    server_optimizer: optax.GradientTransformation | None = None
    weight_rule: WeightRule | None = None
    window_size: int = 1
    epochs: int = 1
    normalisation: str = "client"
    init_domain_weights: Sequence[float] | None = None
    init_domain_count: Sequence[float] | None = None
    seed: int = 0
    cohorts: SamplerBuilder | None = None
    engine: EngineBuilder | None = None
    channel: ChannelBuilder | None = None
    heldout: FederatedData | None = None
    precision: str = "float32"
    local_steps: int | None = None

    @functools.cached_property
    def server_steps(self) -> optax.GradientTransformation:
        return optax.sgd(1.0) if self.server_optimizer is None else self.server_optimizer

    @functools.cached_property
    def rule(self) -> WeightRule:
        return weights.from_table(DEFAULT_RULE) if self.weight_rule is None else self.weight_rule

    @functools.cached_property
    def way(self) -> Channel:
        """The channel, for the shapes of this model's contributions."""
        shapes = contribution_shapes(self.model, self.data.num_domains)
        return (self.channel or plain)(shapes)

    @functools.cached_property
    def work(self) -> ClientWork:
        """What a client does in a round."""
        work = ClientWork(
            self.model,
            self.client_optimizer,
            self.data.num_domains,
            self.batch_size,
            self.epochs,
            self.normalisation,
            self.way,
            self.local_steps,
        )
        return check_work(work)

    def sampler(self, data: FederatedData, number: int, seed: int) -> Sampler:
        """Who takes part in round t, `number` clients of `data`."""
        return (self.cohorts or uniform_cohorts())(data, number, seed)

    def engine_for(self, work: ClientWork) -> Engine[PyTree]:
        """How the sum over the clients of a cohort is obtained, for this work."""
        sampler = self.sampler(self.data, self.clients_per_round, self.seed)
        build = in_precision(self.engine or auto_engine, self.precision)
        return build(work, self.data, sampler, self.seed)

    def init(self) -> ServerState:
        """The state before round 1."""
        return init_state(
            jax.jit(self.model.init)(jax.random.key(self.seed)),
            self.server_steps,
            self.rule,
            self.data.num_domains,
            self.window_size,
            self.init_domain_weights,
            self.init_domain_count,
            self.way.init(),
        )


class Method(NamedTuple):
    """All there is to say of a method; whoever needs to know something of one reads it here."""

    name: str
    title: str  # as the tables print it; {target} is the target domain
    make: Callable[..., Algorithm]  # (parts, its own options) -> the algorithm
    paper: str  # who published it
    settings: Mapping[str, Any]  # what makes it this method; stronger than the task's own
    like: str | None  # whose [algorithms.NAME] in a task, its rates, holds for this one too
    parameter: tuple[str, str] | None  # symbol and dotted key of what its title tells
    deployable: bool  # whether a round is one sum over whoever takes part
    is_reference: bool  # whether others are measured against it, and it finds the target
    # (state, c) -> bytes of a round by the paper's formula, where the paper has one
    paper_bytes: Callable[[ServerState, int], int] | None

    @property
    def options(self) -> dict[str, Option]:
        """Its own, beside what every method is made from."""
        return options_of(self.make, skipped=1)

    @property
    def takes_target(self) -> bool:
        """Whether it trains on one domain."""
        return "target" in self.options


def method(
    name: str,
    *,
    title: str,
    paper: str,
    settings: Mapping[str, Any] = MappingProxyType({}),
    like: str | None = None,
    parameter: tuple[str, str] | None = None,
    deployable: bool = False,
    is_reference: bool = False,
    paper_bytes: Callable[[ServerState, int], int] | None = None,
) -> Callable[[Callable[..., Algorithm]], Callable[..., Algorithm]]:
    """Enters a method, made by the function that follows: `(parts, *, its own options)`.

    Gives the function as Python users call it, `(model, data, its own options, *, parts)`, with the
    method's settings as defaults.
    """

    def enter(make: Callable[..., Algorithm]) -> Callable[..., Algorithm]:
        entry = Method(
            name,
            title,
            make,
            paper,
            settings,
            like,
            parameter,
            deployable,
            is_reference,
            paper_bytes,
        )
        METHODS.add(name)(entry)
        return from_python(entry)

    return enter


def from_python(entry: Method) -> Callable[..., Algorithm]:
    """The method as a function of a model, data and keywords; its signature shows all of them."""
    own = list(inspect.signature(entry.make).parameters.values())[1:]
    model, data, *keywords = inspect.signature(Parts).parameters.values()
    defaults = python_defaults(entry.settings)
    keywords = [p.replace(default=defaults[p.name]) if p.name in defaults else p for p in keywords]
    own = [p.replace(kind=p.POSITIONAL_OR_KEYWORD) for p in own]
    signature = inspect.Signature([model, data, *own, *keywords], return_annotation=Algorithm)

    @functools.wraps(entry.make)
    def make(*args: Any, **options: Any) -> Algorithm:
        given = signature.bind(*args, **options)
        given.apply_defaults()
        others = {p.name: given.arguments.pop(p.name) for p in own}
        return entry.make(Parts(*given.args[:2], **given.kwargs), **others)

    make.__signature__ = signature  # type: ignore[attr-defined]
    arguments = (inspect.getdoc(Parts) or "").partition("Args:\n")[2]
    text = inspect.getdoc(entry.make) or ""
    text += "" if "Args:\n" in text else "\n\nArgs:"
    make.__doc__ = f"{text}\n{arguments}"
    make.method = entry  # type: ignore[attr-defined]
    return make


def python_defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a method's settings are for Python, where parts are things and not tables."""
    fields = {field.name for field in dataclasses.fields(Parts)}
    values = {name: value for name, value in settings.items() if name in fields}
    if "weight_rule" in values:
        table = values["weight_rule"]
        values["weight_rule"] = weights.from_table(
            table if "name" in table else DEFAULT_RULE | table
        )
    return values


def checked(parts: Parts) -> Parts:
    """Returns `parts`, or says what of them is not allowed."""
    check(parts.seed >= 0, f"seed is {parts.seed}; it must be a whole number ≥ 0")
    return parts
