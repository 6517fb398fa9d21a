# SPDX-License-Identifier: Apache-2.0
"""Agnostic federated learning: one model that serves every domain.

The public names are those in `__all__`. They are loaded when first used, so that
`agnosticfl --help` does not wait for JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from agnosticfl import models as models
    from agnosticfl import weights as weights
    from agnosticfl.algorithm import agnostic_fedavg as agnostic_fedavg
    from agnosticfl.algorithm import fedavg as fedavg
    from agnosticfl.algorithm import fedavg_target as fedavg_target
    from agnosticfl.client import ClientSum as ClientSum
    from agnosticfl.data import FederatedData as FederatedData
    from agnosticfl.data import Splits as Splits
    from agnosticfl.data import from_arrays as from_arrays
    from agnosticfl.data.collect import split_frame as split_frame
    from agnosticfl.errors import BadInput as BadInput
    from agnosticfl.evaluate import evaluator as evaluator
    from agnosticfl.evaluate import full_evaluator as full_evaluator
    from agnosticfl.evaluate import some_clients as some_clients
    from agnosticfl.evaluate import worst_domain as worst_domain
    from agnosticfl.metrics import Mean as Mean
    from agnosticfl.model import Model as Model
    from agnosticfl.model import from_equinox as from_equinox
    from agnosticfl.model import from_functions as from_functions
    from agnosticfl.model import from_linen as from_linen
    from agnosticfl.model import from_nnx as from_nnx
    from agnosticfl.rounds import Algorithm as Algorithm
    from agnosticfl.rounds import RoundInfo as RoundInfo
    from agnosticfl.server import ServerState as ServerState
    from agnosticfl.study import study as study
    from agnosticfl.weights import DomainStats as DomainStats
    from agnosticfl.weights import WeightRule as WeightRule
    from agnosticfl.weights import exponentiated_gradient as exponentiated_gradient
    from agnosticfl.weights import fixed as fixed
    from agnosticfl.weights import proportional as proportional

_PLACES = {
    "algorithm": ("agnostic_fedavg", "fedavg", "fedavg_target"),
    "client": ("ClientSum",),
    "data": ("FederatedData", "Splits", "from_arrays"),
    "data.collect": ("split_frame",),
    "errors": ("BadInput",),
    "evaluate": ("evaluator", "full_evaluator", "some_clients", "worst_domain"),
    "metrics": ("Mean",),
    "model": ("Model", "from_equinox", "from_functions", "from_linen", "from_nnx"),
    "rounds": ("Algorithm", "RoundInfo"),
    "server": ("ServerState",),
    "study": ("study",),
    "weights": ("DomainStats", "WeightRule", "exponentiated_gradient", "fixed", "proportional"),
}
_MODULE_OF = {name: module for module, names in _PLACES.items() for name in names}

_MODULES = ("models", "weights")

__all__ = sorted([*_MODULE_OF, *_MODULES])  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"agnosticfl.{name}")
    if name in _MODULE_OF:
        return getattr(importlib.import_module(f"agnosticfl.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module 'agnosticfl' has no attribute {name!r}")
