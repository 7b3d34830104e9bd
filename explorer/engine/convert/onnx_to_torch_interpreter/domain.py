"""Dispatch of ONNX operators to torch functions, for a graph whose values are torch tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from msgspec import Struct

from explorer.base.errors import BadModel
from explorer.base.units import printable
from explorer.engine.convert.onnx_to_torch_interpreter import (
    elementwise,
    layers,
    movement,
    quantization,
    recurrent,
    shape_arithmetic,
)
from explorer.engine.convert.onnx_to_torch_interpreter.call import OperatorCall, convert_to_tensor
from explorer.engine.convert.onnx_to_torch_interpreter.shape_arithmetic import convert_to_host
from explorer.engine.graph.model import Node, Tensor
from explorer.host.optional_packages import format_error

OPERATORS: Mapping[tuple[str, str], Callable[..., Any]] = {
    **{
        ("", op): rule
        for m in (elementwise, layers, movement, quantization, recurrent)
        for op, rule in m.TABLE.items()
    },
    **{
        ("com.microsoft", op): rule
        for m in (elementwise, layers, quantization)
        for op, rule in m.MICROSOFT.items()
    },
}
"""Rule of each (domain, operator): `rule(call, *inputs)`, where `call` is an `OperatorCall`."""


def can_run(domain: str, op: str) -> bool:
    """Whether the interpreter supports an operator."""
    return (domain, op) in OPERATORS or (not domain and op in ("Constant", "If", "Loop", "Scan"))


class TorchDomain(Struct):
    """Operations on torch tensors for `graph.interpreter.Interpreter`.

    Values are tensors, lists of tensors, or arrays of `shape_arithmetic` for sizes.

    Attributes:
        constants: Function that returns the value of an initializer or a Constant.
        opsets: Version of each operator set, by domain.
        device: Device that the model runs on.
        checked_nodes: Ids of nodes whose attributes were checked.
    """

    constants: Callable[[Tensor], Any]
    opsets: Mapping[str, int]
    device: torch.device
    checked_nodes: set[int]

    def convert_constant(self, tensor: Tensor) -> Any:
        """Returns the value of an initializer or a Constant."""
        return self.constants(tensor)

    def apply(self, node: Node, attributes: Mapping[str, Any], args: Sequence[Any]) -> Sequence[Any]:
        """Runs one operator, and returns its outputs.

        Raises:
            BadModel: The operator has no rule, torch fails, or the rule ignores an attribute.
        """
        if node.op == "Constant" and not node.domain:
            return [self._convert_literal(attributes)]
        if not node.domain:
            host_result = self._compute_on_host(node, attributes, args)
            if host_result is not None:
                return [host_result]
        rule = OPERATORS.get((node.domain, node.op))
        if rule is None:
            name = f"{node.domain}.{node.op}" if node.domain else node.op
            raise BadModel(f"operator {printable(name)} has no counterpart in torch here")
        call = OperatorCall(node, attributes, self.opsets.get(node.domain, 0), self.device)
        host_indices = _HOST_INPUTS.get(node.op, ()) if not node.domain else ()
        inputs = [
            a if index in host_indices else convert_to_tensor(a, self.device) for index, a in enumerate(args)
        ]
        while inputs and inputs[-1] is None:
            inputs.pop()
        try:
            result = rule(call, *inputs)
        except BadModel:
            raise
        except Exception as error:
            name = f"{node.op} '{printable(node.label)}'"
            raise BadModel(f"torch cannot run {name} ({format_error(error)})") from error
        if attributes and id(node) not in self.checked_nodes:
            self._check_attributes(call)
        return (
            list(result) if isinstance(result, (tuple, list)) and node.op not in _LIST_OPERATORS else [result]
        )

    def _check_attributes(self, call: OperatorCall) -> None:
        """Raises an error for an attribute that the rule ignored, because the result can be wrong."""
        unread_names = [
            name
            for name in call.attributes
            if name not in call.read_attributes and name not in _WITHOUT_EFFECT
        ]
        if unread_names:
            name = f"{call.node.op} '{printable(call.node.label)}'"
            raise BadModel(f"torch cannot run {name} with the attribute '{printable(unread_names[0])}' here")
        self.checked_nodes.add(id(call.node))

    def _compute_on_host(self, node: Node, attributes: Mapping[str, Any], args: Sequence[Any]) -> Any:
        """Returns the result of shape arithmetic as an array, or None if torch must run the node."""
        if node.op in ("Shape", "Size") and isinstance(args[0], torch.Tensor):
            sizes = list(args[0].shape)
            if node.op == "Shape":
                return convert_to_host(sizes[attributes.get("start", 0) : attributes.get("end")])
            return convert_to_host(math.prod(sizes))
        rule = shape_arithmetic.RULES.get(node.op)
        if rule is None or not args or any(isinstance(a, (torch.Tensor, list)) for a in args):
            return None
        if all(a is None for a in args) or len(node.outputs) != 1:
            return None
        result = rule(attributes, [None if a is None else np.asarray(a) for a in args])
        return result if result is None or isinstance(result, np.ndarray) else convert_to_host(result)

    def _convert_literal(self, attributes: Mapping[str, Any]) -> Any:
        for name, value in attributes.items():
            if isinstance(value, Tensor):
                return self.constants(value)
            if name in ("value_int", "value_ints"):
                return convert_to_host(value)
            if name in ("value_float", "value_floats"):
                return torch.tensor(value, dtype=torch.float32, device=self.device)
        raise BadModel("a Constant without a number in it cannot be run by torch")

    def take(self, value: Any, axis: int, index: int) -> Any:
        """Returns `value[index]` along an axis."""
        if isinstance(value, torch.Tensor):
            return value.select(axis, index)
        return np.take(value, index, axis)

    def stack(self, values: Sequence[Any], axis: int) -> Any:
        """Stacks values along a new axis.

        Raises:
            BadModel: There are no values, as after a loop that runs zero times.
        """
        tensors = [convert_to_tensor(value, self.device) for value in values]
        if not tensors:
            raise BadModel("torch cannot run a loop that runs zero times, because its result has no shape")
        return torch.stack(tensors, axis)

    def read_number(self, value: Any) -> Any:
        """Returns the Python number of a scalar.

        Raises:
            BadModel: The number depends on data while torch.export traces.
        """
        if isinstance(value, torch.Tensor):
            scalar = value.reshape(-1)[0].item()
            if isinstance(scalar, (torch.SymInt, torch.SymBool, torch.SymFloat)):
                raise BadModel(
                    "a branch or a loop depends on values, which torch.export does not follow here"
                )
            return scalar
        return np.asarray(value).reshape(-1)[0]


_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")

_HOST_INPUTS: Mapping[str, tuple[int, ...]] = {
    "ConstantOfShape": (0,),
    **dict.fromkeys(("CumSum", "Expand", "OneHot", "Reshape", "Split", "Squeeze"), (1,)),
    **dict.fromkeys(("Tile", "TopK", "Trilu", "Unsqueeze", "Upsample"), (1,)),
    **{f"Reduce{fold}": (1,) for fold in _REDUCTIONS},
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
}
"""Positions of the inputs that a rule needs as numbers instead of tensors, by operator."""

_WITHOUT_EFFECT = frozenset(
    (
        *("consumed_inputs", "cubic_coeff_a", "exclude_outside", "extrapolation_value", "hidden_size"),
        *("is_test", "kernel_shape", "saturate", "seed", "sorted", "spatial", "stash_type", "storage_order"),
    )
)
"""Attributes that repeat the inputs, or that do not change the result in this interpreter."""

_LIST_OPERATORS = frozenset(
    {"SequenceConstruct", "SequenceEmpty", "SequenceInsert", "SequenceErase", "SplitToSequence"}
)
"""Operators that return one output, which is a list. The list must not be read as several outputs."""
