# SPDX-License-Identifier: Apache-2.0
"""Federations are tested where the extra `deploy` is installed."""

import importlib
import importlib.util
import warnings

installed = importlib.util.find_spec("flwr") is not None
collect_ignore_glob = [] if installed else ["test_*.py"]

if installed:
    with warnings.catch_warnings():  # of libraries that Flower's first import loads
        warnings.simplefilter("ignore")
        importlib.import_module("flwr.serverapp")
        importlib.import_module("flwr.clientapp")
