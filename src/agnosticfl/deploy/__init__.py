# SPDX-License-Identifier: Apache-2.0
"""Federations of real machines on Flower: the only code that imports it (extra `deploy`)."""
