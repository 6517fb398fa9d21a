# SPDX-License-Identifier: Apache-2.0
"""Precision of matrix products: what reaches an accelerator, and that results agree."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import Array

from agnosticfl import agnostic_fedavg, from_arrays, from_functions
from agnosticfl.core.federated import FederatedData
from agnosticfl.core.model import Model
from agnosticfl.core.precision import half, in_precision, product, scale_for
from agnosticfl.engines import lanes_engine
from agnosticfl.errors import BadInput

WANTED = {
    "float32": "precision = [HIGHEST, HIGHEST]",
    "tf32": "precision = [HIGH, HIGH]",
    "bf16": "lhs_precision_type = bf16, rhs_precision_type = bf16, accumulation_type = f32",
}
ROUNDS = 20
# Factors with 8 bits are off by 2⁻⁹ at most; here a run ends within 1 % of the largest parameter.
TOLERANCE = {"float32": 1e-6, "tf32": 1e-3, "bf16": 1e-2}


def regression(rounded: bool = False) -> Model:
    """A linear layer; `rounded` does by hand what bf16 means, since a CPU computes in float32."""

    @jax.custom_vjp
    def product(x: Array, w: Array) -> Array:
        kind = jnp.bfloat16 if rounded else jnp.float32
        return jnp.dot(x.astype(kind), w.astype(kind), preferred_element_type=jnp.float32)

    def backward(kept: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
        x, w = kept
        return product(g, w.T), product(x.T, g)

    product.defvjp(lambda x, w: (product(x, w), (x, w)), backward)

    def loss(w: dict[str, Array], examples: dict[str, Array]) -> Array:
        return jnp.sum(jnp.square(product(examples["x"], w["w"]) - examples["y"]), axis=1)

    return from_functions(lambda key: {"w": jax.random.normal(key, (6, 3))}, loss)  # pyright: ignore[reportArgumentType]


def data() -> FederatedData:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 6)).astype(np.float32)
    y = (x @ rng.normal(size=(6, 3)) + 0.1 * rng.normal(size=(120, 3))).astype(np.float32)
    return from_arrays({"x": x, "y": y}, np.arange(120) % 8, np.arange(120) % 2)


def run(precision: str, model: Model) -> dict[str, Array]:
    algorithm = agnostic_fedavg(
        model, data(), clients_per_round=4, batch_size=5, client_optimizer=optax.sgd(0.02),
        engine=lanes_engine, precision=precision,
    )  # fmt: skip
    state = algorithm.init()
    for t in range(1, ROUNDS + 1):
        state, _ = algorithm.round(state, algorithm.cohort(t))
    assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {jnp.dtype("float32")}
    return state.params


@pytest.mark.parametrize("precision", WANTED)
def test_every_product_reaches_an_accelerator_in_its_precision(precision: str):
    """Gradients too, and a model's own derivative, which JAX traces later than the loss."""
    algorithm = agnostic_fedavg(
        regression(), data(), clients_per_round=4, batch_size=5, client_optimizer=optax.sgd(0.02),
        engine=lanes_engine, precision=precision,
    )  # fmt: skip
    compiled: jax.stages.Wrapped = algorithm.round  # pyright: ignore[reportAssignmentType]
    traced = compiled.trace(algorithm.init(), algorithm.cohort(1))
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    products = re.findall(r"stablehlo.dot_general .*", text)
    assert len(products) >= 3  # loss pass, step, its gradient
    assert all(WANTED[precision] in product for product in products)


@pytest.mark.parametrize("precision", WANTED)
def test_results_agree(precision: str):
    exact = run("float32", regression())["w"]
    found = run(precision, regression(rounded=precision == "bf16"))["w"]
    assert np.abs(found - exact).max() <= TOLERANCE[precision] * np.abs(exact).max()
    if precision == "bf16":
        assert np.abs(found - exact).max() > 1e-5  # it was real


@pytest.mark.parametrize("precision", WANTED)
def test_a_product_s_factors_are_rounded_once_where_products_are_bf16(
    precision: str, monkeypatch: pytest.MonkeyPatch
):
    """Its gradients are those of the rounded factors, and float32 as they are."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    x, w, d = (jax.random.normal(jax.random.key(n), (4, 4)) for n in range(3))

    def rounded(a: Array) -> Array:
        return a.astype(jnp.bfloat16).astype(jnp.float32) if precision == "bf16" else a

    def both_ways(x: Array, w: Array, d: Array) -> tuple[Array, ...]:
        out, pullback = jax.vjp(product, x, w)
        return out, *pullback(d)

    found = in_precision(both_ways, precision)(x, w, d)
    expected = rounded(x) @ rounded(w), rounded(d) @ rounded(w).T, rounded(x).T @ rounded(d)
    assert {a.dtype for a in found} == {jnp.dtype("float32")}
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_an_unknown_precision_is_refused():
    with pytest.raises(BadInput, match="unknown precision 'fp16'"):
        run("fp16", regression())


@pytest.mark.parametrize(("precision", "kind"), [("tf32", jnp.float16), ("bf16", jnp.bfloat16)])
def test_a_half_has_the_mantissa_of_its_precision(
    precision: str, kind: jnp.dtype, monkeypatch: pytest.MonkeyPatch
):
    x = jnp.ones(3)
    assert in_precision(half, precision)(x).dtype == jnp.float32  # on this CPU
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert in_precision(half, precision)(x).dtype == kind
    assert in_precision(half, "float32")(x).dtype == jnp.float32
    assert jnp.finfo(kind).nmant == {"tf32": 10, "bf16": 7}[precision]


def test_a_gradient_for_float16_is_scaled_by_a_power_of_two():
    d = jnp.array([1e-9, -3e-9, 0.0])
    assert scale_for(jnp.float16, d) == 2.0**-29  # 1.9e-9
    assert scale_for(jnp.float16, d, top=14) == 2.0**-43
    assert not (jnp.zeros(3) / scale_for(jnp.float16, jnp.zeros(3))).any()
    assert scale_for(jnp.bfloat16, d) == 1
