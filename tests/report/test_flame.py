"""An icicle: boxes as wide as what they take, each inside what it lies in, thin ones together."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.cli.main import main
from explorer.engine.profile.assemble import Conditions, TimeSamples, assemble_profile
from explorer.facts import Layer
from explorer.features.profile.profile_words import build_profile_fields
from explorer.report.flame_layout import (
    FlameWeights,
    IcicleBox,
    create_measured_figure,
    find_box,
    find_child,
    icicle,
    label_of,
    parent_of,
)
from explorer.session.cache.rows import build_structure

LENET = "sample_models/lenet.onnx"


@st.composite
def trees(draw) -> FlameWeights:
    """Rows in pre-order; groups have what lies in them and something of their own, some unknown."""
    end: list[int] = []
    values: list[float] = []

    def grow(depth: int) -> float:
        at = len(end)
        end.append(0)
        values.append(0)
        many = draw(st.integers(0, 5)) if depth < 4 else 0
        inside = sum(grow(depth + 1) for _ in range(many))
        values[at] = inside + draw(st.sampled_from([0, 1, 3, 1000, 10**30]))
        end[at] = len(end)
        if draw(st.integers(0, 9)) == 0:
            values[at] = -1
        return max(0, values[at])

    whole = sum(grow(0) for _ in range(draw(st.integers(1, 6))))
    return FlameWeights(end, values, whole, {"copies": draw(st.sampled_from([0, 1, 500]))})


@pytest.mark.slow
@given(trees(), st.integers(1, 200), st.integers(1, 8))
def test_boxes_lie_side_by_side_inside_what_they_are_in_and_have_its_sum(weights, cells, levels):
    boxes = icicle(weights, None, cells, levels)
    top = boxes[0]
    assert (top.start, top.width) == (0, cells)
    for level in range(1, levels):
        row = [box for box in boxes if box.level == level]
        assert all(a.start + a.width <= b.start for a, b in pairwise(row))
    parents = [parent_of(boxes, at) for at in range(len(boxes))]
    inside = dict.fromkeys(range(len(boxes)), 0.0)
    for above, box in zip(parents[1:], boxes[1:], strict=True):
        inside[above] += box.value
    for at, box in enumerate(boxes):
        assert box.width >= 1
        if not box.level:
            continue
        above = boxes[parents[at]]
        assert above.start <= box.start
        assert box.start + box.width <= above.start + above.width
        if box.first >= 0:
            assert above.first <= box.first < box.stop <= above.stop
        assert box.rows != 1 or box.value == weights.values[box.first]
        # as wide as its share, but for the rounding of both ends
        whole = max(above.value, inside[parents[at]])
        assert box.width <= above.width * (box.value / whole) + 1 if whole else True
    child = find_child(boxes, 0)
    assert child is None or boxes[child].level == 1


def test_a_hundred_thousand_thin_rows_are_boxes_that_one_can_zoom_into_down_to_each():
    many = 100_000
    weights = FlameWeights(range(1, many + 1), [1] * many, many, {})
    span, rows, seen = None, 1, []
    while True:
        boxes = icicle(weights, span, 80, 10, rows=rows)
        inner = boxes[1:]
        assert sum(box.rows for box in inner) == (many if span is None else rows)
        assert sum(box.width for box in inner) == 80
        assert len(inner) <= 80
        if all(box.rows == 1 for box in inner):
            break
        span, rows = inner[0].span, inner[0].rows
        seen.append(rows)
    assert seen == sorted(seen, reverse=True)
    assert len(seen) < 6


def test_what_has_nothing_has_one_box_and_a_row_is_found_in_the_innermost_that_is_drawn():
    assert icicle(FlameWeights([1], [0], 0, {}), None, 30, 5) == [IcicleBox(0, 1, 0, 0, 0, 30, 0)]
    boxes = icicle(FlameWeights([3, 2, 3, 4], [10, 3, 4, 5], 15, {}), None, 30, 5)
    assert [box.first for box in boxes] == [0, 0, 3, 1, 2]
    assert boxes[find_box(boxes, 2)].span == (2, 3)
    # parameters that two use count in both, and once in what is around them
    shared = icicle(FlameWeights([3, 2, 3], [6, 6, 6], 6, {}), None, 30, 5)
    assert [(box.start, box.width) for box in shared[2:]] == [(0, 15), (15, 15)]


def test_groups_with_a_single_child_of_their_value_share_its_box() -> None:
    # model: a(b(c(d, e))), f; the second child of b has no value
    weights = FlameWeights([6, 6, 5, 4, 5, 6, 7], [8, 8, 8, 5, 3, 0, 2], 10, {})
    boxes = icicle(weights, None, 100, 9)
    assert [(box.first, box.row, box.level, box.width) for box in boxes] == [
        (0, 0, 0, 100),
        (0, 2, 1, 80),
        (6, 6, 1, 20),
        (3, 3, 2, 50),
        (4, 4, 2, 30),
    ]
    rows = [
        Layer(0, None, "a", "a", "Net", 0, True),
        Layer(1, 0, "a.b", "b", "Net", 1, True),
        Layer(2, 1, "a.b.c", "c", "Block", 2, True),
    ]
    assert label_of(boxes[1], rows, "m").name == "a.b.c"
    assert boxes[find_box(boxes, 1)] == boxes[1], "a row in the middle of a chain is in its box"
    zoomed = icicle(weights, (0, 6), 100, 9)
    assert [(box.row, box.level) for box in zoomed] == [(2, 0), (3, 1), (4, 1)]


@pytest.mark.parametrize(("by", "said"), [("macs", "416.52 k"), ("weights", "241.04 KiB")])
def test_the_same_boxes_are_a_picture_of_the_command_line(tmp_path: Path, by: str, said: str) -> None:
    picture = tmp_path / "flame.svg"
    assert main(["plot", LENET, "--what", "flame", "--by", by, "-o", str(picture), "--quiet"]) == 0
    text = picture.read_text(encoding="utf-8")
    assert f"lenet.onnx: {said}" in text
    assert "fc1" in text


def test_a_group_hangs_at_the_top_and_one_that_there_is_not_is_told_the_nearest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "flame.svg"
    words = ["plot", LENET, "--what", "flame", "--by", "activations", "-o", str(picture)]
    assert main([*words, "--layer", "/pol"]) == 2
    assert "did you mean" in capsys.readouterr().err
    assert not picture.exists()
    assert main([*words, "--layer", "pool"]) == 0
    text = picture.read_text(encoding="utf-8")
    assert "pool of lenet.onnx" in text
    assert "fc1" not in text


def test_kernels_that_the_profiler_slows_are_shares_of_what_they_took_in_all():
    conditions = Conditions(1, "settled", "cpu", 2, "a runtime")
    rows = [Layer(at, None, name, name, "Conv", 0, False) for at, name in enumerate("ab")]
    times = {at: TimeSamples([0.03] * 6, {"Conv": (0.03, 1)}) for at in (0, 1)}
    profile = assemble_profile(rows, [0.05] * 6, times, {}, {}, conditions)
    figure = create_measured_figure(build_structure(rows), [0.03, 0.03, 0.06], profile)
    boxes = icicle(figure.weights, None, 100, 2)
    assert [box.width for box in boxes] == [100, 50, 50]
    assert sum(box.value for box in boxes[1:]) == pytest.approx(boxes[0].value)
    assert figure.title == "kernel time"
    fields = {str(field.label): field for field in build_profile_fields(profile).rows}
    assert str(fields["Kernel time"].figure).find("60 ms") >= 0
    assert "shares are of the kernel time" in str(fields["Kernel time"].remark)
    assert str(fields["Runtime overhead"].figure).find("?") >= 0, "slowed kernels hide it"
