# SPDX-License-Identifier: Apache-2.0
"""The commands of a federation are tested where the extra `deploy` is installed."""

import importlib.util

installed = importlib.util.find_spec("flwr") is not None
collect_ignore = [] if installed else ["test_agreed.py", "test_deploy.py"]
