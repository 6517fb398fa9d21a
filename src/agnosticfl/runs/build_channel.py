# SPDX-License-Identifier: Apache-2.0
"""What happens to contributions, and to reports, on their way into the sum."""

from agnosticfl.channels.compression import compressed
from agnosticfl.channels.dp import Privacy
from agnosticfl.channels.fixed_point import simulated
from agnosticfl.core.channel import Channel, ChannelBuilder, plain
from agnosticfl.core.federated import FederatedData
from agnosticfl.engines.reporters import Reporters
from agnosticfl.errors import check
from agnosticfl.methods.base import reports_per_round
from agnosticfl.options import call_with_options
from agnosticfl.runs.config import Config


def build_channel(config: Config, privacy: Privacy | None = None) -> ChannelBuilder:
    """What happens to contributions on their way into the sum."""
    if config.compress is not None:
        check(
            privacy is None,
            "compress: rounding a clipped update makes it longer; not with dp: leave it out",
        )
        in_the_clear = call_with_options(compressed, config.compress, "compress")
        if config.secure is None:
            return in_the_clear
        check(
            "bits" in config.compress,
            "compress: every client has its own top_k places, and numbers of different places"
            " cannot be added while masked; under secure aggregation choose bits",
        )
    if config.secure is None:
        return plain if privacy is None else privacy.channel
    bits = int(config.compress["bits"]) if config.compress else None
    own = dict(config.secure)
    del own["name"]
    channel = call_with_options(simulated, own, "secure", config.clients_per_round, bits)
    if privacy is None:
        return channel
    check(
        privacy.mode == "distributed" or privacy.federation is not None,
        "dp: under secure aggregation the server cannot add the noise; mode must be 'distributed',"
        " in which clients do",
    )
    # Whole numbers, which a secure sum adds as they are.
    least = float(own.get("least_alpha", 0.0))
    return lambda like: _with_least_alpha(privacy.channel(like), least)


def _with_least_alpha(channel: Channel, least: float) -> Channel:
    return channel._replace(least_alpha=max(channel.least_alpha, least))


def report_channel(
    config: Config, heldout: FederatedData | Reporters, privacy: Privacy | None
) -> ChannelBuilder:
    """What happens to the reports of those whose losses move λ."""
    if isinstance(heldout, Reporters):
        return lambda _: heldout.channel
    number = reports_per_round(config.clients_per_round, heldout)
    return build_report_channel(config, number, privacy)


def build_report_channel(
    config: Config, clients: int, privacy: Privacy | None = None
) -> ChannelBuilder:
    """The same for so many held-out clients, whose reports have no update to make smaller."""
    if privacy is not None:
        assert privacy.reports is not None
        return privacy.reports.channel
    if config.secure is None:
        return plain
    own = {key: value for key, value in config.secure.items() if key != "name"}
    return call_with_options(simulated, own, "secure", clients, None)
