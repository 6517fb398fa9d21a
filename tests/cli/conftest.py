# SPDX-License-Identifier: Apache-2.0
"""The commands of a federation are tested where the extra `deploy` is installed."""

import importlib.util

collect_ignore = [] if importlib.util.find_spec("flwr") is not None else ["test_deploy.py"]
