"""Evaluates ONNX graphs in float64, to measure the rounding error of float32.

onnxruntime has no float64 kernels for convolution and pooling, and onnx's own evaluator computes them element
by element. Here, BLAS computes the operators with most of the work, and weights are converted one slab at a
time. onnx's evaluator computes all other operators, one node at a time.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field

from explorer.base.errors import Cancelled
from explorer.engine.formats.onnx.writer import encode
from explorer.engine.graph.interpreter import Interpreter
from explorer.engine.graph.model import DTYPES, Graph, Model, Node, Tensor, Value
from explorer.engine.graph.random_operators import RANDOM
from explorer.engine.progress import Cancel, stop_if
from explorer.engine.proof.float64.windows import (
    compute_average_pool,
    compute_conv,
    compute_conv_transpose,
    compute_max_pool,
)
from explorer.engine.proof.symbolic.symbols import rearrange_elements
from explorer.engine.runtime.onnxruntime import Array

_SLAB = 1 << 18
"""Number of weight elements to convert at a time: 2 MiB of float64, which fits the processor's cache."""


_SAFE_RANGE = 1e-25, 1e30
"""Range of sums of float32 products that neither underflow nor overflow."""

_MAX_MEMORY_BOUND_ROWS = 8
"""Number of rows up to which a product is memory-bound and gains nothing from threads."""


_EVALUATOR_DOMAINS = ("", "ai.onnx.ml")
"""Domains whose operators onnx's evaluator supports."""


class NoReference(Exception):
    """The graph cannot run in float64. The message says why."""


def run(
    model: Model, feeds: Mapping[str, Array], cancel: Cancel = None, *, rounds_results: bool = False
) -> dict[str, Array]:
    """Computes every output of the model in float64.

    Args:
        model: Model to run.
        feeds: Input arrays by name, in their own types.
        cancel: Function that returns True to cancel. It is called before every operator.
        rounds_results: Whether the result of each operator is rounded to its own type. Numbers then overflow
            and underflow between operators as ONNX defines them, without the approximations of a kernel.

    Raises:
        NoReference: An operator cannot run in float64 (custom, random, unknown to onnx, or failing).
        Cancelled: `cancel` returned True.
    """
    for node in model.graph.nodes:
        # check before the run, so that it does not fail halfway
        if node.domain not in _EVALUATOR_DOMAINS and node.key not in model.functions:
            raise NoReference(f"operator {node.domain}.{node.op} is not onnx's own")
    names = [v.name for v in model.graph.outputs]
    semantics = _Semantics(model, cancel, rounds_results)
    interpreter = Interpreter(semantics, model.functions)
    scope = interpreter.create_scope(
        model.graph.initializers, {k: semantics.widen(v) for k, v in feeds.items()}
    )
    try:
        with np.errstate(all="ignore"):
            interpreter.run(model.graph.nodes, scope, keep=names)
            return {name: _convert_to_float64(scope[name]) for name in names}
    except KeyError as error:
        raise NoReference(f"no node computes the value {error}") from None


def multiply_exactly(x: Array, weight: Array) -> tuple[Array, Array]:
    """Computes x W and |x| |W| in the type of x, with W converted one slab at a time.

    Float32 computes |x| |W| if W is float32 and x is float64, except in rows where it over- or underflows.

    Args:
        x: Array (M, K) in float64 or longdouble.
        weight: Array (K, N) in any float type and any memory order.

    Returns:
        Two arrays (M, N): x W, and |x| |W|.
    """
    dtype = x.dtype
    exact = np.zeros((x.shape[0], weight.shape[1]), dtype)
    bound = np.zeros_like(exact)
    # the bound needs few digits, and single precision takes half the time
    is_bound_float32 = dtype == np.float64 and weight.dtype == np.float32
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        magnitude = np.abs(x).astype(np.float32 if is_bound_float32 else dtype, copy=False)
        for rows, columns in _iterate_slabs(weight):
            slab = weight[rows, columns]
            exact[:, columns] += _multiply(x[:, rows], slab.astype(dtype))
            size = np.abs(slab).astype(magnitude.dtype, copy=False)
            bound[:, columns] += _multiply(magnitude[:, rows], size)
    if is_bound_float32:
        inexact = ~((bound > _SAFE_RANGE[0]) & (bound < _SAFE_RANGE[1]))
        # a row or a column of zeros loses nothing
        unsafe_rows = (inexact & weight.any(0)).any(1) & x.any(1) if inexact.any() else np.zeros(len(x), bool)
        if unsafe_rows.any():
            magnitudes = np.abs(x[unsafe_rows])
            bound[unsafe_rows] = 0
            for rows, columns in _iterate_slabs(weight):
                part = np.abs(weight[rows, columns]).astype(dtype)
                bound[unsafe_rows, columns] += _multiply(magnitudes[:, rows], part)
    return exact, bound


def _multiply(matrix: Array, weight: Array) -> Array:
    """Multiplies two matrices.

    For few rows it avoids BLAS, whose threads spend more time waiting for each other than working. Two rows
    times 4,096 x 9,216 took 0.1 s of processor time this way, and 1.5 s through BLAS on a busy machine.
    """
    if matrix.shape[0] <= _MAX_MEMORY_BOUND_ROWS:
        return np.einsum("mk,kn->mn", matrix, weight)  # type: ignore[no-any-return]
    return np.asarray(matrix @ weight)


def _iterate_slabs(weight: Array) -> Iterator[tuple[slice, slice]]:
    """Yields slices of rows and columns that cut a matrix into slabs of contiguous memory."""
    depth, width = weight.shape
    full_axis = slice(None)
    if weight.strides[0] < weight.strides[1]:
        step = max(_SLAB // max(depth, 1), 1)
        yield from ((full_axis, slice(n, n + step)) for n in range(0, width, step))
    else:
        step = max(_SLAB // max(width, 1), 1)
        yield from ((slice(k, k + step), full_axis) for k in range(0, depth, step))


def _convert_to_float64(value: Any) -> Any:
    """Converts arrays of floats, bfloat16 and float8 included, to float64. Other values are unchanged."""
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.kind == "f" or value.dtype.name in ("bfloat16",) or "float8" in value.dtype.name:
        return value.astype(np.float64, copy=False)
    return value


class _Semantics(Struct):
    """Semantics of the interpreter on float64 arrays. Stored constants are converted when they are used."""

    model: Model
    cancel: Cancel
    rounds_results: bool
    evaluators: dict[int, Any] = field(default_factory=dict)

    def widen(self, value: Any) -> Any:
        """Converts floats to float64, unless each result is rounded to its own type."""
        return value if self.rounds_results else _convert_to_float64(value)

    def convert_constant(self, tensor: Tensor) -> Array:
        return tensor.array()

    def apply(self, node: Node, attributes: Mapping[str, Any], args: Sequence[Any]) -> Sequence[Any]:
        stop_if(self.cancel)
        rules = _ROUNDED_RULES if self.rounds_results else _RULES
        rule = None if node.domain else rules.get(node.op)
        if rule is not None:
            output = rule(attributes, args)
            if output is not None and len([o for o in node.outputs if o]) == 1:
                return [output]
        return self._evaluate(node, attributes, args)

    def _evaluate(self, node: Node, attributes: Mapping[str, Any], args: Sequence[Any]) -> Sequence[Any]:
        """Runs one node through onnx's reference evaluator."""
        import onnx
        from onnx.reference import ReferenceEvaluator

        if node.op in RANDOM:
            raise NoReference(f"{node.op} draws random numbers")
        if node.domain not in _EVALUATOR_DOMAINS:
            raise NoReference(f"operator {node.domain}.{node.op} is not onnx's own")
        if any(isinstance(v, Graph) for v in attributes.values()):
            raise NoReference(f"operator {node.op} has a body")
        is_cacheable = attributes is node.attributes
        evaluator = self.evaluators.get(id(node)) if is_cacheable else None
        try:
            if evaluator is None:
                names = [n for n in dict.fromkeys(node.inputs) if n]
                single = Graph(
                    "one",
                    (Node(node.op, node.inputs, node.outputs, domain=node.domain, attributes=attributes),),
                    tuple(Value(n, None, None) for n in names),
                    tuple(Value(n, None, None) for n in node.outputs if n),
                    {},
                )
                opsets = {k: v for k, v in self.model.opsets.items() if k in ("", node.domain)}
                encoded = encode(Model(single, opsets, self.model.ir_version))
                evaluator = ReferenceEvaluator(onnx.load_model_from_string(encoded))
                if is_cacheable:
                    self.evaluators[id(node)] = evaluator
            feeds = {n: self.widen(a) for n, a in zip(node.inputs, args, strict=True) if n}
            results = iter(evaluator.run(None, feeds))
        except Cancelled:
            raise
        except Exception as error:  # reference code may raise any error
            text = " ".join(str(error).split())[:120]
            raise NoReference(f"operator {node.op} cannot be run by onnx's evaluator: {text}") from None
        return [self.widen(next(results)) if o else None for o in node.outputs]

    def take(self, value: Any, axis: int, index: int) -> Any:
        return value[(slice(None),) * axis + (index,)]

    def stack(self, values: Sequence[Any], axis: int) -> Any:
        return np.stack(values, axis)

    def read_number(self, value: Any) -> Any:
        return np.asarray(value).reshape(-1)[0].item()


Rule = Callable[[Mapping[str, Any], Sequence[Any]], Any]
"""Function from attributes and inputs to the only output, or to None to use onnx's evaluator."""


def _make_function_rule(function: Callable[..., Any]) -> Rule:
    """Returns the rule that applies a numpy function to the inputs in float64."""
    return lambda attributes, args: np.asarray(function(*(_convert_to_float64(a) for a in args)))


def _make_widening_rule(rule: Rule) -> Rule:
    """Returns a rule that gets its inputs in float64."""
    return lambda attributes, args: rule(attributes, [_convert_to_float64(a) for a in args])


def _constant(attributes: Mapping[str, Any], args: Sequence[Any]) -> Any:
    value = attributes.get("value")
    return value.array() if isinstance(value, Tensor) and value.dtype != "string" else None


def _cast(attributes: Mapping[str, Any], args: Sequence[Any]) -> Any:
    """Converts to float64 in place of any float type, without rounding, or to an integer type."""
    target = DTYPES[int(attributes["to"])]
    if "float" in target.name:
        return np.asarray(args[0]).astype(np.float64)
    return np.asarray(args[0]).astype(target.name) if target.bits in (8, 16, 32, 64) else None


def _divide(attributes: Mapping[str, Any], args: Sequence[Any]) -> Any:
    dividend, divisor = (_convert_to_float64(a) for a in args)
    if dividend.dtype.kind in "iu":
        return None  # onnx divides integers towards zero
    return np.asarray(dividend / divisor)


def _gemm(attributes: Mapping[str, Any], args: Sequence[Any]) -> Any:
    x, weight = args[0], args[1]
    x = x.T if attributes.get("transA", 0) else x
    weight = weight.T if attributes.get("transB", 0) else weight
    if x.dtype.kind in "iu":
        return None
    result = _matrix_product(_convert_to_float64(x), weight) * attributes.get("alpha", 1.0)
    if len(args) > 2 and args[2] is not None:
        result = result + attributes.get("beta", 1.0) * _convert_to_float64(args[2])
    return result


def _matmul(attributes: Mapping[str, Any], args: Sequence[Any]) -> Any:
    x, weight = args
    if weight.ndim == 2 and x.ndim >= 2 and weight.dtype.kind not in "iu":
        rows = _convert_to_float64(x).reshape(-1, x.shape[-1])
        return _matrix_product(rows, weight).reshape(*x.shape[:-1], weight.shape[1])
    return np.matmul(_convert_to_float64(x), _convert_to_float64(weight))


def _matrix_product(x: Array, weight: Array) -> Array:
    """Multiplies x in float64 by a weight of any float type, converted one slab at a time."""
    if weight.dtype == np.float64:
        return np.asarray(x @ weight)
    result = np.zeros((x.shape[0], weight.shape[1]))
    for rows, columns in _iterate_slabs(weight):
        result[:, columns] += _multiply(x[:, rows], weight[rows, columns].astype(np.float64))
    return result


def _batch_normalization(attributes: Mapping[str, Any], args: Sequence[Any]) -> Any:
    if attributes.get("training_mode", 0):
        return None
    x, scale, bias, mean, variance = (_convert_to_float64(a) for a in args)
    shape = (1, -1, *(1,) * (x.ndim - 2))
    factor = scale / np.sqrt(variance + attributes.get("epsilon", 1e-5))
    return x * factor.reshape(shape) + (bias - mean * factor).reshape(shape)


def _erf(attributes: Mapping[str, Any], args: Sequence[Any]) -> Any:
    """Computes erf with the C library, one element at a time.

    numpy has no erf, and onnx's evaluator takes twice as long.
    """
    x = _convert_to_float64(args[0])
    return np.fromiter(map(math.erf, memoryview(x.ravel())), np.float64, x.size).reshape(x.shape)


def _softmax(attributes: Mapping[str, Any], args: Sequence[Any]) -> Any:
    x = _convert_to_float64(args[0])
    # in older operator sets, another axis or no axis has another meaning
    if x.dtype != np.float64 or attributes.get("axis", 0) not in (-1, x.ndim - 1) or x.ndim < 2:
        return None
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _layer_normalization(attributes: Mapping[str, Any], args: Sequence[Any]) -> Any:
    x, scale = _convert_to_float64(args[0]), _convert_to_float64(args[1])
    axes = tuple(range(attributes.get("axis", -1) % x.ndim, x.ndim))
    centered = x - x.mean(axes, keepdims=True)
    variance = np.square(centered).mean(axes, keepdims=True)
    scaled = centered / np.sqrt(variance + attributes.get("epsilon", 1e-5)) * scale
    return scaled + _convert_to_float64(args[2]) if len(args) > 2 and args[2] is not None else scaled


_MOVING_OPERATORS = (
    *("Concat", "Flatten", "Gather", "Reshape", "Shape"),
    *("Slice", "Squeeze", "Transpose", "Unsqueeze"),
)
"""Operators that only move elements or, like Shape, read sizes. The rules for symbols also serve numbers."""


def _move_elements(op: str, attributes: Mapping[str, Any], args: Sequence[Any]) -> Any:
    try:
        return rearrange_elements(op, attributes, args)
    except ValueError:
        return None  # a use that tiled products do not have, such as a slice with a negative step


_RULES: Mapping[str, Rule] = {
    **{op: functools.partial(_move_elements, op) for op in _MOVING_OPERATORS},
    "Add": _make_function_rule(np.add),
    "AveragePool": _make_widening_rule(compute_average_pool),
    "BatchNormalization": _batch_normalization,
    "Cast": _cast,
    "Constant": _constant,
    "Conv": _make_widening_rule(compute_conv),
    "ConvTranspose": _make_widening_rule(compute_conv_transpose),
    "Div": _divide,
    "Erf": _erf,
    "Exp": _make_function_rule(np.exp),
    "Gemm": _gemm,
    "GlobalAveragePool": _make_function_rule(lambda x: x.mean(tuple(range(2, x.ndim)), keepdims=True)),
    "Identity": _make_function_rule(lambda x: x),
    "LayerNormalization": _layer_normalization,
    "MatMul": _matmul,
    "MaxPool": _make_widening_rule(compute_max_pool),
    "Mul": _make_function_rule(np.multiply),
    "Relu": _make_function_rule(lambda x: np.maximum(x, 0)),
    "Softmax": _softmax,
    "Sigmoid": _make_function_rule(lambda x: 1 / (1 + np.exp(-x))),
    "Sqrt": _make_function_rule(np.sqrt),
    "Sub": _make_function_rule(np.subtract),
    "Tanh": _make_function_rule(np.tanh),
}


def _make_rounding_rule(rule: Rule) -> Rule:
    """Returns a rule that rounds a float64 result to the type of the first input."""

    def compute(attributes: Mapping[str, Any], args: Sequence[Any]) -> Any:
        output = rule(attributes, args)
        is_wide = isinstance(output, np.ndarray) and output.dtype == np.float64
        return output.astype(args[0].dtype) if is_wide and args else output

    return compute


_ROUNDED_RULES: Mapping[str, Rule] = {
    op: _make_rounding_rule(rule) for op, rule in _RULES.items() if op != "Cast"
}
"""Rules whose results have the type of the first input, as ONNX specifies for these operators. Cast is left
out, because its attribute gives the type."""
