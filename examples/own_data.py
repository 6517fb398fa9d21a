# SPDX-License-Identifier: Apache-2.0
# %% [markdown]
# # A data frame of one's own
#
# A table with one row per example, a column that says whom a row belongs to (the client) and one
# that says what kind of row it is (the domain). The [tutorial](../docs/tutorial.md) does the same
# with a real table, on the command line too.

# %%
import numpy as np
import pandas as pd

import agnosticfl as afl

# %% [markdown]
# ## The data
#
# It is synthetic: whether a treatment helps follows a different rule in the village than in the
# city, and the village has a tenth of the patients. Put your own frame in its place.

# %%
rng = np.random.default_rng(0)
patient = rng.integers(300, size=9000)
hospital = np.where(patient % 10 == 0, "village", "city")
age, dose = rng.normal(size=(2, 9000))
helped = dose + np.where(hospital == "village", -1, 1) * age > 0
columns = {"patient": patient, "hospital": hospital, "age": age, "dose": dose}
visits = pd.DataFrame({**columns, "helped": np.where(helped, "yes", "no")})

# %% [markdown]
# Patients, not rows, are kept apart for the test: nobody is in two splits.

# %%
data = afl.split_frame(
    visits,
    client="patient",
    domain="hospital",
    label="helped",
    test_fraction=0.3,
    heldout_fraction=0.1,
)
model = afl.models.logistic(features=2, classes=2)

# %% [markdown]
# ## Training
#
# FedAvg and AFA with two seeds each; everything goes to the folder `visits`, with a report in
# `visits/report.html`. If it is interrupted, the same cell goes on where it ended.

# %%
trained = afl.study(
    model,
    data,
    "visits",
    seeds=2,
    rounds=150,
    clients_per_round=20,
    batch_size=20,
    window_size=10,
    client_optimizer={"name": "sgd", "learning_rate": 0.2},
    algorithms={"fedavg": {}, "afa": {"weight_rule": {"learning_rate": 0.1}}},
)

# %% [markdown]
# ## What came out
#
# Accuracy on patients that nobody trained on. FedAvg serves the city; AFA serves both alike.

# %%
for algorithm, weights in trained.items():
    results = afl.evaluator(model, data.test)(weights[0])
    print(algorithm, {domain: f"{values['accuracy']:.2f}" for domain, values in results.items()})

# %% [markdown]
# ## The model in use
#
# A folder with parameters, preparation and a model card; then predictions for new visits.

# %%
afl.export_run("visits/afa-seed0", "visits-model")
loaded = afl.load("visits-model", model)
new = pd.DataFrame({"age": [0.5, -1.2], "dose": [1.0, -0.3]})
print(*loaded.predict(new))

# %% [markdown]
# It prints
#
# ```
# fedavg {'city': '0.95', 'village': '0.56'}
# afa {'city': '0.76', 'village': '0.75'}
# yes no
# ```
