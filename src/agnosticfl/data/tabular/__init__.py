# SPDX-License-Identifier: Apache-2.0
"""From a raw table to a source: what its columns are, whose its rows are, and in which split."""
