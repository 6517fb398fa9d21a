# SPDX-License-Identifier: Apache-2.0
"""Readers of file formats that are not ours. They trust nothing, and name the place of a fault."""
