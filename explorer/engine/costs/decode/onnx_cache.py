"""KV cache of ONNX decoders, which take it as inputs: which inputs those are, and how large for one step.

An export with a cache answers for one decode step when its sequence is bound to one token and its cache
to the tokens before it. Which axis of which input is the cache's is read from the graph (the operator
that appends to it or attends over it), never from names alone where the graph says more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.engine.costs.decode.past_tokens import summed
from explorer.engine.costs.layer_tree import whole
from explorer.engine.costs.onnx.values import nbytes
from explorer.engine.graph.model import Graph, Model, Node, Value, subgraphs
from explorer.facts import Analysis, Dim, Shape, TensorInfo

_MS = "com.microsoft"

_SLOTS: Mapping[tuple[str, str], tuple[tuple[int, int, int], ...]] = {
    ("", "Attention"): ((4, 1, 2), (5, 2, 2)),
    (_MS, "GroupQueryAttention"): ((3, 1, 2), (4, 2, 2)),
    (_MS, "SparseAttention"): ((3, 1, 2), (4, 2, 2)),
    (_MS, "MultiHeadAttention"): ((6, 1, 2), (7, 2, 2)),
    (_MS, "DecoderMaskedMultiHeadAttention"): ((5, 1, 2), (6, 2, 2)),
    (_MS, "Attention"): ((4, 1, 3),),
    (_MS, "DecoderMaskedSelfAttention"): ((4, 1, 3),),
}
"""Operators that attend over a cache: place of the cache among the inputs, of the cache with the new token
among the outputs, and the cache's axis of positions."""

_WRITERS: Mapping[str, int] = {"Concat": 0, "ScatterElements": 0, "TensorScatter": -2}
"""Operators that put the new token behind a cache, or into it, and the axis if the node names none."""

_SAME = frozenset(("Identity", "Cast"))
_CACHE_NAME = re.compile(r"past|cache|key_values|kv|mem", re.IGNORECASE)
_TERM = re.compile(r"\s*\+\s*")


class Slot(Struct, frozen=True):
    """An input that holds keys or values of earlier tokens, `axis` counting them.

    `present` is the value with the new token behind them.
    """

    value: Value
    axis: int
    present: str


Cache = Mapping[str, Slot]
"""What a graph takes and gives of its cache, by the input's name."""


class DecodeStep(Struct, frozen=True):
    """The inputs of one decode step.

    Attributes:
        input_shapes: Type (as declared) and shape of every input.
        positions: Positions of each cache input, by name: the tokens in the cache, or the size of the
            buffer that holds them.
        buffers: Whether the caches are buffers that the step writes into.
        assumed: The assumptions, in words.
        dims: Sizes of named dimensions, those that the user gave too.
    """

    input_shapes: Mapping[str, tuple[str | None, tuple[int, ...]]]
    positions: Mapping[str, int]
    buffers: bool
    assumed: tuple[str, ...]
    dims: Mapping[str, int]


def find(model: Model) -> Cache:
    """The cache inputs of a graph, also of those that only a branch or loop uses; none if it has none."""
    feeds = {v.name: v for v in model.graph.feeds}
    slots: dict[str, Slot] = {}
    results = {v.name for v in model.graph.outputs}
    same: dict[str, str] = {}
    for node in _nodes(model.graph):
        # exporters leave a Concat of a single piece behind
        alone = node.op == "Concat" and len(node.inputs) == 1
        if (node.op in _SAME or alone) and not node.domain and node.inputs and node.outputs:
            source = same.get(node.inputs[0], node.inputs[0])
            if source in feeds:
                same[node.outputs[0]] = source
        for place, present, axis in _SLOTS.get((node.domain, node.op), ()):
            name = node.inputs[place] if place < len(node.inputs) else ""
            name = same.get(name, name)
            if name in feeds and name not in slots:
                after = node.outputs[present] if present < len(node.outputs) else ""
                slots[name] = Slot(feeds[name], axis, after)
        if node.op in _WRITERS and not node.domain and node.inputs:
            name = same.get(node.inputs[0], node.inputs[0])
            value = feeds.get(name)
            if value is None or name in slots or value.shape is None or len(value.shape) < 3:
                continue
            if node.op == "Concat" and len(node.inputs) != 2:
                continue
            if not (value.dtype or "").startswith(("float", "bfloat", "int8", "uint8")):
                continue
            if _CACHE_NAME.search(name) or node.outputs[0] in results:
                axis = int(node.attributes.get("axis", _WRITERS[node.op])) % len(value.shape)
                slots[name] = Slot(value, axis, node.outputs[0])
    for name, value in feeds.items():
        if name not in slots:
            alike = next((slot for slot in slots.values() if _alike(slot, value)), None)
            if alike is not None:
                slots[name] = Slot(value, alike.axis, "")
    return slots


def _alike(slot: Slot, value: Value) -> bool:
    """Whether an input has the type and length of a known cache input."""
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


def _nodes(graph: Graph) -> Iterator[Node]:
    for node in graph.nodes:
        yield node
        for _, body in subgraphs(node):
            yield from _nodes(body)


def bind(
    model: Model,
    cache: Cache,
    past: int,
    dims: Mapping[str, int],
    input_shapes: Mapping[str, tuple[str | None, Shape]],
    *,
    new: int = 1,
) -> DecodeStep:
    """The inputs of one new token, or of `new`, behind `past` others.

    Args:
        model: The model.
        cache: Its cache inputs, at least one.
        past: Tokens in the cache.
        dims: Sizes that the user gave.
        input_shapes: Inputs that the user gave.
        new: Tokens that the model works on; more than one where a text begins.

    Raises:
        Misuse: The inputs cannot be those of so many tokens, or a size has to be given.
    """
    sizes = _Sizes(dims)
    buffers = _are_buffers(model, cache)
    batches: dict[str, None] = {}
    for slot in cache.values():
        shape = _shape_of(slot.value, input_shapes)
        if not slot.axis < len(shape):
            raise Misuse("its rank is not that of a cache", where=f"input {slot.value.name}")
        sizes.settle(shape[slot.axis], past + new if buffers else past, f"input {slot.value.name}", buffers)
        batch = shape[1 if len(shape) == 5 else 0]
        if isinstance(batch, str):
            batches[batch] = None
    others = [v for v in model.graph.feeds if v.name not in cache]
    tokens = _tokens(others)
    if tokens is not None:
        shape = _shape_of(tokens, input_shapes)
        at = 1 if len(shape) > 1 else 0
        sizes.settle(shape[at], new, f"input {tokens.name}")
        if at and isinstance(shape[0], str):
            batches[shape[0]] = None
    assumed = [
        f"batch ({name}) = 1" for name in batches if sizes.known.setdefault(name, 1) and name not in dims
    ]
    step_inputs: dict[str, tuple[str | None, tuple[int, ...]]] = {}
    positions: dict[str, int] = {}
    for value in model.graph.feeds:
        declared = input_shapes.get(value.name, (None, value.shape))
        shape = _shape_of(value, input_shapes)
        mask = len(shape) - 1 if "mask" in value.name.lower() else 0  # the axis of all positions, if not 0
        whole = tuple(
            sizes.of(dim, value.name, total=past + new, mask=0 < mask == at) for at, dim in enumerate(shape)
        )
        step_inputs[value.name] = declared[0], whole
        if value.name in cache:
            positions[value.name] = _enough(whole[cache[value.name].axis], past, value.name)
    written = buffers or any(n > past for n in positions.values())
    return DecodeStep(step_inputs, positions, written, tuple(assumed), sizes.known)


def _enough(positions: int, past: int, name: str) -> int:
    """The positions of a cache, if there are enough for the tokens."""
    if positions < past:
        raise Misuse(
            f"its cache holds {positions:,} tokens at most, not {past:,}",
            where=f"input {name}",
            hint=f"give --past {positions - 1} or less",
        )
    return positions


def whole_text(
    model: Model, tokens: int, dims: Mapping[str, int], input_shapes: Mapping[str, tuple[str | None, Shape]]
) -> dict[str, tuple[str | None, tuple[int, ...]]]:
    """The inputs of a pass over a whole text, for a model that takes no cache.

    Raises:
        Misuse: The text has a fixed length, or a size has to be given.
    """
    text = _tokens(model.graph.feeds)
    if text is None:
        problem = "it takes neither a text nor a cache"
        raise Misuse(problem, where="--past", hint="leave --decode out", code="drop_option")
    sizes = _Sizes(dims)
    shape = _shape_of(text, {})
    at = 1 if len(shape) > 1 else 0
    length = shape[at]
    if not isinstance(length, str):
        raise Misuse(
            f"its text has a fixed length of {length}",
            where=f"input {text.name}",
            hint="export the model with a dynamic sequence, or with its key-value cache as inputs",
        )
    sizes.settle(length, tokens, f"input {text.name}")
    if at and isinstance(shape[0], str):
        sizes.known.setdefault(shape[0], 1)
    return {
        value.name: (
            input_shapes.get(value.name, (None, ()))[0],
            tuple(
                sizes.of(dim, value.name, total=tokens, mask="mask" in value.name.lower())
                for dim in _shape_of(value, {})
            ),
        )
        for value in model.graph.feeds
    }


def _shape_of(value: Value, input_shapes: Mapping[str, tuple[str | None, Shape]]) -> Shape:
    shape = input_shapes[value.name][1] if value.name in input_shapes else value.shape
    if shape is None:
        raise Misuse(
            "its shape is not declared", where=f"input {value.name}", hint="give it by --input-shape"
        )
    return shape


def _tokens(values: Sequence[Value]) -> Value | None:
    """The input that brings the new token: ids, or what they are embedded to."""
    integers = [v for v in values if (v.dtype or "").startswith("int") and v.shape is not None and v.shape]
    named = [v for v in integers if "id" in v.name.lower() and "position" not in v.name.lower()]
    embedded = [v for v in values if "embed" in v.name.lower() or (v.shape is not None and len(v.shape) == 3)]
    return next(iter([*named, *embedded, *integers]), None)


def _are_buffers(model: Model, cache: Cache) -> bool:
    """Whether the cache outputs are declared as long as the inputs."""
    declared = {v.name: v.shape for v in model.graph.outputs}
    for slot in cache.values():
        before, after = slot.value.shape, declared.get(slot.present)
        if before is None or after is None or len(before) != len(after) or slot.axis >= len(before):
            return False
        if before[slot.axis] is None or before[slot.axis] != after[slot.axis]:
            return False
    return True


class _Sizes:
    """Sizes of named dimensions while they become known."""

    def __init__(self, dims: Mapping[str, int]) -> None:
        self.known = dict(dims)

    def settle(self, dim: Dim, size: int, where: str, at_least: bool = False) -> None:
        """Binds a dimension of an input to a size; a fixed one must have it, or be at least as large."""
        current = self.known.setdefault(dim, size) if isinstance(dim, str) else size if dim is None else dim
        if current == size or (at_least and current > size):
            return
        if isinstance(dim, int) and current > size and size != 1:
            return  # a buffer of a fixed size; a buffer that is too small is refused later
        name = f"dimension '{dim}'" if isinstance(dim, str) else "a dimension"
        raise Misuse(
            f"one decode step needs {size:,} where {name} is {current:,}",
            where=where,
            hint="leave --dim out for it, or export the model with a dynamic sequence and cache",
            code="drop_option",
        )

    def of(self, dim: Dim, name: str, *, total: int, mask: bool) -> int:
        """The size of a dimension of the input called `name`."""
        if isinstance(dim, int):
            return dim
        if isinstance(dim, str):
            size = self.term(dim)
            if size is not None:
                return size
            if mask or "total" in dim:
                return self.known.setdefault(dim, total)
        label = dim or "?"
        hint = f"give --dim {dim}=SIZE" if dim else f"give --input-shape {name}:SHAPE"
        raise Misuse(
            f"what its dimension '{label}' is in a decode step is not known", where=f"input {name}", hint=hint
        )

    def term(self, text: str) -> int | None:
        """The value of a name or of a sum of names and numbers."""
        if text in self.known:
            return self.known[text]
        total = 0
        for piece in _TERM.split(text):
            if piece.isdigit():
                total += int(piece)
            elif piece in self.known:
                total += self.known[piece]
            else:
                return None
        return total


def with_cache(analysis: Analysis, cache: Cache, step: DecodeStep, past: int) -> Analysis:
    """The analysis of one step with the bytes of the cache in it, per layer and in total.

    Raises:
        Misuse: A cache output is not one token longer than its input.
    """
    outputs = {t.name: t for t in analysis.info.model.outputs}
    inputs = {t.name: t for t in analysis.info.model.inputs}
    checked = 0
    for name, slot in cache.items():
        after = outputs.get(slot.present)
        if after is None or after.shape is None or slot.axis >= len(after.shape):
            continue
        size, expected = after.shape[slot.axis], step.positions[name] + (0 if step.buffers else 1)
        if isinstance(size, int) and size != expected:
            raise Misuse(
                f"'{slot.present}' would hold {size:,} tokens behind one step, not {expected:,}",
                where=f"input {name}",
                hint="its dimensions are not those of a cache; give them by --dim",
            )
        checked += isinstance(size, int)
    sizes = {name: _cached_bytes(inputs[name], step.positions[name], past) for name in cache}
    parts_by_layer: dict[int, list[int | None]] = {}
    unread = dict(sizes)
    for layer in analysis.layers:
        if layer.group:
            continue
        for tensor in layer.inputs:
            if tensor.name in unread:
                parts_by_layer.setdefault(layer.id, []).append(unread.pop(tensor.name))
    layers = summed(analysis.layers, {at: whole(parts) for at, parts in parts_by_layer.items()})
    totals = replace(analysis.info.totals, kv_cache_bytes=whole(sizes.values()))
    kind = "buffers, written in place" if step.buffers else "one token longer when they come out"
    description = (
        f"{len(sizes):,} cache inputs with {past:,} tokens each ({kind}; {checked:,} checked), one new token"
    )
    decode = {"past": past, "tokens": 1, "how": "; ".join((description, *step.assumed))}
    info = replace(analysis.info, totals=totals, assumptions={**analysis.info.assumptions, "decode": decode})
    return Analysis(info, layers)


def _cached_bytes(info: TensorInfo, positions: int, past: int) -> int | None:
    """Bytes of the tokens in a cache, which may have room for more."""
    size = nbytes(info)
    if size is None or positions == past:
        return size
    return size // positions * past if positions else 0
