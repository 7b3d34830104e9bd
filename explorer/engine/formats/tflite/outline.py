"""Outline of a TensorFlow Lite file: rows of operators and tensors.

To start fast, it imports neither numpy nor the modules that analyze a model.
"""

from __future__ import annotations

from explorer.base.errors import BadModel
from explorer.base.outline import Outline, OutlineRow
from explorer.base.units import many_text
from explorer.engine.formats.files import map_file
from explorer.engine.formats.tflite.reader import Subgraph, TfliteFile, TfliteOperator, TfliteTensor
from explorer.engine.graph.dtypes import ELEMENT_TYPES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_BITS = {name: bits for _, name, bits in ELEMENT_TYPES}


def outline(source: str) -> Outline:
    """Returns the outline of the file `source`.

    Raises:
        BadModel: The file is not a TensorFlow Lite model, or contradicts itself.
        MissingExtra: The package `tflite` is not installed.
    """
    buffer = map_file(source)
    try:
        file = TfliteFile(buffer)
    except BadModel as error:
        raise BadModel(error.what, where=source, hint=error.hint) from None
    return Outline("tflite", source, len(buffer), _list_facts(file), _list_rows(source, file))


def _list_facts(file: TfliteFile) -> Sequence[tuple[str, str]]:
    facts = [("schema", str(file.version))]
    if file.description:
        facts.append(("description", file.description))
    operators = dict.fromkeys(f"{op} (custom)" if custom else op for op, custom, _ in file.codes)
    facts.append(("operators", ", ".join(operators)))
    if file.count > 1:
        facts.append(("subgraphs", f"{file.count:,}"))
    facts += [("signature", f"{key} (subgraph {number})") for key, number in file.signatures]
    facts += [("metadata", f"{name} ({size:,} bytes)") for name, (_, size) in file.metadata.items()]
    return facts


def _list_rows(source: str, file: TfliteFile) -> Iterator[OutlineRow]:
    """Yields the rows of each subgraph: inputs, operators, outputs, then stored tensors and states."""
    for index in range(file.count):
        try:
            subgraph = file.read_subgraph(index)
        except BadModel as error:
            raise BadModel(error.what, where=source, hint=error.hint) from None
        prefix = f"{subgraph.name or index}/" if index else ""
        if index:
            count = len(subgraph.operators)
            yield OutlineRow(
                subgraph.name or str(index),
                "function",
                note=f"subgraph {index}, {many_text(count, 'operator')}",
            )
        tensors = subgraph.tensors
        for number in subgraph.inputs:
            yield _build_tensor_row(prefix, number, tensors[number], "input")
        for number, operator in enumerate(subgraph.operators):
            yield _build_operator_row(prefix, number, operator, subgraph)
        for number in subgraph.outputs:
            yield _build_tensor_row(prefix, number, tensors[number], "output")
        for number, tensor in enumerate(tensors):
            if tensor.is_stored or tensor.is_variable:
                yield _build_tensor_row(prefix, number, tensor, "tensor")


def _build_operator_row(prefix: str, number: int, operator: TfliteOperator, subgraph: Subgraph) -> OutlineRow:
    """Returns the row of an operator, named after its first output tensor."""
    first_output = next((subgraph.tensors[n] for n in operator.outputs if n >= 0), None)
    name = first_output.name.partition(";")[0] if first_output is not None else ""
    notes = []
    if operator.is_custom:
        notes.append(f"custom, options of {operator.custom_options[1]:,} bytes")
    if first_output is not None and first_output.quantization is not None:
        notes.append(f"{first_output.dtype or first_output.type}, {first_output.quantization.describe()}")
    return OutlineRow(
        f"{prefix}{name or number}",
        "operator",
        operator.op,
        None if first_output is None else _find_shape(first_output),
        note="; ".join(notes),
    )


def _build_tensor_row(prefix: str, number: int, tensor: TfliteTensor, kind: str) -> OutlineRow:
    """Returns the outline row of a tensor; `prefix` is written before its name or number."""
    notes = []
    if tensor.quantization is not None:
        notes.append(tensor.quantization.describe())
    for applies, note in (
        (tensor.is_variable, "a state"),
        (tensor.is_sparse, "sparse"),
        (tensor.is_external, "in another file"),
    ):
        if applies:
            notes.append(note)
    size = tensor.data[1] if tensor.data is not None else None
    if size is None and tensor.shape is not None and tensor.dtype is not None and not tensor.is_external:
        size = _count_bytes(tensor)
    return OutlineRow(
        f"{prefix}{tensor.name or number}",
        kind,
        tensor.dtype or tensor.type.lower(),
        _find_shape(tensor),
        size,
        "; ".join(notes),
        None if tensor.data is None else ("", *tensor.data),
        scaled=tensor.quantization is not None,
    )


def _count_bytes(tensor: TfliteTensor) -> int | None:
    """Returns bytes of a tensor by its shape and type, or None if it is resizable or its type is unknown."""
    bits = _BITS.get(tensor.dtype or "", 0)
    count = 1
    for size in tensor.dims or ():
        count *= size
    return (count * bits + 7) // 8 if bits and -1 not in (tensor.dims or ()) else None


def _find_shape(tensor: TfliteTensor) -> tuple[int | None, ...] | None:
    return None if tensor.dims is None else tuple([None if d == -1 else d for d in tensor.dims])
