"""Random inputs for a model: seeded, of the declared type and shape, in a meaningful range.

Random 64-bit indices make an embedding fail, and zeros exercise only one row. An integer input is therefore
traced to the table that it indexes, and its values are drawn below the number of rows of that table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod

import numpy as np
from msgspec import Struct

from explorer.base.errors import Misuse, suggest_name
from explorer.base.units import printable, shape_text
from explorer.engine.graph.dtypes import get_element_type, get_numpy_type
from explorer.engine.graph.model import Model, Node, Tensor, Value, list_graphs
from explorer.engine.runtime.input_files import InputArrays, InputSpec
from explorer.engine.runtime.onnxruntime import Array
from explorer.facts import Shape

InputShapes = Mapping[str, tuple[str | None, Shape]]
"""Element type (None for the declared one) and shape of inputs, by name."""

_INDEX_PRESERVING = frozenset((
    "Cast", "Clip", "Concat", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze",
    "Transpose", "Unsqueeze",
))  # fmt: skip
"""Operators that pass an index on unchanged."""

_TABLE_AXIS = {"Gather": 0, "GatherElements": 0}
"""Operators that index a table, with the default of their attribute `axis`."""


class ContradictsDeclaration(Misuse):
    """A user's input shape contradicts the model's declaration."""


class RandomInput(Struct, frozen=True):
    """Rule to draw one input.

    Attributes:
        name: Name of the input.
        dtype: Element type of the input.
        shape: Shape of the input.
        low, high: Bounds of an integer or boolean; `high` is excluded. `high` is 0 for other types and for
            fixed values.
        why: Reason for the range, for the report.
        values: Fixed values of the input, or None to draw values.
        words: Texts that a string input is drawn from.
        is_mask: Whether the input is drawn as a mask of zeros and ones.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    low: int = 0
    high: int = 0
    why: str = ""
    values: Array | None = None
    words: tuple[str, ...] = ()
    is_mask: bool = False

    def text(self) -> str:
        """Describes the input for the report: 'ids: int64 [1, 128], 0 to 30521, as a mask'."""
        heading = f"{printable(self.name)}: {self.dtype} {shape_text(self.shape)}, "
        if self.high:
            span = str(self.low) if self.high - self.low == 1 else f"{self.low} to {self.high - 1}"
            return f"{heading}{span}{', ' + self.why if self.why else ''}"
        return heading + self.why


def plan_inputs(
    model: Model, dims: Mapping[str, int] | None = None, input_shapes: InputShapes | None = None
) -> tuple[RandomInput, ...]:
    """Determines the rule by which each input of the model is drawn.

    Args:
        model: The model.
        dims: Sizes of symbolic dimensions; a missing size is 1.
        input_shapes: Shapes, and types if not None, that replace the declared ones.

    Raises:
        Misuse: A shape contradicts the declared one, or an input is a sequence, for which no value can be
            drawn.
    """
    dims, input_shapes = dims or {}, input_shapes or {}
    return tuple(_plan_input(model, v, dims, input_shapes.get(v.name)) for v in model.graph.required_inputs)


def read_given_inputs(
    model: Model, file: InputArrays, input_shapes: InputShapes | None = None
) -> tuple[RandomInput, ...]:
    """Takes the inputs of the model from a file.

    Args:
        model: The model.
        file: Arrays of the file.
        input_shapes: Shapes, and types if not None, that replace the declared ones.

    Raises:
        Misuse: An input is missing or unknown, or has another type or shape.
    """
    overrides = input_shapes or {}
    arrays = file.fit(
        [
            InputSpec(v.name, dtype or v.dtype, shape)
            for v in model.graph.required_inputs
            for dtype, shape in (overrides.get(v.name, (None, v.shape)),)
        ]
    )
    names = [value.name for value in model.graph.required_inputs]
    return tuple(
        RandomInput(name, get_element_type(array), array.shape, why=f"from {file.path}", values=array)
        for name, array in ((name, arrays[name]) for name in names)
    )


def get_symbol_sizes(model: Model, drawn: tuple[RandomInput, ...]) -> dict[str, int]:
    """Returns the sizes of the model's symbolic dimensions with these inputs."""
    shapes = {d.name: d.shape for d in drawn}
    return {
        dim: size
        for v in model.graph.required_inputs
        for dim, size in zip(v.shape or (), shapes[v.name], strict=False)
        if isinstance(dim, str)
    }


def fill_open_sizes(
    before: Model, after: Model, names: Mapping[str, str], input_shapes: InputShapes
) -> dict[str, tuple[str | None, Shape]]:
    """Returns the shapes of the inputs of one model, with open sizes taken from another model.

    Args:
        before: Model whose inputs get shapes.
        after: Model that supplies open sizes.
        names: Names of the inputs in `after`, by their names in `before`.
        input_shapes: Shapes, and types if not None, that take precedence.
    """
    other_inputs = {v.name: v for v in after.graph.required_inputs}
    shapes = dict(input_shapes)
    for value in before.graph.required_inputs:
        other_input = other_inputs[names[value.name]]
        if value.name in shapes or value.shape is None or other_input.shape is None:
            continue
        if len(value.shape) == len(other_input.shape):
            merged = tuple(
                b if isinstance(b, int) and not isinstance(a, int) else a
                for a, b in zip(value.shape, other_input.shape, strict=True)
            )
            shapes[value.name] = (None, merged)
    return shapes


def check_names(model: Model, dims: Iterable[str], input_shapes: InputShapes) -> None:
    """Refuses sizes and shapes whose names the model does not have.

    Raises:
        Misuse: A name in `dims` is not a dimension of the model, or a name in `input_shapes` is not an input.
    """
    names = [v.name for v in model.graph.required_inputs]
    symbols = [d for v in model.graph.required_inputs for d in v.shape or () if isinstance(d, str)]
    for name in input_shapes:
        if name not in names:
            raise Misuse(f"there is no input '{name}'", hint=suggest_name(name, names))
    for symbol in dims:
        if symbol not in symbols:
            raise Misuse(f"there is no dimension '{symbol}'", hint=suggest_name(symbol, symbols))


def _plan_input(
    model: Model, value: Value, dims: Mapping[str, int], override: tuple[str | None, Shape] | None
) -> RandomInput:
    """Chooses how random values of an input are drawn; `override` is the type and shape from the user.

    Raises:
        Misuse: The input is not a tensor, has no shape, or has a type for which no value can be drawn.
        ContradictsDeclaration: The user's shape contradicts the declared one.
    """
    dtype = (override[0] if override else None) or value.dtype
    if dtype is None:
        raise Misuse(f"input '{value.name}' is not a tensor, so no value can be drawn for it")
    if override is not None:
        shape = _fix_shape(override[1], dims)
        declared = value.shape
        if declared is not None and (
            len(declared) != len(shape)
            or any(isinstance(d, int) and d != s for d, s in zip(declared, shape, strict=True))
        ):
            reason = f"input '{value.name}' is declared {shape_text(declared)}, not {shape_text(shape)}"
            raise ContradictsDeclaration(reason)
    elif value.shape is None:
        raise Misuse(
            f"input '{value.name}' has no declared shape", hint=f"give it: --input-shape {value.name}:1,16"
        )
    else:
        shape = _fix_shape(value.shape, dims)
    if dtype == "string":
        return RandomInput(
            value.name,
            dtype,
            shape,
            why="texts that the model knows, and others",
            words=_collect_texts(model),
        )
    rule = choose_rule(value.name, dtype, shape, lambda: _find_table_height(model, value.name))
    # a mask of one element must keep that element
    return RandomInput(value.name, dtype, shape, 1, 2) if rule.is_mask and prod(shape) <= 1 else rule


def choose_rule(name: str, dtype: str, shape: tuple[int, ...], height: Callable[[], int]) -> RandomInput:
    """Determines the rule to draw an input from its type alone.

    Args:
        name: Name of the input.
        dtype: Name of a numpy type, or 'bfloat16'.
        shape: Shape of the input.
        height: Function that returns the number of rows of the table that an integer indexes, or 0 for no
            table.

    Raises:
        Misuse: No value can be drawn for the type.
    """
    kind = np.dtype(dtype).kind if dtype in np.sctypeDict else "V"
    if dtype == "bfloat16" or kind in "fc":
        return RandomInput(name, dtype, shape, why="standard normal")
    if kind == "b":
        return RandomInput(name, dtype, shape, 0, 2, "at random")
    if kind not in "iu":
        raise Misuse(f"input '{name}' is of type {dtype}, for which no value can be drawn")
    if rows := height():
        return RandomInput(name, dtype, shape, 0, rows, "rows of the table it indexes")
    if np.dtype(dtype).itemsize == 1:
        info = np.iinfo(dtype)
        return RandomInput(name, dtype, shape, int(info.min), int(info.max) + 1, "the whole range")
    return RandomInput(name, dtype, shape, 0, 2, "as a mask", is_mask=True)


def _fix_shape(shape: Shape, dims: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(d if isinstance(d, int) else dims.get(d or "", 1) for d in shape)


def draw(inputs: tuple[RandomInput, ...], seed: int) -> dict[str, Array]:
    """Draws one set of input values. The same seed draws the same values."""
    generator = np.random.default_rng(seed)
    values: dict[str, Array] = {}
    for planned in inputs:
        if planned.values is not None:
            values[planned.name] = planned.values
        elif planned.words:
            word_indices = generator.integers(0, len(planned.words), planned.shape, dtype=np.int64)
            values[planned.name] = np.asarray(planned.words, dtype=object)[word_indices].reshape(
                planned.shape
            )
        elif planned.high:
            integers = generator.integers(planned.low, planned.high, planned.shape, dtype=np.int64)
            values[planned.name] = np.asarray(integers, dtype=planned.dtype)
        else:
            values[planned.name] = np.asarray(generator.standard_normal(planned.shape)).astype(
                get_numpy_type(planned.dtype)
            )
    return values


def draw_any_values(generator: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Array:
    """Draws values from the type alone.

    Floats are normal, 8-bit integers cover their full range, and other integers and booleans are 0 or 1.
    """
    numpy_type = get_numpy_type(dtype)
    if numpy_type.kind in "iu":
        info = np.iinfo(numpy_type)
        low, high = (int(info.min), int(info.max) + 1) if numpy_type.itemsize == 1 else (0, 2)
        return generator.integers(low, high, shape, dtype=np.int64).astype(numpy_type)
    if numpy_type.kind == "b":
        return generator.integers(0, 2, shape).astype(bool)
    return np.asarray(generator.standard_normal(shape)).astype(numpy_type)


def _find_table_height(model: Model, name: str) -> int:
    """Returns the smallest number of rows over all tables that the value indexes, or 0 for no table.

    The value indexes a table directly, or through operators that pass it on unchanged.
    """
    heights: list[int] = []
    shapes = {v.name: v.shape for v in (*model.graph.values, *model.graph.inputs)}
    for graph in list_graphs(model.graph):
        aliases = {name}
        constants = {o: t for n in graph.nodes if (t := _find_constant(n)) is not None for o in n.outputs}
        for node in graph.nodes:
            if node.op in _TABLE_AXIS and len(node.inputs) > 1 and node.inputs[1] in aliases:
                table = graph.initializers.get(node.inputs[0]) or model.graph.initializers.get(node.inputs[0])
                table = table or constants.get(node.inputs[0])
                shape = table.shape if table is not None else shapes.get(node.inputs[0])
                axis = int(node.attributes.get("axis", _TABLE_AXIS[node.op]))
                if shape is not None and -len(shape) <= axis < len(shape):
                    height = shape[axis]
                    if isinstance(height, int) and height > 0:
                        heights.append(height)
            elif node.op in _INDEX_PRESERVING and aliases.intersection(node.inputs[:1]):
                aliases.update(node.outputs)
    return min(heights, default=0)


_UNKNOWN_TEXTS = ("", "a text that no model knows", "2.5", "A b-c, D!")
"""Texts drawn besides the model's texts, to test how the model handles unknown texts."""

_MAX_WORDS = 4096
"""Maximum number of texts from which an input is drawn."""


def _collect_texts(model: Model) -> tuple[str, ...]:
    """Collects texts in the attributes of a model's nodes, such as the keys of a LabelEncoder.

    The texts in `_UNKNOWN_TEXTS` are added. A model with more than `_MAX_WORDS` texts gives only its first
    texts, without those.
    """
    texts: dict[str, None] = {}
    nodes = [node for graph in list_graphs(model.graph) for node in graph.nodes]
    nodes += [node for function in model.functions.values() for node in function.nodes]
    for node in nodes:
        if node.domain in ("", "ai.onnx") and node.op != "Constant":
            continue  # attributes of standard operators are modes and directions, not data
        for value in node.attributes.values():
            if isinstance(value, tuple) and value and isinstance(value[0], str):
                texts.update(dict.fromkeys(value))
            if len(texts) > _MAX_WORDS:
                return tuple(texts)[:_MAX_WORDS]
    return (*texts, *_UNKNOWN_TEXTS)


def _find_constant(node: Node) -> Tensor | None:
    value = node.attributes.get("value") if node.op == "Constant" else None
    return value if isinstance(value, Tensor) else None
