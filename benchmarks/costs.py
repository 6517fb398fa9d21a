# SPDX-License-Identifier: Apache-2.0
"""What a computation costs by its own formulas, and where the time of a traced one went."""

import collections
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.profiler
from jax.extend.core import ClosedJaxpr, Jaxpr


class Cost(NamedTuple):
    """Of matrix products and convolutions; all else is cheap beside them."""

    flops: float  # a multiplication and an addition are two
    bytes: float  # of their operands and results, as if nothing stayed on the chip

    def __add__(self, other: Any) -> "Cost":
        return Cost(self.flops + other.flops, self.bytes + other.bytes)

    def times(self, number: float) -> "Cost":
        return Cost(number * self.flops, number * self.bytes)


def cost(function: Any, *args: Any) -> Cost:
    """Of one call of `function`; a loop whose length is not known counts once."""
    return _cost(jax.make_jaxpr(function)(*args).jaxpr)


def _cost(jaxpr: Jaxpr) -> Cost:
    return sum((_equation(eqn) for eqn in jaxpr.eqns), Cost(0, 0))


def _equation(eqn: Any) -> Cost:
    name = eqn.primitive.name
    if name in ("dot_general", "conv_general_dilated"):
        moved = sum(v.aval.size * v.aval.dtype.itemsize for v in (*eqn.invars, *eqn.outvars))
        return Cost(2 * eqn.outvars[0].aval.size * _terms(eqn), moved)
    if name == "cond":  # one branch is taken: the dearest
        return max((_cost(b.jaxpr) for b in eqn.params["branches"]), key=lambda c: c.flops)
    inner = sum((_cost(sub) for sub in _inside(eqn.params)), Cost(0, 0))
    return inner.times(eqn.params["length"]) if name == "scan" else inner


def _terms(eqn: Any) -> int:
    """How many products each number of the result is the sum of."""
    if eqn.primitive.name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        return math.prod(eqn.invars[0].aval.shape[axis] for axis in contracted)
    out_channels = eqn.params["dimension_numbers"].rhs_spec[0]
    kernel = eqn.invars[1].aval
    return kernel.size // kernel.shape[out_channels]


def _inside(params: dict[str, Any]) -> Iterator[Jaxpr]:
    for value in params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            if isinstance(one, ClosedJaxpr):
                yield one.jaxpr
            elif isinstance(one, Jaxpr):
                yield one


def time_by_operation(folder: Path, most: int = 15) -> dict[str, Any]:
    """What a trace in `folder` says: busy seconds of the devices by operation, dearest first.

    On an accelerator these are kernels on its streams; on a CPU the threads that run XLA's work.
    """
    file = max(folder.rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime)
    planes = list(jax.profiler.ProfileData.from_file(str(file)).planes)
    devices = [plane for plane in planes if plane.name.startswith("/device:")]
    seconds: collections.Counter[str] = collections.Counter()
    for plane in devices or planes:
        for line in plane.lines:
            if line.name.startswith("Stream") if devices else "XLA" in line.name:
                for event in line.events:
                    seconds[_kind(event.name)] += event.duration_ns / 1e9
    busy = sum(seconds.values())
    top = [
        {"operation": name, "seconds": s, "share": s / busy}
        for name, s in seconds.most_common(most)
    ]
    return {"busy_s": busy, "operations": top}


def _kind(name: str) -> str:
    """An operation without its number: `fusion.12` and `fusion.7` are of one kind."""
    head, _, tail = name.rpartition(".")
    return head if head and tail.isdecimal() else name
