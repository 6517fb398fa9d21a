# SPDX-License-Identifier: Apache-2.0
"""What goes down to a client and what comes up from it: the one seam of the program.

A contribution is what a client adds, a message what it sends of that, a total the sum of many.
"""

from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from agnosticfl.core import tree
from agnosticfl.core.lazy_jax import Array, jax, jnp
from agnosticfl.core.model import Model, Params
from agnosticfl.core.programs import shapes_of
from agnosticfl.core.random import any_key
from agnosticfl.core.tree import PyTree

ChannelState: TypeAlias = PyTree  # what a channel carries from round to round
Message: TypeAlias = PyTree  # one client's, as its channel encodes it; plain: a `ClientSum`
Total: TypeAlias = PyTree  # Σ_k of what messages add; plain: a `ClientSum`

Laid = TypeVar("Laid", contravariant=True)  # a cohort, as one engine lays it out


class ClientSum(NamedTuple):
    """A client's contribution, or the sum of many: it can be added, sharded, masked or noised."""

    weighted_delta: Params  # Σ_k β^k (w_{t-1} − w^k)
    beta: Array  # Σ_k β^k
    domain_loss: Array  # [p] Σ_k L^k_i, summed over examples, at w_{t-1}
    domain_count: Array  # [p] Σ_k N^k_i
    left_out: Array  # clients whose contribution was not finite; they add nothing else


class Broadcast(NamedTuple):
    """What the server sends to every client of a cohort."""

    params: Params  # w_{t-1}
    alpha: Array  # [p] α_t
    channel_state: ChannelState = ()
    client_rate: Array | None = None  # γ_w, where it is data; as the optimizer was built if None


class SumOverClients(Protocol[Laid]):
    """How a round's sum is obtained: by a loop, on lanes, by a federation of real machines.

    Gives Σ_k of what the clients' channel lets through; with a plain channel that is the
    `ClientSum` itself. Nothing about a single client crosses this seam.
    """

    def __call__(self, sent: Broadcast, cohort: Laid, /) -> Total: ...


def contribution_shapes(model: Model, num_domains: int) -> ClientSum:
    """Shapes and types of what a client contributes, for the builder of a channel."""

    one, each = (_numbers(shape) for shape in ((), (num_domains,)))
    return ClientSum(shapes_of(model.init, any_key()), one, each, each, one)


def _numbers(shape: tuple[int, ...]) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def report(domain_loss: Array, domain_count: Array) -> ClientSum:
    """What a client adds who does not train: L^k and N^k, and no update at all."""
    return usable(ClientSum((), jnp.zeros(()), domain_loss, domain_count, jnp.zeros(())))


def report_shapes(num_domains: int) -> ClientSum:
    """Shapes and types of a report."""
    each = jax.ShapeDtypeStruct((num_domains,), jnp.float32)
    return jax.eval_shape(report, each, each)


def usable(sums: ClientSum) -> ClientSum:
    """A contribution, or nothing at all in its place if any number of it is not finite."""
    nothing = jax.tree.map(jnp.zeros_like, sums)._replace(left_out=jnp.ones(()))
    return tree.select(tree.all_finite(sums), sums, nothing)
