"""Applies the user's sizes of symbolic dimensions and input shapes to a graph's inputs."""

from __future__ import annotations

from collections.abc import Mapping

from explorer.base.errors import Misuse, suggest_name
from explorer.engine.formats.onnx.containers import read_declared_shape
from explorer.engine.graph.model import Model, Value
from explorer.engine.symbolic import dimensions as dims
from explorer.facts import Dim, Shape

InputShapes = Mapping[str, tuple[str | None, Shape]]
"""Type (or None for the declared type) and shape of inputs, by name."""


def bind_inputs(
    model: Model, sizes: Mapping[str, int] | None, input_shapes: InputShapes | None
) -> tuple[tuple[Value, ...], dict[str, int], bool]:
    """Applies the user's sizes and shapes to the graph's inputs.

    Args:
        model: The model.
        sizes: Sizes of symbolic dimensions by name.
        input_shapes: Type (or None for the declared type) and shape of inputs by name.

    Returns:
        The inputs, the sizes of all bound symbolic dimensions, and whether a user's size replaces a fixed
        size in the file.

    Raises:
        Misuse: A dimension or an input does not exist, a size in `sizes` is below 1, a dimension gets two
            sizes, or a shape has another rank than its input.
    """
    graph = model.graph
    requested_inputs = dict(input_shapes or {})
    dim_sizes = dict(sizes or {})
    inputs_by_name = {v.name: v for v in graph.required_inputs}  # the inputs without an initializer
    if dim_sizes:
        _check_names(model, dim_sizes)
    is_overruled = False
    for name, (_, shape) in requested_inputs.items():
        if name not in inputs_by_name:
            hint = suggest_name(name, inputs_by_name)
            raise Misuse("the model has no such input", where=f"--input-shape {name}", hint=hint)
        declared = inputs_by_name[name].shape
        if declared is None:
            continue
        if len(declared) != len(shape):
            message = f"the input has {len(declared)} dimensions, not {len(shape)}"
            raise Misuse(message, where=f"--input-shape {name}", hint=f"it is declared as {list(declared)}")
        for old, new in zip(declared, shape, strict=True):
            if isinstance(old, str) and isinstance(new, int):
                if dim_sizes.setdefault(old, new) != new:
                    message = f"dimension '{old}' would be {dim_sizes[old]} and {new} at once"
                    raise Misuse(message, where=f"--input-shape {name}")
            elif isinstance(old, int) and old != new:
                is_overruled = True
    inputs = []
    for value in graph.inputs:
        if value.name in requested_inputs:
            dtype, shape = requested_inputs[value.name]
            value = Value(value.name, dtype or value.dtype, shape)
        elif dim_sizes and value.shape is not None and any(isinstance(d, str) for d in value.shape):
            shape = bind_shape(value.shape, dim_sizes)
            if shape != value.shape:
                value = Value(value.name, value.dtype, shape)
        inputs.append(value)
    return tuple(inputs), dim_sizes, is_overruled


def _check_names(model: Model, dim_sizes: Mapping[str, int]) -> None:
    """Checks that the model has these dimensions, and that each size is at least 1.

    Raises:
        Misuse: A dimension does not exist, or a size is below 1.
    """
    values = (*model.graph.required_inputs, *model.graph.values, *model.graph.outputs)
    shapes = {shape for v in values if (shape := read_declared_shape(v))}
    names = {d for shape in shapes for d in shape if isinstance(d, str)}
    if not names.issuperset(dim_sizes):
        # the names inside an expression such as 'past + 1' can be set, too
        names |= {
            n
            for d in list(names)
            if (expression := dims.canonicalize_name(d))
            for n in dims.collect_names((expression,))
        }
    for name, size in dim_sizes.items():
        if name not in names:
            hint = suggest_name(name, sorted(names)) or "all of its dimensions are fixed"
            raise Misuse("the model has no such dimension", where=f"--dim {name}", hint=hint)
        if size < 1:
            raise Misuse(f"a dimension cannot be {size}", where=f"--dim {name}")


def bind_shape(shape: Shape, sizes: Mapping[str, int]) -> Shape:
    """Returns a declared shape with its names, and expressions of names, replaced by their sizes."""
    return tuple(_bind_dim(d, sizes) if isinstance(d, str) else d for d in shape)


def _bind_dim(name: str, sizes: Mapping[str, int]) -> Dim:
    if name in sizes:
        return sizes[name]
    if not sizes:
        return name
    expression = dims.canonicalize_name(name)
    if expression is None or expression == name or not dims.collect_names((expression,)).intersection(sizes):
        return name
    return dims.substitute_sizes(expression, sizes)
