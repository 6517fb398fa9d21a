# SPDX-License-Identifier: Apache-2.0
"""A client in PyTorch gives the numbers of a client in JAX."""

import re
from pathlib import Path
from typing import Any, get_args

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import optax
import pytest

from agnosticfl import from_functions
from agnosticfl.core.contribution import Broadcast
from agnosticfl.core.federated import from_arrays
from agnosticfl.core.keeping import kept_apart
from agnosticfl.core.work import ClientWork
from agnosticfl.deploy.node.contribute import Call
from agnosticfl.deploy.node.evaluate import Asked, measure
from agnosticfl.deploy.node.examples import one_client
from agnosticfl.deploy.node.pytorch import torch_client, torch_model
from agnosticfl.deploy.task import EVALUATION
from agnosticfl.engines import reference_engine
from agnosticfl.errors import BadInput
from agnosticfl.options import Normalisation
from agnosticfl.runs.resolve import resolve

torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")

ALPHA = np.array([0.02, 0.3, 0.1], np.float32)


def create() -> Any:
    return torch.nn.Linear(2, 3)


def torch_loss(module: Any, examples: Any) -> Any:
    logits = module(examples["x"])
    return torch.nn.functional.cross_entropy(logits, examples["y"].long(), reduction="none")


def jax_loss(params: Any, examples: Any) -> Any:
    logits = examples["x"] @ params["weight"].T + params["bias"][None]
    return optax.softmax_cross_entropy_with_integer_labels(logits, examples["y"])


def data(n: int = 23) -> Any:
    rng = np.random.default_rng(0)
    arrays = {"x": rng.normal(size=(n, 2)).astype("float32"), "y": rng.integers(3, size=n)}
    return from_arrays(arrays, np.zeros(n, int), rng.integers(3, size=n), ["a", "b", "c"])


def call(optimizer: dict[str, Any], **changes: Any) -> Call:
    config = resolve("toy", sets=["batch_size=5", "epochs=2"])
    config = msgspec.structs.replace(config, client_optimizer=optimizer, **changes)
    first = torch_model(create, torch_loss).init(jax.random.key(0))
    params = {name: np.asarray(array) for name, array in first.items()}
    return Call(config, one_client(data(), 2), 2, 7, 4, params, ALPHA)


@pytest.mark.parametrize("normalisation", get_args(Normalisation))
@pytest.mark.parametrize(
    ("table", "optimizer", "tolerance"),
    [
        ({"name": "sgd", "learning_rate": 0.5}, optax.sgd(0.5), 2e-6),
        (
            {"name": "sgd", "learning_rate": 0.5, "momentum": 0.9, "nesterov": True},
            optax.sgd(0.5, momentum=0.9, nesterov=True),
            2e-6,
        ),
        ({"name": "adam", "learning_rate": 0.1, "eps": 1e-4}, optax.adam(0.1, eps=1e-4), 2e-5),
    ],
)
def test_parity_with_the_reference_engine(
    table: Any, optimizer: Any, tolerance: float, normalisation: str
):
    """Within `tolerance` of the largest number of each kind; counts are equal."""
    asked = call(table, normalisation=normalisation)
    model = from_functions(lambda _: asked.params, jax_loss)
    work = ClientWork(model, optimizer, 3, 5, 2, normalisation)
    engine = reference_engine(work, asked.data, lambda _: np.array([2]), asked.seed)
    params = jax.tree.map(jnp.asarray, asked.params)
    with jax.numpy_dtype_promotion("standard"):  # Optax's Adam counts in int32
        expected = engine.sum_over_clients(Broadcast(params, jnp.asarray(ALPHA)), engine.cohort(4))
    found = torch_client(create, torch_loss)(asked)
    np.testing.assert_array_equal(found.domain_count, expected.domain_count)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, atol=tolerance * float(jnp.abs(other).max()))


def test_the_server_evaluates_with_the_same_loss():
    model = torch_model(create, torch_loss)
    params = model.init(jax.random.key(0))
    examples = {name: jnp.asarray(array) for name, array in data().examples.items()}
    found = jax.jit(lambda w, e: model.per_example_loss(w, e, None))(params, examples)
    np.testing.assert_allclose(found, jax_loss(params, examples), rtol=1e-6)
    with pytest.raises(BadInput, match="is trained by its clients"):
        model.per_example_loss(params, examples, jax.random.key(0))


class Dropping(torch.nn.Module):  # pyright: ignore[reportUntypedBaseClass]
    """A linear layer behind dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 3)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, x: Any) -> Any:
        return self.linear(self.dropout(x))


def test_the_outputs_of_a_module_and_metrics_of_them():
    names = ["accuracy", "auroc"]
    model = torch_model(Dropping, torch_loss, forward=lambda m, e: m(e["x"]), metrics=names)
    params = model.init(jax.random.key(0))
    examples = {name: jnp.asarray(array) for name, array in data().examples.items()}
    logits = examples["x"] @ params["linear.weight"].T + params["linear.bias"][None]
    assert model.forward is not None
    np.testing.assert_allclose(jax.jit(model.forward)(params, examples), logits, rtol=1e-5)
    assert (model.outputs, model.exact) == ("labels", ("auroc",))
    found = jax.jit(model.per_example_metrics)(params, examples)
    assert list(found) == ["accuracy"]
    right = jnp.argmax(logits, axis=1) == examples["y"]
    np.testing.assert_array_equal(found["accuracy"].total, right)


def test_a_client_that_evaluates_gives_the_sums_of_jax():
    def forward(module: Any, examples: Any) -> Any:
        return module(examples["x"])

    metrics = ("accuracy", "auroc", "calibration_error")
    own = torch_model(create, torch_loss, forward=forward, metrics=metrics)
    same = from_functions(
        own.init,
        jax_loss,
        forward=lambda w, e: e["x"] @ w["weight"].T + w["bias"][None],
        metrics=metrics,
    )
    sets = ["evaluation_by=clients", "evaluation_share=0.5"]
    config = resolve("toy", sets=sets)
    kept = kept_apart({"train": one_client(data(200))}, 0.5)
    params = {name: np.asarray(array) for name, array in own.init(jax.random.key(0)).items()}
    found, expected = (
        measure(Asked(config, EVALUATION, 2, model, kept, params, 0, 0)) for model in (own, same)
    )
    assert sum(expected.evaluation.examples) == kept["test"].num_examples > 30
    np.testing.assert_array_equal(
        found.own.tables["scores"].sum(axis=(1, 2, 3)) / 3, expected.own.means["loss"][1]
    )
    for domain, values in expected.evaluation.domains.items():
        for name, value in values.items():
            assert found.evaluation.domains[domain][name] == pytest.approx(value, abs=2e-3)


def test_a_module_that_gives_one_number():
    model = torch_model(
        lambda: torch.nn.Linear(2, 1),
        lambda m, e: (m(e["x"])[:, 0] - e["y"]) ** 2,
        forward=lambda m, e: m(e["x"])[:, 0],
        outputs="values",
        metrics=["mae"],
    )
    params = model.init(jax.random.key(0))
    examples = {"x": jnp.ones((2, 2)), "y": jnp.zeros(2)}
    value = float(params["weight"].sum() + params["bias"][0])
    total = model.per_example_metrics(params, examples)["mae"].total
    np.testing.assert_allclose(total, [abs(value), abs(value)], rtol=1e-6)


@pytest.mark.nan_input
def test_a_loss_that_is_not_finite_leaves_the_client_out():
    broken = torch_client(create, lambda m, e: torch_loss(m, e) * float("nan"))
    found = broken(call({"name": "sgd", "learning_rate": 0.5}))
    assert float(found.left_out) == 1
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(found._replace(left_out=0)))


def test_an_empty_client_adds_nothing():
    asked = call({"name": "sgd", "learning_rate": 0.5})
    nobody = asked.data._replace(
        examples={k: v[:0] for k, v in asked.data.examples.items()}, domain=asked.data.domain[:0]
    )
    found = torch_client(create, torch_loss)(asked._replace(data=nobody))
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(found))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": "lion", "learning_rate": 1.0}, "client optimizer for PyTorch 'lion'"),
        ({"name": "adam", "learning_rate": 1.0, "b1": 0.5}, "'adam' for PyTorch 'b1'"),
    ],
)
def test_an_optimizer_that_pytorch_has_not_is_refused(table: Any, message: str):
    with pytest.raises(BadInput, match=message):
        torch_client(create, torch_loss)(call(table))


def test_another_module_than_the_server_s_is_refused():
    asked = call({"name": "sgd", "learning_rate": 0.5})
    with pytest.raises(BadInput, match="but the server's are"):
        torch_client(lambda: torch.nn.Linear(2, 4), torch_loss)(asked)


def test_the_apps_of_the_page_are_such_apps(tmp_path: Path):
    page = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    names: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "Path": Path}
    names["__file__"] = str(tmp_path / "client_app.py")
    exec(code, names)
    assert type(names["app"]).__name__ == "ServerApp"
    module, examples = names["create"](), {"x": torch.ones(3, 28, 28), "y": torch.arange(3)}
    assert names["loss"](module, examples).shape == (3,)
