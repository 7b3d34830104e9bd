"""TensorFlow Lite's operators: what each multiplies, worked by hand, and that none is left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import tflite as schema

from explorer.engine.operators.call import Call
from explorer.engine.operators.cost_formulas import Cost
from explorer.engine.operators.registry import BY_NAME, OPERATORS, RULES, compute_cost
from explorer.facts import Shape, TensorInfo

BUILTIN = [n for n in vars(schema.BuiltinOperator) if not n.startswith("_")]
CONV = {"padding": "SAME", "fused_activation_function": "NONE"}


def cost(
    op: str,
    inputs: Sequence[Shape | tuple[Shape, str] | None],
    output: Shape | None,
    dtype: str = "float32",
    **attributes: Any,
) -> Cost:
    """What an operator costs; an input is a shape, or one with its element type."""
    infos: list[TensorInfo | None] = []
    for at, given in enumerate(inputs):
        if given is None:
            infos.append(None)
        elif given and isinstance(given[0], tuple):
            infos.append(TensorInfo(f"i{at}", str(given[1]), given[0]))
        else:
            infos.append(TensorInfo(f"i{at}", "float32", given))  # type: ignore[arg-type]
    made = (TensorInfo("y", dtype, output),)
    return compute_cost(Call(op, "tflite", attributes, tuple(infos), made))


def test_every_operator_of_the_schema_has_a_rule_or_a_reason() -> None:
    for op in BUILTIN:
        assert callable(RULES["tflite", op])
        answer = cost(op, [(2, 3, 4)] * 3, (2, 3, 4))
        assert answer.formula or answer.reason, op


def test_the_rules_name_no_operator_that_the_schema_does_not_have() -> None:
    ours = {op for domain, op in RULES if domain == "tflite"}
    assert ours - set(BUILTIN) <= {"STABLEHLO_CASE"}, "only what is newer than the package"


def test_operators_that_look_at_names_alone_do_not_mistake_one_format_for_the_other() -> None:
    """Which inputs are settings is looked up by operator, and ONNX has an LSTM and an RNN too."""
    onnx = {op for domain, op in RULES if not domain}
    alike = onnx & {op for domain, op in RULES if domain == "tflite"}
    assert alike == {"LSTM", "RNN"}
    own = [OPERATORS["tflite", op] for op in alike]
    assert not any(o.settings or o.view or o.same_parameter or o.rows for o in own)
    assert BY_NAME["LSTM"].settings == BY_NAME["RNN"].settings == (4,)


# 8x8 pixels of 3 channels to 4 channels, 3x3; rows of 12 to 5
EXACT: list[tuple[str, list[Any], Shape, dict[str, Any], int, int]] = [
    # operator, inputs, output, options, MACs, elementwise
    ("CONV_2D", [(1, 8, 8, 3), (4, 3, 3, 3), (4,)], (1, 8, 8, 4), CONV, 8 * 8 * 4 * 27, 256),
    ("CONV_2D", [(1, 8, 8, 3), (4, 3, 3, 3)], (1, 8, 8, 4), CONV, 8 * 8 * 4 * 27, 0),
    ("CONV_2D", [(1, 8, 8, 6), (4, 3, 3, 3)], (1, 8, 8, 4), CONV, 8 * 8 * 4 * 27, 0),
    ("CONV_2D", [(1, 8, 8, 3), (4, 3, 3, 3), (4,)], (1, 8, 8, 4),
     {**CONV, "fused_activation_function": "RELU6"}, 8 * 8 * 4 * 27, 512),
    ("DEPTHWISE_CONV_2D", [(1, 8, 8, 3), (1, 3, 3, 6), (6,)], (1, 8, 8, 6), {**CONV, "depth_multiplier": 2},
     8 * 8 * 6 * 9, 384),
    # each of the 4x4x3 inputs meets the whole kernel
    ("TRANSPOSE_CONV", [(4,), (5, 2, 2, 3), (1, 4, 4, 3)], (1, 8, 8, 5), CONV, 4 * 4 * 3 * 5 * 4, 0),
    ("TRANSPOSE_CONV", [(4,), (5, 2, 2, 3), (1, 4, 4, 3), (5,)], (1, 8, 8, 5), CONV, 960, 320),
    ("CONV_3D", [(1, 4, 4, 4, 2), (3, 3, 3, 2, 5)], (1, 4, 4, 4, 5), CONV, 64 * 5 * 2 * 27, 0),
    ("CONV_3D_TRANSPOSE", [(5,), (2, 2, 2, 5, 3), (1, 2, 2, 2, 3)], (1, 4, 4, 4, 5), CONV, 8 * 3 * 5 * 8, 0),
    ("FULLY_CONNECTED", [(7, 12), (5, 12), (5,)], (7, 5), {}, 7 * 12 * 5, 35),
    ("FULLY_CONNECTED", [(1, 7, 3, 4), (5, 12), None], (7, 5), {}, 7 * 12 * 5, 0),
    ("FULLY_CONNECTED", [(2, 7, 12), (5, 12)], (2, 7, 5), {"keep_num_dims": True}, 14 * 12 * 5, 0),
    ("BATCH_MATMUL", [(2, 1, 3, 4), (1, 5, 4, 6)], (2, 5, 3, 6), {}, 720, 0),
    ("BATCH_MATMUL", [(2, 4, 3), (2, 6, 4)], (2, 3, 6), {"adj_x": True, "adj_y": True}, 2 * 3 * 4 * 6, 0),
    # 4 gates of 6 units on 5 features and 6 of state, 7 steps of 2 sequences; 2 a gate, its bias, 5 of state
    ("UNIDIRECTIONAL_SEQUENCE_LSTM",
     [(2, 7, 5), *[(6, 5)] * 4, *[(6, 6)] * 4, *[None] * 3, *[(6,)] * 4, None, None, (2, 6), (2, 6)],
     (2, 7, 6), {}, 14 * 4 * 6 * 11, 14 * 6 * (8 + 4 + 5)),
    # the input gate is one less the forget gate: 3 have weights
    ("UNIDIRECTIONAL_SEQUENCE_LSTM",
     [(2, 7, 5), None, *[(6, 5)] * 3, None, *[(6, 6)] * 3, *[None] * 4, *[(6,)] * 3, None, None],
     (2, 7, 6), {}, 14 * 3 * 6 * 11, 14 * 6 * (6 + 3 + 5)),
    # a projection to 3: the state is 3 wide, and each step takes 3 x 6 more
    ("UNIDIRECTIONAL_SEQUENCE_LSTM",
     [(2, 7, 5), *[(6, 5)] * 4, *[(6, 3)] * 4, *[None] * 3, *[(6,)] * 4, (3, 6), (3,), (2, 3), (2, 6)],
     (2, 7, 3), {}, 14 * (4 * 6 * 8 + 18), 14 * 6 * 17 + 14 * 3),
    ("LSTM",
     [(2, 5), *[(6, 5)] * 4, *[(6, 6)] * 4, *[(6,)] * 3, *[(6,)] * 4, None, None, (2, 6), (2, 6)],
     (2, 6), {"kernel_type": "FULL"}, 2 * 4 * 6 * 11, 2 * 6 * 17 + 2 * 6 * 6),
    ("LSTM", [(2, 5), (2, 6), (24, 11), (24,), (2, 6)], (2, 6), {"kernel_type": "BASIC"},
     2 * 24 * 11, 2 * 6 * 13),
    ("BIDIRECTIONAL_SEQUENCE_LSTM",
     [(2, 7, 5), *([*[(6, 5)] * 4, *[(6, 6)] * 4, *[None] * 3, *[(6,)] * 4, None, None] * 2), *[(2, 6)] * 4],
     (2, 7, 12), {"merge_outputs": True}, 2 * 14 * 4 * 6 * 11, 2 * 14 * 6 * 17),
    ("RNN", [(2, 5), (6, 5), (6, 6), (6,), (2, 6)], (2, 6), {}, 2 * 6 * 11, 2 * 6 * 3),
    ("UNIDIRECTIONAL_SEQUENCE_RNN", [(2, 7, 5), (6, 5), (6, 6), (6,), (2, 6)], (2, 7, 6), {},
     14 * 66, 14 * 18),
    ("BIDIRECTIONAL_SEQUENCE_RNN",
     [(2, 7, 5), (6, 5), (6, 6), (6,), (2, 6), (6, 5), (6, 6), (6,), (2, 6)], (2, 7, 12), {},
     2 * 14 * 66, 2 * 14 * 18),
    # 8 filters of rank 2 on 5 features and 10 steps back, for 4 units
    ("SVDF", [(3, 5), (8, 5), (8, 10), (4,), (3, 80)], (3, 4), {"rank": 2}, 3 * 8 * 15, 3 * 8 + 12),
    ("AVERAGE_POOL_2D", [(1, 8, 8, 3)], (1, 4, 4, 3), {"filter_height": 2, "filter_width": 3}, 0, 48 * 6),
    ("MAX_POOL_2D", [(1, 8, 8, 3)], (1, 4, 4, 3),
     {"filter_height": 2, "filter_width": 2, "fused_activation_function": "RELU"}, 0, 48 * 5),
    ("L2_POOL_2D", [(1, 8, 8, 3)], (1, 4, 4, 3), {"filter_height": 2, "filter_width": 2}, 0, 48 * 8),
    ("SOFTMAX", [(2, 10)], (2, 10), {"beta": 1.0}, 0, 100),
    ("SOFTMAX", [(2, 10)], (2, 10), {"beta": 0.5}, 0, 120),
    ("LOG_SOFTMAX", [(2, 10)], (2, 10), {}, 0, 120),
    ("ADD", [(2, 10), (10,)], (2, 10), {"fused_activation_function": "NONE"}, 0, 20),
    ("ADD", [(2, 10), (10,)], (2, 10), {"fused_activation_function": "RELU"}, 0, 40),
    ("SQUARED_DIFFERENCE", [(2, 10), (10,)], (2, 10), {}, 0, 40),
    ("MEAN", [(1, 8, 8, 3), (2,)], (1, 3), {}, 0, 192),
    ("ADD_N", [(4,)] * 3, (4,), {}, 0, 8),
    ("LOGISTIC", [(2, 10)], (2, 10), {}, 0, 20),
    ("RESIZE_BILINEAR", [(1, 4, 4, 3), (2,)], (1, 8, 8, 3), {}, 0, 192 * 7),
    ("LOCAL_RESPONSE_NORMALIZATION", [(1, 4, 4, 8)], (1, 4, 4, 8), {"radius": 2}, 0, 128 * 9),
    ("RESHAPE", [(2, 10), (1,)], (20,), {}, 0, 0),
    ("CONCATENATION", [(2, 10), (2, 10)], (4, 10), {"axis": 0, "fused_activation_function": "NONE"}, 0, 0),
    ("GATHER", [(100, 8), (5,)], (5, 8), {"axis": 0}, 0, 0),
    ("RESIZE_NEAREST_NEIGHBOR", [(1, 4, 4, 3), (2,)], (1, 8, 8, 3), {}, 0, 0),
    ("STABLEHLO_DOT_GENERAL", [(2, 3, 4), (2, 4, 5)], (2, 3, 5), {"lhs_contracting_dimensions": (2,)},
     120, 0),
    ("STABLEHLO_DOT_GENERAL", [(3,), (4,)], (3, 4), {"lhs_contracting_dimensions": ()}, 0, 12),
    ("STABLEHLO_CONVOLUTION", [(1, 8, 8, 3), (3, 3, 3, 4)], (1, 8, 8, 4),
     {"kernel_input_feature_dimension": 2, "kernel_spatial_dimensions": (0, 1)}, 8 * 8 * 4 * 27, 0),
    ("STABLEHLO_REDUCE", [(2, 10), ()], (2,), {}, 0, 20),
    ("STABLEHLO_REDUCE_WINDOW", [(8, 8), ()], (4, 4), {"window_dimensions": (2, 2)}, 0, 64),
    ("STABLEHLO_CLAMP", [(), (2, 10), ()], (2, 10), {}, 0, 40),
    ("STABLEHLO_LOGISTIC", [(2, 10)], (2, 10), {}, 0, 20),
    ("L2_NORMALIZATION", [(2, 10)], (2, 10), {}, 0, 60),
    ("REDUCE_WINDOW", [(8, 8), (), (2,), (2,), (2,)], (4, 4), {}, 0, 64),
    ("SEGMENT_SUM", [(9, 4), (9,)], (3, 4), {}, 0, 36),
    ("ARG_MAX", [(2, 10), ()], (2,), {}, 0, 20),
    ("QUANTIZE", [(2, 10)], (2, 10), {}, 0, 60),
    ("DEQUANTIZE", [(2, 10)], (2, 10), {}, 0, 40),
    ("FAKE_QUANT", [(2, 10)], (2, 10), {}, 0, 100),
    ("COMPLEX_ABS", [(2, 10)], (2, 10), {}, 0, 80),
    # 6 rows of 4 looked up, each scaled and added
    ("EMBEDDING_LOOKUP_SPARSE", [(6,), (6, 2), (2,), (6,), (100, 4)], (3, 4), {}, 0, 48),
    ("TOPK_V2", [(2, 10), ()], (2, 3), {}, 0, 0),
    ("BUCKETIZE", [(2, 10)], (2, 10), {}, 0, 0),
    ("CALL_ONCE", [], (), {}, 0, 0),
    ("HASHTABLE_FIND", [(), (5,), ()], (5,), {}, 0, 0),
    ("READ_VARIABLE", [()], (5,), {}, 0, 0),
    ("RANDOM_UNIFORM", [(1,)], (5,), {}, 0, 0),
]  # fmt: skip


@pytest.mark.parametrize(("op", "inputs", "output", "options", "macs", "elementwise"), EXACT)
def test_macs_and_elementwise_operations_worked_by_hand(
    op: str, inputs: list[Any], output: Shape, options: dict[str, Any], macs: int, elementwise: int
) -> None:
    answer = cost(op, inputs, output, **options)
    assert (answer.macs, answer.elementwise_ops) == (macs, elementwise), answer
    assert answer.status == "exact"


def test_integers_multiply_as_often_as_floats_and_are_scaled_back() -> None:
    """One bias, then divide, round and add the zero point, on each of 256 outputs."""
    inputs: list[Any] = [((1, 8, 8, 3), "int8"), ((4, 3, 3, 3), "int8"), ((4,), "int32")]
    answer = cost("CONV_2D", inputs, (1, 8, 8, 4), "int8", **CONV)
    assert answer.macs == 8 * 8 * 4 * 27
    assert answer.elementwise_ops == 256 + 3 * 256


def test_integer_weights_on_a_float_input_quantize_the_input_at_every_run() -> None:
    inputs: list[Any] = [(7, 12), ((5, 12), "int8"), (5,)]
    answer = cost("FULLY_CONNECTED", inputs, (7, 5))
    assert answer.macs == 420
    assert answer.elementwise_ops == 35 + 5 * 84 + 35, "bias; smallest, largest, divide, round, add; scale"


def test_a_sum_of_integers_scales_both_operands_and_the_result() -> None:
    inputs: list[Any] = [((2, 10), "int8"), ((2, 10), "int8")]
    assert cost("ADD", inputs, (2, 10), "int8").elementwise_ops == 20 * (2 + 2 + 1 + 3)


@pytest.mark.parametrize(
    ("op", "inputs", "output"),
    [
        ("CONV_2D", [(1, 8, 8, 5), (4, 3, 3, 3)], (1, 8, 8, 4)),
        ("DEPTHWISE_CONV_2D", [(1, 8, 8, 3), (1, 3, 3, 5)], (1, 8, 8, 6)),
        ("TRANSPOSE_CONV", [(4,), (5, 2, 2, 3), (1, 4, 4, 7)], (1, 8, 8, 5)),
        ("FULLY_CONNECTED", [(7, 13), (5, 12)], (7, 5)),
        ("BATCH_MATMUL", [(2, 3, 4), (2, 5, 6)], (2, 3, 6)),
        ("CONV_2D", [(1, 8, 8, 3), None], (1, 8, 8, 4)),
        ("LSTM", [(2, 5)], (2, 6)),
    ],
)
def test_operands_that_do_not_fit_have_no_cost(op: str, inputs: list[Any], output: Shape) -> None:
    answer = cost(op, inputs, output)
    assert answer.macs is None
    assert answer.status == "unknown"
    assert answer.reason


def test_a_size_that_is_not_known_gives_no_number() -> None:
    answer = cost("FULLY_CONNECTED", [(None, 12), (5, 12)], (None, 5))
    assert answer.macs is None
    assert "not known" in answer.reason


@pytest.mark.parametrize(
    ("op", "why"),
    [
        ("IF", "too many operators"),
        ("DELEGATE", "one machine"),
        ("CUSTOM", "without a name"),
        ("PLACEHOLDER_FOR_GREATER_OP_CODES", "newer schema"),
        ("STABLEHLO_CUSTOM_CALL", "not in the file"),
    ],
)
def test_what_cannot_be_known_has_a_reason(op: str, why: str) -> None:
    answer = cost(op, [(2, 3)], (2, 3))
    assert (answer.macs, answer.elementwise_ops, answer.status) == (None, None, "unknown")
    assert why in answer.reason


def test_half_precision_weights_are_widened_without_arithmetic() -> None:
    answer = cost("DEQUANTIZE", [((2, 10), "float16")], (2, 10))
    assert (answer.macs, answer.elementwise_ops) == (0, 0)


def test_an_integer_that_becomes_another_integer_is_scaled_twice() -> None:
    """Subtract the zero point, multiply; divide, round, add the other one."""
    assert cost("QUANTIZE", [((2, 10), "int16")], (2, 10), "int8").elementwise_ops == 20 * 5


def test_the_steps_of_a_layer_norm_lstm_take_four_normalisations_more() -> None:
    inputs: list[Any] = [(2, 7, 5), *[(6, 5)] * 4, *[(6, 6)] * 4, *[None] * 3, *[(6,)] * 4]
    inputs += [None, None, (2, 6), (2, 6), *[(6,)] * 4]
    answer = cost("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, (2, 7, 6))
    assert answer.macs == 14 * 4 * 6 * 11
    assert answer.elementwise_ops == 14 * 6 * 17 + 14 * 6 * 4 * 7


def test_a_fourier_transform_is_counted_by_its_definition_at_most() -> None:
    """8 rows of 16 real numbers to 9 frequencies, then 9 columns of 8 complex ones to 8."""
    answer = cost("RFFT2D", [(8, 16), (2,)], (8, 9), "complex64")
    assert answer.macs == 8 * 16 * 9 * 2 + 9 * 8 * 8 * 4
    assert answer.status == "bound"


def test_a_hash_multiplies_nothing() -> None:
    assert cost("LSH_PROJECTION", [(4, 1), (10,)], (4,)).macs == 0


def test_boxes_are_compared_at_most_pair_by_pair() -> None:
    answer = cost("NON_MAX_SUPPRESSION_V5", [(10, 4), (10,)], (10,))
    assert answer.elementwise_ops == 45 * 15
    assert answer.status == "bound"
