# SPDX-License-Identifier: Apache-2.0
"""Built-in models, one per file."""

from agnosticfl.models.cox_regression import cox
from agnosticfl.models.discrete_hazard import hazard
from agnosticfl.models.emnist_cnn import cnn
from agnosticfl.models.keyboard_cifg import cifg
from agnosticfl.models.linear_regression import linear
from agnosticfl.models.logistic_regression import logistic
from agnosticfl.models.multilayer_perceptron import mlp
from agnosticfl.models.toy_point import point
from agnosticfl.models.word_lstm import lstm

__all__ = ["cifg", "cnn", "cox", "hazard", "linear", "logistic", "lstm", "mlp", "point"]
