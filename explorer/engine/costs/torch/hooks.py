"""Hooks on the calls of modules, functions and operators, for one who watches a model run.

Three taps, each for what only it can see: `nn.Module.__call__`, a function mode, and a dispatch mode. All are
taken away again, whatever happens.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class Watch(Protocol):
    """Who is told of calls, makes them, and returns what they give."""

    def run(self, call: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        """A call of a module."""

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A call of a function of torch."""

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of an ATen operator."""


class Functions(TorchFunctionMode):
    """Hands the functions that a model's author wrote to one who watches."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self.watch.call(func, args, kwargs or {})


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Hands ATen operators to one who watches."""

    def __init__(self, watch: Watch) -> None:
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


def hide(mode: TorchFunctionMode) -> bool:
    """Takes a mode off the stack if it is the innermost one; says whether it was."""
    depth = torch._C._len_torch_function_stack()
    if not depth or torch._C._get_function_stack_at(depth - 1) is not mode:
        return False
    torch._C._pop_torch_function_stack()
    return True


def modes() -> tuple[int, int]:
    """How many modes there are that hear functions, and operators."""
    return torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()


def show(mode: TorchFunctionMode) -> None:
    """Puts a mode that was hidden back."""
    torch._C._push_on_torch_function_stack(mode)


class _Watching(threading.local):
    """Who watches the modules that this thread calls."""

    watch: Watch | None = None


_WATCHING = _Watching()
_CALLS = threading.Lock()
_watchers = 0
_plain_call: Callable[..., Any] = nn.Module.__call__


def _watched_call(self: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    watch = _WATCHING.watch
    return _plain_call(self, *args, **kwargs) if watch is None else watch.run(_plain_call, self, args, kwargs)


@contextmanager
def listening(watch: Watch) -> Iterator[None]:
    """Lets `watch` see the calls of modules in this thread.

    One place instead of two hooks on each module: that takes longer than all the rest, and leaves no
    trace on the model whatever happens.
    """
    global _plain_call, _watchers
    outer = _WATCHING.watch
    with _CALLS:
        if not _watchers:
            _plain_call = nn.Module.__call__
            nn.Module.__call__ = _watched_call  # type: ignore[method-assign]
        _watchers += 1
    _WATCHING.watch = watch
    try:
        yield
    finally:
        _WATCHING.watch = outer
        with _CALLS:
            _watchers -= 1
            if not _watchers:
                nn.Module.__call__ = _plain_call  # type: ignore[method-assign]
