# SPDX-License-Identifier: Apache-2.0
"""Models judged by clients, on what these keep from training: all that comes back are sums."""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from agnosticfl.channels.bounds import Bounds
from agnosticfl.channels.tallies import tallies_in_fixed_point, tallies_in_the_clear
from agnosticfl.core import tree
from agnosticfl.core.channel import Channel, is_plain, message_bytes
from agnosticfl.core.evaluate import Evaluation, Measured, measurer, some_clients
from agnosticfl.core.federated import FederatedData, Splits
from agnosticfl.core.keeping import kept_apart
from agnosticfl.core.lazy_jax import jax
from agnosticfl.core.model import Model, Params
from agnosticfl.core.tally import Form, Tally, added, form_of, tallies, tally, told
from agnosticfl.errors import check
from agnosticfl.runs.config import Config
from agnosticfl.runs.questions import Question

if TYPE_CHECKING:
    from agnosticfl.channels.noised_tallies import TallyNoise  # its module needs JAX
    from agnosticfl.core.ledger import Bytes

Judge: TypeAlias = Callable[[Params, Question], Evaluation]


def own_parts(config: Config, parts: Mapping[str, FederatedData]) -> dict[str, FederatedData]:
    """What trains, and what is kept from it, as the configuration says; see `kept_apart`."""
    if config.evaluation_by == "server":
        return dict(parts)
    return kept_apart(
        parts, config.evaluation_share, bounds_of(config).examples if config.secure else None
    )


def build_tally_channel(
    config: Config, form: Form, clients: int, noise: "TallyNoise | None" = None
) -> Channel:
    """What happens to tallies of so many clients on their way into the sum.

    Args:
      noise: of a private run.
    """
    if config.dp is not None:
        from agnosticfl.channels.noised_tallies import noised_tallies

        assert noise is not None
        return noised_tallies(noise)
    if config.secure is None:
        return tallies_in_the_clear(form)
    return tallies_in_fixed_point(form, clients, bounds_of(config))


def bounds_of(config: Config) -> Bounds:
    """Those of the task's secure sums."""
    given = config.secure or {}
    return Bounds(**{name: given[name] for name in Bounds._fields if name in given})


def check_judged(config: Config, model: Model, data: FederatedData, clients: int) -> Form:
    """The form of tallies of up to so many clients; refuses what these cannot evaluate."""
    check(
        not config.client_spread,
        "client_spread: where clients evaluate (evaluation_by), nobody sees a single one's values",
    )
    form = form_of(model, data)
    if config.dp is None:
        build_tally_channel(config, form, clients)
    return form


def bytes_asked(params: Params, channel: Channel, form: Form, clients: int) -> "Bytes":
    """What a question to so many clients costs on the network: w down, a tally up."""
    from agnosticfl.core.ledger import Bytes, times  # here: it needs JAX

    message: Any = channel.encode((), form.zeros, None)  # type: ignore[arg-type]
    return times(clients, Bytes(tree.num_bytes(params), message_bytes(channel, message)))


def said(form: Form, channel: Channel, total: Any, noise: "TallyNoise | None") -> Evaluation:
    """What a sum of tallies says of a model; with noise, of some metrics only."""
    tallied = channel.decode((), total, None).total  # type: ignore[arg-type]
    if noise is None:
        return told(form, tallied)
    from agnosticfl.channels.noised_tallies import told_with_noise

    found, none = told(told_with_noise(form, noise), tallied), dict.fromkeys(form.readings)
    return found._replace(
        domains={domain: none | values for domain, values in found.domains.items()},
        overall=none | found.overall,
    )


def simulated_judge(
    config: Config,
    model: Model,
    kept: Splits,
    noise_for: "Callable[[int], TallyNoise] | None" = None,
) -> Judge:
    """The clients of a simulation: some of them, always the same, for a look; all at the end.

    Args:
      noise_for: of a private run: number of clients -> the noise of their sum.
    """
    form = check_judged(config, model, kept.test, kept.test.num_clients)
    parts = {"heldout": kept.heldout, "test": kept.test}
    check(
        config.evaluation_every == 0 or kept.heldout is not None,
        f"evaluation_every is {config.evaluation_every}, but clients have no split 'heldout'",
    )

    def judge(params: Params, asked: Question) -> Evaluation:
        data = parts[asked.split]
        check(data is not None, f"clients have no examples of the split {asked.split!r}")
        assert data is not None
        clients = np.arange(data.num_clients)
        if asked.look:
            clients = some_clients(data, config.evaluation_clients, config.seed)
        noise = None if noise_for is None else noise_for(len(clients))
        channel = build_tally_channel(config, form, len(clients), noise)
        if data.sizes_of(clients).any():
            measured = measurer(model, data, config.evaluation_batch_size, clients)(params)
            total = _total(form, channel, measured)
        else:
            total = channel.encode((), form.zeros, None)  # type: ignore[arg-type]
        # How many clients keep examples of a split follows from the examples: no private run tells.
        sent = None if noise else bytes_asked(params, channel, form, len(clients))
        return said(form, channel, total, noise)._replace(sent=sent)

    return judge


def _total(form: Form, channel: Channel, measured: Measured) -> Any:
    """The sum over clients, through their channel."""
    if is_plain(channel):
        together = tally(form, measured)
        return together if not together.left_out else added(form, _each(form, measured))
    key = jax.random.key(0)  # nothing of a tally is rounded at random
    words = [channel.summand(channel.encode((), own, key)) for own in _each(form, measured)]
    return jax.tree.map(lambda *leaves: sum(leaf.astype(np.int64) for leaf in leaves), *words)


def _each(form: Form, measured: Measured) -> Iterator[Tally]:
    return (own for _, own in tallies(form, measured))
