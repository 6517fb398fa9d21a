# SPDX-License-Identifier: Apache-2.0
"""Built-in models, one a file."""

from agnosticfl.models.cifg import cifg
from agnosticfl.models.cnn import cnn
from agnosticfl.models.logistic import logistic
from agnosticfl.models.lstm import lstm
from agnosticfl.models.point import point

# What a task's [model] table can name: name -> function(**options) -> Model.
MODELS = {"point": point, "logistic": logistic, "cnn": cnn, "lstm": lstm, "cifg": cifg}

__all__ = ["MODELS", "cifg", "cnn", "logistic", "lstm", "point"]
