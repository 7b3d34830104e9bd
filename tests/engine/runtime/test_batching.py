"""Work is done in portions that fit, in order, and nothing is left out."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from explorer.engine.runtime.batching import split_into_batches


@given(st.lists(st.integers(0, 9)), st.integers(1, 20), st.none() | st.integers(1, 4))
def test_portions_fit_and_have_everything_in_order(sizes: list[int], most: int, count: int | None) -> None:
    found = list(split_into_batches(sizes, int, most, count=count))
    assert [one for group in found for one in group] == sizes
    assert all(found)
    for group in found:
        assert sum(group) <= most or len(group) == 1
        assert count is None or len(group) <= count
    for group, following in pairwise(found):
        full = sum(group) + following[0] > most
        assert full or len(group) == count, "no portion is smaller than it has to be"
