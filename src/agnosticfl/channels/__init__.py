# SPDX-License-Identifier: Apache-2.0
"""Channels: what a contribution can go through on its way into the sum. `chain` joins them."""

from agnosticfl.channels.bounds import Bounds, bounding
from agnosticfl.channels.compression import compressed
from agnosticfl.channels.fixed_point import few_bits, in_fixed_point
from agnosticfl.core.channel import chain, plain

__all__ = ["Bounds", "bounding", "chain", "compressed", "few_bits", "in_fixed_point", "plain"]
