# SPDX-License-Identifier: Apache-2.0
"""`python -m agnosticfl` is the command `agnosticfl`."""

from agnosticfl.cli import script

script()
