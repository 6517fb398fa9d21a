# SPDX-License-Identifier: Apache-2.0
"""A trained model on its way into use: a folder that stands alone, and predictions from it."""
