# SPDX-License-Identifier: Apache-2.0
"""Runs: from a task to a folder with a trained model in it."""
