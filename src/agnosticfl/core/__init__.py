# SPDX-License-Identifier: Apache-2.0
"""What every method is made of. It imports no other room, and neither Arrow nor Flax."""
