# SPDX-License-Identifier: Apache-2.0
"""Differential privacy without a model: secret bits, exact noise, and what noised sums cost.

Whole numbers and NumPy; no JAX, so that a client of a federation can draw and count for itself.
What is clipped and how noise enters a round is in `channels/dp`; docs/privacy.md says what is
promised, and docs/privacy-why.md why it holds.
"""
