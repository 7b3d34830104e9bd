"""Activations of an ONNX graph: every node's outputs, observed as onnxruntime runs the graph."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import BadModel, Misuse
from explorer.engine import shapes
from explorer.engine.graph.dtypes import get_element_type, get_numpy_type
from explorer.engine.graph.model import DTYPES, Model, Node, get_dtype_code
from explorer.engine.runtime.batching import split_into_batches
from explorer.engine.runtime.input_files import InputSpec
from explorer.engine.runtime.observer import BUDGET, WIDER, Observer, estimate_bytes
from explorer.engine.runtime.random_inputs import InputShapes, draw, plan_inputs
from explorer.engine.values.activations import ActivationRequest, ActivationRun
from explorer.engine.values.numbers import Array, Numbers, make_slabs
from explorer.engine.values.weights import GroupPaths, make_kind_test, select
from explorer.facts import Layer, TensorInfo

_MODULES = "torchvision's name of a model, or FILE.py:callable or package.module:callable"


class _NoOutputError(BadModel):
    """The model failed before any observed output was computed."""


class _Output(Struct, frozen=True):
    """A value to observe.

    Attributes:
        layer: Path of its layer.
        info: Name, type and shape of the value.
        file: Name of the value in a file.
    """

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
    """Runs the model and passes every output of the requested layers to `request.take`.

    Args:
        model: The model.
        layers: Rows of the model's analysis. Globs match their paths.
        request: The input, and the layers to observe.
        dims: Sizes of symbolic dimensions; a missing size is 1.
        input_shapes: Type and shape of inputs that the user chose.

    Raises:
        Misuse: The input does not fit, or a glob matches nothing.
        BadModel: onnxruntime cannot load the model, or it fails before the first requested layer.
        Cancelled: `request.step` raised it.
    """
    if request.backward is not None:
        raise Misuse("only modules have a backward pass", where="--backward", hint=_MODULES)
    runs, texts = _prepare_inputs(model, request, dims, input_shapes)
    request.begin(len(runs))
    feeds = runs[0]
    observed, skipped = _select_outputs(model, layers, request.layers, request.kinds)
    observed = _add_shapes(model, observed, feeds)
    try:
        _observe_outputs(model, observed, runs, request, skipped)
    except _NoOutputError as error:
        report_step = functools.partial(request.step, 0, len(observed))
        path, head = _find_runnable_part(model, layers, feeds, report_step)
        head_values = {name for node in head.graph.nodes for name in node.outputs}
        reached_outputs = [output for output in observed if output.info.name in head_values]
        if not reached_outputs:
            raise
        _observe_outputs(head, reached_outputs, runs, request, skipped)
        skipped[:0] = _list_unreached(path, error.what, observed[len(reached_outputs) :])
    sizes = (
        {}
        if request.user_inputs is None
        else {n: (get_element_type(a), tuple(a.shape)) for n, a in feeds.items()}
    )
    return ActivationRun(texts, tuple(skipped), sizes)


def _observe_outputs(
    model: Model,
    outputs: Sequence[_Output],
    runs: Sequence[Mapping[str, Array]],
    request: ActivationRequest,
    skipped: list[tuple[str, str]],
) -> None:
    """Runs the model for these outputs, in several passes if they do not fit in memory together.

    Args:
        model: The model.
        outputs: The outputs to observe.
        runs: Inputs of each run.
        request: The functions that take the outputs.
        skipped: List to which outputs that are not numeric tensors are added, each with the reason.

    Raises:
        _NoOutputError: The model does not run.
        BadModel: The model ran, but later failed to return an output.
    """
    finished, total = 0, len(outputs) * len(runs)
    for chunk in split_into_batches(outputs, lambda output: estimate_bytes(output.info), BUDGET):
        request.step(finished, total)
        try:
            observer = Observer(model, [output.info for output in chunk])
        except BadModel as error:
            raise error if finished else _NoOutputError(error.what) from error
        for number, feeds in enumerate(runs):
            try:
                values = observer.run(feeds)
            except BadModel as error:
                # every run covers the whole model, so a run that succeeded shows that all nodes work
                raise error if finished else _NoOutputError(error.what) from error
            for output in chunk:
                request.step(finished, total)
                finished += 1
                value = values.pop(output.info.name)
                if isinstance(value, np.ndarray) and value.dtype.kind in "biufcV":
                    request.take(_build_numbers(output, value), 0, output.file)
                elif not number:
                    text = "text" if isinstance(value, np.ndarray) else "a sequence, a map or absent"
                    skipped.append(
                        (output.layer, f"its output '{output.info.name}' is {text}, not a tensor of numbers")
                    )


def _find_runnable_part(
    model: Model, layers: Sequence[Layer], feeds: Mapping[str, Array], step: Callable[[], None]
) -> tuple[str, Model]:
    """Returns the path of the first layer that fails, and the part of the model before that layer.

    Bisection over the nodes finds the layer: the model is cut after a node, and then runs or fails. This also
    works for models that onnxruntime cannot load.
    """
    nodes = model.graph.nodes
    outputs_by_name = {output.info.name: output for output in _select_outputs(model, layers, ())[0]}
    running_count, failing_count = 0, len(nodes)
    while failing_count - running_count > 1:
        step()
        middle = (running_count + failing_count) // 2
        part = _keep_first_nodes(model, middle)
        input_names = {name for node in part.graph.nodes for name in node.inputs}
        # values that no node of the part reads become outputs, so that every node runs
        part_names = [name for node in part.graph.nodes for name in node.outputs]
        output_names = [name for name in part_names if name in outputs_by_name and name not in input_names]
        try:
            Observer(part, [outputs_by_name[name].info for name in output_names]).run(feeds)
        except BadModel:
            failing_count = middle
        else:
            running_count = middle
    path = next(
        (outputs_by_name[name].layer for name in nodes[running_count].outputs if name in outputs_by_name),
        nodes[running_count].label,
    )
    return path, _keep_first_nodes(model, running_count)


def _keep_first_nodes(model: Model, count: int) -> Model:
    """Returns the model with its first `count` nodes only."""
    return replace(model, graph=replace(model.graph, nodes=model.graph.nodes[:count]))


def _list_unreached(path: str, reason: str, outputs: Sequence[_Output]) -> list[tuple[str, str]]:
    """Returns the layer that failed and the layers that were not reached, each with a reason."""
    other_paths = dict.fromkeys(output.layer for output in outputs if output.layer != path)
    return [
        (path, f"failed here: {reason}"),
        *((layer, f"not reached: the model failed in {path}") for layer in other_paths),
    ]


def _prepare_inputs(
    model: Model, request: ActivationRequest, dims: Mapping[str, int] | None, input_shapes: InputShapes | None
) -> tuple[list[dict[str, Array]], tuple[str, ...]]:
    """Returns the inputs of each run, and descriptions of their origins."""
    if request.user_inputs is None:
        rules = plan_inputs(model, dims, input_shapes)
        return [draw(rules, request.seed)], tuple(f"{rule.text()}, seed {request.seed}" for rule in rules)
    sizes = dims or {}
    specs = []
    for value in model.graph.required_inputs:
        shape = value.shape
        if shape is not None:
            shape = tuple(sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in shape)
        specs.append(InputSpec(value.name, value.dtype, shape))
    runs = [part.fit(specs) for part in request.user_inputs.samples(specs, request.batch)]
    return runs, request.user_inputs.texts(runs)


def _select_outputs(
    model: Model, layers: Sequence[Layer], globs: Sequence[str], kinds: Sequence[str] = ()
) -> tuple[list[_Output], list[tuple[str, str]]]:
    """Returns the outputs to observe, in execution order, and the layers that cannot be observed."""
    nodes = [n for n in model.graph.nodes if n.op != "Constant" or n.domain]
    paths = _find_output_rows(nodes, layers)
    outputs = []
    for node in nodes:
        names = [name for name in node.outputs if name]
        for index, name in enumerate(names):
            layer, info = paths.get(name, (node.label, TensorInfo(name, None, None)))
            outputs.append(_Output(layer, info, f"{layer}.{index}" if len(names) > 1 else layer))
    output_paths = {output.layer for output in outputs}
    inner_layers = [
        layer
        for layer in layers
        if not layer.group and layer.kind != "Constant" and layer.path not in output_paths
    ]
    groups = GroupPaths(layers)
    named_entries = [(o.info.name, groups.list_enclosing_paths(o.layer)) for o in outputs]
    named_entries += [(layer.path, groups.list_enclosing_paths(layer.path)) for layer in inner_layers]
    is_selected = select(globs, named_entries, "layer", layers)
    is_of_kind = make_kind_test(kinds, layers)
    owners = [*(o.layer for o in outputs), *(layer.path for layer in inner_layers)]
    is_selected = [
        matches_glob and is_of_kind(path) for matches_glob, path in zip(is_selected, owners, strict=True)
    ]
    skipped = [
        (layer.path, "it lies in the body of a function, branch or loop, whose values stay inside")
        for layer, is_picked in zip(inner_layers, is_selected[len(outputs) :], strict=True)
        if is_picked
    ]
    return [o for o, is_picked in zip(outputs, is_selected, strict=False) if is_picked], skipped


def _find_output_rows(nodes: Sequence[Node], layers: Sequence[Layer]) -> dict[str, tuple[str, TensorInfo]]:
    """Returns the path of the row, and the fact, of each output of the main graph, by name.

    Values inside the body of a function may have the same names, but their rows have other paths.
    """
    labels = {node.label for node in nodes}
    infos: dict[str, tuple[str, TensorInfo]] = {}
    for layer in layers:
        if layer.path in labels or layer.path.rpartition("#")[0] in labels:
            for info in layer.outputs:
                infos.setdefault(info.name, (layer.path, info))
    return infos


def _add_shapes(model: Model, outputs: Sequence[_Output], feeds: Mapping[str, Array]) -> list[_Output]:
    """Returns the outputs with their inferred shapes for these inputs."""
    if all(o.info.shape is not None and all(isinstance(d, int) for d in o.info.shape) for o in outputs):
        return list(outputs)
    info_by_name = shapes.infer(
        model, None, {n: (get_element_type(a), a.shape) for n, a in feeds.items()}
    ).values
    return [replace(o, info=info_by_name.get(o.info.name, o.info)) for o in outputs]


def _build_numbers(output: _Output, array: Array) -> Numbers:
    """Returns an array from onnxruntime as `Numbers`, with its type in the graph."""
    name = output.info.dtype or get_element_type(array)
    size = array.nbytes
    if name in WIDER:
        bits = DTYPES[get_dtype_code(name)].bits
        size = (array.size * bits + 7) // 8
        if name.startswith(("float", "bfloat")):
            array = array.astype(get_numpy_type(name))
    else:
        name = get_element_type(array)
    return Numbers(output.info.name, name, array.shape, size, make_slabs(array), output.layer)
