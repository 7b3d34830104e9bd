"""Windows, regions and points of an image."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from explorer.engine.graph.layouts import MS
from explorer.engine.operators.cost_formulas import Cost
from explorer.facts import Shape

Count = Callable[..., Cost]
S: Shape = ()
NCHWC, NHWC = "com.microsoft.nchwc", "com.ms.internal.nhwc"
KERNEL = {"kernel_shape": (3, 3)}

EXACT = [
    # operator, domain, inputs, output, attributes, elementwise
    ("MaxPool", "", [(1, 2, 4, 4)], (1, 2, 2, 2), KERNEL, 8 * 9),
    ("AveragePool", "", [(1, 2, 4)], (1, 2, 2), {"kernel_shape": (3,)}, 4 * 3),
    ("LpPool", "", [(1, 2, 4, 4)], (1, 2, 2, 2), KERNEL, 2 * 8 * 9),
    ("GlobalMaxPool", "", [(1, 2, 4, 4)], (1, 2, 1, 1), {}, 32),
    ("GlobalLpPool", "", [(1, 2, 4, 4)], (1, 2, 1, 1), {}, 64),
    ("MaxUnpool", "", [(1, 1, 2, 2), (1, 1, 2, 2)], (1, 1, 4, 4), {"kernel_shape": (2, 2)}, 0),
    ("MaxPool", NCHWC, [(1, 8, 4, 4)], (1, 8, 2, 2), KERNEL, 32 * 9),
    ("MaxPool", NHWC, [(1, 4, 4, 2)], (1, 2, 2, 2), KERNEL, 8 * 9),
    ("AveragePool", NHWC, [(1, 4, 4, 2)], (1, 2, 2, 2), KERNEL, 8 * 9),
    ("GlobalAveragePool", NHWC, [(1, 4, 4, 2)], (1, 1, 1, 2), {}, 32),
    ("LpPool", NHWC, [(1, 4, 4, 2)], (1, 2, 2, 2), KERNEL, 2 * 8 * 9),
    ("GlobalLpPool", NHWC, [(1, 4, 4, 2)], (1, 1, 1, 2), {}, 64),
    ("LRN", NHWC, [(1, 2, 2, 4)], (1, 2, 2, 4), {"size": 5}, 16 * 9),
    ("NhwcMaxPool", MS, [(1, 4, 4, 2)], (1, 2, 2, 2), KERNEL, 8 * 9),
    ("MaxpoolWithMask", MS, [(1, 2, 4, 4), (1, 1, 4, 4)], (1, 2, 2, 2), KERNEL, 8 * 9 + 32),
    ("QLinearAveragePool", MS, [(1, 2, 4, 4), S, S, S, S], (1, 2, 2, 2), KERNEL, 8 * 9 + 8 * 5),
    ("QLinearGlobalAveragePool", MS, [(1, 2, 4, 4), S, S, S, S], (1, 2, 1, 1), {}, 32 + 2 * 5),
    ("Resize", "", [(1, 1, 2, 2)], (1, 1, 4, 4), {"mode": "nearest"}, 0),
    ("Resize", "", [(1, 1, 2, 2)], (1, 1, 4, 4), {"mode": "linear"}, 16 * 7),
    ("Resize", "", [(1, 1, 2, 2)], (1, 1, 4, 2), {"mode": "linear"}, 8 * 3),
    ("Resize", "", [(1, 1, 4, 4)], (1, 1, 8, 8), {"mode": "cubic"}, 64 * 31),
    ("Resize", "", [(1, 1, 2, 2)], (1, 1, 2, 2), {"mode": "linear"}, 0),
    ("Upsample", "", [(1, 1, 2, 2)], (1, 1, 4, 4), {"mode": "linear"}, 16 * 7),
    ("Upsample", NCHWC, [(1, 1, 2, 2)], (1, 1, 4, 4), {"mode": "nearest"}, 0),
    ("GridSample", "", [(1, 3, 4, 4), (1, 2, 2, 2)], (1, 3, 2, 2), {}, 12 * 7),
    ("GridSample", "", [(1, 3, 4, 4, 4), (1, 2, 2, 2, 3)], (1, 3, 2, 2, 2), {"mode": "linear"}, 24 * 15),
    ("GridSample", "", [(1, 3, 4, 4), (1, 2, 2, 2)], (1, 3, 2, 2), {"mode": "cubic"}, 12 * 31),
    ("GridSample", MS, [(1, 3, 4, 4), (1, 2, 2, 2)], (1, 3, 2, 2), {"mode": "nearest"}, 0),
    ("RoiAlign", "", [(1, 3, 8, 8), (5, 4), (5,)], (5, 3, 2, 2), {"sampling_ratio": 2}, 60 * 4 * 8),
    ("CropAndResize", MS, [(1, 3, 8, 8), (5, 4), (5,), (2,)], (5, 3, 2, 2), {}, 60 * 7),
    ("CropAndResize", MS, [(1, 3, 8, 8), (5, 4), (5,), (2,)], (5, 3, 2, 2), {"mode": "nearest"}, 0),
]


@pytest.mark.parametrize(("op", "domain", "inputs", "output", "attributes", "rest"), EXACT)
def test_a_window_is_counted_as_by_hand(
    count: Count, op: str, domain: str, inputs: Any, output: Any, attributes: Any, rest: int
) -> None:
    cost = count(op, inputs, output, domain, **attributes)
    assert (cost.macs, cost.elementwise_ops, cost.status) == (0, rest, "exact")


def test_a_window_below_nothing_is_unknown_though_two_of_them_multiply_to_more(count: Count) -> None:
    cost = count("MaxPool", [(1, 2, 4, 4)], (1, 2, 2, 2), kernel_shape=(-3, -3))
    assert (cost.elementwise_ops, cost.status) == (None, "unknown")


BOUNDS = [
    # a region may be the whole image: 8 / 2 = 4 samples along each axis of a cell
    ("RoiAlign", [(1, 3, 8, 8), (5, 4), (5,)], (5, 3, 2, 2), {}, 60 * 16 * 8, "region"),
    # and of a pooled cell 4 + 1 pixels along each axis
    ("MaxRoiPool", [(1, 3, 8, 8), (5, 5)], (5, 3, 2, 2), {"pooled_shape": (2, 2)}, 60 * 25, "region"),
    # 6 boxes are 15 pairs, for each of 2 x 3 classes
    ("NonMaxSuppression", [(2, 6, 4), (2, 3, 6)], (36, 3), {}, 6 * 15 * 15, "pairs"),
    # half the size, with a filter twice as wide: 2 x 2 + 1 taps along each axis
    ("Resize", [(1, 1, 8, 8)], (1, 1, 4, 4), {"mode": "linear", "antialias": 1}, 16 * 49, "filter"),
]


@pytest.mark.parametrize(("op", "inputs", "output", "attributes", "rest", "why"), BOUNDS)
def test_what_depends_on_the_data_is_a_bound_that_says_why(
    count: Count, op: str, inputs: Any, output: Any, attributes: Any, rest: int, why: str
) -> None:
    cost = count(op, inputs, output, **attributes)
    assert (cost.macs, cost.elementwise_ops, cost.status) == (0, rest, "bound")
    assert why in cost.reason


@st.composite
def pools(draw: Any) -> tuple[Shape, dict[str, Any]]:
    rank = draw(st.integers(1, 3))
    kernel = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    pads = tuple(min(draw(st.integers(0, 1)), k - 1) for k in kernel)
    attributes: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": tuple(draw(st.integers(1, 3)) for _ in range(rank)),
        "dilations": tuple(draw(st.integers(1, 2)) for _ in range(rank)),
        "ceil_mode": draw(st.integers(0, 1)),
    }
    if draw(st.booleans()):
        attributes["pads"] = pads * 2
    else:
        attributes["auto_pad"] = draw(st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"]))
    sides = tuple(draw(st.integers(2, 7)) for _ in range(rank))
    return (draw(st.integers(1, 2)), draw(st.integers(1, 2)), *sides), attributes


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(pools(), st.sampled_from(["MaxPool", "AveragePool"]))
def test_a_pooling_looks_at_every_tap_of_every_window(count: Any, case: Any, op: str) -> None:
    """The shape of the output is onnxruntime's, from a run."""
    from onnx import helper
    from onnxruntime import InferenceSession, SessionOptions

    source, attributes = case
    node = helper.make_node(op, ["x"], ["y"], **attributes)
    infos = [helper.make_tensor_value_info("x", 1, source), helper.make_empty_tensor_value_info("y")]
    graph = helper.make_graph([node], "g", infos[:1], infos[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    quiet = SessionOptions()
    quiet.log_severity_level = 4
    try:
        ran = InferenceSession(model.SerializeToString(), quiet, providers=["CPUExecutionProvider"])
        y = ran.run(None, {"x": np.ones(source, np.float32)})[0]
    except Exception:
        assume(False)
    looked = sum(1 for _ in itertools.product(*map(range, y.shape), *map(range, attributes["kernel_shape"])))
    assert looked == y.size * math.prod(attributes["kernel_shape"])
    assert count(op, [source], y.shape, **attributes).elementwise_ops == looked
