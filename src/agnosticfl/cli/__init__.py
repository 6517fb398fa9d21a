# SPDX-License-Identifier: Apache-2.0
"""The command-line program: it assembles only. `main` is its entry."""

from agnosticfl.cli.commands import main as main
