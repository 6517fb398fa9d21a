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
from agnosticfl.core.metrics.labels import (
    accuracy,
    auprc,
    auroc,
    balanced_accuracy,
    break_even,
    calibration_error,
    f1,
    min_recall_precision,
    recall,
)
from agnosticfl.core.metrics.sentences import (
    cross_entropy,
    in_vocab_accuracy,
    in_vocab_accuracy_fedjax,
    in_vocab_accuracy_tff,
    over_real_tokens,
    perplexity,
    token_loss,
)
from agnosticfl.core.metrics.values import c_index, mae, r2, rmse

__all__ = [
    "LOSS",
    "SHAPES",
    "ExactFunction",
    "Mean",
    "Metric",
    "Outputs",
    "Reading",
    "accuracy",
    "auprc",
    "auroc",
    "balanced_accuracy",
    "break_even",
    "c_index",
    "calibration_error",
    "cross_entropy",
    "exact_metric",
    "f1",
    "in_vocab_accuracy",
    "in_vocab_accuracy_fedjax",
    "in_vocab_accuracy_tff",
    "mae",
    "metric",
    "min_recall_precision",
    "named_metrics",
    "over_real_tokens",
    "perplexity",
    "r2",
    "reading",
    "recall",
    "rmse",
    "token_loss",
]
