# SPDX-License-Identifier: Apache-2.0
"""Loaders, one a file format: `load(sources, **options) -> Source`."""
