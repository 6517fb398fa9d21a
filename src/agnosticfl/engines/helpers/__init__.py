# SPDX-License-Identifier: Apache-2.0
"""What engines share: plans, data on the device, sums, devices, tuning."""
