"""Defines torch modes that forward calls of functions and operators to an observer of a running model.

The observer also receives calls of modules, through `compat.torch.intercept_calls`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import nn
from torch.overrides import TorchFunctionMode

from explorer.engine.compat.torch import DispatchMode


class Watch(Protocol):
    """Observer that receives calls, makes them and returns their results."""

    def run(self, call: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Handles a call of a module."""

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Handles a call of a torch function."""

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Handles a call of an ATen operator."""

    def note_subclass_call(self) -> None:
        """Handles a call of an ATen operator on a tensor subclass; the calls on its inner tensors follow."""


class Functions(TorchFunctionMode):
    """Forwards calls of torch functions in a model's code to an observer."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self.watch.call(func, args, kwargs or {})


class Operators(DispatchMode):
    """Forwards calls of ATen operators to an observer."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            # let the subclass run first: its calls on inner tensors return here
            self.watch.note_subclass_call()
            return NotImplemented
        return self.watch.dispatch(func, args, kwargs or {})
