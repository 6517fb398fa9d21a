# SPDX-License-Identifier: Apache-2.0
"""Agnostic federated learning: one model that serves every domain."""

__version__ = "0.1.0"
