# SPDX-License-Identifier: Apache-2.0
"""What users may rely on: the public names, and the code in the README."""

import dataclasses
import inspect
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optax
import pytest

import agnosticfl

ROOT = Path(__file__).parents[1]


def test_public_names_are_these_and_no_others():
    assert agnosticfl.__all__ == [
        "Algorithm",
        "BadInput",
        "Broadcast",
        "Channel",
        "ChannelBuilder",
        "ClientSum",
        "DomainStats",
        "Engine",
        "EngineBuilder",
        "FederatedData",
        "Mean",
        "Method",
        "Metric",
        "Model",
        "Parts",
        "RoundInfo",
        "Sampler",
        "SamplerBuilder",
        "ServerState",
        "Source",
        "Splits",
        "SumOverClients",
        "TrainedModel",
        "WeightRule",
        "agnostic_fedavg",
        "available_cohorts",
        "channels",
        "drfa",
        "engines",
        "evaluator",
        "exact_metric",
        "exponentiated_gradient",
        "export_run",
        "fedavg",
        "fedavg_target",
        "fixed",
        "from_arrays",
        "from_equinox",
        "from_functions",
        "from_linen",
        "from_nnx",
        "full_evaluator",
        "load",
        "method",
        "metric",
        "models",
        "proportional",
        "q_fedavg",
        "some_clients",
        "split_frame",
        "stratified_cohorts",
        "study",
        "tune",
        "tune_study",
        "uniform_cohorts",
        "weights",
        "worst_domain",
    ]


def documented(thing: Any) -> bool:
    """Whether a function, a class or a module says what it is, in words of its own."""
    own = vars(thing).get("__doc__") if isinstance(thing, type) else thing.__doc__
    first = (own or "").lstrip(" ").partition("\n")[0]
    # A NamedTuple or a dataclass without a docstring is given its signature for one.
    return bool(first) and not first.startswith(f"{thing.__name__}(")


@pytest.mark.parametrize("name", agnosticfl.__all__)
def test_every_public_name_is_there_and_documented(name: str):
    assert documented(getattr(agnosticfl, name))


def test_a_name_without_words_of_its_own_counts_as_not_documented():
    class Pair(NamedTuple):
        first: int
        second: int

    @dataclasses.dataclass
    class Record:
        field: int = 0

    class Other(agnosticfl.BadInput):
        pass

    def arguments_only() -> None:
        """
        Args:
          none.
        """

    for thing in (Pair, Record, Other, arguments_only, lambda: None, types.ModuleType("empty")):
        assert not documented(thing)
    assert documented(documented)


def test_dir_shows_the_public_names():
    assert set(agnosticfl.__all__) <= set(dir(agnosticfl))
    assert not [name for name in dir(agnosticfl) if name in ("importlib", "Any", "TYPE_CHECKING")]


@pytest.mark.parametrize("name", agnosticfl.__all__)
def test_signatures_show_every_option(name: str):
    thing = getattr(agnosticfl, name)
    if not inspect.isfunction(thing):
        return
    parameters = inspect.signature(thing).parameters.values()
    bare = [p.name for p in parameters if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    assert bare == []


def test_methods_show_what_they_are_made_from_and_their_own_defaults():
    afa, fedavg, target, q_fedavg = (
        inspect.signature(method).parameters
        for method in (
            agnosticfl.agnostic_fedavg,
            agnosticfl.fedavg,
            agnosticfl.fedavg_target,
            agnosticfl.q_fedavg,
        )
    )
    parts = list(inspect.signature(agnosticfl.Parts).parameters)
    assert list(afa) == list(fedavg) == parts
    assert list(target) == [*parts[:2], "target", *parts[2:]]
    assert list(q_fedavg) == [*parts[:2], "q", "learning_rate", *parts[2:]]
    assert (afa["normalisation"].default, fedavg["normalisation"].default) == ("client", "unbiased")
    for method in (agnosticfl.agnostic_fedavg, agnosticfl.fedavg):
        assert "client_optimizer: local steps with rate γ_w" in str(method.__doc__)


def test_what_a_method_is_made_from_has_public_names():
    afl = agnosticfl
    data = afl.from_arrays(
        {"x": np.arange(24, dtype=np.float32)}, np.arange(24) // 4, np.arange(24) % 2
    )
    algorithm = afl.agnostic_fedavg(
        afl.models.point(),
        data,
        clients_per_round=3,
        batch_size=2,
        client_optimizer=optax.sgd(0.01),
        engine=afl.engines.padded_engine,
        channel=afl.channels.compressed(bits=8),
        cohorts=afl.uniform_cohorts(over_selection=1.5),
        weight_rule=afl.weights.chain(
            afl.weights.normalised(), afl.exponentiated_gradient(0.1), afl.weights.mixed(0.1)
        ),
    )
    state, info = algorithm.round(algorithm.init(), algorithm.cohort(1))
    assert int(state.round) == 1
    assert float(info.domain_count.sum()) == 12
    assert dict(algorithm.choices) == {"engine": "padded"}


def test_study_shows_the_keys_of_a_task():
    parameters = inspect.signature(agnosticfl.study).parameters
    assert {"rounds", "clients_per_round", "weight_rule", "metric"} <= set(parameters)
    assert parameters["rounds"].default is inspect.Parameter.empty
    assert parameters["epochs"].default == 1


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        agnosticfl.nonsense  # noqa: B018


def test_the_program_starts_without_loading_jax():
    code = "import sys, agnosticfl.cli; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_readme_s_python_runs():
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "worst" in done.stdout


def test_every_import_in_the_docs_works():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    statement = re.compile(r"^(?:from|import) agnosticfl[^\n(]*(?:\([^)]*\))?", re.MULTILINE)
    imports = [found for page in pages for found in statement.findall(page.read_text())]
    assert len(imports) > 5
    for found in imports:
        exec(found, {})
