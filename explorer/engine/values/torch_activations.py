"""Activations of an nn.Module: forward hooks on its modules, while it runs on real weights.

A value is measured inside the hook, before a later module can overwrite it in place, and forgotten there.
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
from explorer.engine.formats.torch_module.modules import dtype_name, shape_of, tensors
from explorer.engine.formats.torch_module.width_mismatch import failure
from explorer.engine.runtime.input_files import InputArrays, InputSpec
from explorer.engine.runtime.random_inputs import RandomInput, by_type, draw
from explorer.engine.runtime.torch_arrays import NUMPY_TYPES
from explorer.engine.runtime.torch_fastpath import restoring_modes
from explorer.engine.values.activations import ActivationRequest, ActivationRun
from explorer.engine.values.torch_gradients import flow_back
from explorer.engine.values.torch_tensors import materialised, numbers_of
from explorer.engine.values.weights import paths_of_kinds, select
from explorer.facts import Layer, TensorInfo
from explorer.host.optional_packages import error_line

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
    """Runs a model on its weights and hands the outputs of its modules to `request.take`.

    Args:
        loaded: The model.
        layers: Its rows, from the analysis: some of them are no modules.
        request: The input, and the layers to watch.
        dims: {'batch': n}.
        input_shapes: Shapes of inputs that the user chose.

    Raises:
        Misuse: The input does not fit, a glob matches nothing, or there is no memory for the weights.
        BadModel: The model cannot be built, or fails on this input before any layer has run.
        Cancelled: From `request.step`.
    """
    shapes = dict(input_shapes or {})
    if request.given is None:
        bound_inputs = bind(loaded, shapes, dims or {})
        inputs, texts = drawn_inputs(loaded, bound_inputs, request.seed)
        sizes: dict[str, tuple[str | None, tuple[int, ...]]] = {}
    else:
        bound_inputs, inputs, texts, sizes = read_inputs(loaded, request.given, shapes, dims or {})
    module = materialised(loaded, lambda: bound_inputs)
    home = next((t.device for t in (*module.parameters(), *module.buffers())), torch.device("cpu"))
    runs = [inputs] if request.given is None else _cut(inputs, request.batch, request.given.path)
    calls = [bound_inputs.call([tensor.to(home) for tensor in run]) for run in runs]
    with loaded.quiet():
        skipped = record(module, calls, request, layers=layers, source=loaded.source)
    many = f", in {len(runs):,} runs" if len(runs) > 1 else ""
    return ActivationRun(tuple(f"{text}{many}" for text in texts), skipped, sizes)


def _cut(inputs: Sequence[torch.Tensor], batch: int | None, path: str) -> list[list[torch.Tensor]]:
    """The inputs of a file in batches of `batch` samples.

    Raises:
        Misuse: The inputs have different numbers of samples.
    """
    counts = {len(tensor) if tensor.dim() else 0 for tensor in inputs}
    if batch is None or counts == {batch}:
        return [list(inputs)]
    if len(counts) != 1 or 0 in counts:
        message = "its arrays hold different numbers of samples"
        raise Misuse(message, where=path, hint="leave --batch out", code="drop_option")
    return [[tensor[at : at + batch] for tensor in inputs] for at in range(0, counts.pop(), batch)]


def drawn_inputs(
    loaded: LoadedModule, bound_inputs: BoundInputs, seed: int
) -> tuple[list[torch.Tensor], list[str]]:
    """The inputs that came with the module, where they have the requested size; else drawn inputs."""
    heights = _heights(loaded, bound_inputs)
    drawn = [_random_input(info, heights.get(info.name, 0)) for info in bound_inputs.inputs]
    arrays = draw(tuple(drawn), seed)
    example_tensors = (
        bound_inputs.example.tensors() if bound_inputs.example is not None else [None] * len(drawn)
    )
    inputs: list[torch.Tensor] = []
    texts: list[str] = []
    for info, drawn_input, mine in zip(bound_inputs.inputs, drawn, example_tensors, strict=True):
        if mine is not None and shape_of(mine) == info.shape and dtype_name(mine.dtype) == info.dtype:
            inputs.append(mine.detach())
            texts.append(f"{printable(info.name)}: {info.dtype} {shape_text(info.shape)}, as given")
        else:
            inputs.append(torch.from_numpy(arrays[info.name]).to(_kind(info)))
            texts.append(f"{replace(drawn_input, dtype=info.dtype or drawn_input.dtype).text()}, seed {seed}")
    return inputs, texts


def read_inputs(
    loaded: LoadedModule, arrays_of_file: InputArrays, shapes: InputShapes, dims: Mapping[str, int]
) -> tuple[BoundInputs, list[torch.Tensor], list[str], dict[str, tuple[str | None, tuple[int, ...]]]]:
    """The inputs in a file, with the file's sizes: a module takes any size that its layers can."""
    try:
        bound_inputs = bind(loaded, shapes, dims)
    except Misuse:
        # for a module that declares no inputs, the file declares them
        bound_inputs = bind(loaded, {**shapes, **_types_and_shapes(loaded, arrays_of_file)}, {})
    # numpy's files have no bfloat16: torch rounds values of another type
    specs = [
        InputSpec(i.name, i.dtype if dtype_name(_kind(i)) in NUMPY_TYPES else None, None)
        for i in bound_inputs.inputs
    ]
    arrays = arrays_of_file.fit(specs)
    sizes = {i.name: (i.dtype, arrays[i.name].shape) for i in bound_inputs.inputs}
    if not bound_inputs.images:
        bound_inputs = bind(loaded, {**shapes, **sizes}, {})
    elif len(kinds := set(sizes.values())) == 1:
        # the analysis treats images of one size as a batch
        dtype, shape = kinds.pop()
        sizes = {bound_inputs.inputs[0].name.partition(".")[0]: (dtype, (len(sizes), *shape))}
    else:
        sizes = {}
    inputs = [torch.from_numpy(np.array(arrays[i.name])).to(_kind(i)) for i in bound_inputs.inputs]
    return bound_inputs, inputs, [arrays_of_file.text(name, array) for name, array in arrays.items()], sizes


def _kind(info: TensorInfo) -> torch.dtype:
    kind: torch.dtype = getattr(torch, info.dtype or "float32")
    return kind


def _random_input(info: TensorInfo, height: int) -> RandomInput:
    """How an input is drawn: as for ONNX, so the same seed gives both the same values.

    Args:
        info: The input.
        height: Rows of the table that it indexes; 0 if it indexes none.
    """
    dtype = dtype_name(_kind(info))
    shape = tuple(int(d) for d in info.shape or () if isinstance(d, int))
    # a type that numpy lacks is drawn in float32 and rounded by torch
    return by_type(info.name, dtype if dtype in NUMPY_TYPES else "float32", shape, lambda: height)


def _types_and_shapes(
    loaded: LoadedModule, arrays_of_file: InputArrays
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Types and shapes of the arrays in a file, by the names of the module's inputs."""
    parameters = inspect.signature(loaded.meta().forward).parameters
    names = list(parameters)
    if list(arrays_of_file.arrays) == [""] and sum(p.default is p.empty for p in parameters.values()) > 1:
        return {}  # an array without a name does not identify one of several inputs
    if len(arrays_of_file.arrays) == 1 and names:
        array = next(iter(arrays_of_file.arrays.values()))
        return {names[0]: (str(array.dtype), array.shape)}
    return {name: (str(array.dtype), array.shape) for name, array in arrays_of_file.arrays.items()}


def _heights(loaded: LoadedModule, bound_inputs: BoundInputs) -> dict[str, int]:
    """For inputs that go into an embedding unchanged: the fewest rows of any such table."""
    if all(_kind(info).is_floating_point for info in bound_inputs.inputs):
        return {}
    args, kwargs = bound_inputs.arguments(device="meta")
    input_tensors = [t for _, t in tensors([list(args), dict(kwargs)])]
    names = {
        storage_key(t.untyped_storage()): info.name
        for t, info in zip(input_tensors, bound_inputs.inputs, strict=False)
    }
    fewest_rows: dict[str, int] = {}

    def look(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if inputs and isinstance(inputs[0], torch.Tensor):
            name = names.get(storage_key(inputs[0].untyped_storage()))
            if name is not None:
                rows = int(module.num_embeddings)  # type: ignore[arg-type]
                fewest_rows[name] = min(fewest_rows.get(name, rows), rows)

    with ExitStack() as stack:
        model = loaded.meta()
        for part in model.modules():
            if isinstance(part, (nn.Embedding, nn.EmbeddingBag)):
                stack.callback(part.register_forward_pre_hook(look).remove)
        try:
            with loaded.quiet(), torch.no_grad():
                model(*args, **kwargs)
        except Exception:
            # keep the tables that were reached; the real run reports the failure
            return fewest_rows
    return fewest_rows


class _Watch:
    """The state that the hooks share: the watched modules, their calls, the place of a failure."""

    def __init__(self, paths_by_id: Mapping[int, str], request: ActivationRequest, runs: int) -> None:
        self.paths_by_id = paths_by_id
        self.request = request
        self.total = len(paths_by_id) * runs
        self.calls: Counter[str] = Counter()
        self.barren: dict[str, str] = {}
        self.failed: tuple[str, BaseException] | None = None
        self.before = sys.exc_info()[1]
        self.done = 0

    def leave(self, module: nn.Module, args: Any, result: Any) -> None:
        path = self.paths_by_id[id(module)]
        self.request.step(self.done, max(self.total, self.done))
        call = self.calls[path]
        self.calls[path] += 1
        has_tensor = False
        for place, tensor in tensors(result):
            has_tensor = True
            name = f"{path}.{place}" if place else path
            self.see(tensor, name, path, call)
        if not has_tensor:
            self.barren[path] = f"its output is no tensor ({type(result).__name__})"

    def see(self, tensor: torch.Tensor, name: str, path: str, call: int) -> None:
        """Hands on an output of a module, or registers for its gradient."""
        if self.request.backward is None:
            self.done += 1
            self.request.take(numbers_of(tensor, name, layer=path), call, name)
            return
        if not tensor.requires_grad:
            self.barren[path] = "nothing flows back to it: its output depends on no parameter and no input"
            return
        self.barren.setdefault(path, "nothing flows back to it: the loss does not depend on its output")

        def back(gradient: torch.Tensor) -> None:
            self.done += 1
            self.barren.pop(path, None)
            self.request.take(numbers_of(gradient, name, layer=path), call, name)

        tensor.register_hook(back)  # type: ignore[no-untyped-call]

    def parameters(self, module: nn.Module, every: bool) -> None:
        """Hands on the gradients of the parameters of watched modules, or of all modules."""
        paths = set(self.paths_by_id.values())
        for name, parameter in module.named_parameters():
            owner = name.rpartition(".")[0]
            scopes = accumulate(owner.split("."), "{}.{}".format) if owner else [type(module).__name__]
            if not every and paths.isdisjoint(scopes):
                continue
            if parameter.grad is not None:
                gradient = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
                numbers = numbers_of(gradient, name, layer=owner or type(module).__name__)
                self.request.take_weight(numbers, 0, name)
            elif not parameter.requires_grad:
                self.barren[name] = "it is frozen: no gradient of it is asked for"
            else:
                self.barren[name] = "nothing flows back to it: the loss does not depend on it"

    def fail(self, path: str) -> Any:
        """A hook that notes the innermost module in which an exception was raised."""

        def hook(module: nn.Module, args: Any, result: Any) -> None:
            error = sys.exc_info()[1]
            if error is None or error is self.before:
                return
            if self.failed is None or self.failed[1] is not error:
                self.failed = path, error

        return hook


def record(
    module: nn.Module,
    calls: Sequence[tuple[Sequence[Any], Mapping[str, Any]]],
    request: ActivationRequest,
    *,
    layers: Sequence[Layer] = (),
    source: str = "",
) -> tuple[tuple[str, str], ...]:
    """Runs `module` in evaluation mode, and hands the outputs of its modules to `request.take`.

    The module is unchanged afterwards: no hooks, no gradients, the same train or eval state.

    Args:
        module: A module with real weights.
        calls: Positional and keyword arguments of its forward, run by run.
        request: The modules to watch: by default every module without children.
        layers: Rows of its analysis: a requested row that is no module is reported.
        source: The user's name for the module.

    Returns:
        The requested layers without output, each with a reason.

    Raises:
        Misuse: A glob or kind matches nothing, or nothing can flow back.
        BadModel: The module fails before any output was taken; the message names the failing submodule.
    """
    named = {path or type(module).__name__: part for path, part in module.named_modules()}
    watched, skipped = _select_paths(named, request, layers)
    request.begin(len(calls))
    watch = _Watch({id(named[path]): path for path in watched}, request, len(calls))
    with ExitStack() as stack:
        stack.enter_context(restoring_modes(module.modules()))
        module.eval()
        for path, part in named.items():
            if isinstance(part, torch.jit.ScriptModule):
                continue
            if id(part) in watch.paths_by_id:
                stack.callback(part.register_forward_hook(watch.leave).remove)
            stack.callback(part.register_forward_hook(watch.fail(path), always_call=True).remove)
        before = 0
        for args, kwargs in calls:
            watch.calls.clear()
            try:
                if request.backward is None:
                    with torch.no_grad():
                        module(*args, **kwargs)
                else:
                    every = not (request.layers or request.kinds)
                    look = partial(watch.parameters, module, every)
                    flow_back(module, args, kwargs, request.backward, request.seed, before, look)
            except ExplorerError:
                raise
            except Exception as error:
                again = partial(module, *args, **kwargs)
                return (*skipped, *_failed(error, watched, watch, source, partial(failure, module, again)))
            before += next((len(t) for _, t in tensors([list(args), dict(kwargs)]) if t.dim()), 0)
    return (*skipped, *_not_run(named, watched, watch), *watch.barren.items())


def _not_run(
    named: Mapping[str, nn.Module], paths: Sequence[str], watch: _Watch
) -> Iterator[tuple[str, str]]:
    """The watched paths without output in a complete run, each with a reason."""
    for path in paths:
        if isinstance(named[path], torch.jit.ScriptModule):
            yield path, "it is compiled, and what compiled code calls cannot be watched"
        elif not watch.calls[path]:
            yield path, "it does not run on these inputs in evaluation mode"


def _failed(
    error: Exception, paths: Sequence[str], watch: _Watch, source: str, why: Callable[..., str]
) -> Iterator[tuple[str, str]]:
    """The watched paths without output in a failed run, each with a reason; `why` describes the error.

    Raises:
        BadModel: The module failed before any output.
    """
    where = watch.failed[0] if watch.failed and watch.failed[1] is error else ""
    if where and watch.done:
        return _after(where, error_line(error), paths, watch)
    raise BadModel(why(error, place=f" in {where}" if where else ""), where=source) from error


def _after(where: str, reason: str, paths: Sequence[str], watch: _Watch) -> Iterator[tuple[str, str]]:
    """The module that failed and the modules that were not reached, in the words of the analysis."""
    yield where, f"failed here: {reason}"
    for path in paths:
        if path in watch.barren:
            yield path, watch.barren[path]
        elif path != where and not watch.calls[path]:
            yield path, f"not reached: the model failed in {where}"


def _select_paths(
    named: Mapping[str, nn.Module], request: ActivationRequest, layers: Sequence[Layer]
) -> tuple[list[str], list[tuple[str, str]]]:
    """Paths of the modules to watch; and of layers that cannot be watched, each with a reason."""
    # a leaf computes as a whole and never calls its submodules
    whole = tuple(f"{path}." for path, part in named.items() if is_leaf(part))
    of_kind = paths_of_kinds(request.kinds, layers)
    if not request.layers:
        leaves = (p for p, m in named.items() if is_leaf(m) and not p.startswith(whole))
        return [path for path in leaves if of_kind(path)], []
    others = [layer.path for layer in layers if layer.path not in named]
    picked = select(request.layers, [(path, ()) for path in (*named, *others)], "layer", layers)
    hit = [
        path for path, is_picked in zip((*named, *others), picked, strict=True) if is_picked and of_kind(path)
    ]
    return [path for path in hit if path in named], [
        (path, "it is an operator that its module calls, and only modules can be watched")
        for path in hit
        if path not in named
    ]
