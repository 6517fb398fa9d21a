# SPDX-License-Identifier: Apache-2.0
"""Where the data of a task comes from: what its `[data]` can name, `(**options) -> Splits`."""
