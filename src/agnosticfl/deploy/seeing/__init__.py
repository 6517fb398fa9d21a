# SPDX-License-Identifier: Apache-2.0
"""What an operator sees of a server: one view, in a terminal, on a page and as metrics."""
