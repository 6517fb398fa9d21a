# SPDX-License-Identifier: Apache-2.0
"""Agnostic federated learning: one model that serves every domain.

The public names are those in `__all__`. They are loaded when first used, so that
`agnosticfl --help` does not wait for JAX.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

# A program of JAX that calls Python, as a private round does for its noise, occupies one of the
# threads of JAX's CPU client, and what Python is given may wait for another. There are as many as
# processors, or as NPROC says: with one of them such a round stops for ever.
if hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) == 1:
    os.environ.setdefault("NPROC", "2")

if TYPE_CHECKING:
    from agnosticfl import channels as channels
    from agnosticfl import engines as engines
    from agnosticfl import models as models
    from agnosticfl import weights as weights
    from agnosticfl.core.channel import Channel as Channel
    from agnosticfl.core.channel import ChannelBuilder as ChannelBuilder
    from agnosticfl.core.cohorts import SamplerBuilder as SamplerBuilder
    from agnosticfl.core.cohorts import available_cohorts as available_cohorts
    from agnosticfl.core.cohorts import stratified_cohorts as stratified_cohorts
    from agnosticfl.core.cohorts import uniform_cohorts as uniform_cohorts
    from agnosticfl.core.contribution import Broadcast as Broadcast
    from agnosticfl.core.contribution import ClientSum as ClientSum
    from agnosticfl.core.contribution import SumOverClients as SumOverClients
    from agnosticfl.core.evaluate import evaluator as evaluator
    from agnosticfl.core.evaluate import full_evaluator as full_evaluator
    from agnosticfl.core.evaluate import some_clients as some_clients
    from agnosticfl.core.evaluate import worst_domain as worst_domain
    from agnosticfl.core.federated import FederatedData as FederatedData
    from agnosticfl.core.federated import Splits as Splits
    from agnosticfl.core.federated import from_arrays as from_arrays
    from agnosticfl.core.metrics import Mean as Mean
    from agnosticfl.core.metrics import Metric as Metric
    from agnosticfl.core.metrics import exact_metric as exact_metric
    from agnosticfl.core.metrics import metric as metric
    from agnosticfl.core.model import Model as Model
    from agnosticfl.core.model import from_functions as from_functions
    from agnosticfl.core.sampling import Sampler as Sampler
    from agnosticfl.core.state import RoundInfo as RoundInfo
    from agnosticfl.core.state import ServerState as ServerState
    from agnosticfl.core.weight_rule import DomainStats as DomainStats
    from agnosticfl.core.weight_rule import WeightRule as WeightRule
    from agnosticfl.data.collect import split_frame as split_frame
    from agnosticfl.data.source import Source as Source
    from agnosticfl.engines.base import Engine as Engine
    from agnosticfl.engines.base import EngineBuilder as EngineBuilder
    from agnosticfl.errors import BadInput as BadInput
    from agnosticfl.export.folder import export_run as export_run
    from agnosticfl.export.model import TrainedModel as TrainedModel
    from agnosticfl.export.model import load as load
    from agnosticfl.methods.afa import agnostic_fedavg as agnostic_fedavg
    from agnosticfl.methods.base import Algorithm as Algorithm
    from agnosticfl.methods.base import Method as Method
    from agnosticfl.methods.base import Parts as Parts
    from agnosticfl.methods.base import method as method
    from agnosticfl.methods.drfa import drfa as drfa
    from agnosticfl.methods.excess_risk import excess_risk as excess_risk
    from agnosticfl.methods.fedavg import fedavg as fedavg
    from agnosticfl.methods.fedavg import fedavg_target as fedavg_target
    from agnosticfl.methods.fednova import fednova as fednova
    from agnosticfl.methods.q_fedavg import q_fedavg as q_fedavg
    from agnosticfl.models.adapters import from_equinox as from_equinox
    from agnosticfl.models.adapters import from_linen as from_linen
    from agnosticfl.models.adapters import from_nnx as from_nnx
    from agnosticfl.report.search import tune as tune
    from agnosticfl.report.search import tune_study as tune_study
    from agnosticfl.report.study import study as study
    from agnosticfl.weights import exponentiated_gradient as exponentiated_gradient
    from agnosticfl.weights import fixed as fixed
    from agnosticfl.weights import proportional as proportional

_PLACES = {
    "core.channel": ("Channel", "ChannelBuilder"),
    "core.cohorts": (
        "SamplerBuilder",
        "available_cohorts",
        "stratified_cohorts",
        "uniform_cohorts",
    ),
    "core.contribution": ("Broadcast", "ClientSum", "SumOverClients"),
    "core.evaluate": ("evaluator", "full_evaluator", "some_clients", "worst_domain"),
    "core.federated": ("FederatedData", "Splits", "from_arrays"),
    "core.metrics": ("Mean", "Metric", "exact_metric", "metric"),
    "core.model": ("Model", "from_functions"),
    "core.sampling": ("Sampler",),
    "core.state": ("RoundInfo", "ServerState"),
    "core.weight_rule": ("DomainStats", "WeightRule"),
    "data.collect": ("split_frame",),
    "data.source": ("Source",),
    "engines.base": ("Engine", "EngineBuilder"),
    "errors": ("BadInput",),
    "export.folder": ("export_run",),
    "export.model": ("TrainedModel", "load"),
    "methods.afa": ("agnostic_fedavg",),
    "methods.base": ("Algorithm", "Method", "Parts", "method"),
    "methods.drfa": ("drfa",),
    "methods.excess_risk": ("excess_risk",),
    "methods.fedavg": ("fedavg", "fedavg_target"),
    "methods.fednova": ("fednova",),
    "methods.q_fedavg": ("q_fedavg",),
    "models.adapters": ("from_equinox", "from_linen", "from_nnx"),
    "report.study": ("study",),
    "report.search": ("tune", "tune_study"),
    "weights": ("exponentiated_gradient", "fixed", "proportional"),
}
_MODULE_OF = {name: module for module, names in _PLACES.items() for name in names}

_ROOMS = ("channels", "engines", "models", "weights")

__all__ = sorted([*_MODULE_OF, *_ROOMS])  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"agnosticfl.{name}")
    if name in _MODULE_OF:
        return getattr(importlib.import_module(f"agnosticfl.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module 'agnosticfl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
