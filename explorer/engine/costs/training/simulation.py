"""Simulates a training step of an nn.Module on shapes: which tensors are live when, and their origin.

Forward, backward and the optimizer run on the meta device in training mode. Nothing is computed, but autograd
keeps and releases the same tensors, and adds up gradients in the same order, as in a real step. A tensor is
live from the operator that allocates its storage until nothing references the storage. torch itself decides
which tensors each backward formula saves: a convolution its input, an in-place ReLU its result, dropout its
mask. Attention uses the memory of a single-threaded kernel, as in `info`. Not included are workspaces of
other kernels, rounding and fragmentation of the allocator, and the CUDA context.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Literal

import torch
from msgspec.structs import replace
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from explorer.base.errors import ExplorerError, Misuse, suggest_name
from explorer.engine.compat.torch import (
    DispatchMode,
    buffers_of,
    find_running_compiled_function,
    find_running_step,
    get_step_number,
    is_about_devices,
    is_compiled,
    list_saved_values,
    parameters_of,
    read_sparse_parts,
    replace_attention,
    run_autograd_calls_in,
    storage_key,
)
from explorer.engine.costs.assumption import MAX_DECISION_RUNS, MAX_QUESTIONS
from explorer.engine.costs.aten import device_questions, dispatch, kernels, storages
from explorer.engine.costs.aten.constant_values import choose_device, is_new_floating_point
from explorer.engine.costs.aten.data_dependent import VALUES_BESIDE
from explorer.engine.costs.training.memory import Allocation, MemoryChange, compute_moments
from explorer.engine.costs.training.mixed_values import call_without_values, is_mixed, run_on_zeros
from explorer.engine.formats.torch_module import jagged
from explorer.engine.formats.torch_module.arguments import BoundInputs
from explorer.engine.formats.torch_module.loaded_module import LoadedModule
from explorer.engine.formats.torch_module.modules import (
    find_held_tensors,
    find_unregistered_parameters,
    flatten_tensors,
    list_modules,
    restoring_attributes,
    walk_tensors,
)
from explorer.engine.formats.torch_module.tensor_subclass import is_wrapper, list_inner_tensors
from explorer.engine.runtime.torch_fastpath import restore_modes
from explorer.facts.training import Optimizer, Phase, StepMemory
from explorer.host.gc_pause import pause_garbage_collector
from explorer.host.optional_packages import format_error

OPTIMIZERS: dict[Optimizer, Callable[[Sequence[torch.Tensor]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, foreach=False),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=False),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.1, foreach=False),
}


_NOT_INCLUDED = (
    "as on a CPU: not included are workspaces of kernels other than attention, rounding by the allocator, and"
    " the memory of CUDA itself; on CUDA, the optimizer may update all parameters at once (foreach), with"
    " copies of all of them"
)


class SimulationError(Exception):
    """An error of torch while it runs the step on shapes; the text gives the reason."""


def match_checkpoints(loaded: LoadedModule, globs: Sequence[str]) -> tuple[str, ...]:
    """Returns the paths of the outermost modules with their own forward that match the patterns.

    Raises:
        Misuse: A pattern matches no module; the hint names the nearest path.
    """
    paths = [
        path
        for path, module in loaded.meta().named_modules()
        if path and _has_forward(module) and not isinstance(module, nn.ModuleList)
    ]
    matches: set[str] = set()
    for glob in globs:
        glob_matches = {path for path in paths if fnmatchcase(path, glob)}
        if not glob_matches:
            raise Misuse(
                f"no module is called '{glob}'", where="--checkpoint", hint=suggest_name(glob, paths)
            )
        matches |= glob_matches
    inner = {path for path in paths if any(path.startswith(f"{outer}.") for outer in matches)}
    return tuple(path for path in paths if path in matches - inner)


def _has_forward(module: nn.Module) -> bool:
    """Whether a module has its own forward. The class of a TorchScript module has no readable attribute."""
    return isinstance(module, torch.jit.ScriptModule) or type(module).forward is not nn.Module.forward


def measure_step_memory(
    loaded: LoadedModule, bound_inputs: BoundInputs, optimizer: Optimizer, checkpoints: Sequence[str] = ()
) -> tuple[StepMemory, tuple[str, ...]]:
    """Measures the memory of one training step; also returns notes.

    Args:
        loaded: Model from `loaded_module.load`; its modules are restored afterwards.
        bound_inputs: Inputs of the model.
        optimizer: Optimizer whose state and workspaces are included.
        checkpoints: Paths of modules whose activations the backward pass recomputes.

    Raises:
        SimulationError: The model does not run forward and backward on shapes.
    """
    model, failure = loaded.meta(), ""
    # a tensor with values that the model creates rejects a gradient without values: `zeros.index_add_(...)`;
    # the second attempt in each mode creates these tensors without values
    attempts: tuple[tuple[Literal["train", "eval"], bool], ...] = (
        *(("train", True), ("train", False)),
        *(("eval", True), ("eval", False)),
    )
    for mode, keeps_values in attempts:
        simulate = partial(_simulate_restoring, loaded, bound_inputs, optimizer, mode, checkpoints)
        try:
            fact, function = _simulate_branches(simulate, keeps_values)
        except ExplorerError:
            raise
        except Exception as error:
            failure = failure or format_error(error)
            continue
        compiled = _describe_compiled_part(loaded.original(), function)
        fact = replace(fact, assumption=compiled or fact.assumption)
        limits = _describe_limits(model, failure if mode == "eval" else "")
        return fact, (*filter(None, (fact.assumption,)), *limits)
    raise SimulationError(failure)


def _simulate_restoring(
    loaded: LoadedModule,
    bound_inputs: BoundInputs,
    optimizer: Optimizer,
    mode: Literal["train", "eval"],
    checkpoints: Sequence[str],
    watch: _AllocationObserver,
) -> StepMemory:
    """Simulates a step of the model, and restores its modules afterwards.

    Raises:
        SimulationError: An input is a nested tensor with strided layout, or no gradient is computed.
    """
    model = loaded.meta()
    args, kwargs = bound_inputs.build_arguments(
        device="meta", max_kept_elements=_MAX_KEPT_ELEMENTS, with_gradients=True
    )
    tensors = [t for _, t in walk_tensors([args, kwargs])]
    if any(map(jagged.is_strided, tensors)):
        raise SimulationError(jagged.STRIDED)
    batch = int(tensors[0].shape[0]) if tensors and tensors[0].dim() else None
    try:
        with (
            loaded.quiet(),
            restore_modes(list(model.modules())),
            restoring_attributes(list(model.modules())),
            torch.random.fork_rng(devices=[]),
        ):
            if mode == "train":
                model.train()
            return _simulate(model, args, kwargs, optimizer, batch, mode, checkpoints, watch)
    finally:
        model.zero_grad(set_to_none=True)
        for _, parameter in find_unregistered_parameters(list_modules(model)):
            parameter.grad = None


def _simulate_branches(
    simulate: Callable[[_AllocationObserver], StepMemory], keeps_values: bool
) -> tuple[StepMemory, str]:
    """Simulates a step, and again with other branches if branches depend on values.

    Returns:
        The step that needs more memory, and the name of a compiled function that ran, or ''.
    """
    steps: list[StepMemory] = []
    failure: Exception | None = None
    for answer in (False, True):
        answers: tuple[bool, ...] = ()
        for _ in range(MAX_DECISION_RUNS):
            watch = _AllocationObserver(keeps_values, answers, answer)
            try:
                steps.append(simulate(watch))
            except ExplorerError:
                raise
            except Exception as error:
                failure = failure or error
                # after the failure of a check of the model, the last branch goes the other way
                if len(watch.answers) <= len(answers):
                    break
                answers = (*watch.answers[:-1], not watch.answers[-1])
                continue
            break
        if not watch.answers:
            break
    if not steps:
        assert failure is not None
        raise failure
    step = max(steps, key=lambda step: (step.peak_bytes, step.kept_bytes))
    figures = {(step.peak_bytes, step.kept_bytes) for step in steps}
    if len(watch.answers) > 1 or failure is not None or len(figures) > 1:
        step = replace(step, assumption=_BRANCHES)
    return step, watch.compiled_function


_BRANCHES = (
    "assumed: the outcome of branches that depend on values; of the outcomes that were tried, the one that"
    " needs more memory is counted"
)


def _describe_compiled_part(model: nn.Module, function: str) -> str:
    """Returns the assumption about a part that `torch.compile` has compiled, or '' if there is none.

    Args:
        model: The original model.
        function: Name of a compiled function that ran, or ''.
    """
    path = next((path for path, module in list_modules(model).items() if is_compiled(module)), None)
    name = function if path is None else path or "the model"
    return (
        f"assumed: {name} keeps what it would keep without torch.compile, whose code may keep other tensors"
        if name
        else ""
    )


def _describe_limits(model: nn.Module, failure: str) -> tuple[str, ...]:
    """Returns notes on memory that the figures do not include; `failure` is the error in training, or ''."""
    notes = [_NOT_INCLUDED]
    if failure:
        notes.append(
            f"it does not run in training mode ({failure}): dropout and batch statistics are not included"
        )
    layer = next((path for path, part in model.named_modules() if isinstance(part, nn.RNNBase)), None)
    if layer is not None:
        notes.append(
            f"{layer or 'the model'} is recurrent: its retained memory is that of this machine's CPU (with a"
            " workspace of oneDNN if torch chooses that kernel); cuDNN retains a workspace of another size"
        )
    return tuple(notes)


@pause_garbage_collector()
def _simulate(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    optimizer: Optimizer,
    batch: int | None,
    mode: Literal["train", "eval"],
    checkpoints: Sequence[str],
    watch: _AllocationObserver,
) -> StepMemory:
    """Runs forward, backward and optimizer on shapes; raises SimulationError if no gradient is computed."""
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise SimulationError("no parameter is trained")
    for path, module in model.named_modules():
        for stored_tensor in (*parameters_of(module).values(), *buffers_of(module).values()):
            if stored_tensor is not None:
                watch.record_existing(stored_tensor, "parameters", path)
    inputs = [input_tensor for _, input_tensor in walk_tensors([args, kwargs])]
    for input_tensor in inputs:
        watch.record_existing(input_tensor, "inputs", "")
    torch_optimizer = create_state(OPTIMIZERS[optimizer](trained), trained)
    owners = {id(p): path.rpartition(".")[0] for path, p in model.named_parameters()}
    for parameter, state in torch_optimizer.state.items():
        for _, value in walk_tensors(list(state.values())):
            watch.record_existing(value, "optimizer", owners.get(id(parameter), ""))
    start = list(watch.start)
    with ExitStack() as stack:
        stack.enter_context(torch.enable_grad())
        stack.enter_context(_observe_modules(model, watch, checkpoints))
        stack.enter_context(storages.watch_storages(lambda method: None))
        stack.enter_context(kernels.keep_casts())
        stack.enter_context(run_autograd_calls_in(_CpuKernels))
        stack.enter_context(_CpuKernels())
        stack.enter_context(replace_attention(_run_attention))
        stack.enter_context(watch)
        result = model(*args, **kwargs)
        differentiable_results = [t for _, t in walk_tensors(result) if t.requires_grad]
        if not differentiable_results:
            raise SimulationError("no result of the model has a gradient")
        forward_bytes = watch.live - watch.count_stored(model, differentiable_results)
        if any(map(is_wrapper, differentiable_results)):
            # a loss that reads such a result would keep it, and hide what the model itself keeps
            raise SimulationError("a result of the model is a tensor subclass")
        loss = torch.stack([t.sum().float() for t in differentiable_results]).sum()
        bytes_with_result = watch.live
        del result, differentiable_results
        kept_bytes = forward_bytes - (bytes_with_result - watch.live)
        watch.phase, watch.stack = "backward", [""]
        torch.autograd.backward(loss)  # unlike `loss.backward()`, code in it runs in `_CpuKernels`
        del loss
        for parameter in (*trained, *inputs):
            if parameter.is_leaf and parameter.grad is not None:
                watch.rename(parameter.grad, "gradients", owners.get(id(parameter), ""))
        watch.phase = "step"
        watch.record_change(Allocation("temporary", "", 0))
        torch_optimizer.step()
    return compute_moments(
        *(start, watch.changes),
        batch=batch,
        kept_bytes=kept_bytes,
        counted="autograd",
        mode=mode,
        recomputed_macs=watch.recomputed_macs,
    )


def create_state(
    torch_optimizer: torch.optim.Optimizer, trained: Sequence[torch.Tensor]
) -> torch.optim.Optimizer:
    """Runs a first step of the optimizer, so that its state exists before the measured step."""
    for parameter in trained:
        parameter.grad = torch.empty_like(parameter)
    torch_optimizer.step()
    torch_optimizer.zero_grad(set_to_none=True)
    return torch_optimizer


class _AllocationObserver(DispatchMode):
    """Records allocations and deallocations of operators on the meta device.

    Args:
        keeps_values: Whether floating-point tensors that the model creates on the CPU keep their values.
        first_answers: Answers to the first queries whether a tensor without values is true.
        answer: Answer to the other queries.

    Attributes:
        answers: The answers to the queries so far.
        compiled_function: Name of a function of `torch.compile` that ran, or ''.
        stack: Paths of the running modules, innermost last.
        start, changes: Allocations that exist before the step; then allocations and deallocations, in order.
        live: Live bytes, without the allocations in `start`.
        recomputed_macs: MACs that the backward pass recomputes for checkpoints.
    """

    def __init__(self, keeps_values: bool, first_answers: Sequence[bool], answer: bool) -> None:
        super().__init__()
        self._keeps_values, self._first_answers, self._answer = keeps_values, first_answers, answer
        self.answers: list[bool] = []
        self.compiled_function = ""
        self.phase: Phase = "forward"
        self.stack = [""]
        self.start: list[Allocation] = []
        self.changes: list[MemoryChange] = []
        self.live = self.recomputed_macs = 0
        self._allocations: dict[int, tuple[Allocation, Any]] = {}
        # numbers of autograd nodes, and the module that ran from each number on
        self._places: tuple[list[int], list[str]] = ([0], [""])

    def record_existing(self, tensor: torch.Tensor, kind: Any, path: str) -> None:
        """Records memory that exists before the step and after it."""
        for part in list_inner_tensors(tensor):
            self.record_existing(part, kind, path)
        if is_wrapper(tensor) or not _has_memory(tensor, scalars=kind != "optimizer"):
            return
        storage = tensor.untyped_storage()
        if storage_key(storage) not in self._allocations:
            allocation = Allocation(kind, path, storage.nbytes())
            self._allocations[storage_key(storage)] = allocation, storage
            self.start.append(allocation)

    def enter(self, path: str) -> None:
        """Records that a module starts to run, or starts to run again in the backward pass."""
        self.stack.append(path)
        self._mark(path)

    def leave(self, depth: int) -> None:
        """Records that the modules above `depth` on the stack have ended."""
        del self.stack[depth:]
        self._mark(self.stack[-1])

    def _mark(self, path: str) -> None:
        if self.phase == "forward":
            number = get_step_number()
            if number is not None:
                self._places[0].append(number)
                self._places[1].append(path)

    def find_path(self) -> str:
        """Returns the path of the running module. In the backward pass, its autograd node runs."""
        if self.phase != "backward" or len(self.stack) > 1:
            return self.stack[-1]
        running = find_running_step()
        if running is None:
            return ""
        step, number = running
        if step is None or step.name().endswith("AccumulateGrad"):
            return self.changes[-1].path if self.changes else ""
        numbers, paths = self._places
        return paths[max(0, bisect_right(numbers, number) - 1)]

    def record_change(self, allocation: Allocation, is_new: bool = True) -> None:
        """Records an allocation, or a deallocation if not `is_new`."""
        self.live += allocation.bytes if is_new else -allocation.bytes
        self.changes.append(MemoryChange(self.phase, self.find_path(), allocation, is_new))

    def rename(self, tensor: torch.Tensor, kind: Any, path: str) -> None:
        """Sets the kind and the module of an allocation."""
        for part in (*list_inner_tensors(tensor), *_list_sparse_parts(tensor)):
            self.rename(part, kind, path)
        if tensor.layout is not torch.strided:
            return
        entry = self._allocations.get(storage_key(tensor.untyped_storage()))
        if entry is not None:
            entry[0].kind, entry[0].path = kind, path

    def count_stored(self, model: nn.Module, results: Sequence[torch.Tensor]) -> int:
        """Returns the bytes of activations in attributes of modules that the backward pass does not need."""
        stored_bytes: dict[int, int] = {}
        for _, tensor in find_held_tensors(model, skipped=()):
            if is_wrapper(tensor) or tensor.layout is not torch.strided:
                continue
            key = storage_key(tensor.untyped_storage())
            allocation = self._allocations[key][0] if key in self._allocations else None
            if allocation is not None and allocation.kind == "activations":
                stored_bytes[key] = allocation.bytes
        saved_values = list_saved_values(results) if stored_bytes else None
        if saved_values is None:
            return 0
        for _, tensor in find_held_tensors(saved_values):
            if not is_wrapper(tensor) and tensor.layout is torch.strided:
                stored_bytes.pop(storage_key(tensor.untyped_storage()), None)
        return sum(stored_bytes.values())

    def _record(self, tensor: torch.Tensor) -> None:
        for part in (*list_inner_tensors(tensor), *_list_sparse_parts(tensor)):
            self._record(part)
        if is_wrapper(tensor) or not _has_memory(tensor, scalars=self.phase != "step"):
            return
        storage = tensor.untyped_storage()
        key = storage_key(storage)
        if key in self._allocations:
            return
        is_forward = self.phase == "forward" or len(self.stack) > 1
        allocation = Allocation(
            "activations" if is_forward else "temporary", self.find_path(), storage.nbytes()
        )
        self._allocations[key] = allocation, weakref.ref(storage, lambda _: self._record_free(key))
        self.record_change(allocation)

    def _record_free(self, key: int) -> None:
        self.record_change(self._allocations.pop(key)[0], is_new=False)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.name().partition(".")[0]
        self.compiled_function = self.compiled_function or find_running_compiled_function() or ""
        if name in _QUERIES and args[0].is_meta and (name != _READ or args[0].dtype is torch.bool):
            return self._answer_query()
        if name.startswith("aten::_to_copy") and args[0].is_meta and "device" in kwargs:
            # a copy to another device stays on the meta device
            kwargs = {**kwargs, "device": torch.device("meta")}
        elif not self._keeps_values and is_new_floating_point(name, args, kwargs):
            kwargs = {**kwargs, "device": torch.device("meta")}
        elif not any(tensor.is_meta for tensor in flatten_tensors(args)):
            kwargs = choose_device(name, args, kwargs)
        run = partial(_run_operator, func)
        needs_values = name in VALUES_BESIDE
        try:
            outputs = run(*args, **kwargs)
            # some kernels ignore the device of an operand and return uninitialized numbers
            is_without_values = not needs_values and _is_on_cpu(outputs, args) and is_mixed(args, kwargs)
        except RuntimeError as error:
            if needs_values or not (is_mixed(args, kwargs) or is_about_devices(error)):
                raise
            is_without_values = True
        if is_without_values:
            outputs = call_without_values(run, args, kwargs, scalars=True)
        for _, tensor in walk_tensors(outputs):
            self._record(tensor)
        size = kernels.count_workspace(name, flatten_tensors(args))
        if size:
            workspace = Allocation("temporary", self.find_path(), size)
            self.record_change(workspace)
            self.record_change(workspace, is_new=False)
        if self.phase == "backward" and len(self.stack) > 1:
            self.recomputed_macs += dispatch.compute_cost(func, args, kwargs, outputs).macs or 0
        return outputs

    def _answer_query(self) -> bool:
        number = len(self.answers)
        if number >= MAX_QUESTIONS:
            raise RuntimeError("a loop whose end depends on values does not end on shapes")
        answer = self._first_answers[number] if number < len(self._first_answers) else self._answer
        self.answers.append(answer)
        return answer


def _run_operator(func: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return kernels.run_operator(func, args, kwargs)
    except NotImplementedError:
        if not func.name().partition(".")[0].endswith("_backward"):
            raise
        return run_on_zeros(func, args, kwargs)


def _is_on_cpu(outputs: Any, args: Any) -> bool:
    """Whether an operator returns a new tensor with values although a floating-point operand has none."""
    operands = flatten_tensors(args)
    has_meta_operand = any(tensor.is_meta and tensor.is_floating_point() for tensor in operands)
    return has_meta_operand and any(
        not output.is_meta and not any(output is operand for operand in operands)
        for _, output in walk_tensors(outputs)
    )


def _has_memory(tensor: torch.Tensor, *, scalars: bool) -> bool:
    """Whether a tensor counts as memory of the step: a meta tensor, or one on the CPU.

    Args:
        tensor: Tensor of the step.
        scalars: Whether a scalar on the CPU counts. An optimizer's step counter is on the CPU on any device.
    """
    return tensor.layout is torch.strided and (
        tensor.is_meta or (tensor.is_cpu and (scalars or tensor.dim() > 0))
    )


def _list_sparse_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Returns indices and values of a sparse gradient, such as that of `nn.Embedding(sparse=True)`."""
    if tensor.layout is not torch.sparse_coo or not tensor.is_meta:
        return ()
    return read_sparse_parts(tensor)


@contextmanager
def _observe_modules(
    model: nn.Module, watch: _AllocationObserver, checkpoints: Sequence[str]
) -> Iterator[None]:
    """Reports running modules to `watch`, and applies checkpointing to the modules in `checkpoints`."""
    checkpointed_paths = set(checkpoints)
    forwards = [(path, module) for path, module in model.named_modules() if path]
    originals = [(module, module.__dict__.get("forward")) for _, module in forwards]

    def reporting_forward(path: str, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        depth = len(watch.stack)
        watch.enter(path)
        try:
            return forward(*args, **kwargs)
        finally:
            watch.leave(depth)

    try:
        for path, module in forwards:
            if isinstance(module, torch.jit.ScriptModule):
                continue
            forward = partial(reporting_forward, path, module.forward)
            if path in checkpointed_paths:
                forward = partial(checkpoint, forward, use_reentrant=False)
            module.__dict__["forward"] = forward
        yield
    finally:
        for module, original in originals:
            module.__dict__.pop("forward", None)
            if original is not None:
                module.__dict__["forward"] = original


def _run_kernel(func: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Runs a function that selects a kernel; tensors with values, such as a mask, lose them."""
    run = partial(kernels.run, func)
    if is_mixed(args, kwargs):
        return call_without_values(run, args, kwargs, integers=False)
    return run(*args, **kwargs)


def _run_attention(*args: Any, **kwargs: Any) -> Any:
    """Runs attention that torch's own functions call, such as those of `nn.MultiheadAttention`."""
    return _run_kernel(_ATTENTION, args, kwargs)


class _CpuKernels(TorchFunctionMode):
    """Runs functions that select a kernel, or a dtype under autocast, as on a CPU; for example attention."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name == "__get__" or (name == "type" and len(args) == 1 and not kwargs):
            device_answer = device_questions.report_device(func, args[0])
            return func(*args, **kwargs) if device_answer is None else device_answer
        memory_answer = storages.answer_memory_query(func, args)
        if memory_answer is not None:
            return memory_answer
        func, args, kwargs = device_questions.replace_cpu(func, args, kwargs)
        chooses_kernel = name in kernels.FUNCTIONS
        run = partial(kernels.run, func) if torch.is_autocast_enabled("cpu") else func
        if chooses_kernel:
            return _run_kernel(func, args, kwargs)
        try:
            return run(*args, **kwargs)
        except RuntimeError as error:
            # some functions reject tensors of two devices before they call an operator
            if not is_about_devices(error) or not is_mixed(args, kwargs):
                raise
        return call_without_values(run, args, kwargs)


_READ = "aten::_local_scalar_dense"
_QUERIES = (_READ, "aten::is_nonzero", "aten::equal", "aten::allclose")
"""Operators that may query whether a tensor is true, or equal to another tensor."""

_MAX_KEPT_ELEMENTS = 1 << 16
"""Maximum number of elements of an integer input that keeps its values, because a model may compare them."""

_ATTENTION: Any = nn.functional.scaled_dot_product_attention
