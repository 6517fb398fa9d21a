# SPDX-License-Identifier: Apache-2.0
"""The paper's EMNIST model, for images of any size: a convolutional network with dropout."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from msgspec import Meta

from agnosticfl.core.model import Model, Need
from agnosticfl.errors import check
from agnosticfl.models.helpers.classifier import DEFAULT_METRICS, ClassWeights, classifier
from agnosticfl.options import AtLeastOne
from agnosticfl.registry import MODELS

if TYPE_CHECKING:
    from flax import nnx

SMALLEST = 6  # pixels: two convolutions take 4, and pooling needs 2
Side: TypeAlias = Annotated[int, Meta(ge=SMALLEST)]


@MODELS.add("cnn")
def cnn(
    classes: AtLeastOne = 62,
    metrics: Sequence[str] = DEFAULT_METRICS,
    height: Side = 28,
    width: Side = 28,
    channels: AtLeastOne = 1,
    class_weights: ClassWeights = None,
) -> Model:
    """Two convolutions, pooling and two dense layers, trained by cross-entropy on the label `y`.

    With the defaults, the paper's, it has 1,206,590 parameters. Images `x` are [n, height, width],
    or [n, height, width, channels]; bytes (uint8) become numbers from 0 to 1 where the model runs,
    floats are taken as they are. What the convolutions leave of an image is 4 smaller, and is
    pooled by 2 × 2: a last row or column without a partner is left out.

    Args:
      classes: K, how many labels there are.
      metrics: names of metrics of labels.
      height: of an image, in pixels.
      width: the same.
      channels: numbers of a pixel, 3 for colours.
      class_weights: for each class, what the losses of its examples are multiplied with; λ follows
        the losses so weighted, while metrics stay as they are.
    """
    shape = (height, width, channels)
    for name, side in {"height": height, "width": width}.items():
        check(side >= SMALLEST, f"{name} of cnn is {side}; it must be at least {SMALLEST}")
    create = partial(_network, shape, classes)
    return classifier(create, _images(*shape), classes, metrics, class_weights)


def _images(height: int, width: int, channels: int) -> Need:
    allowed = {(height, width, channels)} | ({(height, width)} if channels == 1 else set())
    colours = f" × {channels}" if channels > 1 else ""
    return Need("x", f"images of {height} × {width}{colours}", lambda shape: shape in allowed)


def _network(shape: tuple[int, int, int], classes: int, rngs: "nnx.Rngs") -> Any:
    # Here: Flax takes a while to load, and whoever finds all programs compiled needs no network.
    from agnosticfl.models.helpers.convolutional import CNN

    return CNN(shape, classes, rngs)
