"""Element types of ONNX as plain tuples, so that code that only reads a file's header imports nothing slow.

Also converts them to numpy types, and unpacks narrow types.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers treat this name as true; the import of typing would be slow
if TYPE_CHECKING:
    from typing import Any

    import numpy as np

ELEMENT_TYPES = (
    (1, "float32", 32),
    (2, "uint8", 8),
    (3, "int8", 8),
    (4, "uint16", 16),
    (5, "int16", 16),
    (6, "int32", 32),
    (7, "int64", 64),
    (8, "string", 0),
    (9, "bool", 8),
    (10, "float16", 16),
    (11, "float64", 64),
    (12, "uint32", 32),
    (13, "uint64", 64),
    (14, "complex64", 64),
    (15, "complex128", 128),
    (16, "bfloat16", 16),
    (17, "float8_e4m3fn", 8),
    (18, "float8_e4m3fnuz", 8),
    (19, "float8_e5m2", 8),
    (20, "float8_e5m2fnuz", 8),
    (21, "uint4", 4),
    (22, "int4", 4),
    (23, "float4_e2m1fn", 4),
    (24, "float8_e8m0fnu", 8),
    (25, "uint2", 2),
    (26, "int2", 2),
    (27, "float6_e2m3fn", 6),
    (28, "float6_e3m2fn", 6),
)
"""Code of TensorProto.DataType (onnx.proto, release 1.23), name in numpy or ml_dtypes, width in bits. A
string has no fixed width, which is written as 0."""


def get_element_type(array: np.ndarray[Any, Any]) -> str:
    """Returns ONNX's name of the element type of an array; texts (objects in numpy) are 'string'."""
    return "string" if array.dtype.kind in "OUS" else str(array.dtype)


def get_numpy_type(name: str) -> np.dtype[Any]:
    """Returns the numpy or ml_dtypes type with the name of an element type.

    A type below 8 bits takes one byte per number there.

    Raises:
        AttributeError: Neither library has the type.
    """
    import numpy as np

    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        kind: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return kind


def unpack_numbers(packed_bytes: memoryview, bits: int, dtype: str) -> np.ndarray[Any, Any]:
    """Unpacks numbers of 2, 4 or 6 bits (the first in the lowest bits) to one number per byte."""
    import numpy as np

    packed = np.frombuffer(packed_bytes, np.uint8)
    if bits == 6:
        stream = np.unpackbits(packed, bitorder="little")
        rows = stream[: stream.size // bits * bits].reshape(-1, bits)
        flat = np.packbits(rows, axis=-1, bitorder="little")[:, 0]
        return flat.view(get_numpy_type(dtype))
    per_byte = 8 // bits
    numbers = np.empty((packed.size, per_byte), np.uint8)
    for index in range(per_byte):
        numbers[:, index] = packed >> (bits * index) & ((1 << bits) - 1)
    flat = numbers.reshape(-1)
    if dtype.startswith("int"):
        # the shift to the left moves the sign bit to the top, and the shift back copies it
        return (flat << (8 - bits)).view(np.int8) >> (8 - bits)
    return flat.view(get_numpy_type(dtype)) if dtype.startswith("float") else flat
