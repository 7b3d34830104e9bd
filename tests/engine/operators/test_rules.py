"""What each ONNX operator costs, by hand, and which of its inputs are parameters."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from explorer.engine.costs.onnx.analyse import analyse
from explorer.engine.formats.onnx.reader import read
from explorer.engine.graph.layouts import MS
from explorer.engine.operators.call import Call
from explorer.engine.operators.registry import BY_NAME, OPERATORS, RULES, compute_cost, is_parameter
from explorer.engine.operators.user import find_problem
from explorer.facts import Shape, TensorInfo


def call(
    op: str, inputs: list[Shape | None], output: Shape | None, domain: str = "", **attributes: Any
) -> Call:
    infos = tuple(None if s is None else TensorInfo(f"i{i}", "float32", s) for i, s in enumerate(inputs))
    return Call(op, domain, attributes, infos, (TensorInfo("y", "float32", output),))


def macs(*args: Any, **attributes: Any) -> int | None:
    return compute_cost(call(*args, **attributes)).macs


SCALAR: Shape = ()

PRODUCTS = [
    # operator, inputs, output, attributes, MACs
    ("Conv", [(1, 3, 8, 8), (4, 3, 3, 3)], (1, 4, 6, 6), {}, 4 * 36 * 27),
    ("Conv", [(8, 8), (4, 8, 3)], (4, 6), {}, 4 * 6 * 24),
    ("ConvInteger", [(1, 3, 8, 8), (4, 3, 3, 3)], (1, 4, 6, 6), {}, 4 * 36 * 27),
    (
        "QLinearConv",
        [(1, 3, 8, 8), SCALAR, SCALAR, (4, 3, 3, 3), SCALAR, SCALAR, SCALAR, SCALAR, (4,)],
        (1, 4, 6, 6),
        {},
        4 * 36 * 27,
    ),
    ("ConvTranspose", [(1, 3, 2, 2), (3, 1, 2, 2)], (1, 1, 4, 4), {}, 48),
    ("DeformConv", [(1, 3, 8, 8), (4, 3, 3, 3), (1, 18, 6, 6)], (1, 4, 6, 6), {}, 4 * 36 * 27),
    ("MatMul", [(2, 1, 3, 4), (1, 5, 4, 6)], (2, 5, 3, 6), {}, 720),
    ("MatMulInteger", [(3, 4), (4, 6)], (3, 6), {}, 72),
    ("QLinearMatMul", [(3, 4), SCALAR, SCALAR, (4, 6), SCALAR, SCALAR, SCALAR, SCALAR], (3, 6), {}, 72),
    ("Gemm", [(4, 3), (6, 4), (6,)], (3, 6), {"transA": 1, "transB": 1}, 72),
    ("Einsum", [(2, 3), (3, 4)], (2, 4), {"equation": "ij,jk->ik"}, 24),
    ("LSTM", [(5, 2, 3), (1, 16, 3), (1, 16, 4)], (5, 1, 2, 4), {"hidden_size": 4}, 10 * 16 * 7),
    ("GRU", [(2, 5, 3), (1, 12, 3), (1, 12, 4)], (2, 5, 1, 4), {"hidden_size": 4, "layout": 1}, 10 * 12 * 7),
    (
        "RNN",
        [(5, 2, 3), (2, 4, 3), (2, 4, 4)],
        (5, 2, 2, 4),
        {"hidden_size": 4, "direction": "bidirectional"},
        2 * 10 * 4 * 7,
    ),
    ("Attention", [(2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 6)], (2, 4, 5, 6), {}, 2 * 4 * 5 * 7 * 14),
    (
        "Attention",
        # grouped queries: 4 heads of 8 share 2 heads of key and value
        [(2, 5, 32), (2, 7, 16), (2, 7, 12)],
        (2, 5, 24),
        {"q_num_heads": 4, "kv_num_heads": 2},
        2 * 4 * 5 * 7 * (8 + 6),
    ),
    (
        "Attention",
        [(2, 4, 1, 8), (2, 4, 1, 8), (2, 4, 1, 8), None, (2, 4, 9, 8), (2, 4, 9, 8)],
        (2, 4, 1, 8),
        {"is_causal": 1},
        2 * 4 * 1 * 10 * 16,
    ),
]


@pytest.mark.parametrize(("op", "inputs", "output", "attributes", "count"), PRODUCTS)
def test_operators_that_sum_products(
    op: str, inputs: list[Shape | None], output: Shape, attributes: dict[str, Any], count: int
) -> None:
    cost = compute_cost(call(op, inputs, output, **attributes))
    assert cost.macs == count
    assert cost.status == "exact"
    assert f"{count:,}" in cost.formula


MICROSOFT = [
    ("FusedMatMul", [(2, 4, 3), (2, 6, 4)], (2, 3, 6), {"transA": 1, "transB": 1}, 2 * 72),
    (
        "MatMulNBits",
        [(2, 5, 32), (64, 2, 8), (128,)],
        (2, 5, 64),
        {"K": 32, "N": 64, "bits": 4},
        10 * 32 * 64,
    ),
    ("FusedConv", [(1, 3, 8, 8), (4, 3, 3, 3)], (1, 4, 6, 6), {"activation": "Relu"}, 4 * 36 * 27),
    (
        "Attention",
        [(2, 5, 32), (32, 96), (96,)],
        (2, 5, 32),
        {"num_heads": 4},
        10 * 32 * 96 + 2 * 4 * 25 * 16,
    ),
    (
        "MultiHeadAttention",
        [(2, 5, 32), (2, 7, 32), (2, 7, 32)],
        (2, 5, 32),
        {"num_heads": 4},
        2 * 4 * 35 * 16,
    ),
    (
        "GroupQueryAttention",
        [(2, 5, 32), (2, 5, 16), (2, 5, 16)],
        (2, 5, 32),
        {"num_heads": 4, "kv_num_heads": 2},
        2 * 4 * 25 * 16,
    ),
]


@pytest.mark.parametrize(("op", "inputs", "output", "attributes", "count"), MICROSOFT)
def test_operators_that_onnxruntime_writes(
    op: str, inputs: list[Shape | None], output: Shape, attributes: dict[str, Any], count: int
) -> None:
    assert macs(op, inputs, output, MS, **attributes) == count


ELEMENTWISE = [
    ("Relu", [(2, 3)], (2, 3), {}, 6),
    ("Add", [(2, 1), (1, 3)], (2, 3), {}, 6),
    ("Clip", [(2, 3), SCALAR, SCALAR], (2, 3), {}, 6),
    ("Gelu", [(2, 3)], (2, 3), {}, 6),
    ("BatchNormalization", [(2, 3), (3,), (3,), (3,), (3,)], (2, 3), {}, 12),
    ("LayerNormalization", [(2, 3), (3,), (3,)], (2, 3), {}, 42),
    ("Softmax", [(2, 3)], (2, 3), {}, 30),
    ("MaxPool", [(1, 2, 4, 4)], (1, 2, 2, 2), {"kernel_shape": (3, 3)}, 8 * 9),
    ("GlobalAveragePool", [(1, 2, 4, 4)], (1, 2, 1, 1), {}, 32),
    ("ReduceMean", [(2, 3)], (2, 1), {}, 6),
    ("ReduceSumSquare", [(2, 3)], (2, 1), {}, 12),
    ("ReduceSum", [(2, 3)], (2, 3), {"noop_with_empty_axes": 1}, 0),
    ("ReduceSumSquare", [(2, 3)], (2, 3), {"noop_with_empty_axes": 1}, 6),
    ("ReduceMax", [(2, 3)], (2, 1), {"noop_with_empty_axes": 1, "axes": (1,)}, 6),
    ("Sum", [(2, 3), (2, 3), (2, 3)], (2, 3), {}, 12),
    ("Mean", [(2, 3), (2, 3)], (2, 3), {}, 12),
    ("LRN", [(1, 4, 2, 2)], (1, 4, 2, 2), {"size": 5}, 16 * 9),
    ("Resize", [(1, 1, 2, 2)], (1, 1, 4, 4), {"mode": "linear"}, 16 * 7),
    ("Resize", [(1, 1, 2, 2)], (1, 1, 4, 4), {}, 0),
    ("ScatterND", [(4, 3), (2, 1), (2, 3)], (4, 3), {"reduction": "add"}, 6),
    ("QuantizeLinear", [(2, 3), SCALAR], (2, 3), {}, 18),
    ("DequantizeLinear", [(2, 3), SCALAR], (2, 3), {}, 12),
]


@pytest.mark.parametrize(("op", "inputs", "output", "attributes", "count"), ELEMENTWISE)
def test_elementwise_operations_are_counted_beside_the_macs(
    op: str, inputs: list[Shape | None], output: Shape, attributes: dict[str, Any], count: int
) -> None:
    cost = compute_cost(call(op, inputs, output, **attributes))
    assert (cost.macs, cost.elementwise_ops, cost.status) == (0, count, "exact")


@pytest.mark.parametrize(
    "op",
    ["Reshape", "Transpose", "Concat", "Split", "Slice", "Gather", "Shape", "Constant", "Identity", "Dropout",
     "Flatten", "Squeeze", "Unsqueeze", "Expand", "Pad", "Cast"],
)  # fmt: skip
def test_moving_data_costs_nothing_even_if_its_shape_is_unknown(op: str) -> None:
    cost = compute_cost(call(op, [None], None))
    assert (cost.macs, cost.elementwise_ops, cost.status) == (0, 0, "exact")


def test_bias_scale_and_activation_stand_beside_the_macs() -> None:
    cost = compute_cost(call("Gemm", [(1, 4), (4, 6), (6,)], (1, 6), alpha=0.5, beta=2.0))
    assert (cost.macs, cost.elementwise_ops) == (24, 18)
    assert "bias" in cost.formula
    fused = compute_cost(
        call("FusedConv", [(1, 3, 8, 8), (4, 3, 3, 3), (4,)], (1, 4, 6, 6), MS, activation="Relu")
    )
    assert fused.elementwise_ops == 2 * 4 * 36


def test_an_operator_without_a_rule_is_unknown_and_says_so() -> None:
    cost = compute_cost(call("Frobnicate", [(2, 3)], (2, 3), "my.ops"))
    assert (cost.macs, cost.elementwise_ops, cost.status) == (None, None, "unknown")
    assert cost.reason == "no rule for operator Frobnicate of domain my.ops"


def test_a_missing_shape_is_named() -> None:
    cost = compute_cost(call("Conv", [(1, 3, 8, 8), (4, 3, 3, 3)], None))
    assert cost.macs is None
    assert cost.reason == "the shape of its output is not known"
    assert "input 1" in compute_cost(call("MatMul", [(2, 3)], (2, 3))).reason


def test_no_operator_falls_over_nonsense() -> None:
    calls = (([], None), ([()], ()), ([(0,), (None,)], ("n",)), ([(2, 3)] * 9, (2, 3)))
    for (domain, op), (inputs, output) in product(sorted(RULES), calls):
        cost = compute_cost(call(op, list(inputs), output, domain, num_heads=0, K="x", equation=7, size="s"))
        assert not find_problem(cost), (domain, op, inputs)


@pytest.mark.parametrize(
    ("shapes", "attributes"),
    [
        ([(2, 3, 4, 8), (2, 3, 6, 8), (2, 3, 6, 10)], {}),
        ([(2, 9, 4, 8), (2, 3, 6, 8), (2, 3, 6, 10)], {"is_causal": 1}),
        ([(2, 4, 24), (2, 6, 24), (2, 6, 30)], {"q_num_heads": 3, "kv_num_heads": 3}),
        ([(2, 4, 72), (2, 6, 24), (2, 6, 30)], {"q_num_heads": 9, "kv_num_heads": 3}),
        ([(2, 3, 4, 8), (2, 3, 6, 8), (2, 3, 6, 10), (4, 6)], {"scale": 0.5}),
    ],
)
def test_attention_counts_what_the_standards_own_definition_multiplies(
    tmp_path: Path, shapes: list[tuple[int, ...]], attributes: dict[str, Any]
) -> None:
    from onnx import FunctionProto, defs, helper

    names = ["Q", "K", "V", "mask"][: len(shapes)]
    node = helper.make_node("Attention", names, ["y"], **attributes)
    infos = [helper.make_tensor_value_info(n, 1, s) for n, s in zip(names, shapes, strict=True)]
    types = [info.type.SerializeToString() for info in infos]
    schema = defs.get_schema("Attention", 23, "")
    body = FunctionProto.FromString(schema.get_context_dependent_function(node.SerializeToString(), types))
    body.domain, body.name = "local", "Attention"
    call = helper.make_node("Attention", names, ["y"], domain="local", **attributes)
    found = []
    for each, functions in ((node, []), (call, [body])):
        graph = helper.make_graph([each], "g", infos, [helper.make_empty_tensor_value_info("y")])
        opsets = [helper.make_opsetid("", 23), helper.make_opsetid("local", 1)]
        model = helper.make_model(graph, opset_imports=opsets, functions=functions)
        path = tmp_path / "model.onnx"
        path.write_bytes(model.SerializeToString())
        found.append(analyse(read(str(path))).info.totals)
    assert found[0].macs == found[1].macs
    assert found[0].macs
    assert found[0].coverage == found[1].coverage == 1.0
    assert found[1].nodes > 5


def _known_to_onnx() -> set[tuple[str, str]]:
    from onnx import defs

    return {(schema.domain, schema.name) for schema in defs.get_all_schemas_with_history()}


def _known_to_onnxruntime() -> set[tuple[str, str]]:
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    return {(schema.domain, schema.name) for schema in state.get_all_operator_schema()}


def test_every_operator_that_onnx_ever_had_has_a_rule_or_says_that_it_does_no_arithmetic() -> None:
    assert _known_to_onnx() - set(RULES) == set()


def test_every_operator_of_onnxruntime_has_a_rule_or_a_reason() -> None:
    assert _known_to_onnxruntime() - set(RULES) == set()


def test_every_row_is_of_an_operator_that_exists() -> None:
    import onnx
    import onnxruntime

    installed = [tuple(map(int, m.__version__.split(".")[:2])) for m in (onnx, onnxruntime)]
    if installed[0] < (1, 23) or installed[1] < (1, 32):
        pytest.skip("older releases do not know the newest operators")
    known = _known_to_onnx() | _known_to_onnxruntime()
    # test_tflite.py asks TensorFlow Lite's schema about its own
    assert {key for key in RULES if key[0] != "tflite"} <= known


#: what is asked of a name whatever its domain
BY_NAME_ONLY = (
    *(
        "settings",
        "quantized",
        "packed",
        "learned",
        "rows",
        "same_parameter",
        "view",
        "reads_only_shape",
        "statistics",
    ),
    "position",
)


def test_a_record_says_nothing_that_is_asked_of_its_namesake_instead() -> None:
    for (domain, name), record in OPERATORS.items():
        for field in BY_NAME_ONLY:
            said = getattr(record, field)
            assert not said or said == getattr(BY_NAME[name], field), (domain, name, field)


#: the only operators of the standard that a well-formed node leaves without a number, and why
WITHOUT = {
    ("", "If"): "body",
    ("", "Loop"): "body",
    ("", "Scan"): "body",
    ("", "SequenceMap"): "body",
    ("", "ImageDecoder"): "decoding an image",
    ("ai.onnx.preview.training", "Adagrad"): "part of a training step",
    ("ai.onnx.preview.training", "Adam"): "part of a training step",
    ("ai.onnx.preview.training", "Gradient"): "part of a training step",
    ("ai.onnx.preview.training", "Momentum"): "part of a training step",
}


@pytest.mark.parametrize("key", sorted(WITHOUT))
def test_an_operator_without_a_number_says_why(key: tuple[str, str]) -> None:
    cost = compute_cost(call(key[1], [(2, 3)], (2, 3), key[0]))
    assert cost.status == "unknown"
    assert WITHOUT[key] in cost.reason


@pytest.mark.parametrize(
    ("op", "index", "dtype", "shape", "answer"),
    [
        ("Conv", 1, "float32", (4, 3, 3, 3), True),
        ("Conv", 2, "float32", (4,), True),
        ("Gather", 0, "float16", (100, 8), True),
        ("Gather", 1, "int64", (5,), False),
        ("Reshape", 1, "int64", (2,), False),
        ("Clip", 1, "float32", (), False),
        ("Add", 1, "float32", (), False),
        ("Add", 1, "float32", (1,), True),
        ("Where", 0, "bool", (8, 8), False),
        ("Add", 1, "int64", (8,), False),
        ("MatMulInteger", 1, "int8", (8, 8), True),
        ("QLinearConv", 8, "int32", (8,), True),
        ("QLinearConv", 1, "float32", (), True),
        ("MatMulNBits", 1, "uint8", (8, 2, 16), True),
    ],
)
def test_which_stored_tensors_are_parameters(
    op: str, index: int, dtype: str, shape: Shape, answer: bool
) -> None:
    assert is_parameter(op, index, dtype, shape) is answer


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        ("Conv", [(1, 4, 8, 8), (4, 3, 3, 3)]),
        ("Conv", [(9, 8), (4, 8, 3)]),
        ("ConvInteger", [(1, 4, 8, 8), (4, 3, 3, 3)]),
        ("QLinearConv", [(1, 4, 8, 8), SCALAR, SCALAR, (4, 3, 3, 3), SCALAR, SCALAR, SCALAR, SCALAR]),
        ("ConvTranspose", [(1, 4, 8, 8), (3, 4, 3, 3)]),
    ],
)
def test_a_convolution_for_other_channels_has_no_cost(op: str, inputs: list[Shape | None]) -> None:
    """An input shape that the user gave may contradict the weights."""
    cost = compute_cost(call(op, inputs, (1, 4, 6, 6) if len(inputs[0] or ()) == 4 else (4, 6)))
    assert cost.macs is None
    assert cost.status == "unknown"
    assert "channels, but the weight expects" in cost.reason


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "reason"),
    [
        ("LSTM", [(5, 2, 9), (1, 24, 8), (1, 24, 6)], {}, "9 features, but the weight expects 8"),
        ("GRU", [(5, 2, 9), (1, 18, 8), (1, 18, 6)], {}, "9 features, but the weight expects 8"),
        ("Einsum", [(4, 9), (8, 6)], {"equation": "ij,jk->ik"}, "'j' of 'ij,jk->ik' would be 9 and 8"),
    ],
)
def test_a_product_of_other_sizes_than_its_weight_has_no_cost(
    op: str, inputs: list[Shape | None], attributes: dict[str, Any], reason: str
) -> None:
    """The size of the input that the user gave would be counted, and no run takes it."""
    cost = compute_cost(call(op, inputs, (4, 6), **attributes))
    assert (cost.macs, cost.status) == (None, "unknown")
    assert cost.reason == f"its operands do not fit: {reason}"


def test_a_name_of_an_einsum_is_the_number_that_it_meets() -> None:
    cost = compute_cost(call("Einsum", [(4, "K"), (8, 6)], (4, 6), equation="ij,jk->ik"))
    assert (cost.macs, cost.status) == (4 * 8 * 6, "exact")


@pytest.mark.parametrize(
    ("op", "domain", "inputs", "attributes"),
    [
        ("LSTM", "", [(5, 2, 3), (1, 16, 3), (1, 16, 4)], {"hidden_size": -4}),
        ("MultiHeadAttention", MS, [(2, 5, 32), (2, 5, 32), (2, 5, 32)], {"num_heads": -4}),
        ("LRN", "", [(1, 4, 2, 2)], {"size": -9}),
        ("MoE", MS, [(6, 8), (6, 4), (4, 10, 8), None, (4, 8, 10)], {"k": -1}),
    ],
)
def test_a_size_below_zero_gives_no_count_below_zero(
    op: str, domain: str, inputs: list[Shape | None], attributes: dict[str, Any]
) -> None:
    cost = compute_cost(call(op, inputs, inputs[0], domain, **attributes))
    assert cost.status == "unknown"
    assert cost.macs is None or cost.macs >= 0


def _strange(random: Any) -> Any:
    """A value that a file may hold where a rule expects something else."""
    return random.choice(
        [0, 1, -1, 3, 10**18, 2.5, float("nan"), float("inf"), "", "linear", "SAME_UPPER", b"\xff", None,
         (), (0,), (1, 2, 3), (10**18,) * 3, (-1, "x"), ("LEAF", "LEAF"), (2.0,) * 9]
    )  # fmt: skip


def test_no_rule_falls_over_stalls_or_invents_on_whatever_a_file_says() -> None:
    """Random shapes and attributes of the names that each operator has, for every rule."""
    import random as source

    import numpy as np
    from onnx import defs
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    names: dict[tuple[str, str], set[str]] = {}
    for schema in (*state.get_all_operator_schema(), *defs.get_all_schemas_with_history()):
        names.setdefault((schema.domain, schema.name), set()).update(schema.attributes)
    random = source.Random(5)
    dims = [0, 1, 2, 3, 8, 10**12, None, "n"]

    def info(name: str) -> TensorInfo | None:
        if random.random() < 0.1:
            return None
        shape = tuple(random.choice(dims) for _ in range(random.randrange(6)))
        return TensorInfo(name, "float32", None if random.random() < 0.1 else shape)

    arrays = [np.array(1), np.array([5, 5]), np.array(True), np.array([], np.int64), np.array("x")]
    for (domain, op), attributes in names.items():
        for _ in range(12):
            inputs = tuple(info(f"i{k}") for k in range(random.randrange(12)))
            outputs = tuple(i for k in range(random.randrange(3)) if (i := info(f"y{k}")) is not None)
            given = {name: _strange(random) for name in attributes if random.random() < 0.7}
            contents = {f"i{k}": random.choice(arrays) for k in range(12) if random.random() < 0.3}
            cost = compute_cost(
                Call(op, domain, given, inputs, outputs, contents, random.choice([0, 13, 20]))
            )
            assert not find_problem(cost), (op, inputs, outputs, given, cost)
