"""Loads a user's own cost rules from a Python file, which runs only with `--trust`.

While the file is loaded, it registers rules with `explorer.rules.rule`. `load` returns them as a table for
one session; this module keeps nothing. A rule that fails or returns an invalid cost stops the analysis, with
the line of the file in the message. Otherwise a number would be missing without notice.
"""

from __future__ import annotations

import contextlib
import contextvars
import sys
import traceback
from types import ModuleType, TracebackType

from explorer.base.errors import Misuse
from explorer.engine.operators.call import Call, Key, MissingShape, Rule, Rules
from explorer.engine.operators.cost_formulas import Cost
from explorer.host import input_files

_MAX_FORMULA_LENGTH = 4000
"""Maximum number of characters in a formula, because the program shows formulas next to the numbers."""

_collected: contextvars.ContextVar[dict[Key, Rule] | None] = contextvars.ContextVar(
    "rules of the file being loaded", default=None
)


def register(key: Key, rule: Rule) -> None:
    """Registers a rule of the file that is being loaded. Does nothing if no file is being loaded."""
    table = _collected.get()
    if table is not None:
        table[key] = rule


def load(path: str, *, trust: bool) -> Rules:
    """Runs a Python file that registers rules.

    Args:
        path: Path of the file.
        trust: Whether the file may run.

    Returns:
        Rules by (domain, operator). An error in a rule is raised as `Misuse`.

    Raises:
        Misuse: The file may not run, cannot be read, fails, or registers no rule.
    """
    if not trust:
        problem = f"the rules in '{path}' are Python code, which would run"
        raise Misuse(problem, where="--rules", hint="read the file, then add --trust")
    try:
        source = input_files.read_content(path).decode("utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else "it is no text"
        raise Misuse(f"the rules cannot be read: {reason}", where=path) from None
    try:
        code = compile(source, path, "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as fault:
        line = f":{fault.lineno}" if isinstance(fault, SyntaxError) and fault.lineno else ""
        problem = fault.msg if isinstance(fault, SyntaxError) else str(fault) or "nested too deep"
        raise Misuse(f"the rules are not Python: {problem}", where=f"{path}{line}") from None
    table: dict[Key, Rule] = {}
    token = _collected.set(table)
    # dataclasses look up their module during definition
    module = ModuleType("explorer_user_rules")
    module.__file__ = path
    previous_module = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module
    try:
        # output of the file must not mix with a table or JSON on stdout
        with contextlib.redirect_stdout(sys.stderr):
            exec(code, module.__dict__)
    except Misuse as fault:
        raise Misuse(fault.what, where=_locate(fault.__traceback__, path), hint=fault.hint) from None
    except (Exception, SystemExit) as fault:
        raise _build_error("the rules cannot be loaded", fault, path) from None
    finally:
        _collected.reset(token)
        if previous_module is None:
            del sys.modules[module.__name__]
        else:
            sys.modules[module.__name__] = previous_module
    if not table:
        hint = "write `@explorer.rules.rule('MyOp', domain='my.domain')` above a function"
        raise Misuse("the file registers no rule", where=path, hint=hint)
    return {key: _guard(rule, key, path) for key, rule in table.items()}


def find_problem(cost: object) -> str:
    """Describes the problem with the result of a rule; '' if it is a valid cost."""
    if not isinstance(cost, Cost):
        return f"a {type(cost).__name__}, not a Cost"
    for name in ("macs", "elementwise_ops"):
        value = getattr(cost, name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
            return f"{name}={value!r}, which is no count"
    if cost.status not in ("exact", "bound", "unknown"):
        return f"status={cost.status!r}, which is none of 'exact', 'bound', 'unknown'"
    if not isinstance(cost.formula, str) or not isinstance(cost.reason, str):
        return "a formula or reason that is no text"
    if len(cost.formula) > _MAX_FORMULA_LENGTH:
        return f"a formula of {len(cost.formula):,} characters"
    if cost.status != "unknown" and None in (cost.macs, cost.elementwise_ops):
        return f"no number with status='{cost.status}'"
    if cost.status != "exact" and not cost.reason:
        return f"status='{cost.status}' without a reason"
    return ""


def _guard(rule: Rule, key: Key, path: str) -> Rule:
    """Wraps a rule so that its errors and invalid results are raised as `Misuse`."""
    name = "::".join(part for part in key if part)
    code = getattr(rule, "__code__", None)
    location = f"{path}:{code.co_firstlineno}" if code is not None and code.co_filename == path else path

    def guarded_rule(call: Call) -> Cost:
        try:
            cost = rule(call)
        except MissingShape:
            raise
        except Exception as fault:
            raise _build_error(f"the rule for {name} failed", fault, path, location) from None
        problem = find_problem(cost)
        if problem:
            raise Misuse(f"the rule for {name} returned {problem}", where=location)
        return cost

    return guarded_rule


def _build_error(problem: str, fault: BaseException, path: str, default_location: str = "") -> Misuse:
    text = str(fault)
    cause = f"{type(fault).__name__}: {text}" if text else type(fault).__name__
    return Misuse(f"{problem}: {cause}", where=_locate(fault.__traceback__, path, default_location))


def _locate(trace: TracebackType | None, path: str, default_location: str = "") -> str:
    """Returns the file and its last line in the traceback, or the default location."""
    lines = [frame.lineno for frame in traceback.extract_tb(trace) if frame.filename == path]
    return f"{path}:{lines[-1]}" if lines else default_location or path
