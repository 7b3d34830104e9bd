"""Lists in a line of text are short, with a count of what is left out."""

from __future__ import annotations

import pytest

from explorer.base.units import seeds_text


@pytest.mark.parametrize(
    ("seeds", "text"),
    [
        ((), ""),
        ((4,), "1 random input, seed 4"),
        ((3, 5), "2 random inputs, seeds 3, 5"),
        (tuple(range(7, 1207)), "1,200 random inputs, seeds 7 to 1206"),
        (tuple(range(0, 40, 2)), "20 random inputs, seeds 0, 2, 4, 6 and 16 more"),
        ((*range(30), 900), "31 random inputs, seeds 0, 1, 2, 3 and 27 more"),
    ],
)
def test_seeds_are_listed_as_a_range_or_with_a_count(seeds: tuple[int, ...], text: str) -> None:
    assert seeds_text(seeds) == text
