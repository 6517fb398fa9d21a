# SPDX-License-Identifier: Apache-2.0
"""What is measured of a model, and which way is better."""

from agnosticfl.core.metrics.base import (
    LOSS,
    SHAPES,
    ExactFunction,
    Mean,
    Metric,
    Outputs,
    Reading,
    exact_metric,
    metric,
    named_metrics,
    reading,
)

# All of them are loaded with the room, so that a name is taken before somebody else wants it.
from agnosticfl.core.metrics.labels import accuracy
from agnosticfl.core.metrics.sentences import (
    cross_entropy,
    in_vocab_accuracy,
    in_vocab_accuracy_fedjax,
    in_vocab_accuracy_tff,
    perplexity,
    token_loss,
)

__all__ = [
    "LOSS",
    "SHAPES",
    "ExactFunction",
    "Mean",
    "Metric",
    "Outputs",
    "Reading",
    "accuracy",
    "cross_entropy",
    "exact_metric",
    "in_vocab_accuracy",
    "in_vocab_accuracy_fedjax",
    "in_vocab_accuracy_tff",
    "metric",
    "named_metrics",
    "perplexity",
    "reading",
    "token_loss",
]
