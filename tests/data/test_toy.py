# SPDX-License-Identifier: Apache-2.0
"""The paper's toy regression."""

import numpy as np
import pytest

from agnosticfl.data.sources.toy import toy
from agnosticfl.errors import BadInput


def test_toy_points_have_exact_centres_and_equal_variance():
    splits = toy(centres=[-1.0, 0.5, 1.0], points=[40, 60, 80], spread=0.2)
    for data in (splits.train, splits.test):
        for i, centre in enumerate((-1.0, 0.5, 1.0)):
            x = data.examples["x"][data.domain == i]
            assert np.mean(x) == pytest.approx(centre, abs=1e-5)
            assert np.std(x) == pytest.approx(0.2, rel=1e-4)


def test_held_out_points_are_others_and_leave_the_rest_as_it_is():
    without, with_them = (toy([0.0, 1.0], [30, 20], heldout=heldout) for heldout in (False, True))
    assert without.heldout is None
    assert with_them.heldout is not None
    for split in ("train", "test"):
        old, new = getattr(without, split), getattr(with_them, split)
        np.testing.assert_array_equal(old.examples["x"], new.examples["x"])
        assert not np.intersect1d(new.examples["x"], with_them.heldout.examples["x"]).size


def test_bad_toy_data_is_refused():
    with pytest.raises(BadInput, match="at least 2 points for each centre"):
        toy(centres=[0.0, 1.0], points=[5])
