"""Operator set: the lowest version that the number formats need, and the model converted to it by onnx.

The converter gets the model without its weights. They are put back into the converted model.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.engine.diff.rounding import OPERATORS
from explorer.engine.fold.calls import inline_calls
from explorer.engine.formats.onnx import reader, writer
from explorer.engine.formats.onnx.validate import validate
from explorer.engine.graph.model import Model, list_graphs
from explorer.engine.quantize.choice import LayerChoice, is_function_call
from explorer.engine.quantize.functions import MIN_OPSET
from explorer.engine.quantize.layers import Part
from explorer.host import output_files, scratch

_TYPE_OPSETS = {"int8": 10, "uint8": 10, "int32": 10, "float16": 6, "bfloat16": 13}
"""Lowest operator set in which QuantizeLinear and DequantizeLinear, or Cast, support an element type."""

_CHANNEL_OPSET, _FLOAT8_OPSET, _NARROW_OPSET = 13, 19, 21
"""Lowest operator sets with scales along an axis; with float8; with blocks and integers of 4 or 16 bits."""

_MIN_WITHHELD_BYTES = 1024
"""Size in bytes from which a tensor is withheld from the converter."""


def find_lowest_opset(choices: Sequence[LayerChoice]) -> int:
    """Returns the lowest operator set that can express all formats, or 0 without a chosen layer."""
    return max((_find_lowest_opset(choice) for choice in choices if not choice.reason), default=0)


def _find_lowest_opset(choice: LayerChoice) -> int:
    """Returns the lowest operator set that can express the formats of a layer, or 0 if any can."""
    parts: tuple[Part, ...] = ("weight", "input", "bias")
    has_nbits_weight = choice.form == "nbits"
    needed = 0
    if choice.weight is not None and choice.granularity == "channel" and not has_nbits_weight:
        needed = _CHANNEL_OPSET
    for part in parts:
        fmt = getattr(choice, part)
        if fmt is None or (has_nbits_weight and part == "weight"):
            continue
        if is_function_call(choice, part):
            needed = max(needed, MIN_OPSET)
        else:
            default_opset = _FLOAT8_OPSET if fmt.element_type.startswith("float8") else _NARROW_OPSET
            needed = max(needed, _TYPE_OPSETS.get(fmt.element_type, default_opset))
    return max(needed, _NARROW_OPSET if choice.block and choice.form in ("qdq", "chain") else 0)


def raise_opset(model: Model, opset: int) -> Model:
    """Converts the model to a later operator set, with its function calls inlined.

    Raises:
        Misuse: The model cannot be converted.
    """
    # the import takes 50 ms, and few models need it
    from onnx.onnx_cpp2py_export import version_converter

    model = inline_calls(model, OPERATORS)
    problem = f"these formats need opset {opset}, and opset {model.opset} of the model cannot be raised"
    hint = "export it with a later opset"
    if model.functions:
        raise Misuse(f"{problem}, because the model has functions of its own", hint=hint)
    if any(
        tensor.nbytes >= _MIN_WITHHELD_BYTES
        for body in [*list_graphs(model.graph)][1:]
        for tensor in body.initializers.values()
    ):
        raise Misuse(f"{problem}, because the body of a node has weights", hint=hint)
    try:
        converted = version_converter.convert_version(writer.encode_skeleton(model), opset)
    except (version_converter.ConvertError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise Misuse(f"{problem}: {reason}", hint=hint) from None
    with scratch.create_folder() as folder:
        path = f"{folder}/raised.onnx"
        with output_files.open_binary(path) as file:
            file.write(converted)
        raised_model = validate(reader.read(path))
    metadata_by_output = {node.outputs[:1]: node.metadata for node in model.graph.nodes}
    for node in raised_model.graph.nodes:
        if not node.metadata and metadata_by_output.get(node.outputs[:1]):
            node.metadata, node.record = metadata_by_output[node.outputs[:1]], None
    initializers = {
        name: model.graph.initializers.get(name, tensor)
        for name, tensor in raised_model.graph.initializers.items()
    }
    return replace(
        model,
        graph=replace(raised_model.graph, initializers=initializers, values=model.graph.values),
        opsets={**model.opsets, **raised_model.opsets},
        ir_version=max(model.ir_version, raised_model.ir_version),
    )
