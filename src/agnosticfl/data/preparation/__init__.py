# SPDX-License-Identifier: Apache-2.0
"""How the rows of a raw table become features: learnt from training rows, applied to any."""
