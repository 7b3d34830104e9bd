"""Writes .tflite files with the schema's own builder: what flatc generated for the `tflite` package."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import tflite

__all__ = ["Op", "Sub", "T", "build", "sparse", "write"]

TYPES = {
    "float32": "FLOAT32",
    "float16": "FLOAT16",
    "int32": "INT32",
    "uint8": "UINT8",
    "int64": "INT64",
    "string": "STRING",
    "bool": "BOOL",
    "int16": "INT16",
    "int8": "INT8",
    "int4": "INT4",
    "complex64": "COMPLEX64",
    "resource": "RESOURCE",
}


@dataclass
class T:
    """A tensor: `data` is an array, bytes, or True for zeros of its size; None where it is made in a run."""

    shape: Sequence[int] | None = ()
    dtype: str = "float32"
    data: Any = None
    name: str | None = None
    scales: Sequence[float] = ()
    zero_points: Sequence[int] = ()
    axis: int = 0
    signature: Sequence[int] = ()
    variable: bool = False
    has_rank: bool = False
    behind: bool = False
    sparse: bool = False
    buffer: int | None = None


@dataclass
class Op:
    """An operator: its name in the schema, or a custom one's with `custom`."""

    op: str
    inputs: Sequence[int]
    outputs: Sequence[int]
    options: tuple[str, Mapping[str, Any]] | None = None
    custom: bytes | None = None
    version: int = 1


@dataclass
class Sub:
    """A subgraph; inputs and outputs are numbers of tensors."""

    tensors: Sequence[T]
    ops: Sequence[Op]
    inputs: Sequence[int]
    outputs: Sequence[int]
    name: str = "main"


@dataclass
class _Writer:
    builder: flatbuffers.Builder = field(default_factory=lambda: flatbuffers.Builder(1 << 16))
    buffers: list[tuple[bytes, bool]] = field(default_factory=lambda: [(b"", False)])
    codes: list[tuple[str, bool, int]] = field(default_factory=list)
    behind: list[tuple[int, bytes]] = field(default_factory=list)

    def vector(self, values: Sequence[int | float], kind: str) -> int:
        return int(self.builder.CreateNumpyVector(np.array(list(values), kind)))

    def offsets(self, table: str, slot: str, offsets: Sequence[int]) -> int:
        module = importlib.import_module(f"tflite.{table}")
        getattr(module, f"{table}Start{slot}Vector")(self.builder, len(offsets))
        for offset in reversed(offsets):
            self.builder.PrependUOffsetTRelative(offset)
        return int(self.builder.EndVector())

    def table(self, name: str, **fields: Any) -> int:
        """A table of the schema; fields are offsets and numbers that are made already."""
        module = importlib.import_module(f"tflite.{name}")
        getattr(module, f"{name}Start")(self.builder)
        for slot, value in fields.items():
            if value is not None:
                getattr(module, f"{name}Add{slot}")(self.builder, value)
        return int(getattr(module, f"{name}End")(self.builder))

    def options(self, name: str, fields: Mapping[str, Any]) -> int:
        made = {}
        for slot, value in fields.items():
            if isinstance(value, str):
                value = self.builder.CreateString(value)
            elif isinstance(value, bytes):
                value = self.builder.CreateByteVector(value)
            elif isinstance(value, (list, tuple)):
                wide = name.startswith("Stablehlo")
                value = self.vector(value, "int64" if wide else "int32")
            made[slot] = value
        return self.table(name, **made)

    def tensor(self, tensor: T) -> int:
        at = 0
        if tensor.buffer is not None:
            at = tensor.buffer
        elif tensor.data is not None:
            data = tensor.data
            if data is True:
                bits = 4 if tensor.dtype == "int4" else np.dtype(tensor.dtype).itemsize * 8
                data = bytes((int(np.prod(tensor.shape or (1,))) * bits + 7) // 8)
            at = len(self.buffers)
            content = data if isinstance(data, bytes) else np.asarray(data).tobytes()
            self.buffers.append((content, tensor.behind))
        quantization = sparsity = None
        if len(tensor.scales):
            scales = self.vector(tensor.scales, "float32")
            points = self.vector(tensor.zero_points or [0] * len(tensor.scales), "int64")
            quantization = self.table(
                "QuantizationParameters", Scale=scales, ZeroPoint=points, QuantizedDimension=tensor.axis
            )
        if tensor.sparse:
            segments = self.table("Uint8Vector", Values=self.vector(range(11), "uint8"))
            indices = self.table("Uint8Vector", Values=self.vector(range(6), "uint8"))
            kind = tflite.SparseIndexVector.Uint8Vector
            parts = {"ArraySegmentsType": kind, "ArraySegments": segments}
            parts |= {"ArrayIndicesType": kind, "ArrayIndices": indices}
            dimension = self.table("DimensionMetadata", Format=1, **parts)
            sparsity = self.table(
                "SparsityParameters",
                TraversalOrder=self.vector((0, 1), "int32"),
                DimMetadata=self.offsets("SparsityParameters", "DimMetadata", [dimension]),
            )
        name = None if tensor.name is None else self.builder.CreateString(tensor.name)
        shape = None if tensor.shape is None else self.vector(tensor.shape, "int32")
        signature = self.vector(tensor.signature, "int32") if tensor.signature else None
        return self.table(
            "Tensor",
            Shape=shape,
            Type=getattr(tflite.TensorType, TYPES.get(tensor.dtype, tensor.dtype)),
            Buffer=at,
            Name=name,
            Quantization=quantization,
            IsVariable=tensor.variable,
            Sparsity=sparsity,
            ShapeSignature=signature,
            HasRank=tensor.has_rank,
        )

    def operator(self, op: Op) -> int:
        code = op.op, op.custom is not None, op.version
        if code not in self.codes:
            self.codes.append(code)
        fields: dict[str, Any] = {"OpcodeIndex": self.codes.index(code)}
        if op.options is not None:
            name, values = op.options
            second = hasattr(tflite.BuiltinOptions2, name)
            union = tflite.BuiltinOptions2 if second else tflite.BuiltinOptions
            slot = "BuiltinOptions2" if second else "BuiltinOptions"
            fields[f"{slot}Type"] = getattr(union, name)
            fields[slot] = self.options(name, values)
        if op.custom:
            fields["CustomOptions"] = self.builder.CreateByteVector(op.custom)
        fields["Inputs"] = self.vector(op.inputs, "int32")
        fields["Outputs"] = self.vector(op.outputs, "int32")
        return self.table("Operator", **fields)

    def subgraph(self, sub: Sub) -> int:
        tensors = self.offsets("SubGraph", "Tensors", [self.tensor(t) for t in sub.tensors])
        operators = self.offsets("SubGraph", "Operators", [self.operator(o) for o in sub.ops])
        return self.table(
            "SubGraph",
            Tensors=tensors,
            Inputs=self.vector(sub.inputs, "int32"),
            Outputs=self.vector(sub.outputs, "int32"),
            Operators=operators,
            Name=self.builder.CreateString(sub.name),
        )

    def code(self, name: str, custom: bool, version: int) -> int:
        number = tflite.BuiltinOperator.CUSTOM if custom else getattr(tflite.BuiltinOperator, name)
        text = self.builder.CreateString(name) if custom else None
        return self.table(
            "OperatorCode",
            DeprecatedBuiltinCode=min(number, 127),
            CustomCode=text,
            Version=version,
            BuiltinCode=number,
        )

    def model(self, subs: Sequence[Sub], places: Sequence[tuple[int, int]] | None) -> bytes:
        graphs = self.offsets("Model", "Subgraphs", [self.subgraph(s) for s in subs])
        codes = self.offsets("Model", "OperatorCodes", [self.code(*c) for c in self.codes])
        buffers = []
        waiting = iter(places or ())
        for data, behind in self.buffers:
            if behind:
                # places are known once the flatbuffer's own size is
                offset, size = next(waiting, (1 << 40, 1 << 40))
                buffers.append(self.table("Buffer", Offset=offset, Size=size))
                continue
            content = None
            if data:
                self.builder.StartVector(1, len(data), 16)
                self.builder.head -= len(data)
                self.builder.Bytes[self.builder.head : self.builder.head + len(data)] = data
                content = int(self.builder.EndVector())
            buffers.append(self.table("Buffer", Data=content))
        root = self.table(
            "Model",
            Version=3,
            OperatorCodes=codes,
            Subgraphs=graphs,
            Description=self.builder.CreateString("by the tests"),
            Buffers=self.offsets("Model", "Buffers", buffers),
        )
        self.builder.Finish(root, b"TFL3")
        return bytes(self.builder.Output())


def build(*subs: Sub) -> bytes:
    """The file; payloads of tensors that are `behind` stand after the flatbuffer."""
    first = _Writer()
    content = first.model(subs, None)
    payloads = [data for data, behind in first.buffers if behind]
    if not payloads:
        return content
    at, places = -(-len(content) // 16) * 16, []
    for data in payloads:
        places.append((at, len(data)))
        at += -(-len(data) // 16) * 16
    second = _Writer().model(subs, places)
    assert len(second) == len(content)
    out = bytearray(second.ljust(places[0][0], b"\0"))
    for (place, _), data in zip(places, payloads, strict=True):
        out[place:] = data
        out.extend(bytes(-len(out) % 16))
    return bytes(out)


def sparse(folder: Path, net: Sub, size: int) -> str:
    """A file whose payloads behind the flatbuffer take `size` bytes each, and no room on the disk."""
    count = sum(t.behind for t in net.tensors)
    at = -(-len(_Writer().model([net], [(1 << 40, 1)] * count)) // 4096) * 4096
    path = folder / "sparse.tflite"
    with path.open("wb") as file:
        file.write(_Writer().model([net], [(at + n * size, size) for n in range(count)]))
        file.truncate(at + count * size)
    return str(path)


def write(folder: Path, *subs: Sub, name: str = "model") -> str:
    """The same in a file; returns its path."""
    path = folder / f"{name}.tflite"
    path.write_bytes(build(*subs))
    return str(path)
