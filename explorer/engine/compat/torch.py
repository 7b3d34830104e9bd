"""Assumptions about torch beyond its documentation. Only files that need torch import this one."""

from __future__ import annotations

import contextlib
import copy
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules import module as torch_module
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch

from explorer.base.version_notes import unmet

OpOverload: type = type(torch.ops.aten.add.Tensor)
"""The class of an operator with its overload, by an operator that is documented."""

MODULE_DICTS = ("_parameters", "_buffers", "_modules")
"""Attributes of a module in which it keeps what is registered; see `module_dicts`."""


def control_flow(name: str) -> Any:
    """The operator of torch for a branch or loop over functions: 'cond', 'while_loop', 'scan'.

    Assumes: `torch.ops.higher_order` has it, and takes functions in place of graphs of an exported program.
    Seen: torch 2.14.
    Otherwise: AttributeError, which is told as what the exporter fails with.
    """
    return getattr(torch.ops.higher_order, name)


# -- tensors


def storage_key(storage: Any) -> int:
    """A number that identifies a storage while it lives; equal for tensors that share it.

    Assumes: `_cdata` of a storage is the address of its native part, on the meta device too.
    Seen: torch 2.9 to 2.15.
    Otherwise: the key that `StorageWeakRef` of torch.multiprocessing has, which takes longer.
    """
    try:
        return storage._cdata  # type: ignore[no-any-return]
    except AttributeError:
        return int(StorageWeakRef(storage).cdata)  # type: ignore[no-untyped-call]


def leaves(values: Any) -> list[Any]:
    """All values in nested tuples, lists, dicts and registered classes.

    Assumes: `torch.utils._pytree.tree_leaves` lists them in the order in which torch.export has them.
    Seen: torch 2.9 to 2.15.
    Otherwise: tuples, lists and dicts are walked here, and another container stays whole, which fails later.
    """
    try:
        from torch.utils._pytree import tree_leaves
    except ImportError:
        return list(_walk(values))
    return tree_leaves(values)


def _walk(values: Any) -> Iterator[Any]:
    if isinstance(values, Mapping):
        values = tuple(values.values())
    if isinstance(values, tuple | list):
        for value in values:
            yield from _walk(value)
    else:
        yield values


# -- operators


def schema_of(operator: Any) -> Any:
    """The schema of an operator with its overload: name, arguments and their defaults.

    Assumes: `_schema` of the operator is its schema.
    Seen: torch 2.9 to 2.15.
    Otherwise: the schema that torch has registered under the operator's name, which takes longer; without it
    one clear error.
    """
    try:
        return operator._schema
    except AttributeError:
        name, _, overload = operator.name().partition(".")
        with unmet("torch", "it does not tell the arguments of its operators"):
            return torch._C._get_schema(name, overload)


def operator_name(target: Any) -> str:
    """The name of an operator without library and overload; "" for anything but a library's operator.

    Assumes: it is the class that `OpOverload` is, with a name like `aten::add.Tensor`.
    Seen: torch 2.9 to 2.15.
    Otherwise: "": the call is matched with no other, and its unit has no operator.
    """
    if not isinstance(target, OpOverload):
        return ""
    return str(target.name()).partition("::")[2].partition(".")[0]  # type: ignore[attr-defined]


def is_higher_order(target: Any) -> bool:
    """Whether a call in a graph is that of an operator that takes graphs.

    Assumes: such an operator is a `torch._ops.HigherOrderOperator`.
    Seen: torch 2.9 to 2.15.
    Otherwise: one whose namespace is `higher_order`.
    """
    kind = getattr(getattr(torch, "_ops", None), "HigherOrderOperator", None)
    if kind is None:
        return str(getattr(target, "namespace", "")) == "higher_order"
    return isinstance(target, kind)


def dense_kernel(operator: Any) -> Any:
    """The function that computes a higher-order operator on tensors with values; None if there is none.

    Assumes: `py_kernels` of the operator has it under `CompositeExplicitAutograd`.
    Seen: torch 2.14.
    Otherwise: None: the model counts up to the operator, and the reason names it.
    """
    kernels = getattr(operator, "py_kernels", {})
    return kernels.get(getattr(torch._C.DispatchKey, "CompositeExplicitAutograd", None))


def flex_attention_in_parts() -> Any:
    """flex_attention by products and elementwise operators, with the arguments of its higher-order operator.

    Assumes: `torch._higher_order_ops.flex_attention.math_attention` computes it so.
    Seen: torch 2.14.
    Otherwise: one clear error, which the row of the attention has as its reason.
    """
    with unmet("torch", "it computes flex_attention in another way"):
        from torch._higher_order_ops.flex_attention import math_attention
    return math_attention


# -- modules


def parameters_of(module: nn.Module) -> Mapping[str, nn.Parameter | None]:
    """A module's own parameters by name; None for one that was registered as None.

    Assumes: `_parameters` of a module is that dictionary.
    Seen: torch 2.9 to 2.15.
    Otherwise: what `named_parameters` says, which takes ten times as long and leaves out what is None.
    """
    try:
        return module._parameters
    except AttributeError:
        return dict(module.named_parameters(recurse=False, remove_duplicate=False))


def buffers_of(module: nn.Module) -> Mapping[str, torch.Tensor | None]:
    """A module's own buffers by name; None for one that was registered as None.

    Assumes: `_buffers` of a module is that dictionary.
    Seen: torch 2.9 to 2.15.
    Otherwise: what `named_buffers` says, which takes ten times as long and leaves out what is None.
    """
    try:
        return module._buffers
    except AttributeError:
        return dict(module.named_buffers(recurse=False, remove_duplicate=False))


def children_of(module: nn.Module) -> Mapping[str, nn.Module | None]:
    """A module's own children by name, under each name; None for one registered as None.

    Assumes: `_modules` of a module is that dictionary.
    Seen: torch 2.9 to 2.15.
    Otherwise: what `named_modules` says of the names without a dot, which takes longer.
    """
    try:
        return module._modules
    except AttributeError:
        named = module.named_modules(remove_duplicate=False)
        return {name: child for name, child in named if name and "." not in name}


def module_dicts(module: nn.Module) -> dict[str, dict[str, Any]]:
    """The dictionaries of a module's parameters, buffers and modules, by the attribute that holds each.

    Assumes: `vars(module)` has them as `MODULE_DICTS`, and a module is what they hold.
    Seen: torch 2.9 to 2.15.
    Otherwise: one clear error where they are to be replaced.
    """
    with unmet("torch", "its modules do not keep their tensors where they did"):
        return {name: vars(module)[name] for name in MODULE_DICTS}


def with_tensors(module: nn.Module, tensors: Mapping[str, torch.Tensor | None]) -> Any:
    """A shallow copy of a layer with other tensors in place of its parameters.

    Assumes: a copy with another `_parameters` computes with those, parameters or plain tensors.
    Seen: torch 2.9 to 2.15.
    Otherwise: a deep copy whose parameters are set one by one, which takes the memory of the layer again.
    """
    if "_parameters" in vars(module):
        twin: Any = copy.copy(module)
        twin._parameters = dict(tensors)
        return twin
    twin = copy.deepcopy(module)
    for name, tensor in tensors.items():
        setattr(twin, name, None if tensor is None else nn.Parameter(tensor, requires_grad=False))
    return twin


def forward_pre_hooks(module: nn.Module) -> list[Any]:
    """The hooks that run before a module's forward.

    Assumes: `_forward_pre_hooks` of a module holds them.
    Seen: torch 2.9 to 2.15.
    Otherwise: one clear error: a module whose hooks cannot be seen is not quantized.
    """
    with unmet("torch", "it does not tell the hooks of a module"):
        return list(module._forward_pre_hooks.values())


def makes_weight(hook: Any) -> bool:
    """Whether a hook computes a layer's weight: weight_norm, spectral_norm, pruning.

    Assumes: the classes of such hooks are those of `torch.nn.utils`.
    Seen: torch 2.9 to 2.15.
    Otherwise: the layer is left alone because its weight is no parameter, which is looked at by itself.
    """
    return type(hook).__module__.startswith("torch.nn.utils.")


def is_of_torch(module: nn.Module) -> bool:
    """Whether the class of a module is torch's own and not a user's or another library's.

    Assumes: such a class is defined below the package `torch`.
    Seen: torch 2.9 to 2.15.
    Otherwise: the layer counts as a user's, and is looked into: more rows, the same sums.
    """
    return type(module).__module__.startswith("torch.")


def is_packed(module: nn.Module) -> bool:
    """Whether a module is a quantized layer of torch, which is one row whatever modules hold its weights.

    Assumes: the classes of such layers are those of `torch.ao.nn.quantized`, and of the fused and the sparse
    kinds beside it.
    Seen: torch 2.9 to 2.15.
    Otherwise: the modules inside it are rows, whose work is not known.
    """
    return type(module).__module__.startswith(_PACKED)


_PACKED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "torch.ao.nn.sparse.quantized")


def packed_handle(module: nn.Module) -> dict[str, Any]:
    """The packed weights of a compiled quantized layer, by attribute.

    Assumes: every quantized layer of torch's keeps its handle as `_packed_params`, also when it is compiled,
        where no list of attributes has it.
    Seen: torch 2.14.
    Otherwise: empty: such a layer has no parameters.
    """
    name = "_packed_params"
    return {name: getattr(module, name, None)}


def layer_state(module: nn.Module) -> dict[str, Any] | None:
    """All attributes of a torch layer; None if it may do more than its class.

    Assumes: `vars` of a module in evaluation holds its settings, its tensors (`MODULE_DICTS`) and its hooks.
    Seen: torch 2.9 to 2.15.
    Otherwise: None: no layer is answered by what another one did, which takes longer.
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
    Otherwise: yes, so that every module is run, which takes longer.
    """
    kinds = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")
    return any(getattr(torch_module, f"_global_{kind}", True) for kind in kinds)


apply_of_module: Callable[..., Any] = getattr(nn.Module, "_apply", nn.Module.apply)
"""The method behind `module.to`, to restore the plain one on a class.

Assumes: that is `nn.Module._apply`; the own one of recurrent layers needs their weights in a list.
Seen: torch 2.9 to 2.15.
Otherwise: nothing is put back: `to` of such a layer goes through its own.
"""


# -- observing a running module


class DispatchMode(_python_dispatch.TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Base of modes that see every call of an ATen operator, by their `__torch_dispatch__`.

    Assumes: `torch.utils._python_dispatch` has `TorchDispatchMode`, as torch's manual says in passing; torch
    wraps the method so that its compiler skips it unless `_should_skip_dynamo` says no.
    Seen: torch 2.9 to 2.15.
    Otherwise: under another name of the question the first operator imports the compiler, in seconds.
    Without the class nothing that needs torch opens, and the error line names the tested versions.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


@contextmanager
def without_modes() -> Iterator[None]:
    """Hides calls inside from all function and dispatch modes.

    Assumes: `torch.utils._python_dispatch._disable_current_modes` takes all modes off for a while.
    Seen: torch 2.9 to 2.15.
    Otherwise: one clear error, as what is called would be counted as part of the model.
    """
    with unmet("torch", "it does not take off those who watch its operators"):
        modes = _python_dispatch._disable_current_modes
    with modes():
        yield


def without_dispatch() -> AbstractContextManager[None]:
    """Hides operators inside from every `__torch_dispatch__`.

    Assumes: `torch._C._DisableTorchDispatch` does that.
    Seen: torch 2.9 to 2.15.
    Otherwise: all modes are taken off, which takes longer.
    """
    disabled: Callable[[], AbstractContextManager[None]]
    disabled = getattr(torch._C, "_DisableTorchDispatch", without_modes)
    return disabled()


def hide(mode: TorchFunctionMode) -> bool:
    """Removes a mode from the stack if it is the innermost one; returns whether it was.

    Assumes: `torch._C` tells the depth of the stack and its modes, and takes them off it.
    Seen: torch 2.9 to 2.15.
    Otherwise: no: the mode stays, and hears what it has no use for, which takes longer.
    """
    try:
        depth = torch._C._len_torch_function_stack()
        if not depth or torch._C._get_function_stack_at(depth - 1) is not mode:
            return False
        take, _ = torch._C._pop_torch_function_stack, torch._C._push_on_torch_function_stack
    except AttributeError:
        return False
    take()
    return True


def show(mode: TorchFunctionMode) -> None:
    """Restores a hidden mode.

    Assumes: `torch._C` puts it onto the stack that `hide` took it from.
    Seen: torch 2.9 to 2.15.
    Otherwise: `hide` has hidden nothing, and nobody asks.
    """
    torch._C._push_on_torch_function_stack(mode)


def mode_depths() -> tuple[int, int] | None:
    """Number of function modes and of dispatch modes; None if unknown.

    Assumes: `torch._C` tells the depth of both stacks.
    Seen: torch 2.9 to 2.15.
    Otherwise: None: no layer is answered by what another one did, which takes longer.
    """
    try:
        return torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()
    except AttributeError:
        return None


def is_autocast() -> bool:
    """Whether autocast is on for any device.

    Assumes: `torch._C._is_any_autocast_enabled` answers for all devices at once.
    Seen: torch 2.9 to 2.15.
    Otherwise: each kind of device is asked, which takes longer.
    """
    answer = getattr(torch._C, "_is_any_autocast_enabled", None)
    if answer is not None:
        return bool(answer())
    return any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda", "mps", "xpu", "meta"))


Run = Callable[[Callable[..., Any], nn.Module, Any, Any], Any]
"""Calls a module and returns its result; takes the call, the module and its arguments."""


class _Watching(threading.local):
    """The function that makes the calls of modules in this thread."""

    run: Run | None = None


_WATCHING = _Watching()
_CALLS = threading.Lock()
_watchers = 0
_elsewhere: list[Callable[[nn.Module], None]] = []
_plain_call: Callable[..., Any] = nn.Module.__call__


def _watched_call(self: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    run = _WATCHING.run
    if run is None:
        for noted in tuple(_elsewhere):
            noted(self)
    return _plain_call(self, *args, **kwargs) if run is None else run(_plain_call, self, args, kwargs)


@contextmanager
def listening(run: Run, elsewhere: Callable[[nn.Module], None] = lambda module: None) -> Iterator[None]:
    """Lets `run` make the calls of modules in this thread; `elsewhere` is called for other threads.

    This replaces two hooks on each module, which take longer than everything else and would stay on the model
    if the process were stopped.

    Assumes: every call of a module goes through `nn.Module.__call__`, which may be replaced for a while.
    Seen: torch 2.9 to 2.15.
    Otherwise: one clear error, as no module would be seen.
    """
    global _plain_call, _watchers
    outer = _WATCHING.run
    with unmet("torch", "its modules are called in another way"):
        vars(nn.Module)["__call__"]
    with _CALLS:
        if not _watchers:
            _plain_call = nn.Module.__call__
            nn.Module.__call__ = _watched_call  # type: ignore[method-assign]
        _watchers += 1
        _elsewhere.append(elsewhere)
    _WATCHING.run = run
    try:
        yield
    finally:
        _WATCHING.run = outer
        with _CALLS:
            _watchers -= 1
            _elsewhere.remove(elsewhere)
            if not _watchers:
                nn.Module.__call__ = _plain_call  # type: ignore[method-assign]


_ATTENTION = nn.functional.scaled_dot_product_attention
_attention_watchers = 0


class _Attending(threading.local):
    """The function that computes attention in this thread."""

    function: Callable[..., Any] | None = None


_ATTENDING = _Attending()


def _watched_attention(*args: Any, **kwargs: Any) -> Any:
    return (_ATTENDING.function or _ATTENTION)(*args, **kwargs)


@contextmanager
def attention_by(function: Callable[..., Any]) -> Iterator[None]:
    """Replaces `nn.functional.scaled_dot_product_attention` with `function` in this thread only.

    Assumes: modules call it as an attribute of `torch.nn.functional`.
    Seen: torch 2.9 to 2.15.
    Otherwise: attention is not fused: its scores count as memory, an upper bound.
    """
    global _attention_watchers
    outer = _ATTENDING.function
    functions = vars(nn.functional)
    with _CALLS:
        if not _attention_watchers:
            functions["scaled_dot_product_attention"] = _watched_attention
        _attention_watchers += 1
    _ATTENDING.function = function
    try:
        yield
    finally:
        _ATTENDING.function = outer
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
def uncompiled() -> Iterator[None]:
    """Runs functions as written: nothing is compiled in this thread, and no earlier compilation is used.

    Assumes: `torch.cond` and its like compile themselves by the attribute `torch.compile`.
    Seen: torch 2.14.
    Otherwise: the compiler sees those who watch, and the reason of such a row is its complaint.
    """
    global _uncompiled_threads, _is_eager
    outer, functions = _UNCOMPILED.on, vars(torch)
    with _CALLS:
        if not _uncompiled_threads:
            functions["compile"] = _compile_unless_watched
        if not _is_eager and "torch._dynamo" in sys.modules:
            # calling a function that was compiled before needs the compiler. There is one stance for all
            # threads: the first thread sets it, and the last one restores it
            _EAGER.enter_context(torch.compiler.set_stance("force_eager"))
            _is_eager = True
        _uncompiled_threads += 1
    _UNCOMPILED.on = True
    try:
        yield
    finally:
        _UNCOMPILED.on = outer
        with _CALLS:
            _uncompiled_threads -= 1
            if not _uncompiled_threads:
                functions["compile"] = _COMPILE
                _EAGER.close()
                _is_eager = False


def mapped_tensors(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """`value` with each tensor in its tuples, lists and dicts replaced by the result of `change`.

    Assumes: the named results of torch's functions are made from a list of their parts.
    Seen: torch 2.9 to 2.15.
    Otherwise: `calls_on_cpu` gives None for such a function.
    """
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, tuple | list):
        return _like(value, [mapped_tensors(part, change) for part in value])
    if isinstance(value, dict):
        return {name: mapped_tensors(part, change) for name, part in value.items()}
    return value


def _like(value: Any, parts: list[Any]) -> Any:
    """A container of the class of `value`, with other parts."""
    return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)


class _Place:
    """Stands for a tensor of recorded calls, by its number."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


class RecordedCalls:
    """Recorded calls of ATen operators of a function, to be repeated with other tensors.

    Assumes: a function of torch comes to the same operators for tensors of the same shapes and types.
    Seen: torch 2.9 to 2.15.
    Otherwise: an operator refuses the tensors, and the step is said not to run on shapes.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.result: Any = None
        self.tensors = 0

    def number(self) -> _Place:
        """The place of a new tensor."""
        self.tensors += 1
        return _Place(self.tensors - 1)

    def again(self, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """The function's result for tensors of the recorded shapes."""
        tensors: dict[int, torch.Tensor] = {}

        def keep(tensor: torch.Tensor) -> None:
            tensors[len(tensors)] = tensor

        mapped_tensors((args, dict(kwargs)), keep)
        for operator, positional, named, places in self.calls:
            outputs = operator(*_filled(positional, tensors), **_filled(named, tensors))
            outputs = outputs if isinstance(outputs, tuple | list) else (outputs,)
            for place, tensor in zip(places, outputs, strict=True):
                if place is not None:
                    tensors[place.number] = tensor
        return _filled(self.result, tensors)


def _filled(value: Any, tensors: Mapping[int, torch.Tensor]) -> Any:
    if isinstance(value, _Place):
        return tensors[value.number]
    if isinstance(value, tuple | list):
        return _like(value, [_filled(part, tensors) for part in value])
    if isinstance(value, dict):
        return {name: _filled(part, tensors) for name, part in value.items()}
    return value


class _TooLong(Exception):
    """The error for a function with more calls than the limit."""


class _OnCpu(torch.Tensor):
    """A tensor without values that claims to be on a CPU, and records the operators called with it."""

    without_values: torch.Tensor
    place: _Place
    calls: RecordedCalls
    longest: int

    @staticmethod
    def of(inner: torch.Tensor, like: Any, trained: bool = False) -> _OnCpu:
        """A stand-in for `inner`, recorded in the calls of `like`."""
        tensor: _OnCpu = torch.Tensor._make_wrapper_subclass(
            *(_OnCpu, inner.shape),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device("cpu"),
            requires_grad=trained,
        )
        tensor.without_values, tensor.calls, tensor.longest = inner, like.calls, like.longest
        tensor.place = like.calls.number()
        return tensor

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        wrapped: list[_OnCpu] = []

        def inner(tensor: Any) -> Any:
            if not isinstance(tensor, _OnCpu):
                return tensor
            wrapped.append(tensor)
            return tensor.without_values

        positional, named = mapped_tensors((args, kwargs or {}), inner)
        if "device" in named:
            named["device"] = torch.device("meta")
        result = func(*positional, **named)
        calls = wrapped[0].calls
        out = mapped_tensors(result, lambda tensor: _OnCpu.of(tensor, wrapped[0]))
        parts = out if isinstance(out, tuple | list) else (out,)

        def place(tensor: Any) -> Any:
            return tensor.place if isinstance(tensor, _OnCpu) else tensor

        noted, by_name = mapped_tensors((args, kwargs or {}), place)
        if "device" in by_name:
            by_name["device"] = named["device"]
        calls.calls.append((func, noted, by_name, [getattr(part, "place", None) for part in parts]))
        if len(calls.calls) > wrapped[0].longest:
            raise _TooLong
        return out


def attention_workspace(
    queries: int, keys: int, width: int, dtype: torch.dtype, *, backward: bool = False
) -> int:
    """Bytes of the work memory of one thread in a CPU's fused attention, besides its results.

    Args:
        queries: Number of queries in one head.
        keys: Number of keys in one head.
        width: Width of one head.
        dtype: Type of queries, keys and values.
        backward: Whether the kernel is that of the gradients.

    Assumes: torch splits queries into blocks of 256, 64 or 32 and keys into blocks of 512, and a thread holds
        one block of scores (two for gradients) with its sums, again in the narrower type where there is one.
    Seen: torch 2.9 to 2.15, float64, float32 and bfloat16 without AMX, which packs keys and values as well.
    Otherwise: the figure is off by the memory of one block; no other figure rests on it.
    """
    block = min(queries, next(size for least, size in ((768, 256), (192, 64), (0, 32)) if queries >= least))
    scores = block * min(keys, 512)
    narrow = dtype.itemsize if dtype.itemsize < 4 else 0
    wide = max(dtype.itemsize, 4)
    if backward:
        return (2 * scores + block) * wide + 2 * scores * narrow
    return (scores + 2 * block + block * width) * wide + scores * narrow


def calls_on_cpu(
    function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any], longest: int
) -> RecordedCalls | None:
    """The operator calls of a function with tensors like these on a CPU; None for more than `longest`.

    Nothing is computed and no memory is taken: torch checks shapes, strides, types and required gradients, as
    for tensors with values.

    Assumes: `torch.Tensor._make_wrapper_subclass` makes a tensor of any device that has no memory, and torch
    chooses kernels by what such a tensor says of itself.
    Seen: torch 2.9 to 2.15.
    Otherwise: None: the function runs as it does without values, and its figures are upper bounds.
    """
    root = RecordedCalls()

    class _Root:
        calls = root

    _Root.longest = longest  # type: ignore[attr-defined]

    def stand_in(tensor: torch.Tensor) -> torch.Tensor:
        return _OnCpu.of(tensor.detach(), _Root, tensor.requires_grad)

    try:
        with without_modes():
            result = function(
                *mapped_tensors(tuple(args), stand_in), **mapped_tensors(dict(kwargs), stand_in)
            )
    except Exception:
        return None
    root.result = mapped_tensors(result, lambda tensor: tensor.place)  # type: ignore[attr-defined]
    needed_places: set[int] = set()
    _add_places(root.result, needed_places)
    needed_calls = []
    # calls that autograd makes for a result do not belong to the function
    for call in reversed(root.calls):
        operator, positional, named, places = call
        output_places = {place.number for place in places if place is not None}
        if output_places & needed_places or schema_of(operator).is_mutable:
            _add_places((positional, named), needed_places)
            needed_calls.append(call)
    root.calls = needed_calls[::-1]
    return root


def _add_places(value: Any, numbers: set[int]) -> None:
    """Adds the numbers of all places in `value`."""
    if isinstance(value, _Place):
        numbers.add(value.number)
    elif isinstance(value, tuple | list):
        for part in value:
            _add_places(part, numbers)
    elif isinstance(value, dict):
        _add_places(tuple(value.values()), numbers)


# -- autograd


def step_number() -> int | None:
    """The number of the next step of autograd's graph; later steps have larger numbers.

    Assumes: `torch._C._autograd._get_sequence_nr` tells it.
    Seen: torch 2.9 to 2.15.
    Otherwise: None: memory of a backward pass belongs to the model, and to no module.
    """
    ask = getattr(getattr(torch._C, "_autograd", None), "_get_sequence_nr", None)
    return None if ask is None else int(ask())


def running_step() -> tuple[Any, int] | None:
    """The step of autograd's graph that runs backward (None for none) and its number; None if not known.

    Assumes: `torch._C._current_autograd_node` tells the step, and `_sequence_nr` of it its number.
    Seen: torch 2.9 to 2.15.
    Otherwise: None: memory of a backward pass belongs to the model, and to no module.
    """
    try:
        node = torch._C._current_autograd_node()
        return node, -1 if node is None else int(node._sequence_nr())
    except AttributeError:
        return None


HOOKED = "_hooks_of_original"
"""Attribute of a parameter without values whose original has hooks on its gradient."""


def has_gradient_hooks(tensor: torch.Tensor) -> bool:
    """Whether a tensor has hooks that are called with its gradient.

    Assumes: `_backward_hooks` and `_post_accumulate_grad_hooks` of a tensor hold such functions.
    Seen: torch 2.9 to 2.15.
    Otherwise: no: work of such hooks is not noticed.
    """
    hooks = ("_backward_hooks", "_post_accumulate_grad_hooks", HOOKED)
    return any(getattr(tensor, name, None) for name in hooks)


# -- exporters


def export_cause(error: BaseException) -> BaseException:
    """The original error in torch's ONNX exporter, which wraps it in pages of advice.

    Assumes: the wrapping errors are classes of `torch.onnx` and have a cause.
    Seen: torch 2.9 to 2.15.
    Otherwise: the exporter's own words are shown.
    """
    while type(error).__module__.startswith("torch.onnx") and error.__cause__ is not None:
        error = error.__cause__
    return error


@contextlib.contextmanager
def no_merging_by_value() -> Iterator[None]:
    """Lets the tracing exporter merge initializers that share memory, but not those with equal values.

    By default the exporter does so for training models only: the names of new biases and norms collapse into
    one.

    Assumes: `torch._C._jit_pass_onnx_deduplicate_initializers` is the pass, whose last argument says how.
    Seen: torch 2.9 to 2.15.
    Otherwise: equal initializers are one in the exported file; figures of the file say so.
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
