"""Sizes that a TensorFlow Lite file leaves open follow from its operators; worked by hand, one by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from explorer.engine.formats.tflite import schema
from explorer.engine.operators.call import Call
from explorer.engine.shapes.tflite_constants import CONTENTS
from explorer.engine.shapes.tflite_rules import RULES
from explorer.facts import TensorInfo

SAME = {"padding": "SAME", "stride_h": 2, "stride_w": 2}
VALID = {"padding": "VALID", "stride_h": 1, "stride_w": 2, "dilation_h_factor": 2, "dilation_w_factor": 1}
CASES: list[tuple[str, list[Any], Mapping[int, Any], dict[str, Any], list[Any]]] = [
    # operator, shapes of its inputs, contents of some, options, shapes of its outputs
    ("CONV_2D", [(None, 7, 7, 3), (5, 3, 3, 3)], {}, SAME, [(None, 4, 4, 5)]),
    ("CONV_2D", [(2, 7, 8, 3), (5, 3, 3, 3)], {}, VALID, [(2, 3, 3, 5)]),
    ("DEPTHWISE_CONV_2D", [(2, 7, 7, 3), (1, 3, 3, 6)], {}, SAME, [(2, 4, 4, 6)]),
    ("CONV_3D", [(2, 4, 7, 7, 3), (3, 3, 3, 3, 6)], {}, {**SAME, "stride_d": 1}, [(2, 4, 4, 4, 6)]),
    ("TRANSPOSE_CONV", [(4,), (5, 2, 2, 3), (2, 4, 4, 3)], {0: [2, 8, 8, 5]}, {}, [(2, 8, 8, 5)]),
    ("FULLY_CONNECTED", [(2, 3, 4), (5, 12)], {}, {}, [(2, 5)]),
    ("FULLY_CONNECTED", [(2, None, 12), (5, 12)], {}, {"keep_num_dims": True}, [(2, None, 5)]),
    ("BATCH_MATMUL", [(None, 1, 3, 4), (2, 6, 4)], {}, {"adj_y": True}, [(None, 2, 3, 6)]),
    ("ADD", [(None, 1, 4), (3, 1)], {}, {}, [(None, 3, 4)]),
    ("RESHAPE", [(2, 12), (2,)], {1: [-1, 4]}, {}, [(6, 4)]),
    ("RESHAPE", [(2, 12)], {}, {"new_shape": (3, -1)}, [(3, 8)]),
    ("RESHAPE", [(None, 12), (2,)], {1: [-1, 4]}, {}, [(None, 4)]),
    ("SPACE_TO_BATCH_ND", [(2, 6, 5, 3), (2,), (2, 2)], {1: [2, 3], 2: [0, 0, 1, 0]}, {}, [(12, 3, 2, 3)]),
    ("BATCH_TO_SPACE_ND", [(12, 3, 2, 3), (2,), (2, 2)], {1: [2, 3], 2: [0, 0, 1, 0]}, {}, [(2, 6, 5, 3)]),
    ("SPACE_TO_DEPTH", [(None, 6, 4, 3)], {}, {"block_size": 2}, [(None, 3, 2, 12)]),
    ("DEPTH_TO_SPACE", [(None, 3, 2, 12)], {}, {"block_size": 2}, [(None, 6, 4, 3)]),
    ("STRIDED_SLICE", [(None, 8, 6), (3,), (3,), (3,)], {1: [0, 1, 4], 2: [0, 7, 0], 3: [1, 2, -1]},
     {"begin_mask": 1, "end_mask": 1}, [(None, 3, 4)]),
    ("STRIDED_SLICE", [(4, 8), (1,), (1,), (1,)], {1: [2], 2: [3], 3: [1]}, {"shrink_axis_mask": 1}, [(8,)]),
    ("STRIDED_SLICE", [(4, 8), (1,), (1,), (1,)], {1: [2], 2: [3], 3: [1]}, {"new_axis_mask": 1}, [None]),
    ("SLICE", [(None, 8), (2,), (2,)], {1: [0, 3], 2: [-1, 2]}, {}, [(None, 2)]),
    ("GATHER", [(7, 8), (None, 5)], {}, {"axis": 1}, [(7, None, 5)]),
    ("GATHER", [(3, 7, 8), (3, 5)], {}, {"axis": 1, "batch_dims": 1}, [(3, 5, 8)]),
    ("GATHER_ND", [(7, 8, 9), (None, 2)], {}, {}, [(None, 9)]),
    ("SPLIT_V", [(None, 9), (3,), ()], {1: [2, -1, 3], 2: [1]}, {}, [(None, 2), (None, 4), (None, 3)]),
    ("CONCATENATION", [(None, 2), (None, 3)], {}, {"axis": -1}, [(None, 5)]),
    ("CONCATENATION", [(None, 2), (3, 2)], {}, {"axis": 0}, [(None, 2)]),
    ("MEAN", [(None, 8, 6, 3), (2,)], {1: [1, -2]}, {}, [(None, 3)]),
    ("ONE_HOT", [(None, 2), (), (), ()], {1: [5]}, {"axis": 1}, [(None, 5, 2)]),
    ("SQUEEZE", [(None, 1, 3, 1)], {}, {"squeeze_dims": (1,)}, [(None, 3, 1)]),
    ("SQUEEZE", [(2, 1, 3, 1)], {}, {}, [(2, 3)]),
    ("SQUEEZE", [(None, 1)], {}, {}, [None]),
    ("EMBEDDING_LOOKUP", [(None,), (100, 8)], {}, {}, [(None, 8)]),
    ("RANGE", [(), (), ()], {0: [2], 1: [9], 2: [3]}, {}, [(3,)]),
    ("AVERAGE_POOL_2D", [(None, 7, 7, 3)], {},
     {"padding": "VALID", "stride_h": 2, "stride_w": 2, "filter_height": 3, "filter_width": 2},
     [(None, 3, 3, 3)]),
]  # fmt: skip


@pytest.mark.parametrize(("op", "shapes", "contents", "options", "expected"), CASES)
def test_what_follows_of_the_shapes_of_an_operator(
    op: str, shapes: list[Any], contents: Mapping[int, Any], options: dict[str, Any], expected: list[Any]
) -> None:
    call = _called(
        op, shapes, {f"in{at}": np.array(held) for at, held in contents.items()}, options, expected
    )
    assert [s if s is None else tuple(s) for s in RULES[op](call)] == expected


def _called(
    op: str, shapes: list[Any], contents: Mapping[str, Any], options: dict[str, Any], made: list[Any]
) -> Call:
    inputs = tuple(None if s is None else TensorInfo(f"in{at}", "float32", s) for at, s in enumerate(shapes))
    return Call(op, "tflite", options, inputs, (TensorInfo("out", None, None),) * len(made), contents)


def test_a_contents_that_is_not_known_gives_no_shape() -> None:
    call = _called("", [(2, 3), (2,)], {}, {}, [None])
    for op in ("TRANSPOSE", "TILE", "PAD", "MEAN", "SLICE", "BROADCAST_TO", "EXPAND_DIMS"):
        with pytest.raises(LookupError):
            RULES[op](call)


def test_the_tables_name_operators_of_the_schema() -> None:
    known = set(schema.load_names("BuiltinOperator").values())
    assert set(RULES) <= known
    assert set(CONTENTS) <= known


@pytest.mark.parametrize(
    ("op", "options", "given", "expected"),
    [
        ("PACK", {"axis": 0}, [2, 3], [2, 3]),
        ("GATHER", {"axis": 0}, [[5, 6, 7], [2, 0]], [7, 5]),
        ("STRIDED_SLICE", {"shrink_axis_mask": 1}, [[5, 6, 7], [1], [2], [1]], 6),
        ("STRIDED_SLICE", {"begin_mask": 1}, [[5, 6, 7], [0], [2], [1]], [5, 6]),
        ("UNSORTED_SEGMENT_PROD", {}, [[2, 3, 4], [0, 1, 1], 2], [2, 12]),
        ("REDUCE_PROD", {"keep_dims": False}, [[2, 3, 4], [0]], 24),
        ("BROADCAST_ARGS", {}, [[2, 1], [3]], [2, 3]),
        ("SELECT_V2", {}, [True, 4, 5], 4),
        ("FLOOR_DIV", {}, [7, 2], 3),
        ("RANGE", {}, [1, 7, 2], [1, 3, 5]),
    ],
)
def test_what_operators_make_of_small_values(
    op: str, options: dict[str, Any], given: Any, expected: Any
) -> None:
    found = np.asarray(CONTENTS[op](options, *[np.array(value) for value in given]))
    assert found.tolist() == expected


def test_contents_that_would_be_large_are_not_made() -> None:
    for op, given in (("FILL", ([1 << 40], 1)), ("RANGE", (0, 1 << 40, 1))):
        with pytest.raises(ValueError):
            CONTENTS[op]({}, *[np.array(value) for value in given])
