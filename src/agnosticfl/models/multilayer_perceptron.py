# SPDX-License-Identifier: Apache-2.0
"""A multilayer perceptron on features `x`, for a label or a number `y`."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Annotated

from flax import nnx
from jax import Array
from msgspec import Meta

from agnosticfl.core.model import Model
from agnosticfl.errors import check
from agnosticfl.models.helpers import classifier, inputs, regression
from agnosticfl.models.helpers.classifier import ClassWeights
from agnosticfl.models.helpers.regression import Loss
from agnosticfl.options import AtLeastOne, Positive
from agnosticfl.registry import MODELS


@MODELS.add("mlp")
def mlp(
    features: AtLeastOne,
    hidden: Sequence[AtLeastOne] = (64,),
    classes: AtLeastOne | None = None,
    loss: Loss | None = None,
    huber_delta: Positive | None = None,
    dropout: Annotated[float, Meta(ge=0, lt=1)] = 0.0,
    class_weights: ClassWeights = None,
    metrics: Sequence[str] | None = None,
) -> Model:
    """Dense layers with ReLU and dropout; logits of `classes`, or one number if that is left out.

    Args:
      features: numbers of an example.
      hidden: units of each hidden layer.
      classes: K, how many labels there are; left out for a regression.
      loss: of a regression, of the error e = ŷ − y: squared (if left out) is e², absolute is |e|,
        huber is e² / 2 up to δ and δ (|e| − δ / 2) from there on.
      huber_delta: δ of the loss huber (1 if left out).
      dropout: share of the hidden units that are left out in a training step.
      class_weights: for each class, what the losses of its examples are multiplied with; λ follows
        the losses so weighted, while metrics stay as they are.
      metrics: names of metrics, of labels or of values; accuracy, or mae and r2, if left out.
    """
    check(
        all(units >= 1 for units in hidden), f"hidden of mlp is {list(hidden)}; all must be above 0"
    )
    check(0 <= dropout < 1, f"dropout of mlp is {dropout}; it must be at least 0 and below 1")
    create = partial(MLP, features, tuple(hidden), classes, dropout)
    row = inputs.row_of(features)
    if classes is None:
        check(class_weights is None, "class_weights of mlp is set, but classes is left out")
        names = regression.DEFAULT_METRICS if metrics is None else metrics
        return regression.regression(create, row, loss or "squared", huber_delta, names)
    for name, value in {"loss": loss, "huber_delta": huber_delta}.items():
        check(value is None, f"{name} of mlp is {value!r}, but classes is {classes}; leave one out")
    names = classifier.DEFAULT_METRICS if metrics is None else metrics
    return classifier.classifier(create, row, classes, names, class_weights)


class MLP(nnx.Module):
    """Features [n, ...] -> logits [n, classes], or numbers [n] if classes is None."""

    def __init__(
        self,
        features: int,
        hidden: tuple[int, ...],
        classes: int | None,
        dropout: float,
        rngs: nnx.Rngs,
    ):
        self.depth, self.classes = len(hidden), classes
        for layer, sizes in enumerate(pairwise((features, *hidden, classes or 1))):
            setattr(self, f"dense{layer + 1}", nnx.Linear(*sizes, rngs=rngs))
        self.dropout = nnx.Dropout(dropout, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        x = inputs.rows(x)
        for layer in range(self.depth):
            x = self.dropout(nnx.relu(getattr(self, f"dense{layer + 1}")(x)))
        outputs = getattr(self, f"dense{self.depth + 1}")(x)
        return outputs[:, 0] if self.classes is None else outputs
