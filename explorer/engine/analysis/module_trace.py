"""Watching an nn.Module run on the meta device: which module calls which operator, and what it costs.

Three observers at once, each for what only it can see. Hooks on the modules know the tree. A function
mode knows what the model's author wrote (`flatten`, `softmax`, `+`). A dispatch mode sees the ATen
operators, where the work is, and counts them. No weight is allocated and nothing is computed: the meta
device has shapes only.

Everything is put back afterwards, whatever happens: hooks, train or eval state, attention's fast path
(which would hide its products from any counter).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from explorer.engine.analysis import aten, macs
from explorer.engine.analysis.aten_memo import Memo
from explorer.engine.analysis.macs import Cost
from explorer.engine.analysis.module_rows import (
    Event,
    Row,
    Stored,
    Trace,
    call_attributes,
    described,
    dtype_name,
    flat,
    function_inputs,
    is_leaf,
    module_inputs,
    parameters,
    size_of,
    tensors,
)
from explorer.errors import ExplorerError
from explorer.facts import TensorInfo

__all__ = ["trace"]


class _Frame:
    """A module that is running: its path, and how often it called each function so far."""

    __slots__ = ("absorbs", "counts", "path", "row")

    def __init__(self, path: str, row: Row | None, absorbs: bool) -> None:
        self.path = path
        self.row = row
        self.absorbs = absorbs
        self.counts: Counter[str] = Counter()


class _Watch:
    """What the hooks and the two modes share."""

    def __init__(self, model: nn.Module, check: Callable[[int], None]) -> None:
        self.model = model
        self.check = check
        self.paths = {id(m): path for path, m in model.named_modules()}
        self.children: dict[str, set[str]] = {}
        self.frames: list[_Frame] = [_Frame("", None, False)]
        self.rows: dict[Any, Row] = {}
        self.modules: dict[str, Row] = {}
        self.order: list[Row] = []
        self.events: list[Event] = []
        self.alive: dict[int, Any] = {}
        self.bound: dict[int, str] = {}
        self.twins: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.assumed: Counter[str] = Counter()
        self.memo = Memo()
        self.failed: tuple[str, BaseException] | None = None
        self.function: str = ""
        self.function_row: Row | None = None
        self.done = 0
        self.parameters = parameters(model)
        self.weights: dict[int, list[Stored]] = {}
        for stored in self.parameters.values():
            self.weights.setdefault(stored.identity[0], []).append(stored)
        buffers = [b for b in model.buffers() if b is not None]
        self.constants = {b.untyped_storage()._cdata for b in buffers}
        for path in self.paths.values():
            parent, _, name = path.rpartition(".")
            self.children.setdefault(parent, set()).add(name)

    # -- modules

    def module_row(self, module: nn.Module) -> Row:
        path = self.paths[id(module)]
        row = self.modules.get(path)
        if row is None:
            name = path.rpartition(".")[2] or type(module).__name__
            row = Row(path or name, name, type(module).__name__, path, module)
            self.modules[path] = row
        return row

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.done += 1
        self.check(self.done)
        row = self.module_row(module)
        row.calls += 1
        if row.calls == 1:
            row.inputs = module_inputs(module, args, kwargs)
        path = self.paths[id(module)]
        leaf = is_leaf(module)
        if leaf and row.calls == 1:
            self.order.append(row)
        self.frames.append(_Frame(path, row if leaf else None, leaf and _builtin(module)))

    def leave(self, module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        error = sys.exc_info()[1]
        path = self.paths[id(module)]
        while len(self.frames) > 1 and self.frames.pop().path != path:
            pass
        if error is not None:
            if self.failed is None or self.failed[1] is not error:
                self.failed = path, error
            return
        row = self.modules[path]
        if row.calls == 1 or not row.outputs:
            row.outputs = described(result, "output")
        row.activation += sum(t.numel() * t.element_size() for _, t in tensors(result))

    # -- functions

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        frame = self.frames[-1]
        name = getattr(func, "__name__", "")
        recurrent = _RECURRENT.get(name)
        if recurrent is not None and getattr(args[0], "is_meta", False):
            return self.run_recurrent(name, recurrent, func, args, kwargs)
        if frame.absorbs or name == "__get__" or self.function:
            return func(*args, **kwargs)
        self.function, self.function_row = name, None
        try:
            result = func(*args, **kwargs)
        except Exception as error:
            if self.failed is None or self.failed[1] is not error:
                row = self.function_row
                path = f"{frame.path}.{name}" if frame.path else name
                self.failed = row.path if row is not None else path, error
            raise
        finally:
            row, self.function, self.function_row = self.function_row, "", None
        if row is not None:
            self.finish(row, name, args, kwargs, result)
        return result

    def finish(self, row: Row, name: str, args: Any, kwargs: Any, result: Any) -> None:
        row.calls += 1
        row.activation += sum(t.numel() * t.element_size() for _, t in tensors(result))
        if row.calls > 1:
            return
        row.outputs = described(result, "output")
        row.inputs = function_inputs(args, kwargs, self.is_weight)
        whole = aten.function_cost(name, args, kwargs, result)
        # the formula of the function as a whole, where it gives what its operators added up to
        if whole is not None and whole.macs == row.macs:
            row.formulas = Counter({whole.formula: 1})
            row.elementwise = whole.elementwise_ops or row.elementwise

    def run_recurrent(self, name: str, kind: str, func: Any, args: Any, kwargs: Any) -> Any:
        """A recurrent layer in one piece: step by step it would be a thousand operators, all alike."""
        packed = isinstance(args[1], torch.Tensor) and args[1].dtype == torch.int64 and args[1].dim() == 1
        rest = args[4:] if packed else args[3:]
        weights = args[3] if packed else args[2]
        states = args[2] if packed else args[1]
        has_biases, layers, _, _, bidirectional = rest[:5]
        batch_first = bool(rest[5]) if len(rest) > 5 else False
        state = states[0] if isinstance(states, (tuple, list)) else states
        cell = states[1] if isinstance(states, (tuple, list)) else states
        directions = 2 if bidirectional else 1
        source = args[0]
        hidden, width = cell.shape[-1], state.shape[-1]
        if packed or source.dim() == 2:
            length, batch = source.shape[0], 1
        else:
            length, batch = (source.shape[1], source.shape[0]) if batch_first else source.shape[:2]
        cost = macs.recurrent(
            kind,
            int(length),
            int(batch),
            int(source.shape[-1]),
            int(hidden),
            directions=directions,
            layers=int(layers),
            projection=int(width) if width != hidden else 0,
            bias=bool(has_biases),
        )
        outer = source.shape[:-1]
        out = source.new_empty((*outer, width * directions))
        finals = [s.new_empty(s.shape) for s in (states if isinstance(states, (tuple, list)) else [state])]
        used = [source, *(states if isinstance(states, (tuple, list)) else [state]), *weights]
        row = self.current(name)
        self.record(row, used, [out, *finals], cost)
        if row is self.function_row:
            self.function_row = None
            self.finish(row, name, args, kwargs, (out, *finals))
        return (out, *finals)

    def is_weight(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self.weights

    # -- operators

    def current(self, fallback: str) -> Row:
        """The row to which an operator belongs, made at its first operator."""
        frame = self.frames[-1]
        if frame.absorbs and frame.row is not None:
            return frame.row
        if self.function_row is not None:
            return self.function_row
        name = (self.function or fallback).strip("_") or fallback
        name = _SPOKEN.get(name, name)
        frame.counts[name] += 1
        key = (frame.path, name, frame.counts[name])
        row = self.rows.get(key)
        if row is None:
            number = frame.counts[name]
            label = name if number == 1 else f"{name}_{number}"
            while label in self.children.get(frame.path, ()):
                label += "_"
            row = Row(f"{frame.path}.{label}" if frame.path else label, label, name, frame.path)
            self.rows[key] = row
            if frame.row is not None:
                frame.row.parts.append(row)
            else:
                self.order.append(row)
        if self.function:
            self.function_row = row
        else:
            row.calls += 1
        return row

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = flat(args) + (flat(tuple(kwargs.values())) if kwargs else [])
        meta = False
        mixed = False
        for t in given:
            if t.is_meta:
                meta = True
            elif t.dim():
                mixed = True
        if meta and mixed:
            args, kwargs = self.moved(args), {k: self.moved(v) for k, v in kwargs.items()}
            given = flat(args) + flat(tuple(kwargs.values()))
        bounded = aten.answer(func, args) if meta else None
        key = None if bounded is not None else self.memo.signature(func, args, kwargs)
        known = None if key is None else self.memo.answers.get(key)
        assumption = ""
        if bounded is not None:
            out, assumption = bounded
            self.assumed[assumption] += 1
        elif known is not None:
            out = known.fresh()
        else:
            out = func(*args, **kwargs)
        made = [t for t in (out if isinstance(out, (tuple, list)) else (out,)) if isinstance(t, torch.Tensor)]
        if not made and not assumption:
            return out
        name = func._schema.name
        if name in aten.AUXILIARY:
            made = made[:1]
        row = self.current(name.partition("::")[2])
        if known is not None:
            cost = known.cost
        else:
            cost = aten.cost(func, args, kwargs, out) if made else macs.FREE
            if key is not None:
                self.memo.remember(key, given, out, cost)
        self.record(row, given, made, cost, name, assumption, func._schema.is_mutable)
        if not row.attributes and row.module is None:
            row.attributes = call_attributes(func, args, kwargs)
        return out

    def record(
        self,
        row: Row,
        given: Sequence[torch.Tensor],
        made: Sequence[torch.Tensor],
        cost: Cost,
        name: str = "",
        assumption: str = "",
        mutates: bool = False,
    ) -> None:
        """Books one operator on its row: cost, bytes, parameters used, and who lives how long."""
        row.operators += 1
        row.add(cost)
        inputs: dict[int, int] = {}
        weights: set[int] = set()
        reason = assumption
        for t in given:
            storage = t.untyped_storage()
            key = storage._cdata
            size = size_of(t)
            if key in self.weights:
                weights.add(key)
                self.use(row, key, t)
            elif key not in self.constants:
                self.alive.setdefault(key, storage)
            if key in self.bound and not reason:
                reason = self.bound[key]
            inputs[key] = max(inputs.get(key, 0), size)
        outputs: list[tuple[int, TensorInfo, int]] = []
        written = 0
        view = bool(made)
        for t in made:
            storage = t.untyped_storage()
            key = storage._cdata
            self.alive.setdefault(key, storage)
            if reason:
                self.bound[key] = reason
            if key in inputs and not mutates:
                continue
            view = False
            written += size_of(t)
            info = TensorInfo(row.path, dtype_name(t.dtype), tuple(t.shape), "observed")
            outputs.append((key, info, storage.nbytes()))
        if reason and not row.bound:
            row.bound = reason
        if view:
            return
        if name in aten.GATHERS and given:
            table = given[0].untyped_storage()._cdata
            inputs[table] = min(inputs[table], written)
        row.read += sum(inputs.values())
        row.stored_read += sum(n for k, n in inputs.items() if k in self.weights or k in self.constants)
        row.written += written
        used = tuple(k for k in inputs if k not in weights and k not in self.constants)
        self.events.append(Event(row, used, tuple(outputs)))

    def use(self, row: Row, key: int, tensor: torch.Tensor) -> None:
        candidates = self.weights[key]
        offset = tensor.storage_offset()
        for stored in candidates:
            if len(candidates) == 1 or stored.identity[1] == offset:
                row.stored.setdefault(stored.identity, stored)

    def moved(self, value: Any) -> Any:
        """`value` with tensors that live on the CPU replaced by ones without values."""
        if isinstance(value, torch.Tensor):
            if value.is_meta or not value.dim():
                return value
            known = self.twins.get(id(value))
            if known is None:
                twin = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
                # the original is held as well: its id must not be given to another tensor
                known = self.twins[id(value)] = (value, twin)
            return known[1]
        if isinstance(value, (tuple, list)):
            return type(value)(self.moved(v) for v in value)
        return "meta" if isinstance(value, torch.device) else value


_SPOKEN = {"rsub": "sub", "rdiv": "div", "rpow": "pow", "rmatmul": "matmul", "iadd": "add", "imul": "mul"}
"""What an operator is called that Python calls otherwise."""

_RECURRENT = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN", "rnn_relu": "RNN"}


class _Functions(TorchFunctionMode):
    def __init__(self, watch: _Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self.watch.call(func, args, kwargs or {})


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, watch: _Watch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.watch = watch

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch would wrap the method below so that its compiler skips it: every operator would pass
        # through the wrapper, and the first would import the compiler, which takes longer than the rest
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self.watch.dispatch(func, args, kwargs or {})


def _builtin(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.")


def _restore(states: Sequence[tuple[nn.Module, bool]]) -> None:
    for module, training in states:
        module.training = training


@contextmanager
def _observed(model: nn.Module, watch: _Watch) -> Iterator[None]:
    """Hooks on every module, eval mode and no fast path, all put back at the end."""
    states = [(m, m.training) for m in model.modules()]
    fastpath = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        stack.callback(_restore, states)
        stack.callback(torch.backends.mha.set_fastpath_enabled, fastpath)
        model.eval()
        torch.backends.mha.set_fastpath_enabled(False)
        for module, _ in states:
            if isinstance(module, torch.jit.ScriptModule):
                continue
            before = module.register_forward_pre_hook(watch.enter, with_kwargs=True, prepend=True)
            stack.callback(before.remove)
            after = module.register_forward_hook(watch.leave, with_kwargs=True, always_call=True)
            stack.callback(after.remove)
        yield


def trace(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    check: Callable[[int], None] = lambda done: None,
) -> Trace:
    """Runs `model` once on tensors of the meta device and books every operator.

    Args:
        model: A module whose parameters live on the meta device.
        args: Positional arguments of its forward.
        kwargs: Keyword arguments.
        check: Called with the number of module calls so far; may raise to stop.

    Returns:
        What was seen. A model that raises gives what was seen until then, and names the module.
    """
    watch = _Watch(model, check)
    seen = Trace(watch.order, watch.modules, watch.events, watch.parameters, assumed=watch.assumed)
    given = [t for _, t in tensors([list(args), dict(kwargs)])]
    source = Row("input", "input", "input", "")
    made = tuple(
        (
            t.untyped_storage()._cdata,
            TensorInfo("input", dtype_name(t.dtype), tuple(t.shape), "declared"),
            t.untyped_storage().nbytes(),
        )
        for t in given
    )
    watch.events.append(Event(source, (), made))
    with _observed(model, watch), torch.no_grad():
        try:
            with _Functions(watch), _Operators(watch):
                seen.result = model(*args, **kwargs)
        except ExplorerError:
            raise
        except Exception as error:
            at = watch.failed[0] if watch.failed and watch.failed[1] is error else watch.frames[-1].path
            text = " ".join(str(error).split())
            seen.failed = at, f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
    seen.kept = frozenset(t.untyped_storage()._cdata for _, t in tensors(seen.result))
    return seen
