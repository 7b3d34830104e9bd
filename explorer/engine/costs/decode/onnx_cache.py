"""Finds the KV cache inputs of ONNX decoders, and their sizes in one decode step.

An export with a cache computes one decode step if its sequence length is 1 and its cache holds the earlier
tokens. The graph shows which input is a cache, and which of its axes counts the tokens: an operator appends
to this axis or attends over it. Input names are used only if the graph leaves this open.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.engine.costs.decode.past_tokens import add_cache_bytes
from explorer.engine.costs.layer_tree import sum_if_all_known
from explorer.engine.costs.onnx.values import count_bytes
from explorer.engine.graph.model import Graph, Model, Node, Value, list_bodies
from explorer.facts import Analysis, Dim, Shape, TensorInfo

_MS = "com.microsoft"

_CACHE_ARGUMENTS: Mapping[tuple[str, str], tuple[tuple[int, int, int], ...]] = {
    ("", "Attention"): ((4, 1, 2), (5, 2, 2)),
    (_MS, "GroupQueryAttention"): ((3, 1, 2), (4, 2, 2)),
    (_MS, "SparseAttention"): ((3, 1, 2), (4, 2, 2)),
    (_MS, "MultiHeadAttention"): ((6, 1, 2), (7, 2, 2)),
    (_MS, "DecoderMaskedMultiHeadAttention"): ((5, 1, 2), (6, 2, 2)),
    (_MS, "Attention"): ((4, 1, 3),),
    (_MS, "DecoderMaskedSelfAttention"): ((4, 1, 3),),
}
"""Operators that attend over a cache, with three indices for each cache.

The indices are: the input with the cache, the output with the extended cache, and the axis of the tokens.
"""

_WRITERS: Mapping[str, int] = {"Concat": 0, "ScatterElements": 0, "TensorScatter": -2}
"""Operators that append the new token to a cache or write it into one, with the default axis."""

_PASSTHROUGH = frozenset(("Identity", "Cast"))
"""Operators that do not change the elements of a cache."""
_CACHE_NAME = re.compile(r"past|cache|key_values|kv|mem", re.IGNORECASE)
"""Pattern of the name of an input that is a cache."""
_PLUS_SIGN = re.compile(r"\s*\+\s*")


class Slot(Struct, frozen=True):
    """A cache input: keys or values of earlier tokens.

    Attributes:
        value: Declaration of the input.
        axis: Axis of the tokens.
        present: Name of the output that also contains the new token, or ''.
    """

    value: Value
    axis: int
    present: str


Cache = Mapping[str, Slot]
"""Cache inputs and outputs of a graph, by input name."""


class DecodeStep(Struct, frozen=True):
    """The inputs of one decode step.

    Attributes:
        input_shapes: dtype (None for the declared one) and shape of every input.
        positions: Positions of each cache input, by name: the number of cached tokens, or the buffer size.
        buffers: Whether the caches are buffers that the step writes into.
        assumed: Texts of the assumptions.
        dims: Sizes of named dimensions, including those from the user.
    """

    input_shapes: Mapping[str, tuple[str | None, tuple[int, ...]]]
    positions: Mapping[str, int]
    buffers: bool
    assumed: tuple[str, ...]
    dims: Mapping[str, int]


def find_cache(model: Model) -> Cache:
    """Finds the cache inputs of a graph, also those that only a branch or loop uses."""
    inputs = {v.name: v for v in model.graph.required_inputs}
    slots: dict[str, Slot] = {}
    output_names = {v.name for v in model.graph.outputs}
    sources: dict[str, str] = {}
    for node in _list_nodes(model.graph):
        # exporters may leave a Concat of a single input
        is_single = node.op == "Concat" and len(node.inputs) == 1
        if (node.op in _PASSTHROUGH or is_single) and not node.domain and node.inputs and node.outputs:
            source = sources.get(node.inputs[0], node.inputs[0])
            if source in inputs:
                sources[node.outputs[0]] = source
        for input_index, output_index, axis in _CACHE_ARGUMENTS.get((node.domain, node.op), ()):
            name = node.inputs[input_index] if input_index < len(node.inputs) else ""
            name = sources.get(name, name)
            if name in inputs and name not in slots:
                present_name = node.outputs[output_index] if output_index < len(node.outputs) else ""
                slots[name] = Slot(inputs[name], axis, present_name)
        if node.op in _WRITERS and not node.domain and node.inputs:
            name = sources.get(node.inputs[0], node.inputs[0])
            value = inputs.get(name)
            if value is None or name in slots or value.shape is None or len(value.shape) < 3:
                continue
            if node.op == "Concat" and len(node.inputs) != 2:
                continue
            if not (value.dtype or "").startswith(("float", "bfloat", "int8", "uint8")):
                continue
            if _CACHE_NAME.search(name) or node.outputs[0] in output_names:
                axis = int(node.attributes.get("axis", _WRITERS[node.op])) % len(value.shape)
                slots[name] = Slot(value, axis, node.outputs[0])
    for name, value in inputs.items():
        if name not in slots:
            similar = next((slot for slot in slots.values() if _has_cache_shape(slot, value)), None)
            if similar is not None:
                slots[name] = Slot(value, similar.axis, "")
    return slots


def _has_cache_shape(slot: Slot, value: Value) -> bool:
    """Whether an input has the dtype and token axis of a known cache input."""
    shape, cache_shape = value.shape, slot.value.shape
    if (
        shape is None
        or cache_shape is None
        or len(shape) != len(cache_shape)
        or value.dtype != slot.value.dtype
    ):
        return False
    return shape == cache_shape or (
        isinstance(cache_shape[slot.axis], str) and shape[slot.axis] == cache_shape[slot.axis]
    )


def _list_nodes(graph: Graph) -> Iterator[Node]:
    for node in graph.nodes:
        yield node
        for _, body in list_bodies(node):
            yield from _list_nodes(body)


def bind_step(
    model: Model,
    cache: Cache,
    past: int,
    dims: Mapping[str, int],
    input_shapes: Mapping[str, tuple[str | None, Shape]],
    *,
    new: int = 1,
) -> DecodeStep:
    """Computes the input shapes for `new` tokens after `past` cached tokens.

    Args:
        model: Model with a cache.
        cache: Its cache inputs, at least one.
        past: Number of cached tokens.
        dims: Sizes of dimensions from the user.
        input_shapes: Input dtypes and shapes from the user.
        new: Number of tokens that the model processes; more than 1 for a prompt.

    Raises:
        Misuse: The inputs do not fit so many tokens, or a size is missing.
    """
    sizes = _Sizes(dims)
    buffers = _are_buffers(model, cache)
    batches: dict[str, None] = {}
    for slot in cache.values():
        shape = _get_shape(slot.value, input_shapes)
        if not slot.axis < len(shape):
            raise Misuse("its shape has no axis for the tokens of a cache", where=f"input {slot.value.name}")
        sizes.set(shape[slot.axis], past + new if buffers else past, f"input {slot.value.name}", buffers)
        batch = shape[1 if len(shape) == 5 else 0]
        if isinstance(batch, str):
            batches[batch] = None
    other_inputs = [v for v in model.graph.required_inputs if v.name not in cache]
    tokens = _find_token_input(other_inputs)
    if tokens is not None:
        shape = _get_shape(tokens, input_shapes)
        axis = 1 if len(shape) > 1 else 0
        sizes.set(shape[axis], new, f"input {tokens.name}")
        if axis and isinstance(shape[0], str):
            batches[shape[0]] = None
    assumed = [
        f"batch ({name}) = 1" for name in batches if sizes.known.setdefault(name, 1) and name not in dims
    ]
    step_inputs: dict[str, tuple[str | None, tuple[int, ...]]] = {}
    positions: dict[str, int] = {}
    for value in model.graph.required_inputs:
        declared = input_shapes.get(value.name, (None, value.shape))
        shape = _get_shape(value, input_shapes)
        # the last axis of a mask covers all positions, unless it is the batch
        total_axis = len(shape) - 1 if "mask" in value.name.lower() and len(shape) > 1 else None
        bound_shape = tuple(
            sizes.get(dim, value.name, total=past + new, is_total=axis == total_axis)
            for axis, dim in enumerate(shape)
        )
        step_inputs[value.name] = declared[0], bound_shape
        if value.name in cache:
            positions[value.name] = _check_capacity(bound_shape[cache[value.name].axis], past, value.name)
    is_written_in_place = buffers or any(n > past for n in positions.values())
    return DecodeStep(step_inputs, positions, is_written_in_place, tuple(assumed), sizes.known)


def _check_capacity(positions: int, past: int, name: str) -> int:
    """Returns the positions of a cache.

    Raises:
        Misuse: The cache has fewer positions than `past` tokens.
    """
    if positions < past:
        message = f"its cache holds {positions:,} tokens at most, not {past:,}"
        raise Misuse(message, where=f"input {name}", hint=f"give --past {positions - 1} or less")
    return positions


def compute_text_shapes(
    model: Model, tokens: int, dims: Mapping[str, int], input_shapes: Mapping[str, tuple[str | None, Shape]]
) -> dict[str, tuple[str | None, tuple[int, ...]]]:
    """Computes the input shapes of a pass over a text, for a model without cache inputs.

    Raises:
        Misuse: The model has no text input, the text has a fixed length, or a size is missing.
    """
    text = _find_token_input(model.graph.required_inputs)
    if text is None:
        problem = "it has neither a text input nor cache inputs"
        raise Misuse(problem, where="--past", hint="leave --decode out", code="drop_option")
    sizes = _Sizes(dims)
    shape = _get_shape(text, {})
    axis = 1 if len(shape) > 1 else 0
    length = shape[axis]
    if not isinstance(length, str):
        raise Misuse(
            f"its text has a fixed length of {length}",
            where=f"input {text.name}",
            hint="export the model with a dynamic sequence, or with its key-value cache as inputs",
        )
    sizes.set(length, tokens, f"input {text.name}")
    if axis and isinstance(shape[0], str):
        sizes.known.setdefault(shape[0], 1)
    return {
        value.name: (
            input_shapes.get(value.name, (None, ()))[0],
            tuple(
                sizes.get(dim, value.name, total=tokens, is_total="mask" in value.name.lower())
                for dim in _get_shape(value, {})
            ),
        )
        for value in model.graph.required_inputs
    }


def _get_shape(value: Value, input_shapes: Mapping[str, tuple[str | None, Shape]]) -> Shape:
    """Returns the shape of an input from the user, else from the file.

    Raises:
        Misuse: Neither states the shape.
    """
    shape = input_shapes[value.name][1] if value.name in input_shapes else value.shape
    if shape is None:
        raise Misuse(
            "its shape is not declared", where=f"input {value.name}", hint="give it by --input-shape"
        )
    return shape


def _find_token_input(values: Sequence[Value]) -> Value | None:
    """Returns the input with the new tokens: ids, else embeddings, else any integers; or None."""
    integers = [v for v in values if (v.dtype or "").startswith("int") and v.shape is not None and v.shape]
    named = [v for v in integers if "id" in v.name.lower() and "position" not in v.name.lower()]
    embedded = [v for v in values if "embed" in v.name.lower() or (v.shape is not None and len(v.shape) == 3)]
    return next(iter([*named, *embedded, *integers]), None)


def _are_buffers(model: Model, cache: Cache) -> bool:
    """Whether the caches are buffers: each cache output is declared with the same length as its input."""
    declared = {v.name: v.shape for v in model.graph.outputs}
    for slot in cache.values():
        cache_shape, present_shape = slot.value.shape, declared.get(slot.present)
        if (
            cache_shape is None
            or present_shape is None
            or len(cache_shape) != len(present_shape)
            or slot.axis >= len(cache_shape)
        ):
            return False
        if cache_shape[slot.axis] is None or cache_shape[slot.axis] != present_shape[slot.axis]:
            return False
    return True


class _Sizes:
    """Sizes of named dimensions, collected step by step."""

    def __init__(self, dims: Mapping[str, int]) -> None:
        self.known = dict(dims)

    def set(self, dim: Dim, size: int, where: str, may_be_larger: bool = False) -> None:
        """Sets the size of a dimension.

        Args:
            dim: Name of the dimension, its fixed size, or None.
            size: Size that the step needs.
            where: Input of the dimension, for an error message.
            may_be_larger: Whether the dimension may be larger.

        Raises:
            Misuse: The dimension already has another size.
        """
        current = self.known.setdefault(dim, size) if isinstance(dim, str) else size if dim is None else dim
        if current == size or (may_be_larger and current > size):
            return
        if isinstance(dim, int) and current > size and size != 1:
            return  # a larger buffer of fixed size; `_check_capacity` rejects buffers that are too small
        name = f"dimension '{dim}'" if isinstance(dim, str) else "a dimension"
        raise Misuse(
            f"{name} has size {current:,}, but one decode step needs {size:,}",
            where=where,
            hint="leave --dim out for it, or export the model with a dynamic sequence and cache",
            code="drop_option",
        )

    def get(self, dim: Dim, name: str, *, total: int, is_total: bool) -> int:
        """Returns the size of a dimension.

        Args:
            dim: Name of the dimension, its fixed size, or None.
            name: Name of the input.
            total: Number of cached and new tokens.
            is_total: Whether a dimension name without a size gets the size `total`. A name with "total" in it
                always does.

        Raises:
            Misuse: The size is unknown.
        """
        if isinstance(dim, int):
            return dim
        if isinstance(dim, str):
            size = self.evaluate(dim)
            if size is not None:
                return size
            if is_total or "total" in dim:
                return self.known.setdefault(dim, total)
        label = dim or "?"
        hint = f"give --dim {dim}=SIZE" if dim else f"give --input-shape {name}:SHAPE"
        message = f"the size of its dimension '{label}' in a decode step is unknown"
        raise Misuse(message, where=f"input {name}", hint=hint)

    def evaluate(self, text: str) -> int | None:
        """Returns the value of a dimension name or of a sum of names and numbers, or None if unknown."""
        if text in self.known:
            return self.known[text]
        total = 0
        for term in _PLUS_SIGN.split(text):
            if term.isdigit():
                total += int(term)
            elif term in self.known:
                total += self.known[term]
            else:
                return None
        return total


def add_cache_to_analysis(analysis: Analysis, cache: Cache, step: DecodeStep, past: int) -> Analysis:
    """Adds the bytes of the cache to the analysis of one step, per layer and in total.

    Raises:
        Misuse: A cache output is not one token longer than its input.
    """
    outputs = {t.name: t for t in analysis.info.model.outputs}
    inputs = {t.name: t for t in analysis.info.model.inputs}
    checked = 0
    for name, slot in cache.items():
        present = outputs.get(slot.present)
        if present is None or present.shape is None or slot.axis >= len(present.shape):
            continue
        size, expected = present.shape[slot.axis], step.positions[name] + (0 if step.buffers else 1)
        if isinstance(size, int) and size != expected:
            message = f"'{slot.present}' would hold {size:,} tokens after one step, not {expected:,}"
            raise Misuse(message, where=f"input {name}", hint="give the sizes of its dimensions by --dim")
        checked += isinstance(size, int)
    sizes = {name: _count_cached_bytes(inputs[name], step.positions[name], past) for name in cache}
    parts_by_layer: dict[int, list[int | None]] = {}
    unread = dict(sizes)
    for layer in analysis.layers:
        if layer.group:
            continue
        for tensor in layer.inputs:
            if tensor.name in unread:
                parts_by_layer.setdefault(layer.id, []).append(unread.pop(tensor.name))
    layers = add_cache_bytes(
        analysis.layers, {row_id: sum_if_all_known(parts) for row_id, parts in parts_by_layer.items()}
    )
    totals = replace(analysis.info.totals, kv_cache_bytes=sum_if_all_known(sizes.values()))
    kind = "buffers, written in place" if step.buffers else "their outputs are one token longer"
    description = (
        f"{len(sizes):,} cache inputs with {past:,} tokens each"
        f" ({kind}; {checked:,} output lengths checked), one new token"
    )
    decode = {"past": past, "tokens": 1, "how": "; ".join((description, *step.assumed))}
    info = replace(analysis.info, totals=totals, assumptions={**analysis.info.assumptions, "decode": decode})
    return Analysis(info, layers)


def _count_cached_bytes(info: TensorInfo, positions: int, past: int) -> int | None:
    """Returns the bytes of `past` cached tokens in a cache of `positions` positions, or None if unknown."""
    size = count_bytes(info)
    if size is None or positions == past:
        return size
    return size // positions * past if positions else 0
