"""Rules of the user's own, from a Python file that runs only with trust and for one session.

The file registers rules with `explorer.rules.rule` while it is loaded. What it registers is handed back
as a table; nothing is kept here, so one session's rules are unknown to the next. A rule that fails or
answers with something that is no cost stops the analysis with the line of the file, because a number
that quietly went missing would be worse.
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

_LONGEST = 4000
"""Characters of a formula; one is shown beside every number."""

_collected: contextvars.ContextVar[dict[Key, Rule] | None] = contextvars.ContextVar(
    "rules of the file being loaded", default=None
)


def register(key: Key, rule: Rule) -> None:
    """Adds a rule to the file that is being loaded; does nothing outside of one (in a test of the file)."""
    table = _collected.get()
    if table is not None:
        table[key] = rule


def load(path: str, *, trust: bool) -> Rules:
    """Runs a file of rules.

    Args:
        path: The Python file.
        trust: Whether it may run.

    Returns:
        Rules by (domain, operator), each of them guarded.

    Raises:
        Misuse: It may not run, cannot be read, fails, or registers nothing.
    """
    if not trust:
        problem = f"the rules in '{path}' are Python code, which would run"
        raise Misuse(problem, where="--rules", hint="read the file, then add --trust")
    try:
        source = input_files.content(path).decode("utf-8")
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
    # dataclasses look their module up while they are made
    module = ModuleType("explorer_user_rules")
    module.__file__ = path
    before = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module
    try:
        # what the file prints must not end up inside a table or JSON
        with contextlib.redirect_stdout(sys.stderr):
            exec(code, module.__dict__)
    except Misuse as fault:
        raise Misuse(fault.what, where=_place(fault.__traceback__, path), hint=fault.hint) from None
    except (Exception, SystemExit) as fault:
        raise _failure("the rules cannot be loaded", fault, path) from None
    finally:
        _collected.reset(token)
        if before is None:
            del sys.modules[module.__name__]
        else:
            sys.modules[module.__name__] = before
    if not table:
        hint = "write `@explorer.rules.rule('MyOp', domain='my.domain')` above a function"
        raise Misuse("the file registers no rule", where=path, hint=hint)
    return {key: _guarded(rule, key, path) for key, rule in table.items()}


def nonsense(cost: object) -> str:
    """The problem with a rule's answer, in words; empty if there is none."""
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
    if len(cost.formula) > _LONGEST:
        return f"a formula of {len(cost.formula):,} characters"
    if cost.status != "unknown" and None in (cost.macs, cost.elementwise_ops):
        return f"no number with status='{cost.status}'"
    if cost.status != "exact" and not cost.reason:
        return f"status='{cost.status}' without a reason"
    return ""


def _guarded(rule: Rule, key: Key, path: str) -> Rule:
    """`rule`, with its errors and wrong answers raised as `Misuse`."""
    name = "::".join(part for part in key if part)
    code = getattr(rule, "__code__", None)
    where = f"{path}:{code.co_firstlineno}" if code is not None and code.co_filename == path else path

    def guarded(call: Call) -> Cost:
        try:
            cost = rule(call)
        except MissingShape:
            raise
        except Exception as fault:
            raise _failure(f"the rule for {name} failed", fault, path, where) from None
        wrong = nonsense(cost)
        if wrong:
            raise Misuse(f"the rule for {name} returned {wrong}", where=where)
        return cost

    return guarded


def _failure(problem: str, fault: BaseException, path: str, otherwise: str = "") -> Misuse:
    text = str(fault)
    cause = f"{type(fault).__name__}: {text}" if text else type(fault).__name__
    return Misuse(f"{problem}: {cause}", where=_place(fault.__traceback__, path, otherwise))


def _place(trace: TracebackType | None, path: str, otherwise: str = "") -> str:
    """The file and the last of its lines that ran."""
    lines = [frame.lineno for frame in traceback.extract_tb(trace) if frame.filename == path]
    return f"{path}:{lines[-1]}" if lines else otherwise or path
