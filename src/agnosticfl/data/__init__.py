# SPDX-License-Identifier: Apache-2.0
"""Federated data from files: loaders read them, a store holds them, sources give them to a task."""
