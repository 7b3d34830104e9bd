"""Activations of an ONNX graph: every node's outputs, observed as the graph runs in onnxruntime."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import BadModel, Misuse
from explorer.engine import shapes
from explorer.engine.graph.dtypes import element_type, numpy_type
from explorer.engine.graph.model import DTYPES, Model, Node, dtype_code
from explorer.engine.runtime.batching import batches
from explorer.engine.runtime.input_files import InputSpec
from explorer.engine.runtime.observer import BUDGET, WIDER, Observer, nbytes
from explorer.engine.runtime.random_inputs import InputShapes, draw, plan_inputs
from explorer.engine.values.activations import ActivationRequest, ActivationRun
from explorer.engine.values.numbers import Array, Numbers, slabs_of
from explorer.engine.values.weights import GroupPaths, paths_of_kinds, select
from explorer.facts import Layer, TensorInfo

_MODULES = "torchvision's name of a model, or package.module:callable"


class _NoOutput(BadModel):
    """No node of the model has given anything."""


class _Output(Struct, frozen=True):
    """A value to watch, its layer, and its name in a file."""

    layer: str
    info: TensorInfo
    file: str


def run(
    model: Model,
    layers: Sequence[Layer],
    request: ActivationRequest,
    *,
    dims: Mapping[str, int] | None = None,
    input_shapes: InputShapes | None = None,
) -> ActivationRun:
    """Runs the model and hands every output of the requested layers to `request.take`.

    Args:
        model: The model.
        layers: Its rows, from the analysis: globs match their paths.
        request: The input, and the layers to watch.
        dims: Sizes of symbolic dimensions; a missing size is 1.
        input_shapes: Shapes of inputs that the user chose.

    Raises:
        Misuse: The input does not fit, or a glob matches nothing.
        BadModel: onnxruntime cannot load the model, or run it as far as the first of these layers.
        Cancelled: From `request.step`.
    """
    if request.backward is not None:
        raise Misuse("what flows back is known of modules only", where="--backward", hint=_MODULES)
    runs, texts = _feeds(model, request, dims, input_shapes)
    request.begin(len(runs))
    feeds = runs[0]
    observed, skipped = _select_outputs(model, layers, request.layers, request.kinds)
    observed = _with_shapes(model, observed, feeds)
    try:
        _hand_over(model, observed, runs, request, skipped)
    except _NoOutput as error:
        path, head = _as_far_as_it_runs(
            model, layers, feeds, functools.partial(request.step, 0, len(observed))
        )
        head_values = {name for node in head.graph.nodes for name in node.outputs}
        early = [output for output in observed if output.info.name in head_values]
        if not early:
            raise
        _hand_over(head, early, runs, request, skipped)
        skipped[:0] = _after(path, error.what, observed[len(early) :])
    sizes = {} if request.given is None else {n: (element_type(a), tuple(a.shape)) for n, a in feeds.items()}
    return ActivationRun(texts, tuple(skipped), sizes)


def _hand_over(
    model: Model,
    outputs: Sequence[_Output],
    runs: Sequence[Mapping[str, Array]],
    request: ActivationRequest,
    skipped: list[tuple[str, str]],
) -> None:
    """Runs the model for these outputs, in several passes if they do not fit in memory together.

    `runs` are the inputs of each run; outputs that are no tensors of numbers are added to `skipped`.

    Raises:
        _NoOutput: The model does not run.
        BadModel: The model ran, but later failed to return an output.
    """
    done, total = 0, len(outputs) * len(runs)
    for chunk in batches(outputs, lambda output: nbytes(output.info), BUDGET):
        request.step(done, total)
        try:
            observer = Observer(model, [output.info for output in chunk])
        except BadModel as error:
            raise error if done else _NoOutput(error.what) from error
        for number, feeds in enumerate(runs):
            try:
                values = observer.run(feeds)
            except BadModel as error:
                # onnxruntime runs the whole model for any output: once it has returned some, no node is at
                # fault
                raise error if done else _NoOutput(error.what) from error
            for output in chunk:
                request.step(done, total)
                done += 1
                value = values.pop(output.info.name)
                if isinstance(value, np.ndarray) and value.dtype.kind in "biufcV":
                    request.take(_numbers(output, value), 0, output.file)
                elif not number:
                    kind = "text" if isinstance(value, np.ndarray) else "a sequence, a map or absent"
                    skipped.append(
                        (output.layer, f"its output '{output.info.name}' is {kind}, not a tensor of numbers")
                    )


def _as_far_as_it_runs(
    model: Model, layers: Sequence[Layer], feeds: Mapping[str, Array], step: Callable[[], None]
) -> tuple[str, Model]:
    """The first layer at which a model fails, and the model in front of it.

    A bisection over the nodes finds the layer: the model is cut behind a node, and runs or fails. It also
    works for models that onnxruntime cannot load.
    """
    nodes = model.graph.nodes
    outputs_by_name = {output.info.name: output for output in _select_outputs(model, layers, ())[0]}
    works, fails = 0, len(nodes)
    while fails - works > 1:
        step()
        middle = (works + fails) // 2
        part = _up_to(model, middle)
        used = {name for node in part.graph.nodes for name in node.inputs}
        # the outputs are the values that no node of this part uses: so every node runs
        ends = [
            n for node in part.graph.nodes for n in node.outputs if n in outputs_by_name and n not in used
        ]
        try:
            Observer(part, [outputs_by_name[name].info for name in ends]).run(feeds)
        except BadModel:
            fails = middle
        else:
            works = middle
    path = next(
        (outputs_by_name[name].layer for name in nodes[works].outputs if name in outputs_by_name),
        nodes[works].label,
    )
    return path, _up_to(model, works)


def _up_to(model: Model, count: int) -> Model:
    """The model with its first nodes only."""
    return replace(model, graph=replace(model.graph, nodes=model.graph.nodes[:count]))


def _after(path: str, reason: str, outputs: Sequence[_Output]) -> list[tuple[str, str]]:
    """The layer that failed and the layers that were not reached, in the words of the analysis."""
    others = dict.fromkeys(output.layer for output in outputs if output.layer != path)
    return [
        (path, f"failed here: {reason}"),
        *((layer, f"not reached: the model failed in {path}") for layer in others),
    ]


def _feeds(
    model: Model, request: ActivationRequest, dims: Mapping[str, int] | None, input_shapes: InputShapes | None
) -> tuple[list[dict[str, Array]], tuple[str, ...]]:
    """The inputs of each run, and texts that say where they come from."""
    if request.given is None:
        planned = plan_inputs(model, dims, input_shapes)
        return [draw(planned, request.seed)], tuple(
            f"{planned_input.text()}, seed {request.seed}" for planned_input in planned
        )
    sizes = dims or {}
    specs = [
        InputSpec(
            v.name, v.dtype, v.shape and tuple(sizes.get(d, d) if isinstance(d, str) else d for d in v.shape)
        )
        for v in model.graph.feeds
    ]
    runs = [part.fit(specs) for part in request.given.samples(specs, request.batch)]
    return runs, request.given.texts(runs)


def _select_outputs(
    model: Model, layers: Sequence[Layer], globs: Sequence[str], kinds: Sequence[str] = ()
) -> tuple[list[_Output], list[tuple[str, str]]]:
    """The outputs to watch, in execution order; and the layers that cannot be watched, each with a reason."""
    nodes = [n for n in model.graph.nodes if n.op != "Constant" or n.domain]
    paths = _paths(nodes, layers)
    outputs = []
    for node in nodes:
        names = [name for name in node.outputs if name]
        for at, name in enumerate(names):
            layer, info = paths.get(name, (node.label, TensorInfo(name, None, None)))
            outputs.append(_Output(layer, info, f"{layer}.{at}" if len(names) > 1 else layer))
    seen_paths = {output.layer for output in outputs}
    inner = [
        layer
        for layer in layers
        if not layer.group and layer.kind != "Constant" and layer.path not in seen_paths
    ]
    around = GroupPaths(layers)
    entries = [(o.info.name, around.around(o.layer)) for o in outputs]
    entries += [(layer.path, around.around(layer.path)) for layer in inner]
    picked = select(globs, entries, "layer", layers)
    of_kind = paths_of_kinds(kinds, layers)
    owners = [*(o.layer for o in outputs), *(layer.path for layer in inner)]
    picked = [hit and of_kind(path) for hit, path in zip(picked, owners, strict=True)]
    skipped = [
        (layer.path, "it lies in the body of a function, branch or loop, whose values stay inside")
        for layer, is_picked in zip(inner, picked[len(outputs) :], strict=True)
        if is_picked
    ]
    return [o for o, is_picked in zip(outputs, picked, strict=False) if is_picked], skipped


def _paths(nodes: Sequence[Node], layers: Sequence[Layer]) -> dict[str, tuple[str, TensorInfo]]:
    """The row that makes each output of the main graph, and the output's type and shape from the analysis.

    Values inside the body of a function may have the same names; their rows have other paths.
    """
    labels = {node.label for node in nodes}
    infos: dict[str, tuple[str, TensorInfo]] = {}
    for layer in layers:
        if layer.path in labels or layer.path.rpartition("#")[0] in labels:
            for info in layer.outputs:
                infos.setdefault(info.name, (layer.path, info))
    return infos


def _with_shapes(model: Model, outputs: Sequence[_Output], feeds: Mapping[str, Array]) -> list[_Output]:
    """The outputs with their shapes at these inputs, as far as inference goes."""
    if all(o.info.shape is not None and all(isinstance(d, int) for d in o.info.shape) for o in outputs):
        return list(outputs)
    info_by_name = shapes.infer(model, None, {n: (element_type(a), a.shape) for n, a in feeds.items()}).values
    return [replace(o, info=info_by_name.get(o.info.name, o.info)) for o in outputs]


def _numbers(output: _Output, array: Array) -> Numbers:
    """An array from onnxruntime, with the type that it has in the graph."""
    name = output.info.dtype or element_type(array)
    size = array.nbytes
    if name in WIDER:
        bits = DTYPES[dtype_code(name)].bits
        size = (array.size * bits + 7) // 8
        if name.startswith(("float", "bfloat")):
            array = array.astype(numpy_type(name))
    else:
        name = element_type(array)
    return Numbers(output.info.name, name, array.shape, size, slabs_of(array), output.layer)
