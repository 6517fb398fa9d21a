# SPDX-License-Identifier: Apache-2.0
"""The gate before the SuperLink: what the world reaches, and all that it lets through."""
