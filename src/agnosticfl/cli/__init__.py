# SPDX-License-Identifier: Apache-2.0
"""The command-line program: it assembles only. `script` is its entry, `main` that of a program
which goes on."""

from agnosticfl.cli.commands import main as main
from agnosticfl.cli.commands import script as script
