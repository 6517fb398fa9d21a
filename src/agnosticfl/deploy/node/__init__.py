# SPDX-License-Identifier: Apache-2.0
"""What a node does: whether it joins, with which examples, how it answers."""
