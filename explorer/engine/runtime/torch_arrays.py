"""Conversion between numpy arrays and torch tensors, including types that only one of the two has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from explorer.base.errors import Misuse

if TYPE_CHECKING:
    import torch

Array = np.ndarray[Any, Any]

NUMPY_TYPES = frozenset(
    {
        "bool",
        "complex64",
        "complex128",
        "float16",
        "float32",
        "float64",
        *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
    }
)
"""Types of numpy itself. Importing ml_dtypes adds types to numpy that torch does not accept."""


def convert_to_tensor(value: Array) -> torch.Tensor:
    """Converts an array to a tensor, including types that ml_dtypes adds to numpy, such as bfloat16.

    If the array is contiguous, writable and of a type in `NUMPY_TYPES`, the tensor shares its memory.
    """
    import torch

    value = np.ascontiguousarray(value).reshape(value.shape)
    if value.dtype.name in NUMPY_TYPES:
        return torch.from_numpy(value.copy() if not value.flags.writeable else value)
    bits = torch.from_numpy(value.view(f"uint{8 * value.dtype.itemsize}").copy())
    return bits.view(getattr(torch, value.dtype.name))


def convert_to_array(tensor: torch.Tensor) -> Array:
    """Converts a tensor to an array, with types of ml_dtypes if numpy has no equivalent.

    A tensor of torch's quantized types is dequantized.

    Raises:
        Misuse: Neither numpy nor ml_dtypes has the type.
    """
    import torch

    cpu_tensor = tensor.detach().cpu()
    if cpu_tensor.is_quantized:
        cpu_tensor = cpu_tensor.dequantize()
    name = str(cpu_tensor.dtype).removeprefix("torch.")
    if name in NUMPY_TYPES:
        return cpu_tensor.numpy()
    import ml_dtypes

    if not hasattr(ml_dtypes, name):
        raise Misuse(f"Explorer cannot convert a tensor of type {name} to numpy")
    bits = cpu_tensor.contiguous().view(getattr(torch, f"uint{8 * cpu_tensor.dtype.itemsize}"))
    return bits.numpy().view(getattr(ml_dtypes, name))
