"""The same graph in two operator sets is equal by construction; what only looks alike is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx.defs
import pytest
from onnx import helper, numpy_helper

from explorer import verify_files
from explorer.engine.proof.structure.opset_forms import CHANGED, NEWEST, find_changed_version
from tests.engine.proof import tiled as t

node = helper.make_node
Graph = tuple[int, list[Any]]
"""An operator set, and nodes from x to y."""


def stored(name: str, value: Any) -> Any:
    return node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(value), ""))


def ints(name: str, *values: int) -> Any:
    return stored(name, np.asarray(values, np.int64))


def floats(name: str, *values: float) -> Any:
    return stored(name, np.asarray(values, np.float32))


def one(op: str, inputs: list[str], *before: Any, **attributes: Any) -> list[Any]:
    return [*before, node(op, inputs, ["y"], **attributes)]


LOW, HIGH = stored("l", np.float32(-0.5)), stored("h", np.float32(0.75))
ROI = floats("r")
OLD = "asymmetric"

EQUAL: dict[str, tuple[Any, Graph, Graph]] = {
    "Squeeze": (
        (2, 1, 8, 1),
        (11, one("Squeeze", ["x"], axes=[-1, 1])),
        (13, one("Squeeze", ["x", "a"], ints("a", 1, 3))),
    ),
    "Unsqueeze": (
        (2, 3),
        (9, one("Unsqueeze", ["x"], axes=[0, 2])),
        (18, one("Unsqueeze", ["x", "a"], ints("a", -2, 0))),
    ),
    "ReduceSum": (
        (2, 3, 8),
        (12, one("ReduceSum", ["x"], axes=[1], keepdims=0)),
        (13, one("ReduceSum", ["x", "a"], ints("a", -2), keepdims=0)),
    ),
    "ReduceMean": (
        (2, 3, 8),
        (13, one("ReduceMean", ["x"], axes=[-1])),
        (18, one("ReduceMean", ["x", "a"], ints("a", 2))),
    ),
    "ReduceLogSumExp of all": (
        (2, 3),
        (11, one("ReduceLogSumExp", ["x"])),
        (20, one("ReduceLogSumExp", ["x"])),
    ),
    "Clip": (
        (3, 8),
        (6, one("Clip", ["x"], min=-0.5, max=0.75)),
        (13, one("Clip", ["x", "l", "h"], LOW, HIGH)),
    ),
    "Clip from above": (
        (3, 8),
        (10, one("Clip", ["x"], max=0.75)),
        (12, one("Clip", ["x", "", "h"], HIGH)),
    ),
    "Pad": (
        (3, 8),
        (10, one("Pad", ["x"], pads=[0, 1, 0, 2], value=0.75)),
        (13, one("Pad", ["x", "p", "h"], ints("p", 0, 1, 0, 2), HIGH)),
    ),
    "Pad of some axes": (
        (3, 8),
        (9, one("Pad", ["x"], pads=[0, 1, 0, 2], mode="reflect")),
        (18, one("Pad", ["x", "p", "", "a"], ints("p", 1, 2), ints("a", -1), mode="reflect")),
    ),
    "Dropout": (
        (3, 8),
        (10, [node("Dropout", ["x"], ["d"], ratio=0.3), node("Tanh", ["d"], ["y"])]),
        (
            13,
            [
                stored("ratio", np.float32(0.3)),
                node("Dropout", ["x", "ratio"], ["d"]),
                node("Tanh", ["d"], ["y"]),
            ],
        ),
    ),
    "Slice": (
        (4, 3, 8),
        (9, one("Slice", ["x"], starts=[1, 0], ends=[3, -2], axes=[0, 2])),
        (
            13,
            one(
                *("Slice", ["x", "b", "e", "a"], ints("b", 1, 0)), *(ints("e", 3, -2), ints("a", -3, -1))
            ),
        ),
    ),
    "Slice of the first axes": (
        (4, 3, 8),
        (9, one("Slice", ["x"], starts=[1, 1], ends=[3, 2])),
        (11, one("Slice", ["x", "b", "e"], ints("b", 1, 1), ints("e", 3, 2))),
    ),
    "Upsample": (
        (1, 2, 4, 5),
        (8, one("Upsample", ["x"], scales=[1.0, 1.0, 2.0, 3.0], mode="linear")),
        (9, one("Upsample", ["x", "s"], floats("s", 1, 1, 2, 3), mode="linear")),
    ),
    "Upsample that is a Resize": (
        (1, 2, 4, 5),
        (7, one("Upsample", ["x"], scales=[1.0, 1.0, 2.0, 2.0])),
        (
            13,
            one(
                *("Resize", ["x", "r", "s"], ROI, floats("s", 1, 1, 2, 2)),
                coordinate_transformation_mode=OLD,
                nearest_mode="floor",
            ),
        ),
    ),
    "Resize": (
        (1, 2, 4, 5),
        (10, one("Resize", ["x", "s"], floats("s", 1, 1, 1.5, 2), mode="linear")),
        (
            19,
            one(
                *("Resize", ["x", "", "s"], floats("s", 1.5, 2)),
                axes=[2, 3],
                mode="linear",
                coordinate_transformation_mode=OLD,
            ),
        ),
    ),
    "Split": (
        (4, 8),
        (11, [node("Split", ["x"], ["a", "b"], axis=1, split=[3, 5]), node("Relu", ["b"], ["y"])]),
        (
            13,
            [
                ints("s", 3, 5),
                node("Split", ["x", "s"], ["a", "b"], axis=-1),
                node("Relu", ["b"], ["y"]),
            ],
        ),
    ),
    "Split into equal parts": (
        (4, 8),
        (12, [node("Split", ["x"], ["a", "b"], axis=1), node("Relu", ["b"], ["y"])]),
        (18, [node("Split", ["x"], ["a", "b"], axis=1, num_outputs=2), node("Relu", ["b"], ["y"])]),
    ),
    "TopK": (
        (4, 8),
        (9, [node("TopK", ["x"], ["y", "i"], k=3, axis=-1)]),
        (11, [ints("k", 3), node("TopK", ["x", "k"], ["y", "i"])]),
    ),
    "Softmax of the last axis": (
        (2, 3, 8),
        (11, one("Softmax", ["x"], axis=2)),
        (13, one("Softmax", ["x"])),
    ),
    "BatchNormalization": (
        (2, 3, 4),
        (8, one("BatchNormalization", ["x", *"vvvv"], floats("v", 1, 2, 3), spatial=1)),
        (15, one("BatchNormalization", ["x", *"vvvv"], floats("v", 1, 2, 3), training_mode=0)),
    ),
    "Scatter": (
        (2, 3),
        (
            9,
            one(
                *("Scatter", ["x", "i", "u"], stored("i", [[1, 0]])),
                stored("u", np.float32([[5, 6]])),
                axis=1,
            ),
        ),
        (
            18,
            one(
                *("ScatterElements", ["x", "i", "u"], stored("i", [[1, 0]])),
                stored("u", np.float32([[5, 6]])),
                axis=-1,
            ),
        ),
    ),
    "DFT": (
        (2, 5, 8, 1),
        (17, one("DFT", ["x"], axis=2)),
        (20, one("DFT", ["x"])),
    ),
    "GridSample": (
        (1, 1, 4, 4),
        (16, one("GridSample", ["x", "g"], stored("g", t.weight(1, 3, 3, 2)), mode="bilinear")),
        (20, one("GridSample", ["x", "g"], stored("g", t.weight(1, 3, 3, 2)), mode="linear")),
    ),
    "what only its types changed": (
        (3, 8),
        (8, [node("Relu", ["x"], ["r"]), node("Add", ["r", "x"], ["s"]), node("Flatten", ["s"], ["y"])]),
        (21, [node("Relu", ["x"], ["r"]), node("Add", ["r", "x"], ["s"]), node("Flatten", ["s"], ["y"])]),
    ),
}  # fmt: skip

NOT_EQUAL: dict[str, tuple[Any, Graph, Graph]] = {
    "Softmax of all axes behind": (
        (2, 3, 8),
        (11, one("Softmax", ["x"], axis=1)),
        (13, one("Softmax", ["x"], axis=1)),
    ),
    "Softmax by default": ((2, 3, 8), (12, one("Softmax", ["x"])), (13, one("Softmax", ["x"]))),
    "another limit": (
        (3, 8),
        (6, one("Clip", ["x"], min=-0.5, max=0.5)),
        (13, one("Clip", ["x", "l", "h"], LOW, HIGH)),
    ),
    "Resize from the middle": (
        (1, 2, 4, 5),
        (10, one("Resize", ["x", "s"], floats("s", 1, 1, 2, 2), mode="linear")),
        (13, one("Resize", ["x", "r", "s"], ROI, floats("s", 1, 1, 2, 2), mode="linear")),
    ),
    "other axes": (
        (3, 3),
        (11, one("ReduceSum", ["x"], axes=[0])),
        (13, one("ReduceSum", ["x", "a"], ints("a", 1))),
    ),
    "padded with something else": (
        (3, 8),
        (10, one("Pad", ["x"], pads=[0, 1, 0, 2], value=0.5)),
        (13, one("Pad", ["x", "p"], ints("p", 0, 1, 0, 2))),
    ),
    "one more of the largest": (
        (4, 8),
        (9, [node("TopK", ["x"], ["v", "i"], k=3), node("ReduceSum", ["v"], ["y"], axes=[1])]),
        (
            13,
            [
                *(ints("k", 4), ints("a", 1), node("TopK", ["x", "k"], ["v", "i"])),
                node("ReduceSum", ["v", "a"], ["y"]),
            ],
        ),
    ),
}


def saved(path: Path, shape: Any, graph: Graph) -> str:
    opset, nodes = graph
    t.model(path, nodes, {"x": shape}, {}, opset=opset, dtypes={"x": 1, "y": 1})
    return str(path)


@pytest.mark.parametrize("case", EQUAL)
def test_one_graph_in_two_operator_sets_is_equal_by_construction(tmp_path: Path, case: str) -> None:
    shape, older, newer = EQUAL[case]
    a, b = saved(tmp_path / "a.onnx", shape, older), saved(tmp_path / "b.onnx", shape, newer)
    for first, second in ((a, b), (b, a)):
        fact = verify_files(first, second)
        assert fact.verdict.startswith("equal bit for bit"), fact.verdict
        assert not fact.regions


@pytest.mark.parametrize("case", NOT_EQUAL)
def test_what_another_operator_set_means_otherwise_is_not_equal(tmp_path: Path, case: str) -> None:
    shape, older, newer = NOT_EQUAL[case]
    a, b = saved(tmp_path / "a.onnx", shape, older), saved(tmp_path / "b.onnx", shape, newer)
    assert verify_files(a, b).verdict_kind == "different"


def test_open_sizes_that_no_part_divides_are_not_equal_by_construction(tmp_path: Path) -> None:
    nodes = EQUAL["Split into equal parts"]
    a, b = (saved(tmp_path / f"{graph[0]}.onnx", (4, "n"), graph) for graph in nodes[1:])
    # operator set 18 splits 3 columns, 12 refuses to
    for first, second in ((a, b), (b, a)):
        assert verify_files(first, second, dims={"n": 8}).verdict_kind != "equal"


def test_versions_of_every_operator_were_read() -> None:
    """A version whose attributes or inputs differ has a rule or is in the table; a newer one is new work."""
    assert onnx.defs.onnx_opset_version() <= NEWEST, "read the schemas that are new and raise NEWEST"
    versions: dict[str, set[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if not schema.domain:
            versions.setdefault(schema.name, set()).add(schema.since_version)
    for op, changes in CHANGED.items():
        assert set(changes) <= versions[op], op
    assert find_changed_version("Max", 7) == 0
    assert find_changed_version("Max", 13) == find_changed_version("Max", 8) == 8
    assert find_changed_version("Relu", 21) == 0
