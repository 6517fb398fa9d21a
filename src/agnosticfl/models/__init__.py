# SPDX-License-Identifier: Apache-2.0
"""Built-in models, one a file."""

from agnosticfl.models.logistic import logistic
from agnosticfl.models.point import point

# What a task's [model] table can name: name -> function(**options) -> Model.
MODELS = {"point": point, "logistic": logistic}

__all__ = ["MODELS", "logistic", "point"]
