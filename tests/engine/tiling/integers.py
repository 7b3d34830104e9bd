"""Models of integer products: what the tests of tiling them and of its proof share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

__all__ = ["OPERATORS", "integers", "save_integers"]


def integers(kind: Any, *shape: int, seed: int = 0) -> np.ndarray:
    """Numbers of the whole range of a type: what saturates anywhere saturates here."""
    limits = np.iinfo(kind)
    made = np.random.default_rng(seed).integers(limits.min, limits.max, shape, np.int64, endpoint=True)
    return made.astype(kind)


def save_integers(
    path: Path,
    node: Any,
    feeds: Mapping[str, tuple[Any, tuple[Any, ...]]],
    stored: Mapping[str, Any],
    y: tuple[Any, tuple[Any, ...]],
    *,
    before: tuple[Any, ...] = (),
) -> str:
    """A model of one operator; `feeds` and `y` are (type, shape)."""

    def info(name: str, kind: Any, shape: tuple[Any, ...]) -> Any:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), shape)

    graph = helper.make_graph(
        [*before, node],
        "g",
        [info(name, *what) for name, what in feeds.items()],
        [info("y", *y)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in stored.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return str(path)


def _zeros(kind: Any, a: Any, b: Any) -> dict[str, np.ndarray]:
    return {"za": np.asarray(a, kind), "zb": np.asarray(b, kind)}


def _requantisation(a: Any, b: Any, n: int, zero: Any = 5, out: int = 17) -> dict[str, Any]:
    """Scales and zero points of X, W and Y; one of W for each of `n` columns, or one."""
    steps = np.random.default_rng(7).uniform(1e-3, 1e-2, n if n else ()).astype(np.float32)
    return {
        "xs": np.float32(0.013),
        "xz": np.asarray(zero, a),
        "ws": steps,
        "wz": np.zeros(n, b) if n else np.asarray(3, b),
        "ys": np.float32(0.31),
        "yz": np.asarray(out, a),
    }


_Q = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"]
_PADDED = {"pads": [1, 1, 1, 1]}
_SPREAD = {"strides": [2, 1], "pads": [0, 1, 1, 0], "dilations": [1, 2]}
_BIAS = np.random.default_rng(3).integers(-3000, 3000, 8).astype(np.int32)


def matmul_integer(path: Path, a: Any, b: Any, zero: Any = None, other: Any = None) -> str:
    """(7, 13) x (13, 11)."""
    names, stored = ["x", "w"], {"w": integers(b, 13, 11, seed=1)}
    if zero is not None:
        names += ["za", "zb"]
        stored |= {"za": np.asarray(zero, a), "zb": np.asarray(other, b)}
    node = helper.make_node("MatMulInteger", names, ["y"], name="fc")
    return save_integers(path, node, {"x": (a, (7, 13))}, stored, (np.int32, (7, 11)))


def two_activations(path: Path, *, computed: bool) -> str:
    """A stack of products of two activations, with zero points that are stored, or come from outside."""
    feeds: dict[str, Any] = {"x": (np.uint8, (2, 3, 7, 13)), "w": (np.uint8, (2, 3, 13, 5))}
    zeros = _zeros(np.uint8, 9, [100])
    if computed:
        feeds |= {name: (np.uint8, value.shape) for name, value in zeros.items()}
    node = helper.make_node("MatMulInteger", ["x", "w", "za", "zb"], ["y"], name="fc")
    return save_integers(path, node, feeds, {} if computed else zeros, (np.int32, (2, 3, 7, 5)))


def conv_integer(path: Path, *, computed: bool = False, zero: int = 4, **attributes: Any) -> str:
    """Two images of six channels, eight kernels of 3 x 3."""
    groups = attributes.get("group", 1)
    stored = {"w": integers(np.uint8, 8, 6 // groups, 3, 3, seed=1), **_zeros(np.uint8, 9, zero)}
    feeds: dict[str, Any] = {"x": (np.uint8, (2, 6, 9, 8))}
    if computed:
        feeds["za"] = (np.uint8, ())
        del stored["za"]
    node = helper.make_node("ConvInteger", ["x", "w", "za", "zb"], ["y"], name="conv", **attributes)
    return save_integers(path, node, feeds, stored, (np.int32, _slid(attributes)))


def qlinear_conv(path: Path, kind: Any = np.int8, zeros: Any = None, **attributes: Any) -> str:
    """The same, requantized, with a scale for every channel and a bias."""
    groups = attributes.get("group", 1)
    stored = {"w": integers(kind, 8, 6 // groups, 3, 3, seed=1), **_requantisation(kind, kind, 8), "b": _BIAS}
    if zeros is not None:
        stored["wz"] = np.array(zeros, kind)
    node = helper.make_node("QLinearConv", [*_Q, "b"], ["y"], name="conv", **attributes)
    return save_integers(path, node, {"x": (kind, (2, 6, 9, 8))}, stored, (kind, _slid(attributes)))


def _slid(attributes: Mapping[str, Any]) -> tuple[int, ...]:
    pads, strides = attributes.get("pads", (0,) * 4), attributes.get("strides", (1, 1))
    reach = [2 * d + 1 for d in attributes.get("dilations", (1, 1))]
    sizes = [(n + pads[i] + pads[i + 2] - reach[i]) // strides[i] + 1 for i, n in enumerate((9, 8))]
    return 2, 8, *sizes


def qlinear_matmul(path: Path, kind: Any = np.uint8, columns: int = 0) -> str:
    """(40, 13) x (13, 11), requantized."""
    stored = {"w": integers(kind, 13, 11, seed=1), **_requantisation(kind, kind, columns)}
    node = helper.make_node("QLinearMatMul", _Q, ["y"], name="fc")
    return save_integers(path, node, {"x": (kind, (40, 13))}, stored, (kind, (40, 11)))


def qgemm(path: Path, *, turned: int = 0, result: tuple[str, ...] = ("ys", "yz")) -> str:
    """A Gemm as onnxruntime's quantizer writes it.

    Args:
        path: Path of the file.
        turned: Value of `transB`.
        result: Names of the scale and the zero point of Y. Without a zero point, Y is float32.
    """
    stored = {
        "w": integers(np.uint8, *((11, 13) if turned else (13, 11)), seed=1),
        "b": np.random.default_rng(3).integers(-3000, 3000, 11).astype(np.int32),
        **_requantisation(np.uint8, np.uint8, 0),
    }
    for unused in {"ys", "yz"} - {*result}:
        del stored[unused]
    node = helper.make_node(
        "QGemm", [*_Q[:6], "b", *result], ["y"], name="fc", domain="com.microsoft", transB=turned, alpha=0.7
    )
    return save_integers(
        path, node, {"x": (np.uint8, (7, 13))}, stored, (np.uint8 if "yz" in result else np.float32, (7, 11))
    )


OPERATORS: Mapping[str, Any] = {
    "MatMulInteger": lambda p: matmul_integer(p, np.uint8, np.uint8),
    "MatMulInteger, zero points": lambda p: matmul_integer(p, np.uint8, np.uint8, 3, 7),
    "MatMulInteger, signed": lambda p: matmul_integer(p, np.int8, np.int8, -3, 5),
    "MatMulInteger, signed weight": lambda p: matmul_integer(p, np.int8, np.uint8, -3, 5),
    "MatMulInteger, a zero point a column": lambda p: matmul_integer(
        p, np.uint8, np.uint8, 3, integers(np.uint8, 11, seed=5)
    ),
    "MatMulInteger, two activations": lambda p: two_activations(p, computed=False),
    "MatMulInteger, computed zero points": lambda p: two_activations(p, computed=True),
    "ConvInteger": lambda p: conv_integer(p),
    "ConvInteger, padded": lambda p: conv_integer(p, **_PADDED),
    "ConvInteger, computed zero point": lambda p: conv_integer(p, computed=True, **_PADDED),
    "ConvInteger, strided and dilated": lambda p: conv_integer(p, **_SPREAD),
    "ConvInteger, grouped": lambda p: conv_integer(p, zero=0, group=2, **_PADDED),
    "QLinearMatMul": lambda p: qlinear_matmul(p),
    "QLinearMatMul, signed, a scale a column": lambda p: qlinear_matmul(p, np.int8, 11),
    "QLinearConv": lambda p: qlinear_conv(p),
    "QLinearConv, padded": lambda p: qlinear_conv(p, np.uint8, **_PADDED),
    "QLinearConv, strided and dilated": lambda p: qlinear_conv(p, **_SPREAD),
    "QLinearConv, a zero point a kernel": lambda p: qlinear_conv(p, np.uint8, range(90, 98), **_PADDED),
    "QLinearConv, grouped": lambda p: qlinear_conv(p, group=2, **_PADDED),
    "QGemm": lambda p: qgemm(p),
    "QGemm, turned": lambda p: qgemm(p, turned=1),
    "QGemm, to floats": lambda p: qgemm(p, result=()),
    "QGemm, to scaled floats": lambda p: qgemm(p, result=("ys",)),
}
"""What a user calls each case, and what writes it to a path."""
