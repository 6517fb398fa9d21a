# SPDX-License-Identifier: Apache-2.0
"""The gradient of an embedding: right, and the same bits in whatever order it is scattered."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from agnosticfl.models.helpers.embedding import Embedding, at_first_places

WORDS, SIZE = 7, 5
IDS = jax.random.randint(jax.random.key(0), (4, 6), 0, WORDS)  # each of them several times
D = jax.random.normal(jax.random.key(1), (*IDS.shape, SIZE))


def gradient(kind: type[nnx.Embed]) -> Array:
    """Of a table of that kind, for gradients D of its vectors."""
    table = kind(WORDS, SIZE, rngs=nnx.Rngs(0))
    found = nnx.grad(lambda module: jnp.sum(module(IDS) * D))(table)
    return found["embedding"][...]


def test_an_id_gets_the_sum_of_its_gradients_at_one_place():
    found, ids = np.asarray(at_first_places(D, IDS)).reshape(-1, SIZE), np.asarray(IDS).ravel()
    assert len(set(ids)) < len(ids)
    for place, (own, row) in enumerate(zip(ids, found, strict=True)):
        if own in ids[:place]:
            assert not row.any()
        else:
            expected = np.asarray(D, np.float64).reshape(-1, SIZE)[ids == own].sum(axis=0)
            np.testing.assert_allclose(row, expected, rtol=1e-5, atol=1e-6)


def test_scattered_in_any_order_it_has_the_same_bits():
    found, ids = np.asarray(at_first_places(D, IDS)).reshape(-1, SIZE), np.asarray(IDS).ravel()

    def scattered(gradients: np.ndarray, order: np.ndarray) -> bytes:
        table = np.zeros((WORDS, SIZE), np.float32)
        np.add.at(table, ids[order], gradients[order])
        return table.tobytes()

    orders = [np.random.default_rng(seed).permutation(len(ids)) for seed in range(20)]
    assert len({scattered(found, order) for order in orders}) == 1
    plain = np.asarray(D).reshape(-1, SIZE)
    assert len({scattered(plain, order) for order in orders}) > 1  # which is what this prevents


def test_on_a_cpu_it_is_the_gradient_of_a_plain_table_bit_by_bit():
    assert np.array_equal(gradient(Embedding), gradient(nnx.Embed))


def test_lanes_side_by_side_keep_their_ids_apart():
    both = jax.vmap(at_first_places)(jnp.stack([D, 2 * D]), jnp.stack([IDS, IDS[::-1]]))
    assert np.array_equal(both[0], at_first_places(D, IDS))
    assert np.array_equal(both[1], at_first_places(2 * D, IDS[::-1]))


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
