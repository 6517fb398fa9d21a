# SPDX-License-Identifier: Apache-2.0
"""A trained model in use: `load(folder)`, then `predict(rows)` and `predict_proba(rows)`."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from agnosticfl.core.federated import slices
from agnosticfl.core.model import Model
from agnosticfl.core.precision import model_in_precision
from agnosticfl.core.tokens import EOS, PAD
from agnosticfl.data.preparation.apply import joined
from agnosticfl.errors import check
from agnosticfl.export.folder import Opened, open_exported
from agnosticfl.export.rows import Reader, as_table, reader_of

BATCH = 512  # examples at a time
SENTENCES = 32  # a sentence has a number for every word of the vocabulary, at every place


class TrainedModel(NamedTuple):
    """A model that was exported, ready for new rows.

    Rows are a pandas or Polars frame, arrays by name, a list of tables or of sentences, or the path
    of a table, with the columns that the training data had; client, domain and label are not
    needed. What the training rows did not have (an unknown category, a missing value where none was
    missing) is told by a warning.
    """

    opened: Opened
    reader: Reader
    outputs: Callable[[Mapping[str, np.ndarray]], np.ndarray]  # features -> logits or values

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The name of each class, where classes have names."""
        return self.opened.facts.data.labels

    def predict(self, rows: Any) -> np.ndarray:
        """The class of each row (its name, if classes have names), its value, or its next word."""
        return self.chosen(self._outputs(rows))

    def predict_proba(self, rows: Any) -> np.ndarray:
        """The probability of each class, or of each next word: [n, K]."""
        check(
            self.opened.model.outputs != "values",
            "this model predicts a number, which has no probabilities; use predict(rows)",
        )
        return softmax(self._outputs(rows))

    def chosen(self, outputs: np.ndarray) -> np.ndarray:
        """What outputs say: names of classes or words, or the values themselves."""
        if self.opened.model.outputs == "values":
            return outputs
        names = self._names()
        best = outputs.argmax(axis=-1)
        return best if names is None else np.array(names)[best]

    def _names(self) -> tuple[str, ...] | None:
        data = self.opened.facts.data
        return data.vocabulary if self.opened.model.outputs == "tokens" else data.labels

    def _outputs(self, rows: Any) -> np.ndarray:
        parts = list(self.reader.rows(as_table(rows), ()))
        check(len(parts) > 0, "there are no rows to predict")
        for line in joined(part.notes for part in parts).lines():
            warnings.warn(line, stacklevel=3)
        return np.concatenate([self.outputs(part.features) for part in parts])


def load(folder: Path | str, model: Model | None = None) -> TrainedModel:
    """An exported model, ready to predict. A folder with a changed byte is refused.

    Args:
      folder: what `agnosticfl export` or `export_run` wrote.
      model: if the run got its model from Python (`study`), which no task can name.
    """
    opened = open_exported(Path(folder), model)
    check(
        opened.model.forward is not None,
        f"the model of {folder} has no forward function, so it cannot predict;"
        " give its adapter forward=…",
    )
    return TrainedModel(opened, reader_of(opened.facts), _forward(opened))


def softmax(logits: np.ndarray) -> np.ndarray:
    """exp of the logits, divided by their sum over the last axis."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def _forward(opened: Opened) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
    """The model's outputs, computed in batches of one shape."""
    model = model_in_precision(opened.model, opened.config.precision)
    assert model.forward is not None
    run = jax.jit(model.forward)
    of_sentences = model.outputs == "tokens"
    size = SENTENCES if of_sentences else BATCH

    def outputs(features: Mapping[str, np.ndarray]) -> np.ndarray:
        found: list[np.ndarray] = []
        for part, examples in _batches(features, size):
            said = np.asarray(run(opened.params, examples))[: part.stop - part.start]
            found.append(_at_the_end(said, features["tokens"][part]) if of_sentences else said)
        return np.concatenate(found)

    return outputs


def _batches(
    features: Mapping[str, np.ndarray], size: int
) -> Iterator[tuple[slice, dict[str, np.ndarray]]]:
    """The last batch is filled up with its last row, so that one program serves all."""
    rows = len(next(iter(features.values())))
    for part in slices(rows, size):
        chosen = np.minimum(np.arange(part.start, part.start + size), rows - 1)
        yield part, {name: array[chosen] for name, array in features.items()}


def _at_the_end(logits: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """What is said after the last word of each sentence: [n, T, K + 4] -> [n, K + 4]."""
    words = ((tokens != PAD) & (tokens != EOS)).sum(axis=1)  # bos is one of them
    last = np.minimum(words, logits.shape[1]) - 1
    return logits[np.arange(len(logits)), last]
