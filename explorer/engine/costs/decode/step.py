"""One decode step of a language model: one new token behind N others, for every figure.

A graph that takes its cache as inputs is analysed at the sizes of one step (`cache_inputs`). A model that
runs over a whole text is not made for one step: what a step with a cache would do is derived from passes
over whole texts (`derived`), and every row that is derived says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.engine.costs.decode import kv_cache
from explorer.engine.costs.decode.derive import derive
from explorer.engine.costs.memory.liveness import AnalysisResult, Detail, TensorAccess
from explorer.engine.costs.onnx.leaves import OperatorLeaf
from explorer.engine.costs.onnx.values import GraphContext, parameter_places, traffic
from explorer.engine.graph.model import Model, Node
from explorer.facts import Dim, TensorInfo

Inputs = Mapping[str, tuple[str | None, tuple[int, ...]]]
Look = Callable[[Sequence[OperatorLeaf], Mapping[int, int]], None]


class _Examine(Protocol):
    """Analyses an ONNX model at some sizes; `look` is shown the leaves."""

    def __call__(
        self, *, dims: Mapping[str, int], input_shapes: Inputs, look: Look | None = None
    ) -> AnalysisResult: ...


def step_of_graph(
    model: Model, past: int, dims: Mapping[str, int], input_shapes: Inputs, examine: _Examine
) -> AnalysisResult:
    """Everything known of one decode step of an ONNX model.

    Args:
        model: With its cache as inputs, or over whole texts.
        past: Tokens in the cache.
        dims: Sizes of dimensions, where the user gave them.
        input_shapes: Inputs, where the user gave them.
        examine: Analyses the model with dimensions and inputs of such sizes.

    Raises:
        Misuse: It has no step of one token, or a size has to be given.
    """
    check_past(past)
    cache = kv_cache.find(model)
    if cache.slots:
        step = kv_cache.bind(model, cache, past, dims, input_shapes)
        both = examine(dims=dims, input_shapes=step.input_shapes)
        return AnalysisResult.of(
            kv_cache.with_cache(both.analysis, cache, step, past),
            both.schedule,
            both.bounds,
            lambda: both.flow,
        )

    def of(tokens: int) -> AnalysisResult:
        shapes = kv_cache.whole_text(model, tokens, dims, input_shapes)
        leaves: list[OperatorLeaf] = []
        found = examine(dims=dims, input_shapes=shapes, look=lambda seen, _: leaves.extend(seen))
        return _detailed(found, leaves)

    return step_behind(of, past)


def prefill_of_graph(
    model: Model, tokens: int, dims: Mapping[str, int], input_shapes: Inputs, examine: _Examine
) -> AnalysisResult:
    """A pass over a whole text, with nothing in the cache before it.

    Raises:
        Misuse: It makes no such pass, or a size has to be given.
    """
    cache = kv_cache.find(model)
    if cache.slots:
        shapes = kv_cache.bind(model, cache, 0, dims, input_shapes, new=tokens).input_shapes
    else:
        shapes = kv_cache.whole_text(model, tokens, dims, input_shapes)
    return examine(dims=dims, input_shapes=shapes)


def check_past(past: int) -> None:
    """Refuses a cache that cannot be.

    Raises:
        Misuse: Of fewer tokens than none.
    """
    if past < 0:
        raise Misuse(f"there cannot be {past} tokens in the cache", where="--past", hint="give 0 or more")


def step_behind(of: Callable[[int], AnalysisResult], past: int) -> AnalysisResult:
    """The step behind `past` tokens of a model that `of` analyses over a text of some length."""
    tokens = past + 1
    if past:
        # a shorter text is sure to fit, but one of a single token is worked on otherwise
        other = tokens - 1 if tokens > 2 else tokens + 1
        return derive(of(tokens), of(other), tokens, other)
    found = of(tokens)
    info = found.info
    decode = {"past": 0, "tokens": 1, "how": "a pass over the first token, with nothing in the cache"}
    info = replace(
        info,
        totals=replace(info.totals, kv_cache_bytes=0),
        assumptions={**info.assumptions, "decode": decode},
    )
    return found.with_info(info)


def text_shapes(inputs: Sequence[TensorInfo], tokens: int) -> dict[str, tuple[str | None, tuple[int, ...]]]:
    """The inputs of a module for a text of another length.

    Args:
        inputs: As they are; the first is the text, ids (batch, length) or what they are embedded to.
        tokens: The length.

    Raises:
        Misuse: It takes no text.
    """
    first = inputs[0].shape if inputs else None
    if not first or (len(first) > 2 and not (inputs[0].dtype or "").startswith("int") and len(first) != 3):
        name = inputs[0].name if inputs else "the model"
        raise Misuse("it does not take a text", where=name, hint="a text is ids (batch, length)")
    at = 1 if len(first) > 1 else 0
    length = first[at]
    shapes = {}
    for index, info in enumerate(inputs):
        sizes = tuple(_stretched(d, length, tokens, i >= at) for i, d in enumerate(info.shape or ()))
        shapes[info.name] = info.dtype, _with(sizes, at, tokens) if not index else sizes
    return shapes


def _stretched(dim: Dim, length: Dim, tokens: int, along: bool) -> int:
    """A dimension of an input for a text of another length."""
    size = dim if isinstance(dim, int) else 1
    return tokens if along and dim == length else size


def _with(sizes: tuple[int, ...], at: int, size: int) -> tuple[int, ...]:
    return (*sizes[:at], size, *sizes[at + 1 :])


def _detailed(found: AnalysisResult, leaves: Sequence[OperatorLeaf]) -> AnalysisResult:
    """The execution order of a graph with what each of its operators does."""
    steps = [
        replace(step, detail=_detail(leaves[step.leaf])) if step.leaf >= 0 else step
        for step in found.schedule.steps
    ]
    return found.with_schedule(replace(found.schedule, steps=steps))


def _detail(leaf: OperatorLeaf) -> Detail | None:
    """What an operator of a graph does by itself; None inside a loop or branch."""
    context, node, constants = leaf.context, leaf.node, leaf.constants
    if context.trips != 1 or not leaf.counted:
        return None
    layer = leaf.row()
    known = {t.name: t for t in (*layer.inputs, *layer.weights)}
    inputs = [None if not n else known.get(n) or context.info(n) for n in node.inputs]
    outputs = list(layer.outputs)
    params = {node.inputs[index] for index, _, _ in parameter_places(context, node)}
    moved = traffic(context, node, inputs, outputs, params, constants)
    reads: list[TensorAccess | None] = []
    for name, info in zip(node.inputs, inputs, strict=True):
        stored = name in context.stored or name in constants
        size = moved.sizes.get(name, 0)
        twice = any(m is not None and m.key == context.key(name) for m in reads)
        reads.append(
            None
            if info is None
            else TensorAccess(context.key(name), info.shape, 0 if twice else size, stored)
        )
    flags = any(node.attributes.get(name, 0) for name in ("is_causal", "unidirectional"))
    grouped = node.op == "GroupQueryAttention" and bool(node.attributes.get("causal", 1))
    made = [TensorAccess(key, info.shape, size) for key, info, size in moved.made]
    return Detail(
        _operator(context, node),
        layer.macs,
        layer.elementwise_ops,
        tuple(reads),
        tuple(made),
        causal=flags or grouped,
        axes=_axes(node, len(outputs[0].shape or ()) if outputs else 0, context.opsets.get("", 0)),
    )


def _axes(node: Node, rank: int, opset: int) -> tuple[int, ...]:
    """The axes that a softmax or a normalisation goes over: from `axis` to the last, or `axis` alone."""
    if not rank:
        return ()
    alone = "Softmax" in node.op and opset >= 13
    axis = node.attributes.get("axis", 1 if "Softmax" in node.op and opset < 13 else -1)
    first = axis % rank if isinstance(axis, int) else 0
    return (first,) if alone or node.op == "LpNormalization" else tuple(range(first, rank))


def _operator(context: GraphContext, node: Node) -> str:
    """The operator's type, told apart from others of the same name that work otherwise along a text."""
    if node.domain not in ("", "com.microsoft") or (node.domain and node.op == "Attention"):
        return f"{node.domain}.{node.op}"
    return f"{node.op} backwards" if _backwards(context, node) else node.op


def _backwards(context: GraphContext, node: Node) -> bool:
    """Whether a Slice or a CumSum goes from the end to the start, or which way it goes is not known."""
    if node.op == "CumSum":
        return bool(node.attributes.get("reverse", 0))
    if node.op != "Slice" or len(node.inputs) < 5 or not node.inputs[4]:
        return False
    steps = context.shapes.constants.get(node.inputs[4])
    return steps is None or bool((steps < 0).any())
