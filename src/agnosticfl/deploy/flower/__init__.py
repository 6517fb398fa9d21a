# SPDX-License-Identifier: Apache-2.0
"""The only code that imports Flower: strategies and apps."""
