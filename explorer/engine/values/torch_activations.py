"""Activations of an nn.Module: forward hooks on its modules, while the module runs on real weights.

A value is measured inside the hook, before a later module can overwrite it in place, and is not stored.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from msgspec.structs import replace
from torch import nn

from explorer.base.errors import BadModel, ExplorerError, Misuse
from explorer.base.units import printable, shape_text
from explorer.engine.compat.torch import storage_key
from explorer.engine.costs.torch.records import is_leaf
from explorer.engine.costs.torch.signature import bind
from explorer.engine.formats.torch_module.modules import format_dtype, shape_of, walk_tensors
from explorer.engine.formats.torch_module.width_mismatch import describe_failure
from explorer.engine.runtime.input_files import InputArrays, InputSpec
from explorer.engine.runtime.random_inputs import RandomInput, choose_rule, draw
from explorer.engine.runtime.torch_arrays import NUMPY_TYPES
from explorer.engine.runtime.torch_fastpath import restore_modes
from explorer.engine.values.activations import ActivationRequest, ActivationRun
from explorer.engine.values.torch_gradients import run_backward
from explorer.engine.values.torch_tensors import build_numbers, build_with_weights
from explorer.engine.values.weights import make_kind_test, select
from explorer.facts import Layer, TensorInfo
from explorer.host.optional_packages import format_error

if TYPE_CHECKING:
    from explorer.engine.formats.torch_module.arguments import BoundInputs
    from explorer.engine.formats.torch_module.loaded_module import LoadedModule

InputShapes = Mapping[str, tuple[str | None, tuple[int, ...]]]


def run(
    loaded: LoadedModule,
    layers: Sequence[Layer],
    request: ActivationRequest,
    *,
    dims: Mapping[str, int] | None = None,
    input_shapes: InputShapes | None = None,
) -> ActivationRun:
    """Runs a model on its weights and passes the outputs of its modules to `request.take`.

    Args:
        loaded: The model.
        layers: Rows of the model's analysis. Some rows are not modules.
        request: The input, and the layers to observe.
        dims: Sizes of symbolic dimensions: {'batch': n}.
        input_shapes: Type and shape of inputs that the user chose.

    Raises:
        Misuse: The input does not fit, a glob matches nothing, or there is no memory for the weights.
        BadModel: The model cannot be built, or fails on this input before any layer has run.
        Cancelled: `request.step` raised it.
    """
    shapes = dict(input_shapes or {})
    if request.user_inputs is None:
        bound_inputs = bind(loaded, shapes, dims or {})
        inputs, texts = draw_inputs(loaded, bound_inputs, request.seed)
        sizes: dict[str, tuple[str | None, tuple[int, ...]]] = {}
    else:
        bound_inputs, inputs, texts, sizes = read_inputs(loaded, request.user_inputs, shapes, dims or {})
    module = build_with_weights(loaded, lambda: bound_inputs)
    device = next((t.device for t in (*module.parameters(), *module.buffers())), torch.device("cpu"))
    runs = (
        [inputs]
        if request.user_inputs is None
        else _divide_into_batches(inputs, request.batch, request.user_inputs.path)
    )
    calls = [bound_inputs.pack_arguments([tensor.to(device) for tensor in run]) for run in runs]
    with loaded.quiet():
        skipped = record(module, calls, request, layers=layers, source=loaded.source)
    runs_text = f", in {len(runs):,} runs" if len(runs) > 1 else ""
    return ActivationRun(tuple(f"{text}{runs_text}" for text in texts), skipped, sizes)


def _divide_into_batches(
    inputs: Sequence[torch.Tensor], batch: int | None, path: str
) -> list[list[torch.Tensor]]:
    """Divides the inputs of a file into batches of `batch` samples.

    Raises:
        Misuse: The inputs have different numbers of samples.
    """
    counts = {len(tensor) if tensor.dim() else 0 for tensor in inputs}
    if batch is None or counts == {batch}:
        return [list(inputs)]
    if len(counts) != 1 or 0 in counts:
        message = "its arrays hold different numbers of samples"
        raise Misuse(message, where=path, hint="leave --batch out", code="drop_option")
    return [[tensor[start : start + batch] for tensor in inputs] for start in range(0, counts.pop(), batch)]


def draw_inputs(
    loaded: LoadedModule, bound_inputs: BoundInputs, seed: int
) -> tuple[list[torch.Tensor], list[str]]:
    """Returns the inputs of a run, and a description of each.

    Example inputs of the module are used if they have the bound type and shape. Other inputs are drawn.
    """
    heights = _find_table_rows(loaded, bound_inputs)
    rules = [_choose_random_input(info, heights.get(info.name, 0)) for info in bound_inputs.inputs]
    arrays = draw(tuple(rules), seed)
    example_tensors = (
        bound_inputs.example.list_tensors() if bound_inputs.example is not None else [None] * len(rules)
    )
    inputs: list[torch.Tensor] = []
    texts: list[str] = []
    for info, rule, example in zip(bound_inputs.inputs, rules, example_tensors, strict=True):
        if (
            example is not None
            and shape_of(example) == info.shape
            and format_dtype(example.dtype) == info.dtype
        ):
            inputs.append(example.detach())
            texts.append(f"{printable(info.name)}: {info.dtype} {shape_text(info.shape)}, as given")
        else:
            inputs.append(torch.from_numpy(arrays[info.name]).to(_get_dtype(info)))
            texts.append(f"{replace(rule, dtype=info.dtype or rule.dtype).text()}, seed {seed}")
    return inputs, texts


def read_inputs(
    loaded: LoadedModule, arrays_of_file: InputArrays, shapes: InputShapes, dims: Mapping[str, int]
) -> tuple[BoundInputs, list[torch.Tensor], list[str], dict[str, tuple[str | None, tuple[int, ...]]]]:
    """Reads the inputs in a file, with the sizes in the file.

    The sizes may differ from the requested sizes, because a module takes any size that its layers support.

    Returns:
        The bound inputs, their tensors, a description of each input, and the type and shape of each input.
    """
    try:
        bound_inputs = bind(loaded, shapes, dims)
    except Misuse:
        # the module declares no input sizes, so the file's sizes are used
        bound_inputs = bind(loaded, {**shapes, **_list_types_and_shapes(loaded, arrays_of_file)}, {})
    # .npy files have no bfloat16, so torch rounds values of another type
    specs = [
        InputSpec(i.name, i.dtype if format_dtype(_get_dtype(i)) in NUMPY_TYPES else None, None)
        for i in bound_inputs.inputs
    ]
    arrays = arrays_of_file.fit(specs)
    sizes = {i.name: (i.dtype, arrays[i.name].shape) for i in bound_inputs.inputs}
    if not bound_inputs.has_image_list:
        bound_inputs = bind(loaded, {**shapes, **sizes}, {})
    elif len(distinct_sizes := set(sizes.values())) == 1:
        # the analysis treats images of one size as a batch
        dtype, shape = distinct_sizes.pop()
        sizes = {bound_inputs.inputs[0].name.partition(".")[0]: (dtype, (len(sizes), *shape))}
    else:
        sizes = {}
    inputs = [torch.from_numpy(np.array(arrays[i.name])).to(_get_dtype(i)) for i in bound_inputs.inputs]
    return bound_inputs, inputs, [arrays_of_file.text(name, array) for name, array in arrays.items()], sizes


def _get_dtype(info: TensorInfo) -> torch.dtype:
    """Returns torch's type of an input; float32 if the input declares none."""
    dtype: torch.dtype = getattr(torch, info.dtype or "float32")
    return dtype


def _choose_random_input(info: TensorInfo, height: int) -> RandomInput:
    """Returns the rule to draw an input. For a seed, an equal ONNX model gets the same input.

    Args:
        info: The input.
        height: Number of rows of the table that the input indexes, or 0 for no table.
    """
    dtype = format_dtype(_get_dtype(info))
    shape = tuple(int(d) for d in info.shape or () if isinstance(d, int))
    # a type that numpy lacks is drawn in float32 and rounded by torch
    return choose_rule(info.name, dtype if dtype in NUMPY_TYPES else "float32", shape, lambda: height)


def _list_types_and_shapes(
    loaded: LoadedModule, arrays_of_file: InputArrays
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Returns the types and shapes of the arrays in a file, by the names of the module's inputs."""
    parameters = inspect.signature(loaded.meta().forward).parameters
    names = list(parameters)
    if list(arrays_of_file.arrays) == [""] and sum(p.default is p.empty for p in parameters.values()) > 1:
        return {}  # an unnamed array does not identify one of several inputs
    if len(arrays_of_file.arrays) == 1 and names:
        array = next(iter(arrays_of_file.arrays.values()))
        return {names[0]: (str(array.dtype), array.shape)}
    return {name: (str(array.dtype), array.shape) for name, array in arrays_of_file.arrays.items()}


def _find_table_rows(loaded: LoadedModule, bound_inputs: BoundInputs) -> dict[str, int]:
    """Returns for each input the smallest number of rows of an embedding table that it indexes directly."""
    if all(_get_dtype(info).is_floating_point for info in bound_inputs.inputs):
        return {}
    args, kwargs = bound_inputs.build_arguments(device="meta")
    input_tensors = [t for _, t in walk_tensors([list(args), dict(kwargs)])]
    names = {
        storage_key(t.untyped_storage()): info.name
        for t, info in zip(input_tensors, bound_inputs.inputs, strict=False)
    }
    fewest_rows: dict[str, int] = {}

    def record_rows(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if inputs and isinstance(inputs[0], torch.Tensor):
            name = names.get(storage_key(inputs[0].untyped_storage()))
            if name is not None:
                rows = int(module.num_embeddings)  # type: ignore[arg-type]
                fewest_rows[name] = min(fewest_rows.get(name, rows), rows)

    with ExitStack() as stack:
        model = loaded.meta()
        for part in model.modules():
            if isinstance(part, (nn.Embedding, nn.EmbeddingBag)):
                stack.callback(part.register_forward_pre_hook(record_rows).remove)
        try:
            with loaded.quiet(), torch.no_grad():
                model(*args, **kwargs)
        except Exception:
            # only the tables reached so far count; the real run reports the failure
            return fewest_rows
    return fewest_rows


class _HookState:
    """The state that the hooks share.

    Attributes:
        paths_by_id: Paths of the observed modules, by their ids.
        request: The input and the layers to observe.
        total: Expected number of outputs of all runs.
        calls: Number of calls of each module in the present run, by path.
        reason_by_path: Reason why a layer or parameter has no output or gradient, by path or name.
        failure: Path of the innermost module that raised an exception, and the exception; None without one.
        earlier_error: Exception that was being handled when the observation started, or None.
        output_count: Number of outputs or gradients so far.
    """

    def __init__(self, paths_by_id: Mapping[int, str], request: ActivationRequest, runs: int) -> None:
        self.paths_by_id = paths_by_id
        self.request = request
        self.total = len(paths_by_id) * runs
        self.calls: Counter[str] = Counter()
        self.reason_by_path: dict[str, str] = {}
        self.failure: tuple[str, BaseException] | None = None
        self.earlier_error = sys.exc_info()[1]
        self.output_count = 0

    def take_outputs(self, module: nn.Module, args: Any, result: Any) -> None:
        """Takes the outputs of a module that has just run. This is a forward hook."""
        path = self.paths_by_id[id(module)]
        self.request.step(self.output_count, max(self.total, self.output_count))
        call = self.calls[path]
        self.calls[path] += 1
        has_tensor = False
        for output_index, tensor in walk_tensors(result):
            has_tensor = True
            name = f"{path}.{output_index}" if output_index else path
            self.take_output(tensor, name, path, call)
        if not has_tensor:
            self.reason_by_path[path] = f"its output is not a tensor ({type(result).__name__})"

    def take_output(self, tensor: torch.Tensor, name: str, path: str, call: int) -> None:
        """Passes on an output of a module, or registers a hook for its gradient."""
        if self.request.backward is None:
            self.output_count += 1
            self.request.take(build_numbers(tensor, name, layer=path), call, name)
            return
        if not tensor.requires_grad:
            self.reason_by_path[path] = "it has no gradient: its output depends on no parameter and no input"
            return
        self.reason_by_path.setdefault(path, "it has no gradient: the loss does not depend on its output")

        def take_gradient(gradient: torch.Tensor) -> None:
            self.output_count += 1
            self.reason_by_path.pop(path, None)
            self.request.take(build_numbers(gradient, name, layer=path), call, name)

        tensor.register_hook(take_gradient)  # type: ignore[no-untyped-call]

    def take_parameter_gradients(self, module: nn.Module, takes_all: bool) -> None:
        """Passes on the gradients of the parameters of observed modules, or of all modules."""
        paths = set(self.paths_by_id.values())
        for name, parameter in module.named_parameters():
            owner = name.rpartition(".")[0]
            scopes = accumulate(owner.split("."), "{}.{}".format) if owner else [type(module).__name__]
            if not takes_all and paths.isdisjoint(scopes):
                continue
            if parameter.grad is not None:
                gradient = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
                numbers = build_numbers(gradient, name, layer=owner or type(module).__name__)
                self.request.take_weight(numbers, 0, name)
            elif not parameter.requires_grad:
                self.reason_by_path[name] = "it is frozen (requires_grad is false), so it has no gradient"
            else:
                self.reason_by_path[name] = "it has no gradient: the loss does not depend on it"

    def make_failure_hook(self, path: str) -> Any:
        """Returns a hook that stores the innermost module in which an exception was raised."""

        def record_failure(module: nn.Module, args: Any, result: Any) -> None:
            error = sys.exc_info()[1]
            if error is None or error is self.earlier_error:
                return
            if self.failure is None or self.failure[1] is not error:
                self.failure = path, error

        return record_failure


def record(
    module: nn.Module,
    calls: Sequence[tuple[Sequence[Any], Mapping[str, Any]]],
    request: ActivationRequest,
    *,
    layers: Sequence[Layer] = (),
    source: str = "",
) -> tuple[tuple[str, str], ...]:
    """Runs `module` in evaluation mode, and passes the outputs of its modules to `request.take`.

    The module is unchanged afterwards: it has no new hooks or gradients, and the same train or eval mode.

    Args:
        module: A module with real weights.
        calls: Positional and keyword arguments of the module's forward, for each run.
        request: The modules to observe: by default every module without children.
        layers: Rows of the module's analysis. A requested row that is not a module is reported.
        source: The user's name of the module.

    Returns:
        The requested layers without output, each with a reason.

    Raises:
        Misuse: A glob or kind matches nothing, or no output has a gradient.
        BadModel: The module fails before any output was measured. The message names the failing submodule.
    """
    module_by_path = {path or type(module).__name__: part for path, part in module.named_modules()}
    observed_paths, skipped = _select_paths(module_by_path, request, layers)
    request.begin(len(calls))
    hooks = _HookState({id(module_by_path[path]): path for path in observed_paths}, request, len(calls))
    with ExitStack() as stack:
        stack.enter_context(restore_modes(module.modules()))
        module.eval()
        for path, part in module_by_path.items():
            if isinstance(part, torch.jit.ScriptModule):
                continue
            if id(part) in hooks.paths_by_id:
                stack.callback(part.register_forward_hook(hooks.take_outputs).remove)
            stack.callback(part.register_forward_hook(hooks.make_failure_hook(path), always_call=True).remove)
        sample_count = 0
        for args, kwargs in calls:
            hooks.calls.clear()
            try:
                if request.backward is None:
                    with torch.no_grad():
                        module(*args, **kwargs)
                else:
                    takes_all = not (request.layers or request.kinds)
                    take_gradients = partial(hooks.take_parameter_gradients, module, takes_all)
                    run_backward(
                        module, args, kwargs, request.backward, request.seed, sample_count, take_gradients
                    )
            except ExplorerError:
                raise
            except Exception as error:
                describe_error = partial(describe_failure, module, partial(module, *args, **kwargs))
                unreached = _explain_failure(error, observed_paths, hooks, source, describe_error)
                return (*skipped, *unreached)
            sample_count += next((len(t) for _, t in walk_tensors([list(args), dict(kwargs)]) if t.dim()), 0)
    return (*skipped, *_list_skipped(module_by_path, observed_paths, hooks), *hooks.reason_by_path.items())


def _list_skipped(
    module_by_path: Mapping[str, nn.Module], paths: Sequence[str], hooks: _HookState
) -> Iterator[tuple[str, str]]:
    """Yields the observed paths without output in a complete run, each with a reason."""
    for path in paths:
        if isinstance(module_by_path[path], torch.jit.ScriptModule):
            yield path, "it is compiled, and what compiled code calls cannot be watched"
        elif not hooks.calls[path]:
            yield path, _build_uncalled_reason(module_by_path[path])


def _build_uncalled_reason(module: nn.Module) -> str:
    """Returns the reason why a module has no output. A plain Module stores weights for another module."""
    cls = type(module)
    if (cls.__module__, cls.__qualname__) == (nn.Module.__module__, nn.Module.__qualname__):
        return (
            "it only stores weights, which the traced code reads; the ONNX file of the model has its values"
        )
    return "it does not run on these inputs in evaluation mode"


def _explain_failure(
    error: Exception, paths: Sequence[str], hooks: _HookState, source: str, describe_error: Callable[..., str]
) -> Iterator[tuple[str, str]]:
    """Returns the observed paths without output in a failed run, each with a reason.

    Args:
        error: The exception.
        paths: Paths of the observed modules.
        hooks: State of the hooks.
        source: The user's name of the module.
        describe_error: Function that describes the error.

    Raises:
        BadModel: The module failed before any output.
    """
    failed_path = hooks.failure[0] if hooks.failure and hooks.failure[1] is error else ""
    if failed_path and hooks.output_count:
        return _list_unreached(failed_path, format_error(error), paths, hooks)
    raise BadModel(
        describe_error(error, place=f" in {failed_path}" if failed_path else ""), where=source
    ) from error


def _list_unreached(
    failed_path: str, reason: str, paths: Sequence[str], hooks: _HookState
) -> Iterator[tuple[str, str]]:
    """Yields the module that failed and the modules that were not reached, each with a reason."""
    yield failed_path, f"failed here: {reason}"
    for path in paths:
        if path in hooks.reason_by_path:
            yield path, hooks.reason_by_path[path]
        elif path != failed_path and not hooks.calls[path]:
            yield path, f"not reached: the model failed in {failed_path}"


def _select_paths(
    module_by_path: Mapping[str, nn.Module], request: ActivationRequest, layers: Sequence[Layer]
) -> tuple[list[str], list[tuple[str, str]]]:
    """Returns the paths of the modules to observe, and the layers that cannot be observed, with reasons."""
    # a leaf module never calls its submodules
    leaf_prefixes = tuple(f"{path}." for path, part in module_by_path.items() if is_leaf(part))
    is_of_kind = make_kind_test(request.kinds, layers)
    if not request.layers:
        leaves = (p for p, m in module_by_path.items() if is_leaf(m) and not p.startswith(leaf_prefixes))
        return [path for path in leaves if is_of_kind(path)], []
    other_rows = [layer.path for layer in layers if layer.path not in module_by_path]
    picked = select(request.layers, [(path, ()) for path in (*module_by_path, *other_rows)], "layer", layers)
    selected = [
        path
        for path, is_picked in zip((*module_by_path, *other_rows), picked, strict=True)
        if is_picked and is_of_kind(path)
    ]
    return [path for path in selected if path in module_by_path], [
        (path, "it is an operator that its module calls, and only modules can be watched")
        for path in selected
        if path not in module_by_path
    ]
