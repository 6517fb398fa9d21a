# SPDX-License-Identifier: Apache-2.0
"""Federated data: the data set that engines read, and the sources that make one."""

from agnosticfl.data.federated import FederatedData, from_arrays, only_domain
from agnosticfl.data.toy import toy

# What a task's [data] table can name: name -> function(**options) -> (train, test).
SOURCES = {"toy": toy}

__all__ = ["SOURCES", "FederatedData", "from_arrays", "only_domain", "toy"]
