"""Operator call: the attributes and inputs of an ONNX operator, in the form that its torch rule needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from msgspec import Struct, field

from explorer.base.errors import BadModel
from explorer.engine.graph.model import DTYPES, Node

Rule = Callable[..., Any]
"""Function that runs an operator: `rule(call, *inputs)`."""


def get_torch_dtype(name: str) -> torch.dtype:
    """Returns torch's type for an element type in numpy's spelling.

    Raises:
        BadModel: Torch has no such type.
    """
    if name in ("int4", "uint4", "int2", "uint2"):
        return torch.int8 if name.startswith("int") else torch.uint8
    dtype = None if name == "float4_e2m1fn" else getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise BadModel(f"torch has no tensors of {name}")
    return dtype


class OperatorCall(Struct):
    """One call of an operator, with helper methods for its rule.

    Attributes:
        node: Called node.
        attributes: Attributes of the node; references to a function call's attributes are resolved.
        opset: Version of the operator set.
        device: Device for new tensors.
        read_attributes: Names of the attributes that the rule has read.
    """

    node: Node
    attributes: Mapping[str, Any]
    opset: int
    device: torch.device
    read_attributes: set[str] = field(default_factory=set)

    def get(self, name: str, default: Any = None) -> Any:
        """Returns an attribute, and records that the rule read it."""
        self.read_attributes.add(name)
        return self.attributes.get(name, default)

    def dtype(self, code: int) -> torch.dtype:
        """Returns torch's type for ONNX's type code."""
        return get_torch_dtype(DTYPES[code].name)

    def tensor(self, value: Any) -> torch.Tensor:
        """Converts a value to a tensor."""
        result: torch.Tensor = convert_to_tensor(value, self.device)
        return result

    def read_numbers(self, value: Any) -> list[Any]:
        """Returns the numbers of a value, as Python numbers or torch symbols."""
        if isinstance(value, torch.Tensor):
            return list(value.reshape(-1).tolist())
        return [v.item() if isinstance(v, np.generic) else v for v in np.asarray(value).reshape(-1)]

    def read_number(self, value: Any) -> Any:
        """Returns the first number of a value."""
        return self.read_numbers(value)[0]

    @property
    def output_count(self) -> int:
        """Number of outputs that the node names."""
        return len(self.node.outputs)


def convert_to_tensor(value: Any, device: torch.device) -> Any:
    """Converts an array to a tensor.

    Returns any other value (a tensor, a list of tensors, None) unchanged.
    """
    if not isinstance(value, (np.ndarray, np.generic)):
        return value
    array = np.asarray(value)
    if array.dtype != object:
        return torch.from_numpy(np.array(array)).to(device)
    flat = list(array.reshape(-1))
    if any(isinstance(v, torch.Tensor) for v in flat):  # while torch.jit.trace runs, sizes are tensors
        parts = [v if isinstance(v, torch.Tensor) else torch.tensor(v) for v in flat]
        return torch.stack([p.to(device) for p in parts]).reshape(array.shape)
    if any(isinstance(v, torch.SymInt) for v in flat):
        parts = [torch.scalar_tensor(v, dtype=torch.int64, device=device) for v in flat]
        return torch.stack(parts).reshape(array.shape)
    dtype = torch.bool if flat and all(isinstance(v, (bool, np.bool_)) for v in flat) else torch.int64
    if any(isinstance(v, (float, np.floating)) for v in flat):
        dtype = torch.float32
    return torch.tensor(flat, dtype=dtype, device=device).reshape(array.shape)
