"""Runs a user's own Python file, which registers rules or passes. It runs only with `--trust`."""

from __future__ import annotations

import contextlib
import sys
import traceback
from contextvars import ContextVar
from types import ModuleType, TracebackType
from typing import TypeVar

from explorer.base.errors import Misuse
from explorer.host import input_files

K = TypeVar("K")
V = TypeVar("V")


def collect_declarations(
    path: str,
    subject: str,
    flag: str,
    declared: ContextVar[dict[K, V] | None],
    if_empty: Misuse,
    *,
    trust: bool,
) -> dict[K, V]:
    """Runs a Python file, and returns what it declares.

    Args:
        path: Path of the file.
        subject: Contents of the file in the plural: 'rules'.
        flag: Option that names the file.
        declared: Variable that holds the table of declarations while the file runs. The functions that the
            file calls add to this table.
        if_empty: Error for a file without declarations.
        trust: Whether the file may run.

    Raises:
        Misuse: The file may not run, cannot be read, fails, or declares nothing.
    """
    table: dict[K, V] = {}
    token = declared.set(table)
    try:
        _run_file(path, subject, flag, trust=trust)
    finally:
        declared.reset(token)
    if not table:
        raise if_empty
    return table


def _run_file(path: str, subject: str, flag: str, *, trust: bool) -> None:
    """Runs a Python file.

    Args:
        path: Path of the file.
        subject: Contents of the file in the plural: 'rules'.
        flag: Option that names the file.
        trust: Whether the file may run.

    Raises:
        Misuse: The file may not run, cannot be read, or fails.
    """
    if not trust:
        problem = f"the {subject} in '{path}' are Python code, which would run"
        raise Misuse(problem, where=flag, hint="read the file, then add --trust")
    try:
        source = input_files.read_content(path).decode("utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else "it is not text"
        raise Misuse(f"the {subject} cannot be read: {reason}", where=path) from None
    try:
        code = compile(source, path, "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as fault:
        line = f":{fault.lineno}" if isinstance(fault, SyntaxError) and fault.lineno else ""
        problem = fault.msg if isinstance(fault, SyntaxError) else str(fault) or "nested too deep"
        raise Misuse(f"the {subject} are not Python: {problem}", where=f"{path}{line}") from None
    # dataclasses look up their module during definition
    module = ModuleType(f"explorer_user_{subject}")
    module.__file__ = path
    previous_module = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module
    try:
        # output of the file must not mix with a table or JSON on stdout
        with contextlib.redirect_stdout(sys.stderr):
            exec(code, module.__dict__)
    except Misuse as fault:
        raise Misuse(fault.what, where=locate(fault.__traceback__, path), hint=fault.hint) from None
    except (Exception, SystemExit) as fault:
        raise build_error(f"the {subject} cannot be loaded", fault, path) from None
    finally:
        if previous_module is None:
            del sys.modules[module.__name__]
        else:
            sys.modules[module.__name__] = previous_module


def build_error(problem: str, fault: BaseException, path: str, default_location: str = "") -> Misuse:
    """Returns the error for an exception in a user's code, with the last line of the file that ran."""
    text = " ".join(str(fault).split())
    cause = f"{type(fault).__name__}: {text}" if text else type(fault).__name__
    return Misuse(f"{problem}: {cause}", where=locate(fault.__traceback__, path, default_location))


def locate(trace: TracebackType | None, path: str, default_location: str = "") -> str:
    """Returns the file and its last line in the traceback, or the default location."""
    lines = [frame.lineno for frame in traceback.extract_tb(trace) if frame.filename == path]
    return f"{path}:{lines[-1]}" if lines else default_location or path
