# SPDX-License-Identifier: Apache-2.0
# %% [markdown]
# # A weight rule of one's own
#
# A rule says how the domain weights λ move. It is a pair of functions: `init` takes the first λ,
# `update` takes the rule's state and what the round said of the domains, and gives the next λ.
# Here is one that shares all weight equally among the two domains that are served worst.

# %%
import jax
import jax.numpy as jnp
import numpy as np
import optax

import agnosticfl as afl


def worst_two() -> afl.WeightRule:
    """λ is 1/2 for each of the two domains with the largest mean loss, and 0 for the others."""

    def update(state, stats: afl.DomainStats):
        _, places = jax.lax.top_k(stats.mean_loss, 2)
        return jnp.zeros_like(stats.mean_loss).at[places].set(0.5), state

    return afl.WeightRule(init=lambda _: (), update=update)


# %% [markdown]
# The data: three kinds of points that want three different numbers, and most of them are of the
# first kind.

# %%
rng = np.random.default_rng(0)
client = rng.integers(60, size=3000)
domain = np.where(client < 40, "near 0", np.where(client < 50, "near 1", "near 3"))
centre = np.select([domain == "near 0", domain == "near 1"], [0.0, 1.0], 3.0)
points = rng.normal(centre, 0.1).astype("float32")
data = afl.from_arrays({"x": points}, clients=client, domains=domain)

# %% [markdown]
# A model of one number. The best worst case lies half-way between the domains that are farthest
# apart, at 1.5.

# %%
model = afl.models.point()
rules = {"by counts": afl.proportional(), "worst two": worst_two(), "AFA": None}
for name, rule in rules.items():
    algorithm = afl.agnostic_fedavg(
        model,
        data,
        weight_rule=rule,
        clients_per_round=20,
        batch_size=20,
        window_size=5,
        client_optimizer=optax.sgd(0.05),
    )
    state = algorithm.init()
    for t in range(1, 201):
        state, info = algorithm.round(state, algorithm.cohort(t))
    worst = afl.worst_domain(afl.evaluator(model, data)(state.params))
    print(f"{name}: worst domain {worst.domain}, loss {worst.loss:.2f}")

# %% [markdown]
# It prints
#
# ```
# by counts: worst domain near 3, loss 5.29
# worst two: worst domain near 3, loss 2.34
# AFA: worst domain near 0, loss 2.31
# ```
