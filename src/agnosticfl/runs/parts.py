# SPDX-License-Identifier: Apache-2.0
"""Which part of the data a run trains on, keeps for its clients' looks, and lets λ follow."""

import jax

from agnosticfl.core.federated import FederatedData, Splits
from agnosticfl.errors import check
from agnosticfl.runs.config import Config
from agnosticfl.runs.judging import own_parts


def kept_by_clients(config: Config, data: Splits) -> Splits:
    """The data of a simulation in which each client keeps a part of its examples from training."""
    given = {"train": data.train, "heldout": data.heldout, "test": data.test}
    parts = own_parts(config, {name: part for name, part in given.items() if part is not None})
    return data._replace(train=parts["train"], test=parts["test"], heldout=parts.get("heldout"))


def followed(config: Config, data: Splits) -> FederatedData | None:
    """The held-out clients, if their losses move λ."""
    if config.weights_follow == "train":
        return None
    check(
        data.heldout is not None,
        "weights_follow is 'heldout', but the data has no split 'heldout'",
    )
    check(jax.process_count() == 1, "weights_follow is 'heldout', which needs a single process")
    return data.heldout
