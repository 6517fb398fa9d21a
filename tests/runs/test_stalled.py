# SPDX-License-Identifier: Apache-2.0
"""A private run that is not seen to learn says so, from its noised sums alone."""

from types import SimpleNamespace
from typing import Any

import pytest

from agnosticfl.runs.summary import stalled

PRIVATE: Any = SimpleNamespace(privacy=object())


def records(losses: list[float], norm: float = 1.0, last: float | None = None) -> Any:
    found: list[dict[str, Any]] = [
        {"loss": [x, None], "count": [10.0, 0.0], "update_norm": norm} for x in losses
    ]
    for record in found[-len(found) // 5 :] if last is not None else []:
        record["update_norm"] = last
    return found


WIGGLE = [0.1 * (-1) ** t for t in range(50)]


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        ([2 - t / 50 + w for t, w in enumerate(WIGGLE)], None),
        ([2 + w for w in WIGGLE], "not seen to learn: the noised training loss was 2 ± 0.033 in"),
        ([2 - t / 900 + w for t, w in enumerate(WIGGLE)], "and 1.95 ± 0.034 in the last"),
        ([2 + t / 50 + w for t, w in enumerate(WIGGLE)], "and 2.89 ± 0.035 in the last"),
    ],
)
def test_losses_must_fall_by_more_than_their_noise(losses: list[float], message: str | None):
    said = stalled(PRIVATE, records(losses))
    assert said is None if message is None else message in (said or "")


def test_a_model_that_no_longer_moves_is_noticed():
    falling = [2 - t / 50 for t in range(50)]
    assert "no longer moves: its updates were 1 long and are 0 in the last 10" in (
        stalled(PRIVATE, records(falling, last=0.0)) or ""
    )


def test_noise_that_hides_every_loss_is_noticed():
    hidden = [{"loss": [None], "count": [0.0], "update_norm": 1.0} for _ in range(50)]
    assert "the noise hides the losses" in (stalled(PRIVATE, hidden) or "")


def test_others_and_short_runs_say_nothing():
    rising = records([float(t) for t in range(50)])
    assert stalled(SimpleNamespace(privacy=None), rising) is None  # type: ignore[arg-type]
    assert stalled(PRIVATE, rising[:10]) is None
