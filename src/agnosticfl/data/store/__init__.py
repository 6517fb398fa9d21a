# SPDX-License-Identifier: Apache-2.0
"""The store: one directory that holds a federated data set of any size and opens at once."""

from agnosticfl.data.store.check import check_store
from agnosticfl.data.store.reader import Store, open_store
from agnosticfl.data.store.writer import write_store

__all__ = ["Store", "check_store", "open_store", "write_store"]
