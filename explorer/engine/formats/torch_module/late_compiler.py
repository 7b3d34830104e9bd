"""torch._dynamo, torch's compiler, imported when it is first used: it takes as long as all of torch.

torchvision, transformers and the meta device import it for decorators, and no model that runs on shapes is
compiled. In its place stands a module that knows those decorators; whatever else it is asked for, it becomes
the real one first, and does then what it was asked meanwhile.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from types import FunctionType, ModuleType
from typing import Any

from explorer.engine.formats.torch_module.late_module import LateModule, put_off

_NAME = "torch._dynamo"
_HELPERS = f"{_NAME}.utils"
_ALONE = ("_trace_wrapped_higher_order_op",)
"""Parts that can do without the rest."""


class _LateCompiler(LateModule):
    """torch._dynamo before it is loaded."""

    def __init__(self, name: str, spec: Any) -> None:
        super().__init__(name, spec)
        self._marked: list[tuple[str, Any]] = []
        """Decorators that were put on meanwhile, and on what."""
        self._passed: list[Any] = []
        """Functions that torch takes to be switched off for the compiler already."""

    def _load(self) -> None:
        marked, passed = self._marked, self._passed
        sys.modules.pop(_HELPERS, None)
        vars(self).pop("_marked"), vars(self).pop("_passed")
        super()._load()
        for name in _ALONE:
            if part := sys.modules.get(f"{_NAME}.{name}"):
                vars(self).setdefault(name, part)
        for name, decorated in marked:
            getattr(self, name)(decorated)
        for function in passed:
            vars(function).pop("__dynamo_disable", None)

    def assume_constant_result(self, function: Any) -> Any:
        """See torch."""
        self._marked.append(("assume_constant_result", function))
        return function

    def allow_in_graph(self, function: Any) -> Any:
        """See torch."""
        self._marked.append(("allow_in_graph", function))
        return function

    def disable(
        self, fn: Any = None, recursive: bool = True, *, reason: str | None = None, wrapping: bool = True
    ) -> Any:
        """See torch."""
        if not wrapping and fn is not None:
            self._passed.append(fn)
            return fn
        if fn is None:
            return functools.partial(self.disable, recursive=recursive, reason=reason)
        if not isinstance(fn, FunctionType):
            self._load()
            return self.disable(fn, recursive, reason=reason)
        return _disabled(self, fn, recursive, reason)


def _disabled(compiler: Any, function: Any, recursive: bool, reason: str | None) -> Callable[..., Any]:
    real: list[Callable[..., Any]] = []

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if isinstance(compiler, _LateCompiler):
            return function(*args, **kwargs)  # nothing is compiled yet
        if not real:
            real.append(compiler.disable(function, recursive, reason=reason))
        return real[0](*args, **kwargs)

    return called


def put_off_compiler() -> None:
    """Has torch's compiler imported when it is used, unless it is there already."""
    compiler: Any = put_off(_NAME, _LateCompiler)
    if compiler is None:
        return
    helpers = ModuleType(_HELPERS)

    def is_compile_supported(device_type: Any) -> Any:
        compiler.config  # noqa: B018
        return importlib.import_module(_HELPERS).is_compile_supported(device_type)

    def helper(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        compiler.config  # noqa: B018
        return getattr(importlib.import_module(_HELPERS), name)

    helpers.is_compile_supported = is_compile_supported  # type: ignore[attr-defined]
    helpers.__getattr__ = helper  # type: ignore[method-assign]  # what torchao and others take of it
    sys.modules[_HELPERS] = helpers
    for name in _ALONE:
        _load_alone(name, compiler.__spec__)


def _load_alone(name: str, package: Any) -> None:
    """Imports a part of the compiler that can do without the rest, as transformers wants it."""
    whole = f"{_NAME}.{name}"
    spec = PathFinder.find_spec(whole, package.submodule_search_locations)
    if spec is None or spec.loader is None:
        return
    sys.modules[whole] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception:
        # another version's part needs the rest
        del sys.modules[whole]
