"""Hooks on the calls of modules, functions and operators, for a listener that watches a model run.

Three taps, each for what only it can see: `nn.Module.__call__` (`listening`), a function mode, and a dispatch
mode. All are taken away again, whatever happens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import nn
from torch.overrides import TorchFunctionMode

from explorer.engine.compat.torch import DispatchMode


class Watch(Protocol):
    """A listener that receives calls, makes them and returns their results."""

    def run(self, call: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        """A call of a module."""

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A call of a function of torch."""

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of an ATen operator."""

    def enters_subclass(self) -> None:
        """A call of an ATen operator by a tensor subclass, whose own calls come next."""


class Functions(TorchFunctionMode):
    """Passes calls of torch functions in a model's code to a listener."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self.watch.call(func, args, kwargs or {})


class Operators(DispatchMode):
    """Passes calls of ATen operators to a listener."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            # the subclass runs first: its calls on inner tensors come back here
            self.watch.enters_subclass()
            return NotImplemented
        return self.watch.dispatch(func, args, kwargs or {})
