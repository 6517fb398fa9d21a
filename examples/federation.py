# SPDX-License-Identifier: Apache-2.0
# %% [markdown]
# # A federation on one machine, with clients in PyTorch
#
# Three clinics train one model, and each keeps its table. Every command below is one that a person
# types on a machine of the federation; here all of them talk over loopback. (In a clone: `pip
# install '.[deploy,torch]'`.) [Federations of real machines](../docs/deploy.md) has the rest:
# secure sums, rosters, what a client enforces.

# %%
import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd


def line(*words: str) -> list[str]:
    return [sys.executable, "-m", "agnosticfl", *words]


def agnosticfl(*words: str) -> None:
    subprocess.run(line(*words), check=True, capture_output=True)


# %% [markdown]
# ## The tables
#
# There is one for each clinic, and a public one: all tables are prepared as it is, and the server
# tests on it.

# %%
rng = np.random.default_rng(0)
CLINICS = {"coast": 300, "north": 900, "village": 150}


def visits(rows: int, clinic: str) -> pd.DataFrame:
    age, dose = rng.normal(size=(2, rows))
    helped = dose + (-1 if clinic == "village" else 1) * age > 0
    columns = {"patient": range(rows), "clinic": clinic, "age": age, "dose": dose}
    return pd.DataFrame({**columns, "helped": np.where(helped, "yes", "no")})


for clinic, rows in CLINICS.items():
    visits(rows, clinic).to_csv(f"{clinic}.csv", index=False)
pd.concat([visits(200, clinic) for clinic in CLINICS]).to_csv("public.csv", index=False)

# %% [markdown]
# ## The operator of the server
#
# Keys, a task, and the app that everybody runs. Two of its files are changed, so that clients train
# a PyTorch module.

# %%
roles = ["--client", "patient", "--domain", "clinic"]
agnosticfl(
    "data", "prepare", "arrays", "public.csv", *roles, "--label", "helped",
    "--test-fraction", "0.5", "--out", "public",
)  # fmt: skip
agnosticfl("init", "public", "--out", "clinics.toml")
agnosticfl("deploy", "keys", "server", "keys", "--host", "127.0.0.1")
agnosticfl(
    "deploy", "init", "app", "clinics.toml", "--clients", "3", "--rounds", "12",
    "--set", "client_optimizer.learning_rate=0.5", "--set", "weight_rule.learning_rate=1.0",
)  # fmt: skip

MODULE = """
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from agnosticfl.deploy.flower.client_app import client_app
from agnosticfl.deploy.flower.server_app import server_app
from agnosticfl.deploy.node.pytorch import torch_client, torch_model

create = lambda: torch.nn.Linear(2, 2)
forward = lambda module, e: module(e["x"])
loss = lambda module, e: cross_entropy(forward(module, e), e["y"].long(), reduction="none")
"""
MODEL = 'torch_model(create, loss, forward=forward, metrics=["accuracy"])'
Path("app/federation/client_app.py").write_text(
    MODULE + "app = client_app(Path(__file__).parent, torch_client(create, loss))\n"
)
Path("app/federation/server_app.py").write_text(
    MODULE + f"app = server_app(Path(__file__).parent, {MODEL})\n"
)

# %% [markdown]
# ## Each clinic
#
# A key, whose public half the operator lets in, and a store of its own examples, prepared as the
# app says.

# %%
for clinic in CLINICS:
    about = ["--domains", clinic, "--contact", f"somebody at {clinic}"]
    agnosticfl("deploy", "keys", "client", f"{clinic}.key", *about)
    shutil.copy(f"{clinic}.pub", "keys/clients")
    agnosticfl(
        "data", "prepare", "arrays", f"{clinic}.csv", "--like", "app", *roles, "--out", clinic
    )

# %% [markdown]
# ## Twelve rounds
#
# A server, and a client for each clinic, as processes of their own.

# %%
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = str(free.getsockname()[1])

with Path("log.txt").open("w") as log:
    server = subprocess.Popen(
        line(
            "deploy", "server", "app", "--keys", "keys", "--out", "live",
            "--host", "127.0.0.1", "--port", port, "--page", "none",
        ), stdout=log, stderr=log,
    )  # fmt: skip
    clients = [
        subprocess.Popen(
            line(
                "deploy", "client", "--server", f"127.0.0.1:{port}", "--ca", "keys/ca.pem",
                "--app", "app", "--key", f"{clinic}.key", "--data", clinic,
                "--state", f"state-{clinic}",
            ), stdout=log, stderr=log,
        ) for clinic in CLINICS
    ]  # fmt: skip
    try:
        server.wait(timeout=600)
    finally:
        for process in (server, *clients):
            process.terminate()
        for process in (server, *clients):
            process.wait()

# %% [markdown]
# ## What came out
#
# The run folder is that of a simulation: `agnosticfl report live` works.

# %%
summary = json.loads(Path("live/summary.json").read_text())
for clinic, values in summary["test"].items():
    print(f"{clinic}: accuracy {values['accuracy']:.2f}")

# %% [markdown]
# It prints
#
# ```
# coast: accuracy 0.80
# north: accuracy 0.86
# village: accuracy 0.67
# ```
