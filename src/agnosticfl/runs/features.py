# SPDX-License-Identifier: Apache-2.0
"""Whether data has the features that a model needs, before anything is compiled."""

import itertools

import numpy as np

from agnosticfl.core.federated import FederatedData, Splits
from agnosticfl.core.model import Model, Need
from agnosticfl.errors import check


def check_features(model: Model, data: Splits, model_name: str) -> None:
    """Refuses data without the features that the model needs, before anything is compiled."""
    parts = {"train": data.train, "heldout": data.heldout, "test": data.test}
    for need, (split, part) in itertools.product(model.needs, parts.items()):
        if part is None or part.num_examples == 0:
            continue
        wrong = _misfit(need, part, data.vocabulary_size)
        check(wrong is None, f"{split} data for model {model_name!r}: {wrong}; needed: {need.text}")
    data.release()


def _misfit(need: Need, data: FederatedData, vocabulary_size: int | None) -> str | None:
    """What is wrong with a feature, or None. Ids are searched only if no vocabulary tells them."""
    name = need.feature
    if name not in data.examples:
        return f"there is no feature {name!r} (but {', '.join(data.examples)})"
    values = data.examples[name]
    if not need.fits(values.shape[1:]):
        return f"feature {name!r} has shape {values.shape[1:]}"
    if not np.issubdtype(values.dtype, np.number if need.ids is None else np.integer):
        return f"feature {name!r} is of type {values.dtype}"
    if need.ids is None:
        return None
    if name == "tokens" and vocabulary_size is not None:  # unknown words have the last id
        fits = vocabulary_size == need.ids
        return None if fits else f"the vocabulary has ids from 0 to {vocabulary_size - 1}"
    low, high = int(values.min()), int(values.max())
    fits = low >= 0 and high < need.ids
    return None if fits else f"feature {name!r} has values from {low} to {high}"
