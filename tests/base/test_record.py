"""A record is what a dataclass with slots would be, without what importing `dataclasses` takes."""

from __future__ import annotations

import pickle

import pytest

from explorer.base.outline import OutlineRow
from explorer.base.record import field, record


@record
class Point:
    """Three ways of giving a field: with the call, by default, made anew."""

    x: int
    name: str = "here"
    seen: list[int] = field(default_factory=list)
    later: str = field(init=False)

    def moved(self, by: int) -> Point:
        return Point(self.x + by, self.name)


def test_fields_are_taken_in_their_order_and_by_name() -> None:
    point = Point(1, seen=[2])
    assert (point.x, point.name, point.seen) == (1, "here", [2])
    assert Point(3, "there").moved(1).x == 4


def test_what_is_made_for_one_record_is_not_the_next_ones() -> None:
    Point(1).seen.append(5)
    assert Point(2).seen == []


def test_a_field_that_comes_later_is_no_argument_and_nothing_else_can_be_set() -> None:
    point = Point(1)
    with pytest.raises(AttributeError):
        _ = point.later
    point.later = "now"
    with pytest.raises(AttributeError):
        point.elsewhere = 1  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        Point(1, "here", [], "now")  # type: ignore[call-arg]


def test_a_missing_field_is_refused_whether_or_not_a_record_was_made_before() -> None:
    for _ in range(2):
        with pytest.raises(TypeError, match="x"):
            Point()  # type: ignore[call-arg]


def test_a_record_survives_the_way_to_another_process() -> None:
    row = OutlineRow("fc.weight", "tensor", "float32", (3, 4), 48)
    assert pickle.loads(pickle.dumps(row)) == row
