# SPDX-License-Identifier: Apache-2.0
"""Loaders, one per file format: `load(sources, *, options…) -> Source`.

A loader is called as its file is, with - for _.
"""
