"""torch's symbolic sizes, with sympy below them, imported when a size is one: a third of a second.

torch asks this part about each bool that it checks, and a bool is its own answer; tensors over devices, which
transformers imports for every model, take functions of it that no model on shapes calls.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from explorer.engine.formats.torch_module.late_module import LateModule, put_off

_NAME = "torch.fx.experimental.symbolic_shapes"
_Answer = Callable[..., Any]


def _truth(value: Any) -> Any:
    return value if type(value) is bool else NotImplemented


def _hint(value: Any) -> Any:
    return value if type(value) in (bool, int) else NotImplemented


def _of_number(answer: bool) -> _Answer:
    return lambda value: answer if type(value) in (bool, int, float) else NotImplemented


def _of_truths(answer: Callable[[tuple[bool, ...]], bool]) -> _Answer:
    return lambda *values: answer(values) if values and {*map(type, values)} == {bool} else NotImplemented


def _same(one: Any, other: Any) -> Any:
    return one == other if {type(one), type(other)} == {tuple} and _whole(one + other) else NotImplemented


def _whole(sizes: tuple[Any, ...]) -> bool:
    return all(type(size) is int for size in sizes)


def _by_itself(*values: Any) -> Any:
    return NotImplemented


_AT_ONCE: dict[str, _Answer] = {
    **dict.fromkeys(
        ("free_unbacked_symbols", "guard_size_oblivious", "has_free_unbacked_symbols"), _by_itself
    ),
    "expect_true": _truth,
    "guard_or_false": _truth,
    "guard_or_true": _truth,
    "guarding_hint_or_throw": _hint,
    "has_guarding_hint": _of_number(True),
    "is_nested_int": _of_number(False),
    "statically_known_true": _truth,
    "sym_and": _of_truths(all),
    "sym_eq": _same,
    "sym_or": _of_truths(any),
}
"""What functions answer where no symbol is; NotImplemented is for the real one."""

_ERROR = "GuardOnDataDependentSymNode"
_CATCHES = "torch.distributed.tensor"
"""Where an error is named that nothing raises before this part is there."""


class _NotRaised(Exception):
    """Stands for that error."""


class _LateSymbols(LateModule):
    def __init__(self, name: str, spec: Any) -> None:
        super().__init__(name, spec)
        for function, answer in _AT_ONCE.items():
            setattr(self, function, _late(self, function, answer))

    def __getattr__(self, name: str) -> Any:
        if name == _ERROR and str(sys._getframe(1).f_globals.get("__name__")).startswith(_CATCHES):
            return _NotRaised
        return super().__getattr__(name)

    def _load(self) -> None:
        stand_ins = {name: each for name, each in vars(self).items() if hasattr(each, "stands_for")}
        # they stay until the real ones take their places: another thread may ask meanwhile
        super()._load()
        for name in [name for name, each in stand_ins.items() if vars(self).get(name) is each]:
            delattr(self, name)
            del stand_ins[name]
        stand_ins[_ERROR] = _NotRaised
        for module in list(sys.modules.values()):
            held = getattr(module, "__dict__", {})
            for name, each in stand_ins.items():
                if held.get(name) is each:
                    setattr(module, name, getattr(self, name))


def _late(symbols: Any, name: str, answer: _Answer) -> _Answer:
    def function(*args: Any, **kwargs: Any) -> Any:
        if not kwargs and (said := answer(*args)) is not NotImplemented:
            return said
        if type(symbols) is _LateSymbols:
            symbols._load()
        real = vars(symbols).get(name, function)
        if real is function:
            raise ImportError(f"{name} is not there yet", name=_NAME)
        return real(*args, **kwargs)

    function.stands_for = name  # type: ignore[attr-defined]
    return function


class _LateAlgebra(LateModule):
    """sympy: torch asks whether a number that is combined with a tensor is one of its terms."""

    def __getattr__(self, name: str) -> Any:
        if name == "Basic" and sys._getframe(1).f_globals.get("__name__") == "torch._prims_common":
            return _NoTerm
        return super().__getattr__(name)


class _NoTerm:
    """Stands for sympy's terms, of which there is none yet."""


def put_off_symbols() -> None:
    """Has torch's symbolic sizes, and sympy, imported when they are used, unless they are there already."""
    put_off(_NAME, _LateSymbols)
    put_off("sympy", _LateAlgebra)
