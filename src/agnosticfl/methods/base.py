# SPDX-License-Identifier: Apache-2.0
"""What a method is, what it is made from, and what it makes: an algorithm that can be run."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, ParamSpec, overload

import jax
import jax.numpy as jnp
import optax

from agnosticfl import weights
from agnosticfl.core.channel import Channel, ChannelBuilder, plain
from agnosticfl.core.cohorts import SamplerBuilder, uniform_cohorts
from agnosticfl.core.contribution import contribution_shapes, report_shapes
from agnosticfl.core.federated import FederatedData
from agnosticfl.core.ledger import Bytes
from agnosticfl.core.model import Model
from agnosticfl.core.precision import in_precision
from agnosticfl.core.programs import program_of
from agnosticfl.core.sampling import Sampler
from agnosticfl.core.state import RoundInfo, ServerState, init_state
from agnosticfl.core.tree import PyTree
from agnosticfl.core.weight_rule import WeightRule
from agnosticfl.core.work import ClientWork, check_work
from agnosticfl.engines.auto import auto_engine
from agnosticfl.engines.base import Engine, EngineBuilder
from agnosticfl.engines.reporters import Reporters
from agnosticfl.errors import check
from agnosticfl.options import Option, options_of
from agnosticfl.registry import METHODS

P = ParamSpec("P")

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
      normalisation: of the local loss, `"client"` (the paper's), `"unbiased"` or `"batch"`; see
        `core.algorithm1.local_loss`.
      init_domain_weights: λ_0; default uniform.
      init_domain_count: N_0; default ones.
      seed: everything random (w_0, cohorts, order of examples, dropout) follows from it.
      cohorts: how the clients of a round are chosen; default `uniform_cohorts()`.
      engine: how the sum over clients is computed; default `engines.auto_engine`.
      channel: what happens to a contribution on its way into the sum; default nothing at all.
      heldout: clients who do not train, or what gives the sum of their reports. If given, λ
        follows their losses; see `methods.heldout`.
      report_channel: the same for a report of theirs, if those who train have a channel.
      precision: of the factors of matrix products, `"float32"`, `"tf32"` or `"bf16"`; see
        `core.precision`.
      local_steps: the most local steps that a client takes; default all of its E epochs.
      mean_model: whether the state carries the mean of all models, too.
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
    heldout: FederatedData | Reporters | None = None
    report_channel: ChannelBuilder | None = None
    precision: str = "float32"
    local_steps: int | None = None
    mean_model: bool = False

    def __post_init__(self) -> None:
        check(self.seed >= 0, f"seed is {self.seed}; it must be a whole number ≥ 0")

    @functools.cached_property
    def server_steps(self) -> optax.GradientTransformation:
        """The server optimizer, or plain averaging."""
        return optax.sgd(1.0) if self.server_optimizer is None else self.server_optimizer

    @functools.cached_property
    def rule(self) -> WeightRule:
        """The weight rule, or Algorithm 1's."""
        return weights.from_table(DEFAULT_RULE) if self.weight_rule is None else self.weight_rule

    @functools.cached_property
    def way(self) -> Channel:
        """The channel, for the shapes of this model's contributions."""
        shapes = contribution_shapes(self.model, self.data.num_domains)
        return (self.channel or plain)(shapes)

    @functools.cached_property
    def report_way(self) -> Channel:
        """The channel of held-out clients, for the shapes of their reports."""
        return (self.report_channel or plain)(report_shapes(self.data.num_domains))

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
        params = program_of(self.model.init)(jax.random.key(self.seed))
        state = init_state(
            params,
            self.server_steps,
            self.rule,
            self.data.num_domains,
            self.window_size,
            self.init_domain_weights,
            self.init_domain_count,
            self.way.init(),
        )
        return state._replace(
            report_state=self.report_way.init() if self.report_channel else None,
            mean_params=jax.tree.map(jnp.zeros_like, params) if self.mean_model else None,
        )


def reports_per_round(clients_per_round: int, heldout: FederatedData) -> int:
    """How many held-out clients report in a round: as many as train, all if there are fewer."""
    return min(clients_per_round, heldout.num_clients)


class Method(NamedTuple):
    """All there is to say of a method; whoever needs to know something of one reads it here."""

    name: str
    title: str  # as the tables print it; {target} is the target domain
    make: Callable[..., Algorithm]  # (parts, its own options) -> the algorithm
    paper: str  # who published it
    settings: Mapping[str, Any]  # what makes it this method; stronger than the task's own
    like: str | None  # whose [algorithms.NAME] in a task, its rates, holds for this one too
    parameter: tuple[str, str] | None  # symbol and dotted key of what its title tells
    deployable: bool  # whether a round is one sum over whoever takes part, of the usual clients
    secure: bool  # whether it needs nothing of a client but sums, which can be masked and noised
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


class Enter(Generic[P]):
    """What `method` gives: it enters the function that follows, `(parts, *, its own options)`.

    Gives the function as Python users call it, `(model, data, its own options, *, parts)`, with the
    method's settings as defaults and a signature that shows all of them.
    """

    def __init__(self, parts: Callable[P, Parts], entry: Callable[..., Method]):
        self._parts, self._entry = parts, entry

    @overload
    def __call__(self, make: Callable[[Parts], Algorithm]) -> Callable[P, Algorithm]: ...
    @overload
    def __call__(self, make: Callable[..., Algorithm]) -> Callable[..., Algorithm]: ...
    def __call__(self, make: Callable[..., Algorithm]) -> Callable[..., Algorithm]:
        entry = self._entry(make=make)
        METHODS.add(entry.name)(entry)
        own = [
            p.replace(kind=p.POSITIONAL_OR_KEYWORD)
            for p in list(inspect.signature(make).parameters.values())[1:]
        ]
        signature = _python_signature(self._parts, own, entry.settings)

        @functools.wraps(make)
        def from_python(*args: Any, **options: Any) -> Algorithm:
            given = signature.bind(*args, **options)
            given.apply_defaults()
            others = {p.name: given.arguments.pop(p.name) for p in own}
            return make(Parts(*given.args, **given.kwargs), **others)

        from_python.__signature__ = signature  # type: ignore[attr-defined]
        from_python.__doc__ = _with_arguments(make, self._parts)
        from_python.method = entry  # type: ignore[attr-defined]
        return from_python


def method(
    name: str,
    *,
    title: str,
    paper: str,
    settings: Mapping[str, Any] = MappingProxyType({}),
    like: str | None = None,
    parameter: tuple[str, str] | None = None,
    deployable: bool = False,
    secure: bool = True,
    is_reference: bool = False,
    paper_bytes: Callable[[ServerState, int], int] | None = None,
):  # what comes back has the keywords of `Parts`, which only a checker can write down
    """Enters a method, made by the function that follows; see `Enter` and `Method`."""
    entry = functools.partial(
        Method,
        name=name,
        title=title,
        paper=paper,
        settings=settings,
        like=like,
        parameter=parameter,
        deployable=deployable,
        secure=secure,
        is_reference=is_reference,
        paper_bytes=paper_bytes,
    )
    return Enter(Parts, entry)


def _python_signature(
    parts: Callable[..., Parts], own: list[inspect.Parameter], settings: Mapping[str, Any]
) -> inspect.Signature:
    """Model and data, what only this method takes, and the parts with its settings as defaults."""
    model, data, *keywords = inspect.signature(parts).parameters.values()
    defaults = python_defaults(settings)
    keywords = [p.replace(default=defaults[p.name]) if p.name in defaults else p for p in keywords]
    return inspect.Signature([model, data, *own, *keywords], return_annotation=Algorithm)


def _with_arguments(make: Callable[..., Algorithm], parts: Callable[..., Parts]) -> str:
    """The method's own words, and what its parts are."""
    text = inspect.getdoc(make) or ""
    text += "" if "Args:\n" in text else "\n\nArgs:"
    arguments = (inspect.getdoc(parts) or "").partition("Args:\n")[2]
    return f"{text}\n{arguments}"


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
