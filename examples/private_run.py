# SPDX-License-Identifier: Apache-2.0
# %% [markdown]
# # A private run
#
# Differential privacy for whole clients: whoever sees everything that the run publishes cannot tell
# what any one client holds, up to ε and δ. Each client's contribution is clipped, noise is added to
# the sum of a round, and what all rounds cost together is counted. Noise comes from the operating
# system, so two runs differ. (Extra: `agnosticfl[dp]`.)

# %%
import json
from pathlib import Path

import numpy as np

import agnosticfl as afl

# %% [markdown]
# Five thousand clients of eight examples each. Test and held-out clients are public here: their
# numbers may be published as they are.

# %%
rng = np.random.default_rng(0)


def clients(number: int) -> afl.FederatedData:
    client = np.repeat(np.arange(number), 8)
    rare = client % 5 == 0
    x = rng.normal(size=(len(client), 2)).astype("float32")
    y = (x[:, 0] + np.where(rare, -1, 1) * x[:, 1] > 0).astype("int32")
    return afl.from_arrays({"x": x, "y": y}, client, np.where(rare, "rare", "common"))


data = afl.Splits(train=clients(5000), test=clients(200), heldout=clients(100))
model = afl.models.logistic(features=2, classes=2)

# %% [markdown]
# How much one client may add to a sum: the length of Δ, the number of its examples, and their mean
# loss. The tighter these bounds are, the less noise there is. They must not be found on the private
# data; `agnosticfl bounds` finds them on public data.
# [Differential privacy](../docs/privacy.md) says what they mean exactly.

# %%
bounds = {"clip": 0.5, "examples": 8.0, "loss": 1.0}
afl.study(
    model,
    data,
    "private",
    seeds=1,
    rounds=100,
    clients_per_round=500,
    batch_size=8,
    client_optimizer={"name": "sgd", "learning_rate": 0.5},
    algorithms={"afa": {"weight_rule": {"learning_rate": 0.3}}},
    dp={"epsilon": 8.0, "delta": 1e-5, "public": ["test", "heldout"], **bounds},
)

# %% [markdown]
# What the run spent, and how well its model does.

# %%
summary = json.loads(Path("private/afa-seed0/summary.json").read_text())
print(f"epsilon {summary['privacy']['epsilon']:.2f} at delta {summary['privacy']['delta']}")
for domain, values in summary["test"].items():
    print(f"{domain}: accuracy {values['accuracy']:.2f}")

# %% [markdown]
# It prints, up to the noise
#
# ```
# epsilon 8.00 at delta 1e-05
# common: accuracy 0.75
# rare: accuracy 0.77
# ```
