"""Loads a user's own cost rules from a Python file, which runs only with `--trust`.

While the file is loaded, it registers rules with `explorer.rules.rule`. `load` returns them as a table for
one session; this module keeps nothing. A rule that fails or returns an invalid cost stops the analysis, with
the line of the file in the message. Otherwise a number would be missing without notice.
"""

from __future__ import annotations

import contextvars

from explorer.base.errors import Misuse
from explorer.engine.operators.call import Call, Key, MissingShape, Rule, Rules
from explorer.engine.operators.cost_formulas import Cost
from explorer.engine.operators.user_file import build_error, collect_declarations

_MAX_FORMULA_LENGTH = 4000
"""Maximum number of characters in a formula, because the program shows formulas next to the numbers."""

_collected: contextvars.ContextVar[dict[Key, Rule] | None] = contextvars.ContextVar(
    "rules of the file being loaded", default=None
)


def register(key: Key, rule: Rule) -> None:
    """Registers a rule of the file that is being loaded. Does nothing if no file is being loaded.

    Raises:
        Misuse: The file has registered another rule for the operator.
    """
    table = _collected.get()
    if table is None:
        return
    first = table.setdefault(key, rule)
    if first is not rule:
        code = getattr(first, "__code__", None)
        place = "" if code is None else f"; the first is on line {code.co_firstlineno}"
        raise Misuse(f"two rules are for {_format_key(key)}", hint=f"keep one of them{place}")


def _format_key(key: Key) -> str:
    return "::".join(part for part in key if part)


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
    hint = "write `@explorer.rules.rule('MyOp', domain='my.domain')` above a function"
    no_rule = Misuse("the file registers no rule", where=path, hint=hint)
    table = collect_declarations(path, "rules", "--rules", _collected, no_rule, trust=trust)
    return {key: _guard(rule, key, path) for key, rule in table.items()}


def find_problem(cost: object) -> str:
    """Describes the problem with the result of a rule; '' if it is a valid cost."""
    if not isinstance(cost, Cost):
        return f"an object of type {type(cost).__name__}, not a Cost"
    for name in ("macs", "elementwise_ops"):
        value = getattr(cost, name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
            return f"{name}={value!r}, which is not a count"
    if cost.status not in ("exact", "bound", "unknown"):
        return f"status={cost.status!r}, which is none of 'exact', 'bound', 'unknown'"
    if not isinstance(cost.formula, str) or not isinstance(cost.reason, str):
        return "a formula or reason that is not text"
    if len(cost.formula) > _MAX_FORMULA_LENGTH:
        return f"a formula of {len(cost.formula):,} characters"
    if cost.status != "unknown" and None in (cost.macs, cost.elementwise_ops):
        return f"no number with status='{cost.status}'"
    if cost.status != "exact" and not cost.reason:
        return f"status='{cost.status}' without a reason"
    return ""


def _guard(rule: Rule, key: Key, path: str) -> Rule:
    """Wraps a rule so that its errors and invalid results are raised as `Misuse`."""
    name = _format_key(key)
    code = getattr(rule, "__code__", None)
    location = f"{path}:{code.co_firstlineno}" if code is not None and code.co_filename == path else path

    def guarded_rule(call: Call) -> Cost:
        try:
            cost = rule(call)
        except MissingShape:
            raise
        except (Exception, SystemExit) as fault:
            raise build_error(f"the rule for {name} failed", fault, path, location) from None
        problem = find_problem(cost)
        if problem:
            raise Misuse(f"the rule for {name} returned {problem}", where=location)
        return cost

    return guarded_rule
