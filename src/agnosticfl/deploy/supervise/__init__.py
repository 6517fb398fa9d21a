# SPDX-License-Identifier: Apache-2.0
"""Processes of a federation: started, watched, started again, ended."""
