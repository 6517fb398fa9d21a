# SPDX-License-Identifier: Apache-2.0
"""What clients say of a model under differential privacy: noised sums of means over clients.

A client says of every domain that it has examples of, that it has, and what its mean loss there is
(and the metric that is asked for), each as a share of the largest value that counts. That is one
vector of norm at most 1, however many examples it has: with the bounds of a tally of examples, a
few large clients would drown in the noise that they all need.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from agnosticfl.channels.dp.clipping import MARGIN
from agnosticfl.channels.dp.noise import Release, Scale, by_clients, too_long
from agnosticfl.core.channel import Adders, Channel, Decoded
from agnosticfl.core.lazy_jax import Array
from agnosticfl.core.tally import Form, Tally

SEEN = 2.0  # standard deviations of the noise: with fewer clients a domain may be all noise


class TallyNoise(NamedTuple):
    """The noise of a sum of tallies, and the largest values that count."""

    scale: Scale
    release: Release
    largest: Mapping[str, float]  # metric -> of a client's mean; loss first


def told_with_noise(form: Form, noise: TallyNoise) -> Form:
    """What noised sums tell: means, and no tables of counts."""
    return form._replace(
        readings={name: form.readings[name] for name in noise.largest}, tables={}, summed={}
    )


def noised_tallies(noise: TallyNoise) -> Channel:
    """Tallies as vectors of norm 1 in whole numbers; their sum is read as means over clients."""
    names, scale = list(noise.largest), noise.scale
    most = np.array([1.0, *noise.largest.values()])[:, None]
    part = MARGIN / math.sqrt(len(most))  # of the norm, for each row

    def encode(state: Any, own: Tally, key: Array | None) -> np.ndarray:
        del state, key
        there = (own.means["loss"][1] > 0) & (float(own.left_out) == 0)
        means = [_mean(own.means[name]) for name in names]
        rows = np.stack([there, *means]) * there / most
        vector = part * np.clip(rows, -1, 1)
        vector /= max(float(np.linalg.norm(vector)), 1.0)
        return np.rint(vector * scale.units).astype(np.int32)

    def decode(state: Any, total: np.ndarray, key: Array | None) -> Decoded:
        del key
        flat = np.asarray(total).astype(np.int32).ravel()
        noised = np.asarray(noise.release(flat, np.asarray(scale.sigma)), np.float64)
        clients, *sums = noised.reshape(len(most), -1) / scale.units / part
        deviation = scale.noise * scale.spread / part
        seen = np.where(clients >= SEEN * deviation, clients, 0)
        means: dict[str, np.ndarray] = {}
        for name, each in zip(names, sums, strict=True):
            mean = np.divide(each, seen, out=np.zeros_like(each), where=seen > 0)
            means[name] = np.stack([np.clip(mean, -1, 1) * noise.largest[name] * seen, seen])
        return Decoded(Tally(means, {}, np.zeros(())), state, {})

    def implausible(state: Any, total: np.ndarray, adders: Adders) -> str | None:
        del state
        return too_long(total, scale, adders.clients) if noise.release is by_clients else None

    return Channel(lambda: (), encode, lambda message: message, decode, implausible=implausible)


def _mean(both: np.ndarray) -> np.ndarray:
    total, weight = both
    mean = np.divide(total, weight, out=np.zeros_like(total), where=weight > 0)
    return np.nan_to_num(mean)
