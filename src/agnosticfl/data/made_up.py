# SPDX-License-Identifier: Apache-2.0
"""Made-up data of a task, in memory: no file and no command before it."""

import functools
from typing import Any

from agnosticfl.data.federated import Splits
from agnosticfl.data.loaders.synthetic import load


@functools.wraps(load)  # a task's [data] has the options of `data prepare synthetic`
def made_up(**options: Any) -> Splits:
    from agnosticfl.data.collect import collect_splits  # here: it loads Arrow

    return collect_splits(load(**options))
