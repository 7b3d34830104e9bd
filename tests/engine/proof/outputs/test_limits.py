"""How near an output comes to what it may be off: below 1 exactly where it passes."""

from __future__ import annotations

import numpy as np
import pytest

from explorer.engine.proof.compare import OutputComparison
from explorer.engine.proof.outputs.tolerance import judge
from explorer.facts.verification import Tolerance


@pytest.mark.parametrize("scale", [0.0, 1e-8, 1e-7, 3e-7, 1e-6, 1e-5, 1e-3])
@pytest.mark.parametrize("reference", [True, False])
def test_the_share_of_the_limit_is_above_one_exactly_where_an_output_fails(
    scale: float, reference: bool
) -> None:
    random = np.random.default_rng(7)
    true = random.standard_normal(4096)
    before = true.astype(np.float32)
    after = (true + scale * random.standard_normal(4096)).astype(np.float32)
    comparison = OutputComparison(2.0**-24)
    comparison.add(before, after, true if reference else None)
    fault = comparison.judge() if reference else comparison.judge_by_depth(4)
    share = comparison.limit_share
    assert share is not None
    assert (share > 1) == bool(fault)


def test_what_is_no_matter_of_size_has_no_share() -> None:
    comparison = OutputComparison(2.0**-24)
    comparison.add(np.ones(4, np.float32), np.array([1, np.nan, 1, 1], np.float32), None)
    assert comparison.judge_by_depth(4)
    assert comparison.limit_share is None


@pytest.mark.parametrize(
    ("tolerance", "share"),
    [
        (Tolerance(atol=0.2), 0.5),
        (Tolerance(rtol=0.05), 2.0),
        (Tolerance(snr=14.0), 10**-0.3),
        (Tolerance(atol=0.2, snr=40.0), 10.0),
    ],
)
def test_a_tolerance_that_was_asked_for_is_the_limit(tolerance: Tolerance, share: float) -> None:
    before = np.ones(16)
    passed, _, found = judge([before], [before + 0.1], tolerance)
    assert found == pytest.approx(share)
    assert passed == (share <= 1)
