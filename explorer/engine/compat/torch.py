"""Assumptions about torch that its documentation does not state.

This module imports torch, so only modules that need torch import it.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.autograd.function import BackwardCFunction
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules import module as torch_module
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch

from explorer.base.replacement import Replacement
from explorer.base.version_notes import unmet

OpOverload: type = type(torch.ops.aten.add.Tensor)
"""The class of an operator with its overload, taken from a documented operator."""

MODULE_DICTS = ("_parameters", "_buffers", "_modules")
"""Attributes in which a module keeps its parameters, buffers and submodules; see `get_module_dicts`."""


def get_control_flow_operator(name: str) -> Any:
    """Returns torch's operator for a branch or a loop over functions: 'cond', 'while_loop', 'scan'.

    Assumes: `torch.ops.higher_order` has the operator, and the operator accepts functions instead of graphs
    of an exported program.
    Seen: torch 2.14.
    Otherwise: AttributeError, which is reported as the reason why the export fails.
    """
    return getattr(torch.ops.higher_order, name)


def get_stage_boundary() -> Any:
    """Returns torch's operator that begins a pipeline stage in a traced graph.

    Assumes: `torch.distributed.pipelining` registers its `pipe_split` as `torch.ops.pippy._pipe_split`.
    Seen: torch 2.9 to 2.15.
    Otherwise: AttributeError, which is reported as the reason why torch cannot cut the model.
    """
    return torch.ops.pippy._pipe_split.default


# -- TorchScript

_DEVICE_QUESTIONS = ("prim::device", "prim::is_cpu", "prim::is_meta")
"""Operators of TorchScript whose answers differ between the meta device and the CPU."""


def list_script_classes() -> tuple[type, ...]:
    """Returns the classes of compiled functions and methods, whose calls torch's modes do not see.

    Assumes: `torch.jit.ScriptFunction` and `torch._C.ScriptMethod` are these classes.
    Seen: torch 2.9 to 2.15.
    Otherwise: no class is returned, and a branch on the device in TorchScript is not detected.
    """
    classes = (getattr(torch.jit, "ScriptFunction", None), getattr(torch._C, "ScriptMethod", None))
    return tuple(cls for cls in classes if isinstance(cls, type))


def is_combined_script(step: Any) -> bool:
    """Whether a node of autograd stands for several operators of TorchScript, which autograd did not see.

    Assumes: the name of such a node contains 'DifferentiableGraph'.
    Seen: torch 2.9 to 2.15.
    Otherwise: False, and gradients inside TorchScript that ran before are not counted.
    """
    return "DifferentiableGraph" in str(step.name())


def branches_on_device(function: Any) -> bool:
    """Whether a branch or a loop in TorchScript depends on whether a tensor is on the CPU.

    The answer is kept as long as the function exists.

    Assumes: a copy of the function's `graph` with inlined calls has nodes with blocks, kinds, inputs and
    outputs, as in `torch.jit` of the versions below, and a function has weak references.
    Seen: torch 2.9 to 2.15.
    Otherwise: False, and a branch on the device in TorchScript is not detected.
    """
    try:
        if function not in _BRANCHES:
            graph = function.graph.copy()
            torch._C._jit_pass_inline(graph)
            _BRANCHES[function] = _has_branch_on_device(graph, set())
        return _BRANCHES[function]
    except (AttributeError, TypeError):
        return False


_BRANCHES: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
"""Answers of `branches_on_device` by the function."""


def _has_branch_on_device(block: Any, answers: set[str]) -> bool:
    """Whether a block branches on an answer about a device. Names of such answers are added to `answers`."""
    for node in block.nodes():
        inputs, outputs = list(node.inputs()), list(node.outputs())
        if node.kind() in ("prim::If", "prim::Loop") and any(
            value.debugName() in answers for value in inputs
        ):
            return True
        constants = [value.toIValue() for value in inputs if value.node().kind() == "prim::Constant"]
        # a comparison with 'cuda' has the same result on the CPU and on the meta device
        is_decided = any(
            isinstance(constant, (str, torch.device)) and not str(constant).startswith(("cpu", "meta"))
            for constant in constants
        )
        is_asked = node.kind() in _DEVICE_QUESTIONS or any(value.debugName() in answers for value in inputs)
        if is_asked and not is_decided:
            answers.update(value.debugName() for value in outputs if str(value.type()) != "Tensor")
        if any(_has_branch_on_device(inner, answers) for inner in node.blocks()):
            return True
    return False


# -- compiled modules


def is_compiled(value: Any) -> bool:
    """Whether a module or a function is a result of `torch.compile`.

    Assumes: such a module has the original as `_orig_mod`, or `_compiled_call_impl` after `module.compile()`.
        Such a function has the original as `_torchdynamo_orig_callable`.
    Seen: torch 2.14.
    Otherwise: False, and the memory of a training step counts as that of eager execution, without a mark.
    """
    if isinstance(value, nn.Module):
        parts = vars(value)
        return "_orig_mod" in parts.get("_modules", ()) or parts.get("_compiled_call_impl") is not None
    return hasattr(value, "_torchdynamo_orig_callable")


def find_running_compiled_function() -> str | None:
    """Returns the name of the innermost function of `torch.compile` that runs in this thread, or None.

    Assumes: a result of `torch.compile` is a function `compile_wrapper` of `torch._dynamo.eval_frame`, whose
        variable `fn` is the original.
    Seen: torch 2.15.
    Otherwise: None, and the memory of a training step counts as that of eager execution, without a mark.
    """
    if _EVALUATION not in sys.modules:
        return None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "compile_wrapper" and frame.f_globals.get("__name__") == _EVALUATION:
            return getattr(frame.f_locals.get("fn"), "__name__", "a function")
        frame = frame.f_back
    return None


_EVALUATION = "torch._dynamo.eval_frame"


# -- tensors


def is_about_meta(error: BaseException) -> bool:
    """Whether an error says that a function does not take tensors of the meta device.

    Assumes: the text of such an error names the device, as in 'copy from device meta' or 'is_meta'.
    Seen: torch 2.9 to 2.15.
    Otherwise: False, so that the model is refused with torch's message; `--partial` counts it all the same.
    """
    return "meta" in str(error).lower()


def is_about_devices(error: BaseException) -> bool:
    """Whether an error says that a function does not take tensors of two devices.

    Assumes: the text of such an error contains the word 'device', or 'Device'.
    Seen: torch 2.9 to 2.15.
    Otherwise: False, so that the model is refused with torch's message; `--partial` counts it all the same.
    """
    return "device" in str(error).lower()


def storage_key(storage: Any) -> int:
    """Returns a number that identifies a storage while it exists.

    Tensors that share a storage have the same number.

    Assumes: `_cdata` of a storage is the address of its native part, also on the meta device.
    Seen: torch 2.9 to 2.15.
    Otherwise: the key of `StorageWeakRef` in torch.multiprocessing, which is slower.
    """
    try:
        return storage._cdata  # type: ignore[no-any-return]
    except AttributeError:
        return int(StorageWeakRef(storage).cdata)  # type: ignore[no-untyped-call]


def leaves(values: Any) -> list[Any]:
    """Returns all values in nested tuples, lists, dicts and registered classes.

    Assumes: `torch.utils._pytree.tree_leaves` lists them in the order of torch.export.
    Seen: torch 2.9 to 2.15.
    Otherwise: only tuples, lists and dicts are opened. Another container counts as one value, which fails
    later.
    """
    try:
        from torch.utils._pytree import tree_leaves
    except ImportError:
        return list(_iterate_leaves(values))
    return tree_leaves(values)


def _iterate_leaves(values: Any) -> Iterator[Any]:
    if isinstance(values, Mapping):
        values = tuple(values.values())
    if isinstance(values, tuple | list):
        for value in values:
            yield from _iterate_leaves(value)
    else:
        yield values


# -- operators


def schema_of(operator: Any) -> Any:
    """Returns the schema of an operator overload: its name, arguments and their defaults.

    Assumes: the operator's `_schema` is its schema.
    Seen: torch 2.9 to 2.15.
    Otherwise: the schema that torch registered under the operator's name, which is slower; without it one
    clear error.
    """
    try:
        return operator._schema
    except AttributeError:
        name, _, overload = operator.name().partition(".")
        with unmet("torch", "it does not list the arguments of its operators"):
            return torch._C._get_schema(name, overload)


def get_operator_name(target: Any) -> str:
    """Returns the name of an operator without library and overload, or "" for any other target.

    Assumes: the operator is an `OpOverload` with a name like `aten::add.Tensor`.
    Seen: torch 2.9 to 2.15.
    Otherwise: "", so that the calls of a split model match no row of the layer tree and have no operator.
    """
    if not isinstance(target, OpOverload):
        return ""
    return str(target.name()).partition("::")[2].partition(".")[0]  # type: ignore[attr-defined]


def is_higher_order(target: Any) -> bool:
    """Whether the target of a call in a graph is an operator that takes graphs.

    Assumes: such an operator is a `torch._ops.HigherOrderOperator`.
    Seen: torch 2.9 to 2.15.
    Otherwise: whether the target's namespace is `higher_order`.
    """
    kind = getattr(getattr(torch, "_ops", None), "HigherOrderOperator", None)
    if kind is None:
        return str(getattr(target, "namespace", "")) == "higher_order"
    return isinstance(target, kind)


def find_dense_kernel(operator: Any) -> Any:
    """Returns the function that computes a higher-order operator on tensors with values, or None.

    Assumes: `py_kernels` of the operator contains it under `CompositeExplicitAutograd`.
    Seen: torch 2.14.
    Otherwise: None. The model is counted up to the operator, and the reason names the operator.
    """
    kernels = getattr(operator, "py_kernels", {})
    return kernels.get(getattr(torch._C.DispatchKey, "CompositeExplicitAutograd", None))


def get_flex_attention_in_parts() -> Any:
    """Returns a function that computes flex_attention with matmuls and element-wise operators.

    It takes the arguments of the higher-order operator.

    Assumes: `torch._higher_order_ops.flex_attention.math_attention` is that function.
    Seen: torch 2.14.
    Otherwise: one clear error, which becomes the reason in the row of the attention.
    """
    with unmet("torch", "this version computes flex_attention in another way"):
        from torch._higher_order_ops.flex_attention import math_attention
    return math_attention


# -- modules


def parameters_of(module: nn.Module) -> Mapping[str, nn.Parameter | None]:
    """Returns a module's own parameters by name, with None for a parameter that was registered as None.

    Assumes: the module's `_parameters` is that dictionary.
    Seen: torch 2.9 to 2.15.
    Otherwise: the result of `named_parameters`, which is ten times as slow and omits parameters that are
    None.
    """
    try:
        return module._parameters
    except AttributeError:
        return dict(module.named_parameters(recurse=False, remove_duplicate=False))


def buffers_of(module: nn.Module) -> Mapping[str, torch.Tensor | None]:
    """Returns a module's own buffers by name, with None for a buffer that was registered as None.

    Assumes: the module's `_buffers` is that dictionary.
    Seen: torch 2.9 to 2.15.
    Otherwise: the result of `named_buffers`, which is ten times as slow and omits buffers that are None.
    """
    try:
        return module._buffers
    except AttributeError:
        return dict(module.named_buffers(recurse=False, remove_duplicate=False))


def children_of(module: nn.Module) -> Mapping[str, nn.Module | None]:
    """Returns a module's own children by each of their names, with None for a child registered as None.

    Assumes: the module's `_modules` is that dictionary.
    Seen: torch 2.9 to 2.15.
    Otherwise: the entries of `named_modules` whose names have no dot, which is slower.
    """
    try:
        return module._modules
    except AttributeError:
        named = module.named_modules(remove_duplicate=False)
        return {name: child for name, child in named if name and "." not in name}


def get_module_dicts(module: nn.Module) -> dict[str, dict[str, Any]]:
    """Returns the dictionaries of a module's parameters, buffers and modules, by attribute name.

    Assumes: `vars(module)` contains the dictionaries of `MODULE_DICTS`, and the module reads its state from
    them.
    Seen: torch 2.9 to 2.15.
    Otherwise: one clear error when they are replaced.
    """
    with unmet("torch", "its modules keep their tensors in another place"):
        return {name: vars(module)[name] for name in MODULE_DICTS}


def copy_with_tensors(module: nn.Module, tensors: Mapping[str, torch.Tensor | None]) -> Any:
    """Returns a shallow copy of a layer with other tensors as its parameters.

    Assumes: a copy with another `_parameters` computes with its tensors, whether they are parameters or not.
    Seen: torch 2.9 to 2.15.
    Otherwise: a deep copy whose parameters are set one by one, which needs the layer's memory again.
    """
    if "_parameters" in vars(module):
        layer_copy: Any = copy.copy(module)
        layer_copy._parameters = dict(tensors)
        return layer_copy
    layer_copy = copy.deepcopy(module)
    for name, tensor in tensors.items():
        setattr(layer_copy, name, None if tensor is None else nn.Parameter(tensor, requires_grad=False))
    return layer_copy


def list_forward_pre_hooks(module: nn.Module) -> list[Any]:
    """Returns the hooks that run before a module's forward.

    Assumes: the module's `_forward_pre_hooks` contains them.
    Seen: torch 2.9 to 2.15.
    Otherwise: one clear error, because a module with unknown hooks is not quantized.
    """
    with unmet("torch", "it does not list the hooks of a module"):
        return list(module._forward_pre_hooks.values())


def makes_weight(hook: Any) -> bool:
    """Whether a hook computes a layer's weight, as weight_norm, spectral_norm and pruning do.

    Assumes: the classes of such hooks are defined in `torch.nn.utils`.
    Seen: torch 2.9 to 2.15.
    Otherwise: False. The layer is still not changed, because another check finds that its weight is not a
    parameter.
    """
    return type(hook).__module__.startswith("torch.nn.utils.")


def is_of_torch(module: nn.Module) -> bool:
    """Whether the class of a module belongs to torch, and not to the user or another library.

    Assumes: such a class is defined in a submodule of the package `torch`.
    Seen: torch 2.9 to 2.15.
    Otherwise: the layer counts as the user's, so the rows inside it are listed: more rows with the same sums.
    """
    return type(module).__module__.startswith("torch.")


def is_class_of_torch(kind: type) -> bool:
    """Whether a class belongs to torch.

    Assumes: it is defined in a submodule of the package `torch`.
    Seen: torch 2.9 to 2.15.
    Otherwise: it counts as the user's code, so more runs are compared, and more work may count as unseen.
    """
    return kind.__module__.startswith("torch.")


def list_text_functions() -> list[tuple[Any, str]]:
    """Returns the functions that write a tensor's numbers as text, as pairs of owner and name.

    Assumes: `repr` and `str` of a tensor call `torch._tensor_str._str`.
    Seen: torch 2.9 to 2.15.
    Otherwise: none is returned, and work that reads the numbers through their text is not noticed.
    """
    owner = getattr(torch, "_tensor_str", None)
    return [(owner, "_str")] if callable(getattr(owner, "_str", None)) else []


def is_packed(module: nn.Module) -> bool:
    """Whether a module is a quantized layer of torch, which is a single row whatever submodules it has.

    Assumes: the classes of such layers are those of `torch.ao.nn.quantized`, and of the packages for fused
    and sparse layers.
    Seen: torch 2.9 to 2.15.
    Otherwise: the submodules are rows of unknown work.
    """
    return type(module).__module__.startswith(_PACKED)


_PACKED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "torch.ao.nn.sparse.quantized")


def read_packed_handle(module: nn.Module) -> dict[str, Any]:
    """Returns the packed weights of a compiled quantized layer, by attribute name.

    Assumes: each quantized layer of torch keeps its handle as `_packed_params`. In a compiled layer, no list
    of attributes contains it.
    Seen: torch 2.14.
    Otherwise: the handle is None, and the layer has no parameters.
    """
    name = "_packed_params"
    return {name: getattr(module, name, None)}


def get_layer_state(module: nn.Module) -> dict[str, Any] | None:
    """Returns all attributes of a torch layer, or None if its work may depend on more than these.

    The result is None in training mode, with hooks, and for classes outside `torch.nn.modules`.

    Assumes: in evaluation mode, `vars` of a module contains its settings, its tensors (`MODULE_DICTS`) and
    its hooks.
    Seen: torch 2.9 to 2.15.
    Otherwise: None. No layer's analysis is reused for an equal layer, which is slower.
    """
    attributes = vars(module)
    try:
        if attributes["training"] or not type(module).__module__.startswith("torch.nn.modules."):
            return None
        if attributes["_forward_hooks"] or attributes["_forward_pre_hooks"]:
            return None
        if attributes["_backward_hooks"] or attributes["_backward_pre_hooks"]:
            return None
    except KeyError:
        return None
    return attributes if attributes.keys() >= _DICTS else None


_DICTS = frozenset(MODULE_DICTS)


def has_global_hooks() -> bool:
    """Whether a hook is registered for all modules of the process.

    Assumes: `torch.nn.modules.module` keeps such hooks in four dictionaries.
    Seen: torch 2.9 to 2.15.
    Otherwise: True, so that every module is run, which is slower.
    """
    kind_names = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")
    return any(getattr(torch_module, f"_global_{kind}", True) for kind in kind_names)


apply_of_module: Callable[..., Any] = getattr(nn.Module, "_apply", nn.Module.apply)
"""The method behind `module.to`, to restore the default one on a class that overrides it.

Assumes: it is `nn.Module._apply`. The override in recurrent layers requires their weights in a list.
Seen: torch 2.9 to 2.15.
Otherwise: nothing is restored, and `to` of such a layer uses its override.
"""


# -- observing a running module


class DispatchMode(_python_dispatch.TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Base class of modes that receive every call of an ATen operator in `__torch_dispatch__`.

    Assumes: `torch.utils._python_dispatch` has `TorchDispatchMode`, which torch's manual only mentions.
    torch's compiler wraps the method, to skip it, unless `_should_skip_dynamo` returns False.
    Seen: torch 2.9 to 2.15.
    Otherwise: if the method has another name, the first operator imports the compiler, which takes seconds.
    Without the class no torch model opens, and the error line names the tested versions.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


@contextmanager
def hide_from_modes() -> Iterator[None]:
    """Hides the calls inside the block from all function and dispatch modes.

    Assumes: `torch.utils._python_dispatch._disable_current_modes` removes all modes for the duration of a
    block.
    Seen: torch 2.9 to 2.15.
    Otherwise: one clear error, because these calls would be counted as part of the model.
    """
    with unmet("torch", "it cannot switch off the modes that watch its operators"):
        modes = _python_dispatch._disable_current_modes
    with modes():
        yield


def hide_from_dispatch() -> AbstractContextManager[None]:
    """Hides the operators inside the block from every `__torch_dispatch__`.

    Assumes: `torch._C._DisableTorchDispatch` does that.
    Seen: torch 2.9 to 2.15.
    Otherwise: all modes are removed, which is slower.
    """
    disabled: Callable[[], AbstractContextManager[None]]
    disabled = getattr(torch._C, "_DisableTorchDispatch", hide_from_modes)
    return disabled()


def pop_function_mode(mode: TorchFunctionMode) -> bool:
    """Removes a mode from the stack if it is the innermost one; returns whether it was removed.

    Assumes: functions of `torch._C` return the depth of the stack and its modes, and remove a mode.
    Seen: torch 2.9 to 2.15.
    Otherwise: False. The mode stays and receives calls that it does not need, which is slower.
    """
    try:
        depth = torch._C._len_torch_function_stack()
        if not depth or torch._C._get_function_stack_at(depth - 1) is not mode:
            return False
        # the mode is removed only if `push_function_mode` can restore it
        pop, _ = torch._C._pop_torch_function_stack, torch._C._push_on_torch_function_stack
    except AttributeError:
        return False
    pop()
    return True


def push_function_mode(mode: TorchFunctionMode) -> None:
    """Restores a mode that `pop_function_mode` removed.

    Assumes: a function of `torch._C` pushes the mode on the stack from which `pop_function_mode` removed it.
    Seen: torch 2.9 to 2.15.
    Otherwise: never called, because `pop_function_mode` removed nothing.
    """
    torch._C._push_on_torch_function_stack(mode)


def get_mode_depths() -> tuple[int, int] | None:
    """Returns the numbers of active function modes and dispatch modes, or None if unknown.

    Assumes: functions of `torch._C` return the depth of both stacks.
    Seen: torch 2.9 to 2.15.
    Otherwise: None. No layer's analysis is reused for an equal layer, which is slower.
    """
    try:
        return torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()
    except AttributeError:
        return None


def is_autocast() -> bool:
    """Whether autocast is enabled for any device.

    Assumes: `torch._C._is_any_autocast_enabled` answers for all devices at once.
    Seen: torch 2.9 to 2.15.
    Otherwise: each device type is checked, which is slower.
    """
    answer = getattr(torch._C, "_is_any_autocast_enabled", None)
    if answer is not None:
        return bool(answer())
    return any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda", "mps", "xpu", "meta"))


def is_zero_tensor(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a derivative that is zero everywhere, which forward-mode differentiation stores
    without numbers.

    Assumes: `Tensor._is_zerotensor` says so.
    Seen: torch 2.9 to 2.15.
    Otherwise: False. A cached result may be an ordinary tensor, for which more operators are counted.
    """
    answer = getattr(tensor, "_is_zerotensor", None)
    return answer is not None and bool(answer())


Run = Callable[[Callable[..., Any], nn.Module, Any, Any], Any]
"""A function that calls a module and returns its result.

It takes `nn.Module.__call__`, the module and its arguments.
"""


class _Watching(threading.local):
    """The function that makes the calls of modules in this thread, or None."""

    run: Run | None = None


_WATCHING = _Watching()
_CALLS = threading.Lock()
_watchers = 0
_elsewhere: list[Callable[[nn.Module], None]] = []
"""Functions that receive each module that a thread without its own `run` calls."""
_plain_call: Callable[..., Any] = nn.Module.__call__


def _run_watched_call(self: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    run = _WATCHING.run
    if run is None:
        for report in tuple(_elsewhere):
            report(self)
    return _plain_call(self, *args, **kwargs) if run is None else run(_plain_call, self, args, kwargs)


@contextmanager
def intercept_calls(run: Run, elsewhere: Callable[[nn.Module], None] = lambda module: None) -> Iterator[None]:
    """Lets `run` make the calls of modules in this thread.

    The method of the class is replaced, because hooks on each module would take longer than everything else,
    and would stay on the model if the process were stopped.

    Args:
        run: Makes the calls in this thread.
        elsewhere: Receives each module that a thread without its own `run` calls.

    Assumes: every call of a module uses `nn.Module.__call__`, which can be replaced temporarily.
    Seen: torch 2.9 to 2.15.
    Otherwise: one clear error, because no module would be observed.
    """
    global _plain_call, _watchers
    previous = _WATCHING.run
    with unmet("torch", "its modules are called in another way"):
        vars(nn.Module)["__call__"]
    with _CALLS:
        if not _watchers:
            _plain_call = nn.Module.__call__
            nn.Module.__call__ = _run_watched_call  # type: ignore[method-assign]
        _watchers += 1
        _elsewhere.append(elsewhere)
    _WATCHING.run = run
    try:
        yield
    finally:
        _WATCHING.run = previous
        with _CALLS:
            _watchers -= 1
            _elsewhere.remove(elsewhere)
            if not _watchers:
                nn.Module.__call__ = _plain_call  # type: ignore[method-assign]


@contextmanager
def replace_attributes(replacement: Replacement) -> Iterator[None]:
    """Replaces attributes of torch and of its classes until the last block ends in any thread.

    Assumes: classes of torch (`FloatTensor`), and methods and properties of `torch.Tensor`, `UntypedStorage`
        and `TypedStorage`, can be replaced.
    Seen: torch 2.9 and 2.14.
    Otherwise: one clear error, because code that reads the memory of a tensor would not be seen.
    """
    with contextlib.ExitStack() as stack:
        with unmet("torch", "attributes of its storages cannot be replaced"):
            stack.enter_context(replacement.replaced())
        yield


_ATTENTION = nn.functional.scaled_dot_product_attention
_attention_watchers = 0


class _Attending(threading.local):
    """The function that computes attention in this thread, or None."""

    function: Callable[..., Any] | None = None


_ATTENDING = _Attending()


def _run_watched_attention(*args: Any, **kwargs: Any) -> Any:
    return (_ATTENDING.function or _ATTENTION)(*args, **kwargs)


@contextmanager
def replace_attention(function: Callable[..., Any]) -> Iterator[None]:
    """Replaces `nn.functional.scaled_dot_product_attention` with `function` in this thread only.

    Assumes: modules call it as an attribute of `torch.nn.functional`.
    Seen: torch 2.9 to 2.15.
    Otherwise: attention is not fused, so its scores count as memory, which is an upper bound.
    """
    global _attention_watchers
    previous = _ATTENDING.function
    functions = vars(nn.functional)
    with _CALLS:
        if not _attention_watchers:
            functions["scaled_dot_product_attention"] = _run_watched_attention
        _attention_watchers += 1
    _ATTENDING.function = function
    try:
        yield
    finally:
        _ATTENDING.function = previous
        with _CALLS:
            _attention_watchers -= 1
            if not _attention_watchers:
                functions["scaled_dot_product_attention"] = _ATTENTION


class _Uncompiled(threading.local):
    """Whether functions in this thread run uncompiled."""

    on: bool = False


_UNCOMPILED = _Uncompiled()
_COMPILE: Any = torch.compile
_EAGER = contextlib.ExitStack()
"""Restores the compiler's stance."""
_is_eager = False
_uncompiled_threads = 0


def _compile_unless_watched(model: Any = None, **options: Any) -> Any:
    if not _UNCOMPILED.on:
        return _COMPILE(model, **options)
    return (lambda function: function) if model is None else model


@contextmanager
def disable_compilation() -> Iterator[None]:
    """Runs functions in this thread without compiling them, and without earlier compilations.

    Assumes: `torch.cond` and similar functions compile themselves through the attribute `torch.compile`.
    Seen: torch 2.14.
    Otherwise: the compiler meets our observers, and its error becomes the reason in such a row.
    """
    global _uncompiled_threads, _is_eager
    previous, functions = _UNCOMPILED.on, vars(torch)
    with _CALLS:
        if not _uncompiled_threads:
            functions["compile"] = _compile_unless_watched
        if not _is_eager and "torch._dynamo" in sys.modules:
            # a function that was compiled before calls the compiler. All threads share one stance:
            # the first thread sets it, and the last thread restores it
            _EAGER.enter_context(torch.compiler.set_stance("force_eager"))
            _is_eager = True
        _uncompiled_threads += 1
    _UNCOMPILED.on = True
    try:
        yield
    finally:
        _UNCOMPILED.on = previous
        with _CALLS:
            _uncompiled_threads -= 1
            if not _uncompiled_threads:
                functions["compile"] = _COMPILE
                _EAGER.close()
                _is_eager = False


def map_tensors(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Returns `value` with each tensor in its tuples, lists and dicts replaced by the result of `change`.

    Assumes: the named tuples that torch's functions return are created from a list of their parts.
    Seen: torch 2.9 to 2.15.
    Otherwise: `record_calls_on_cpu` returns None for such a function.
    """
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, tuple | list):
        return _build_like(value, [map_tensors(part, change) for part in value])
    if isinstance(value, dict):
        return {name: map_tensors(part, change) for name, part in value.items()}
    return value


def _build_like(value: Any, parts: list[Any]) -> Any:
    """Creates a container of the class of `value` with other parts."""
    return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)


class _TensorRef:
    """Reference to a tensor of recorded calls by its number."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


class RecordedCalls:
    """The recorded ATen operator calls of a function, which can be repeated with other tensors.

    Attributes:
        calls: Operator, positional arguments, keyword arguments and results of each call. Each tensor is
            replaced by its reference; a result that is not a tensor is None.
        result: The function's result, with references.
        tensors: Number of tensors with a reference. The first ones are the function's arguments.

    Assumes: a function of torch calls the same operators for tensors of the same shapes and types.
    Seen: torch 2.9 to 2.15.
    Otherwise: an operator rejects the tensors, and the message says that the step does not run on shapes.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.result: Any = None
        self.tensors = 0
        self._constants: dict[int, tuple[torch.Tensor, _TensorRef]] = {}

    def create_reference(self) -> _TensorRef:
        """Creates the reference of a new tensor."""
        self.tensors += 1
        return _TensorRef(self.tensors - 1)

    def create_constant(self, tensor: torch.Tensor) -> _TensorRef:
        """Records that the function creates a tensor itself, such as zeros for missing biases.

        Returns the reference of the tensor, whose numbers do not matter.
        """
        if id(tensor) not in self._constants:
            reference = self.create_reference()
            keywords = {"dtype": tensor.dtype, "device": torch.device("meta")}
            self.calls.append((torch.ops.aten.zeros.default, (list(tensor.shape),), keywords, [reference]))
            self._constants[id(tensor)] = tensor, reference
        return self._constants[id(tensor)][1]

    def repeat(
        self,
        args: Any,
        kwargs: Mapping[str, Any],
        call: Callable[[Any, Any, Mapping[str, Any]], Any] | None = None,
    ) -> Any:
        """Repeats the calls with tensors of the recorded shapes; returns the function's result.

        Args:
            args: Positional arguments of the function.
            kwargs: Keyword arguments of the function.
            call: Function that calls an operator with its arguments, or None to call the operator directly.
        """
        tensors: dict[int, torch.Tensor] = {}

        def number_tensor(tensor: torch.Tensor) -> None:
            tensors[len(tensors)] = tensor

        map_tensors((args, dict(kwargs)), number_tensor)
        freed_numbers = self._list_freed_numbers()
        first, _, _, results = self.calls[0]
        # attention that is not fused holds its scaled queries until it ends
        kept_number = (
            results[0].number if get_operator_name(first) == "mul" and results[0] is not None else -1
        )
        for index, (operator, positional, named, results) in enumerate(self.calls):
            arguments, keywords = _fill_tensors(positional, tensors), _fill_tensors(named, tensors)
            outputs = (
                operator(*arguments, **keywords) if call is None else call(operator, arguments, keywords)
            )
            del arguments, keywords
            outputs = outputs if isinstance(outputs, tuple | list) else (outputs,)
            for result, tensor in zip(results, outputs, strict=True):
                if result is not None:
                    tensors[result.number] = tensor
            del outputs, tensor
            # the function frees a tensor that it no longer needs; only autograd may keep it
            for number in freed_numbers[index]:
                if number != kept_number:
                    tensors.pop(number, None)
        return _fill_tensors(self.result, tensors)

    def _list_freed_numbers(self) -> list[list[int]]:
        """Returns for each call the numbers of its tensors that neither a later call nor the result needs."""
        needed: set[int] = set()
        _add_references(self.result, needed)
        freed_numbers: list[list[int]] = []  # from the last call to the first
        for index in range(len(self.calls) - 1, -1, -1):
            operator, positional, named, results = self.calls[index]
            outputs = {result.number for result in results if result is not None}
            sources: set[int] = set()
            _add_references((positional, named), sources)
            freed_numbers.append(sorted((outputs | sources) - needed))
            needed |= outputs | sources
            # a function such as matmul holds its operand while it reads a view or a copy of it
            if get_operator_name(operator) in _LAYOUTS:
                for numbers in freed_numbers:
                    if outputs & set(numbers):
                        numbers.extend(sources & set(freed_numbers[-1]))
                        freed_numbers[-1] = sorted(set(freed_numbers[-1]) - sources)
        return freed_numbers[::-1]


_LAYOUTS = ("_unsafe_view", "clone", "expand", "transpose", "view")
"""Operators that only change the layout of a tensor."""


def _fill_tensors(value: Any, tensors: Mapping[int, torch.Tensor]) -> Any:
    """Returns `value` with each reference in it replaced by its tensor."""
    if isinstance(value, _TensorRef):
        return tensors[value.number]
    if isinstance(value, tuple | list):
        return _build_like(value, [_fill_tensors(part, tensors) for part in value])
    if isinstance(value, dict):
        return {name: _fill_tensors(part, tensors) for name, part in value.items()}
    return value


class _TooLong(Exception):
    """Raised for a function with more calls than the limit."""


class _OnCpu(torch.Tensor):
    """A tensor without values that claims to be on a CPU, and records the operators that are called with it.

    Attributes:
        meta_tensor: The meta tensor inside.
        reference: Reference of this tensor in the recorded calls.
        calls: The recorded calls.
        max_calls: Maximum number of recorded calls.
    """

    meta_tensor: torch.Tensor
    reference: _TensorRef
    calls: RecordedCalls
    max_calls: int

    @staticmethod
    def wrap(inner: torch.Tensor, like: Any, requires_grad: bool = False) -> _OnCpu:
        """Wraps the meta tensor `inner`, which records its operators in `like.calls`."""
        tensor: _OnCpu = torch.Tensor._make_wrapper_subclass(
            *(_OnCpu, inner.shape),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device("cpu"),
            requires_grad=requires_grad,
        )
        tensor.meta_tensor, tensor.calls, tensor.max_calls = inner, like.calls, like.max_calls
        tensor.reference = like.calls.create_reference()
        return tensor

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        wrapped: list[_OnCpu] = []

        def unwrap(tensor: Any) -> Any:
            if not isinstance(tensor, _OnCpu):
                return tensor
            wrapped.append(tensor)
            return tensor.meta_tensor

        positional, named = map_tensors((args, kwargs or {}), unwrap)
        if "device" in named:
            named["device"] = torch.device("meta")
        result = func(*positional, **named)
        calls = wrapped[0].calls
        wrapped_result = map_tensors(result, lambda tensor: _OnCpu.wrap(tensor, wrapped[0]))
        parts = wrapped_result if isinstance(wrapped_result, tuple | list) else (wrapped_result,)

        def get_reference(tensor: Any) -> Any:
            if isinstance(tensor, _OnCpu):
                return tensor.reference
            return calls.create_constant(tensor) if tensor.is_floating_point() and tensor.dim() else tensor

        recorded_args, recorded_kwargs = map_tensors((args, kwargs or {}), get_reference)
        if "device" in recorded_kwargs:
            recorded_kwargs["device"] = named["device"]
        calls.calls.append(
            (func, recorded_args, recorded_kwargs, [getattr(part, "reference", None) for part in parts])
        )
        if len(calls.calls) > wrapped[0].max_calls:
            raise _TooLong
        return wrapped_result


def compute_attention_workspace(
    queries: int, keys: int, width: int, dtype: torch.dtype, *, backward: bool = False
) -> int:
    """Computes the bytes of one thread's work memory in a CPU's fused attention, besides its results.

    Args:
        queries: Number of queries in one head.
        keys: Number of keys in one head.
        width: Width of one head.
        dtype: Type of queries, keys and values.
        backward: Whether the kernel computes gradients.

    Assumes: torch splits queries into blocks of 256, 64 or 32 and keys into blocks of 512. A thread holds
    one block of scores (two for gradients) with its sums, and a copy in the narrower type if there is one.
    Seen: torch 2.9 to 2.15, float64, float32 and bfloat16 without AMX, which packs keys and values as well.
    Otherwise: the figure is off by the memory of one block; no other figure depends on it.
    """
    block_sizes = ((768, 256), (192, 64), (0, 32))
    block = min(queries, next(size for min_queries, size in block_sizes if queries >= min_queries))
    scores = block * min(keys, 512)
    narrow_bytes = dtype.itemsize if dtype.itemsize < 4 else 0
    wide_bytes = max(dtype.itemsize, 4)
    if backward:
        return (2 * scores + block) * wide_bytes + 2 * scores * narrow_bytes
    return (scores + 2 * block + block * width) * wide_bytes + scores * narrow_bytes


_KERNEL_SETTINGS = (
    *("_get_math_sdp_enabled", "_get_flash_sdp_enabled", "_get_mem_efficient_sdp_enabled"),
    *("_get_cudnn_sdp_enabled", "_get_overrideable_sdp_enabled", "_get_sdp_priority_order"),
    *("_get_mkldnn_enabled", "_get_deterministic_algorithms"),
)


def list_kernel_settings() -> tuple[Any, ...]:
    """Returns the settings of torch, other than autocast, that choose the kernel of a function on a CPU.

    `torch.nn.attention.sdpa_kernel` and `torch.backends.mkldnn.flags` change them within a model's forward.

    Assumes: the functions in `_KERNEL_SETTINGS` return them.
    Seen: torch 2.9 to 2.15.
    Otherwise: None in place of a setting. A function that ran before keeps the kernel of its first run.
    """
    questions = (getattr(torch._C, name, None) for name in _KERNEL_SETTINGS)
    values = (None if ask is None else ask() for ask in questions)
    return torch.get_default_dtype(), *(tuple(v) if isinstance(v, list) else v for v in values)


def record_calls_on_cpu(
    function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any], max_calls: int
) -> RecordedCalls | None:
    """Records the operator calls of a function for tensors of these shapes on a CPU.

    Nothing is computed and no memory is allocated. torch checks shapes, strides, types and required gradients
    as for tensors with values.

    Returns:
        The calls, or None if the function fails or makes more than `max_calls` calls.

    Assumes: `torch.Tensor._make_wrapper_subclass` creates a tensor of any device without memory, and torch
    chooses kernels by the properties of such a tensor.
    Seen: torch 2.9 to 2.15.
    Otherwise: None. The function runs as on the meta device, and its figures are upper bounds.
    """
    root = RecordedCalls()

    class _Root:
        calls = root

    _Root.max_calls = max_calls  # type: ignore[attr-defined]

    def stand_in(tensor: torch.Tensor) -> torch.Tensor:
        # the stand-in may live on, so it must not keep the memory of the tensor
        inner = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        return _OnCpu.wrap(inner, _Root, tensor.requires_grad)

    try:
        with hide_from_modes():
            result = function(*map_tensors(tuple(args), stand_in), **map_tensors(dict(kwargs), stand_in))
    except Exception:
        return None
    root.result = map_tensors(result, lambda tensor: tensor.reference)  # type: ignore[attr-defined]
    needed_numbers: set[int] = set()
    _add_references(root.result, needed_numbers)
    needed_calls = []
    # calls whose results are not needed are left out: autograd makes them, not the function
    for call in reversed(root.calls):
        operator, positional, named, results = call
        output_numbers = {reference.number for reference in results if reference is not None}
        if output_numbers & needed_numbers or schema_of(operator).is_mutable:
            _add_references((positional, named), needed_numbers)
            needed_calls.append(call)
    root.calls = needed_calls[::-1]
    return root


def _add_references(value: Any, numbers: set[int]) -> None:
    """Adds the numbers of all references in `value` to `numbers`."""
    if isinstance(value, _TensorRef):
        numbers.add(value.number)
    elif isinstance(value, tuple | list):
        for part in value:
            _add_references(part, numbers)
    elif isinstance(value, dict):
        _add_references(tuple(value.values()), numbers)


# -- autograd


def get_step_number() -> int | None:
    """Returns the number of autograd's next graph node, or None if unknown.

    Later nodes have larger numbers.

    Assumes: `torch._C._autograd._get_sequence_nr` returns it.
    Seen: torch 2.9 to 2.15.
    Otherwise: None. Memory of a backward pass is assigned to the model, and to no module.
    """
    get_number = getattr(getattr(torch._C, "_autograd", None), "_get_sequence_nr", None)
    return None if get_number is None else int(get_number())


def find_running_step() -> tuple[Any, int] | None:
    """Returns the autograd node that runs backward and its number, or None if that is unknown.

    Outside of backward, the pair is (None, -1).

    Assumes: `torch._C._current_autograd_node` returns the node, and its `_sequence_nr` the number.
    Seen: torch 2.9 to 2.15.
    Otherwise: None. Memory of a backward pass is assigned to the model, and to no module.
    """
    try:
        node = torch._C._current_autograd_node()
        return node, -1 if node is None else int(node._sequence_nr())
    except AttributeError:
        return None


HOOKED = "_hooks_of_original"
"""Attribute of a parameter without values that marks gradient hooks on the original parameter."""


def has_gradient_hooks(tensor: torch.Tensor) -> bool:
    """Whether a tensor has hooks that are called with its gradient.

    Assumes: `_backward_hooks` and `_post_accumulate_grad_hooks` of a tensor contain these hooks.
    Seen: torch 2.9 to 2.15.
    Otherwise: False, and the work of such hooks is not noticed.
    """
    hooks = ("_backward_hooks", "_post_accumulate_grad_hooks", HOOKED)
    return any(getattr(tensor, name, None) for name in hooks)


def changes_saved_tensors() -> bool:
    """Whether hooks of the running code replace the tensors that autograd saves for the backward pass.

    Such hooks may compute again in the backward pass, as those of `torch.utils.checkpoint` do. Hooks of
    `torch.autograd.graph`, which only move tensors, do not count.

    Assumes: `torch._C._autograd._top_saved_tensors_default_hooks` returns the innermost pair of hooks, or
    None.
    Seen: torch 2.9 to 2.15.
    Otherwise: False, and the work of such hooks is not noticed.
    """
    get_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    hooks = None if get_hooks is None else get_hooks(True)
    return hooks is not None and any(hook.__module__ != "torch.autograd.graph" for hook in hooks)


def list_saved_values(results: Sequence[torch.Tensor]) -> list[Any] | None:
    """Returns the tensors and attribute dictionaries that the nodes of the autograd graph of results keep.

    Returns:
        The values, or None if a hook of the model replaces a saved tensor.

    Assumes: a node has its saved tensors in attributes that begin with `_raw_saved_`, with `data` and
    `unpack_hook`, and a node of a function in Python has the attributes of its context.
    Seen: torch 2.15.
    Otherwise: None, and tensors that the model itself keeps count as kept for the backward pass.
    """
    values: list[Any] = []
    nodes = [result.grad_fn for result in results]
    visited: set[Any] = set()
    while nodes:
        node = nodes.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        nodes += [inner for inner, _ in node.next_functions]
        values.append(getattr(node, "__dict__", {}))
        for name in dir(node):
            if not name.startswith("_raw_saved_"):
                continue
            tensors = getattr(node, name)
            for tensor in tensors if isinstance(tensors, tuple | list) else (tensors,):
                if tensor is None:
                    continue
                if getattr(tensor, "unpack_hook", tensor) is not None:
                    return None
                values.append(tensor.data)
    return values


_HOOKS = torch.autograd.graph.saved_tensors_hooks
_push_hooks = _HOOKS.__enter__
_apply_backward: Any = BackwardCFunction.apply


class _AutogradMode(threading.local):
    """Creates the function mode in which autograd calls Python code in this thread, or None."""

    create: Callable[[], AbstractContextManager[Any]] | None = None


_AUTOGRAD_MODE = _AutogradMode()


def _enter_hooks(self: Any) -> None:
    """Registers hooks of saved tensors so that they run in the mode of `_AUTOGRAD_MODE`, if one is set."""
    create = _AUTOGRAD_MODE.create
    if create is None:
        return _push_hooks(self)

    def run_in_mode(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(hook)
        def run(value: Any) -> Any:
            with create():
                return hook(value)

        return run

    hooks = self.pack_hook, self.unpack_hook
    self.pack_hook, self.unpack_hook = map(run_in_mode, hooks)
    try:
        return _push_hooks(self)
    finally:
        self.pack_hook, self.unpack_hook = hooks


def _apply_backward_in_mode(self: Any, *gradients: Any) -> Any:
    """Runs `backward` of an `autograd.Function` in the mode of `_AUTOGRAD_MODE`, if one is set."""
    with contextlib.nullcontext() if _AUTOGRAD_MODE.create is None else _AUTOGRAD_MODE.create():
        return _apply_backward(self, *gradients)


_CALLS_IN_MODE = Replacement(
    lambda: [
        (_HOOKS, "__enter__", _enter_hooks),
        (BackwardCFunction, "apply", _apply_backward_in_mode),
    ]
)


@contextmanager
def run_autograd_calls_in(create_mode: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
    """Runs the Python code that autograd calls in this thread in a mode. Autograd calls it outside of modes.

    The code is that of hooks for saved tensors, and `backward` of each `autograd.Function`, such as that of
    reentrant checkpointing.

    Args:
        create_mode: Creates the mode for one call.

    Assumes: `saved_tensors_hooks.__enter__` hands the attributes `pack_hook` and `unpack_hook` to autograd,
    and autograd calls `BackwardCFunction.apply`.
    Seen: torch 2.15.
    Otherwise: a hook that moves a tensor to the CPU copies it, so more memory is counted than is needed, and
    code that computes again in the backward pass keeps other tensors than on a CPU.
    """
    previous = _AUTOGRAD_MODE.create
    with _CALLS_IN_MODE.replaced():
        _AUTOGRAD_MODE.create = create_mode
        try:
            yield
        finally:
            _AUTOGRAD_MODE.create = previous


# -- sparse tensors


def read_sparse_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the indices and values of a COO tensor as they are stored, also if indices occur twice.

    Assumes: a COO tensor has `_indices` and `_values`, as its text and torch's optimizers use them.
    Seen: torch 2.14 to 2.15.
    Otherwise: the indices occur once, and a sparse gradient takes fewer bytes.
    """
    if not (hasattr(tensor, "_indices") and hasattr(tensor, "_values")):
        tensor = tensor.coalesce()
        return tensor.indices(), tensor.values()
    return tensor._indices(), tensor._values()


# -- exporters


def find_export_cause(error: BaseException) -> BaseException:
    """Returns the original error inside the errors of torch's ONNX exporter, which add pages of advice.

    Assumes: the wrapping errors are classes of `torch.onnx` and have a cause.
    Seen: torch 2.9 to 2.15.
    Otherwise: the exporter's message is shown.
    """
    while type(error).__module__.startswith("torch.onnx") and error.__cause__ is not None:
        error = error.__cause__
    return error


@contextlib.contextmanager
def prevent_merging() -> Iterator[None]:
    """Keeps the tracing exporter from merging initializers with equal values.

    It then merges only initializers that share memory, as it does by default for models in training mode.
    Otherwise the biases and norms of a new model, which are all equal, would become one initializer.

    Assumes: `torch._C._jit_pass_onnx_deduplicate_initializers` is the pass, and its last argument selects
    this.
    Seen: torch 2.9 to 2.15.
    Otherwise: initializers with equal values are merged in the exported file, and figures of the file show
    that.
    """
    passes: Any = torch._C
    name = "_jit_pass_onnx_deduplicate_initializers"
    merge = getattr(passes, name, None)
    if merge is None:
        yield
        return
    setattr(passes, name, lambda graph, params, training: merge(graph, params, True))
    try:
        yield
    finally:
        setattr(passes, name, merge)
