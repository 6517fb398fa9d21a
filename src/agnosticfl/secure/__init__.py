# SPDX-License-Identifier: Apache-2.0
"""Secure aggregation: the server learns the sum over clients and nothing of any one of them.

`client.answer` and `server.Server` are the two sides of the protocol, as bytes; there is no
network code here. `fixed_point` turns contributions into the whole numbers that are summed, and
needs none of the libraries that the protocol does.
"""
