# SPDX-License-Identifier: Apache-2.0
"""Secure aggregation: the server learns the sum over clients and nothing of any one of them.

`member.answer` and `aggregator.Server` are the two sides of the protocol, as bytes; there is no
network code here. The whole numbers that are summed are made by `channels.fixed_point`.
"""
