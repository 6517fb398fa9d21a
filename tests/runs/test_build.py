# SPDX-License-Identifier: Apache-2.0
"""Whether data has what a model needs is told before anything is compiled."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agnosticfl import BadInput, from_arrays, models
from agnosticfl.core.federated import Splits
from agnosticfl.core.model import Model
from agnosticfl.data.loaders import synthetic
from agnosticfl.data.sources.store import stored
from agnosticfl.data.store import write_store
from agnosticfl.runs.features import check_features


def splits(features: dict[str, Any], vocabulary_size: int | None = None) -> Splits:
    rows = len(next(iter(features.values())))
    data = from_arrays(features, clients=np.zeros(rows), domains=np.zeros(rows, int))
    return Splits(data, data, data, vocabulary_size)


IMAGES = np.zeros((3, 28, 28), np.uint8)
LABELS = np.arange(3)
SENTENCES = np.array([[1, 3, 2, 0], [1, 3, 4, 2], [1, 8, 2, 0]])
LSTM, CNN = models.lstm(words=5, embedding=2, hidden=2), models.cnn(classes=3)


@pytest.mark.parametrize(
    ("model", "data"),
    [
        (CNN, splits({"x": IMAGES, "y": LABELS})),
        (CNN, splits({"x": IMAGES / 255, "y": LABELS[::-1], "more": LABELS})),
        (models.logistic(784, 4), splits({"x": IMAGES, "y": LABELS})),
        (LSTM, splits({"tokens": SENTENCES})),
        (LSTM, splits({"tokens": SENTENCES}, vocabulary_size=9)),
        (models.point(), splits({"x": np.zeros(3)})),
    ],
)
def test_data_that_fits_is_taken(model: Model, data: Splits):
    check_features(model, data, "it")


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (LSTM, splits({"x": IMAGES, "y": LABELS}), "there is no feature 'tokens' (but x, y)"),
        (CNN, splits({"x": IMAGES[:, 1:], "y": LABELS}), "feature 'x' has shape (27, 28)"),
        (CNN, splits({"x": IMAGES.astype(str), "y": LABELS}), "feature 'x' is of type <U"),
        (CNN, splits({"x": IMAGES, "y": LABELS / 2}), "feature 'y' is of type float64"),
        (CNN, splits({"x": IMAGES, "y": LABELS + 1}), "feature 'y' has values from 1 to 3"),
        (CNN, splits({"x": IMAGES, "y": LABELS - 1}), "feature 'y' has values from -1 to 1"),
        (CNN, splits({"x": IMAGES, "y": LABELS[:, None]}), "feature 'y' has shape (1,)"),
        (LSTM, splits({"tokens": SENTENCES + 1}), "feature 'tokens' has values from 1 to 9"),
        (LSTM, splits({"tokens": SENTENCES}, 8), "the vocabulary has ids from 0 to 7"),
        (LSTM, splits({"tokens": SENTENCES[:, :1]}), "feature 'tokens' has shape (1,)"),
        (models.point(), splits({"x": np.zeros((3, 2))}), "feature 'x' has shape (2,)"),
    ],
)
def test_data_that_does_not_fit_is_refused(model: Model, data: Splits, message: str):
    with pytest.raises(BadInput) as refused:
        check_features(model, data, "it")
    assert str(refused.value).startswith(f"train data for model 'it': {message}")


def test_what_the_model_needs_is_said():
    images = splits({"x": IMAGES, "y": LABELS})
    with pytest.raises(BadInput, match=r"\(28, 28\); needed: 100 numbers \(features = 100\)"):
        check_features(models.logistic(100, 3), images, "logistic")
    with pytest.raises(BadInput, match=r"needed: a whole number from 0 to 1 \(classes = 2\)"):
        check_features(models.logistic(784, 2), images, "logistic")
    with pytest.raises(BadInput, match=r"needed: 2 or more ids from 0 to 8 \(words = 5\)"):
        check_features(LSTM, images, "lstm")
    with pytest.raises(BadInput, match="classes of a classifier is 0"):
        models.cnn(classes=0)
    with pytest.raises(BadInput, match="features of a model is 0; it must be at least 1"):
        models.logistic(features=0, classes=2)


def test_every_split_is_looked_at():
    good, bad = ({"x": IMAGES, "y": LABELS + i} for i in (0, 1))
    data = splits(good)._replace(heldout=splits(bad).train)
    with pytest.raises(BadInput, match="heldout data for model 'cnn': feature 'y' has values"):
        check_features(CNN, data, "cnn")


def test_a_store_tells_its_vocabulary(tmp_path: Path):
    source = synthetic.load(kind="sentences", clients=20, test_fraction=0.5)
    write_store(source, tmp_path / "store")
    data = stored(str(tmp_path / "store"))
    assert data.vocabulary_size == 10_004
    check_features(models.cifg(words=10_000, embedding=2, hidden=2), data, "cifg")
    with pytest.raises(BadInput, match="the vocabulary has ids from 0 to 10003; needed: 2 or more"):
        check_features(models.cifg(words=9_999, embedding=2, hidden=2), data, "cifg")
