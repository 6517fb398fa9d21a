# SPDX-License-Identifier: Apache-2.0
"""Federated data: the data set that engines read, and the sources that make one."""

from agnosticfl.data.federated import (
    FederatedData,
    Splits,
    domain_counts,
    from_arrays,
    only_domain,
)
from agnosticfl.data.made_up import made_up
from agnosticfl.data.stored import stored
from agnosticfl.data.toy import toy

# What a task's [data] table can name: name -> function(**options) -> Splits.
SOURCES = {"store": stored, "synthetic": made_up, "toy": toy}

__all__ = [
    "SOURCES",
    "FederatedData",
    "Splits",
    "domain_counts",
    "from_arrays",
    "made_up",
    "only_domain",
    "stored",
    "toy",
]
