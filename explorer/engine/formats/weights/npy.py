"""numpy's .npy files: one array, as numpy.save writes it."""

from __future__ import annotations

import ast
import os
from math import prod

from explorer.base.errors import BadModel
from explorer.engine.formats.format import Format, SourceProbe
from explorer.engine.formats.tensor_index import StoredTensor, TensorIndex, outlined

__all__ = ["FORMAT", "contents"]

_MAGIC = b"\x93NUMPY"


def contents(source: str) -> TensorIndex:
    """What the header of a .npy file says.

    Raises:
        BadModel: It is no header.
    """
    with open(source, "rb") as file:
        head = file.read(1 << 16)
    wide = 2 if head[6:7] == b"\x01" else 4
    start = 8 + wide + int.from_bytes(head[8 : 8 + wide], "little")
    try:
        said = ast.literal_eval(head[8 + wide : start].decode("latin-1"))
        dtype = {"<f4": "float32", "<f8": "float64", "<i8": "int64"}[said["descr"]]
        shape = tuple(int(size) for size in said["shape"])
    except (ValueError, SyntaxError, KeyError, TypeError) as error:
        raise BadModel("the header of the array cannot be read", where=source) from error
    nbytes = prod(shape) * int(dtype[-2:]) // 8
    name = os.path.basename(source).removesuffix(".npy")
    stored = StoredTensor(name, dtype, shape, nbytes, source, start)
    return TensorIndex("npy", source, [stored], [source], os.path.getsize(source))


def _recognise(probe: SourceProbe) -> bool:
    return probe.head.startswith(_MAGIC)


FORMAT = Format(
    "npy",
    "a numpy array (.npy)",
    recognise=_recognise,
    open=lambda source, options: contents(source),
    outline=lambda source: outlined(contents(source)),
    endings=(".npy",),
    recognised="the magic of the format",
    shows="its type, shape, bytes, values",
    analysed=False,
)
