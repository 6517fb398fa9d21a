# SPDX-License-Identifier: Apache-2.0
"""Built-in models, one per file."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agnosticfl.models.cox_regression import cox as cox
    from agnosticfl.models.discrete_hazard import hazard as hazard
    from agnosticfl.models.emnist_cnn import cnn as cnn
    from agnosticfl.models.keyboard_cifg import cifg as cifg
    from agnosticfl.models.linear_regression import linear as linear
    from agnosticfl.models.logistic_regression import logistic as logistic
    from agnosticfl.models.multilayer_perceptron import mlp as mlp
    from agnosticfl.models.toy_point import point as point
    from agnosticfl.models.word_lstm import lstm as lstm

# Each is loaded when it is first used: most of them need Flax, which takes a while.
_PLACES = {
    "cifg": "keyboard_cifg",
    "cnn": "emnist_cnn",
    "cox": "cox_regression",
    "hazard": "discrete_hazard",
    "linear": "linear_regression",
    "logistic": "logistic_regression",
    "lstm": "word_lstm",
    "mlp": "multilayer_perceptron",
    "point": "toy_point",
}

__all__ = sorted(_PLACES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__]
