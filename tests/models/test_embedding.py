# SPDX-License-Identifier: Apache-2.0
"""The gradient of an embedding: right, and added up in the same order each time."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from agnosticfl.models.helpers.embedding import Embedding, gathered, scattered

WORDS, SIZE = 7, 5
IDS = jax.random.randint(
    jax.random.key(0), (4, 6), 0, WORDS - 1
)  # several times each, but the last
D = jax.random.normal(jax.random.key(1), (*IDS.shape, SIZE))


def gradient(kind: type[nnx.Embed]) -> Array:
    """Of a table of that kind, for gradients D of its vectors."""
    table = kind(WORDS, SIZE, rngs=nnx.Rngs(0))
    found = nnx.grad(lambda module: jnp.sum(module(IDS) * D))(table)
    return found["embedding"][...]


def test_each_row_gets_the_sum_of_the_gradients_of_its_id():
    d, ids = D.reshape(-1, SIZE), IDS.ravel()
    assert len(set(ids.tolist())) < len(ids)
    expected = np.zeros((WORDS, SIZE))
    np.add.at(expected, np.asarray(ids), np.asarray(d, np.float64))
    assert not expected[-1].any()  # an id that did not come
    for way in (gathered, scattered):
        np.testing.assert_allclose(way(d, ids, WORDS), expected, rtol=1e-5, atol=1e-6)


def test_no_number_is_scattered_on_an_accelerator():
    text = jax.jit(lambda d, ids: gathered(d, ids, WORDS)).lower(D.reshape(-1, SIZE), IDS.ravel())
    scatters = [line for line in text.as_text().splitlines() if '"stablehlo.scatter"' in line]
    assert len(scatters) == 1  # of places, each of them once: no order matters
    assert "unique_indices = true" in scatters[0]


def test_on_a_cpu_it_is_the_gradient_of_a_plain_table_bit_by_bit():
    assert np.array_equal(gradient(Embedding), gradient(nnx.Embed))


def test_lanes_side_by_side_keep_their_ids_apart():
    def lane(d: Array, ids: Array) -> Array:
        return gathered(d.reshape(-1, SIZE), ids.ravel(), WORDS)

    both = jax.vmap(lane)(jnp.stack([D, 2 * D]), jnp.stack([IDS, IDS[::-1]]))
    assert np.array_equal(both[0], lane(D, IDS))
    assert np.array_equal(both[1], lane(2 * D, IDS[::-1]))


def test_an_accelerator_adds_up_in_float32_whatever_the_precision_of_products():
    def total(table: Array) -> Array:
        graph, state = nnx.split(Embedding(WORDS, SIZE, rngs=nnx.Rngs(0)))
        state["embedding"][...] = table
        return jnp.sum(nnx.merge(graph, state)(IDS) * D)

    with jax.default_matmul_precision("BF16_BF16_F32"):
        traced = jax.jit(jax.grad(total)).trace(jnp.zeros((WORDS, SIZE)))
        on_card, on_cpu = (
            traced.lower(lowering_platforms=(name,)).as_text() for name in ("cuda", "cpu")
        )
    products = [line for line in on_card.splitlines() if "dot_general" in line]
    assert len(products) == 1
    assert "precision = [HIGHEST, HIGHEST]" in products[0]
    assert "dot_general" not in on_cpu
