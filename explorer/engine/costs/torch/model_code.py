"""Distinguishes a model's own code from the code of libraries, and replaces the names in its modules."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType, FunctionType, ModuleType
from typing import Any

from torch import nn

from explorer.engine.compat.torch import is_class_of_torch, is_of_torch

_STDLIB = sysconfig.get_path("stdlib")


def is_standard_library(frame: FrameType) -> bool:
    """Whether a frame belongs to Python's standard library."""
    name = frame.f_globals.get("__name__", "").partition(".")[0]
    # a user's file may have the same name as a standard library module
    return name in sys.stdlib_module_names and frame.f_code.co_filename.startswith((_STDLIB, "<frozen"))


_LIBRARIES = ("torch", "explorer")
"""Packages whose code is not the model's."""


def is_library_code(namespace: Mapping[str, Any]) -> bool:
    """Whether the global names of a function or a frame are those of a module of torch or of Explorer."""
    return _read_package(namespace.get("__name__")) in _LIBRARIES


def is_library_object(value: Any) -> bool:
    """Whether the class of an object is one of Python, NumPy, torch or Explorer."""
    return is_library_class(type(value))


def is_library_class(kind: type) -> bool:
    """Whether a class is one of Python, NumPy, torch or Explorer."""
    return is_library_name(kind.__module__)


def is_library_name(module_name: Any) -> bool:
    """Whether a module of this name belongs to Python, NumPy, torch or Explorer."""
    package = _read_package(module_name)
    return package in ("numpy", "builtins", *_LIBRARIES) or package in sys.stdlib_module_names


def _read_package(module_name: Any) -> str:
    return str(module_name).partition(".")[0]


def is_called_by_model() -> bool:
    """Whether a model's code calls the function that calls this one, also through the standard library.

    Code of torch, code of Explorer, and code that an import runs do not count as a model's code.
    """
    caller_file = sys._getframe(1).f_code.co_filename
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and (frame.f_code.co_filename == caller_file or is_standard_library(frame)):
        frame = frame.f_back
    if frame is None or is_library_code(frame.f_globals):
        return False
    while frame is not None and frame.f_globals.get("__name__") != "importlib._bootstrap":
        frame = frame.f_back
    return frame is None


def list_functions(modules: Iterable[nn.Module]) -> list[FunctionType]:
    """Returns the functions that the user's classes among `modules` define or hold as attributes."""
    functions: dict[int, FunctionType] = {}
    classes: dict[type, None] = {}
    for module in modules:
        if not is_of_torch(module):
            classes.update(dict.fromkeys(type(module).__mro__))
            for value in vars(module).values():
                value = getattr(value, "__func__", value)
                if type(value) is FunctionType:
                    functions[id(value)] = value
    for kind in classes:
        if kind is not object and not is_class_of_torch(kind):
            for value in vars(kind).values():
                value = getattr(value, "__wrapped__", getattr(value, "__func__", value))
                if type(value) is FunctionType:
                    functions[id(value)] = value
    return [f for f in functions.values() if not is_library_code(f.__globals__)]


def list_code_modules(functions: Iterable[FunctionType]) -> list[ModuleType]:
    """Returns the Python modules that define `functions`, without duplicates."""
    names = dict.fromkeys(function.__module__ for function in functions)
    modules = (sys.modules.get(name) for name in names)
    return [module for module in modules if module is not None]


@contextmanager
def replace_globals(modules: Sequence[ModuleType], replacements: Mapping[int, Any]) -> Iterator[None]:
    """Replaces functions under the names that Python modules have given them (`from time import time`).

    Args:
        modules: Python modules.
        replacements: New functions by the `id` of the functions that they replace.
    """
    replaced: list[tuple[dict[str, Any], str, Any]] = []
    for module in modules:
        names = vars(module)
        for name, value in list(names.items()):
            replacement = replacements.get(id(value))
            if replacement is not None:
                replaced.append((names, name, value))
                names[name] = replacement
    try:
        yield
    finally:
        for names, name, value in replaced:
            names[name] = value
