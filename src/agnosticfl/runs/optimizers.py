# SPDX-License-Identifier: Apache-2.0
"""Optimizers by the names of Optax: any public one that needs a gradient and a rate."""

import contextlib
import functools
import inspect
import warnings
from collections.abc import Callable, Generator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from agnosticfl.core.optimizers import proximal, shrinking
from agnosticfl.errors import BadInput, check, choose
from agnosticfl.options import Option, Positive, check_options, check_value, options_of
from agnosticfl.registry import imported

# What a client optimizer's table may hold beside the optimizer's own options: these change the
# gradient before it.
BEFORE_STEP = {"proximal": proximal, "l2": shrinking}


@functools.cache
def optimizer_names() -> list[str]:
    """Those that can be named."""
    functions = inspect.getmembers(optax, inspect.isfunction)
    return [
        name
        for name, make in functions
        if not name.startswith(("_", "scale_by")) and _fits(make, DeprecationWarning)
    ]


def optimizer_options(name: str, where: str) -> dict[str, Option]:
    """What the optimizer of that name takes; its rate is a number above 0."""
    known = options_of(_maker(name, where))
    rate = known["learning_rate"]
    meaning = "γ_w, the clients' rate" if where == "client_optimizer" else "the server's rate"
    return {**known, "learning_rate": rate._replace(kind=Positive, meaning=meaning)}


def check_optimizer(table: Mapping[str, Any], where: str) -> None:
    """Says what of an optimizer's table is not allowed; `where` is the key that holds it."""
    own, before = _divided(table, where)
    name = own.pop("name", None)
    check(isinstance(name, str), f"[{where}] needs a name, such as sgd or adam")
    for key, value in before.items():
        check_value(options_of(BEFORE_STEP[key])["strength"].kind, value, f"{key} of {where}")
    check_options(optimizer_options(str(name), where), own, f"{where} {name!r}")


def build_optimizer(
    table: Mapping[str, Any], where: str, rate_in_state: bool = False
) -> optax.GradientTransformation:
    """The optimizer that a table names, after what changes the gradient before it.

    Args:
      rate_in_state: whether its rate is a part of its state: then it is data, and another one needs
        no other program.
    """
    check_optimizer(table, where)
    own, before = _divided(table, where)
    make = _maker(str(own.pop("name")), where)
    steps = _rated(make, own) if rate_in_state else make(**own)
    first = [BEFORE_STEP[key](value) for key, value in before.items()]
    return optax.chain(*first, steps) if where == "client_optimizer" else steps


def _rated(
    make: Callable[..., optax.GradientTransformation], options: Mapping[str, Any]
) -> optax.GradientTransformation:
    others = {key: value for key, value in options.items() if key != "learning_rate"}

    def with_rate(learning_rate: Any) -> optax.GradientTransformation:
        return make(learning_rate=learning_rate, **others)

    return optax.inject_hyperparams(with_rate)(learning_rate=options["learning_rate"])


def _divided(table: Mapping[str, Any], where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    keys = BEFORE_STEP if where == "client_optimizer" else {}
    own = {key: value for key, value in table.items() if key not in keys}
    return own, {key: table[key] for key in keys if key in table}


def _maker(name: str, where: str) -> Callable[..., optax.GradientTransformation]:
    make = imported(name, where) if ":" in name else getattr(optax, name, None)
    if make is None or name.startswith("_") or not _has_rate(make):
        choose(name, optimizer_names(), where)
    if not _fits(make):
        raise BadInput(
            f"{where} {name!r} needs more than a gradient at every step (the value of the loss,"
            f" say); allowed: {', '.join(optimizer_names())}"
        )
    return make  # type: ignore[return-value]


@contextlib.contextmanager
def _as_jax_is_by_default() -> Generator[None]:
    """What can be named does not depend on how strict somebody has made JAX."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def _has_rate(make: Any) -> bool:
    return callable(make) and "learning_rate" in inspect.signature(make).parameters


@functools.cache
def _fits(make: Any, *unwanted: type[Warning]) -> bool:
    """Whether it takes a step with a gradient and a rate, and nothing else.

    Args:
      unwanted: warnings with which it counts as unfit.
    """
    if not _has_rate(make):
        return False
    one = jax.ShapeDtypeStruct((), jnp.float32)  # no array: JAX must not start before its processes
    try:
        with warnings.catch_warnings(), _as_jax_is_by_default():
            warnings.simplefilter("ignore")
            for category in (UserWarning, *unwanted):  # a key of random bits is missing, say
                warnings.simplefilter("error", category)
            steps = make(learning_rate=0.1)
            jax.eval_shape(lambda w: steps.update(w, steps.init(w), w), one)
    except Exception:  # each has its own way to ask for more
        return False
    return True
