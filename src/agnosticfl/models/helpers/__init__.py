# SPDX-License-Identifier: Apache-2.0
"""What models share: losses and metrics, layers over time."""
