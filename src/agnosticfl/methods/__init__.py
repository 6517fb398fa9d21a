# SPDX-License-Identifier: Apache-2.0
"""Methods, one record each: Agnostic Federated Averaging, FedAvg, and their rivals."""
