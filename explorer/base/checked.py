"""Checked records and arguments: a wrong name, type, choice or range gives one clear error.

`Spec` is the base class of every record that a user's Python code creates. It checks its fields against their
annotations on creation. `wrap_checked` does the same for the arguments of a function. Each converts values
with an obvious meaning: a numpy scalar becomes a number, a path object becomes text, and a single value
becomes a tuple with one element.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from functools import cache, reduce, wraps
from operator import or_
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from explorer.base.compat import build_type
from explorer.base.errors import Misuse
from explorer.base.units import many_text

_Function = TypeVar("_Function", bound=Callable[..., Any])

_MAX_VALUE_LENGTH = 80
"""Largest number of characters of a wrong value in a message."""

Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
Seconds = Annotated[float, Meta(ge=0)]
Words = Annotated[str, Meta(min_length=1)]
PathText = Annotated[str, Meta(min_length=1, title="path")]
"""Types with limits, for annotations of fields and arguments. `Words` and `PathText` are not empty."""

_MAX_INTEGER = (1 << 63) - 1
"""Largest magnitude of an integer in a field or an argument: it fits in 64 bits."""


class _Checked(msgspec.StructMeta):
    """Metaclass that reports wrong arguments of a record with the names of its fields."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().__call__(*args, **kwargs)
        except TypeError as error:
            problem = next((name for name in kwargs if name not in self.__struct_fields__), None)
            if problem is None and len(args) + len(kwargs) > len(self.__struct_fields__):
                problem = f"argument {len(args)}"
            message = (
                str(error)[:1].lower() + str(error)[1:] if problem is None else f"has no field '{problem}'"
            )
            fields = ", ".join(self.__struct_fields__)
            raise Misuse(message, where=self.__name__, hint=f"its fields: {fields}") from None


class Spec(Struct, frozen=True, forbid_unknown_fields=True, metaclass=_Checked):
    """A record that checks its fields on creation.

    Raises:
        Misuse: The type of a field does not match its annotation, or the value is not among its choices or
            out of range. The message names the field, the value and the allowed values.
    """

    def __post_init__(self) -> None:
        for name, kind in _list_fields(type(self)):
            value = getattr(self, name)
            converted = convert_value(value, kind, f"{type(self).__name__}.{name}")
            if converted is not value:
                msgspec.structs.force_setattr(self, name, converted)


@cache
def _list_fields(kind: type[Struct]) -> tuple[tuple[str, Any], ...]:
    return tuple((field.name, field.type) for field in msgspec.structs.fields(kind))


def convert_value(value: Any, kind: Any, where: str) -> Any:
    """Converts a value to its declared type, if its meaning is obvious; a single value may become a tuple.

    Args:
        value: Value of any type.
        kind: Type that msgspec knows, with its limits (`Annotated[int, Meta(ge=0)]`).
        where: Field or argument, for the message.

    Raises:
        Misuse: The value has another type, is not among the choices, or is out of range.
    """
    accepted_value = _convert_with_msgspec(value, kind)
    if accepted_value is _WRONG:
        plain = _make_plain(value)
        attempts = (_convert_with_msgspec(plain, kind), _convert_with_msgspec((plain,), kind))
        accepted_value = next((converted for converted in attempts if converted is not _WRONG), _WRONG)
    fault = "" if accepted_value is _WRONG else _describe_fault(accepted_value, kind)
    if accepted_value is _WRONG or fault:
        text = repr(value)
        value_text = text if len(text) <= _MAX_VALUE_LENGTH else f"{text[: _MAX_VALUE_LENGTH - 3]}..."
        raise Misuse(
            f"{value_text} cannot be taken", where=where, hint=f"give {describe_allowed(kind)}{fault}"
        )
    return accepted_value


_WRONG = object()


def _convert_with_msgspec(value: Any, kind: Any) -> Any:
    """Returns the converted value, or `_WRONG`. A value for a protocol is returned unchecked."""
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, OverflowError):
        return _WRONG
    except TypeError:  # msgspec cannot check a protocol
        return value


def _make_plain(value: Any) -> Any:
    """Converts a scalar, array, path or string of another library to Python's own types."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return {_make_plain(key): _make_plain(element) for key, element in value.items()}
    if isinstance(value, (list, tuple, set, frozenset, range)):
        return tuple(_make_plain(element) for element in value)
    convert = getattr(value, "tolist", None)  # numpy's and torch's scalars and arrays
    return convert() if callable(convert) and not isinstance(value, type) else value


def _describe_fault(value: Any, kind: Any) -> str:
    """Describes the general limit that a value breaks, as the end of a hint; '' if it breaks none.

    The general limits hold for every field and argument: no infinity, no NaN, no integers beyond 64 bits, and
    no null bytes in paths. The types do not express these limits, because msgspec 0.20 and 0.21 crash on a
    pattern in a union.
    """
    if isinstance(value, Mapping):
        return _describe_fault((*value, *value.values()), kind)
    if isinstance(value, (list, tuple)):
        return next(filter(None, (_describe_fault(element, kind) for element in value)), "")
    if isinstance(value, float) and not math.isfinite(value):
        return ", not NaN or infinite"
    if isinstance(value, int) and abs(value) > _MAX_INTEGER:
        return f", at most {_MAX_INTEGER:,}"
    return ", without a null byte" if isinstance(value, str) and "\0" in value and _accepts_path(kind) else ""


def _accepts_path(kind: Any) -> bool:
    """Whether a type is `PathText`, or contains it."""
    return bool(kind == PathText) or any(map(_accepts_path, get_args(kind)))


# -- allowed values, in words


def describe_allowed(kind: Any) -> str:
    """Describes the values of a type: `'tensor' or 'channel'`, `a whole number of at least 0`."""
    return _describe_type(msgspec.inspect.type_info(kind))


_NAMES = {
    "IntType": "a whole number",
    "FloatType": "a number",
    "BoolType": "True or False",
    "StrType": "text",
    "BytesType": "bytes",
    "NoneType": "None",
    "AnyType": "anything",
}
_LIMITS = {
    "ge": "of at least {}",
    "gt": "above {}",
    "le": "of at most {}",
    "lt": "below {}",
    "min_length": "of length {} or more",
}


def _describe_type(info: Any) -> str:
    if isinstance(info, msgspec.inspect.Metadata):  # the metadata of a declared option
        info = info.type
    name = type(info).__name__
    if name in _NAMES:
        limits = [(getattr(info, key, None), words) for key, words in _LIMITS.items()]
        return " ".join(
            [_NAMES[name], *[words.format(limit) for limit, words in limits if limit is not None]]
        )
    if name in ("LiteralType", "UnionType"):
        return _join_words(_list_choices(info))
    if name == "TupleType":
        item_texts = [_describe_type(inner) for inner in info.item_types]
        is_uniform = len(set(item_texts)) == 1
        return (
            f"{len(item_texts)} values, each {item_texts[0]}"
            if is_uniform
            else f"a tuple ({'; '.join(item_texts)})"
        )
    if name in ("VarTupleType", "ListType", "CollectionType", "SetType", "FrozenSetType"):
        return f"values, each {_describe_type(info.item_type)}"
    if name == "DictType":
        return f"a mapping from {_describe_type(info.key_type)} to {_describe_type(info.value_type)}"
    kind = getattr(info, "cls", None)
    return f"a {kind.__name__}" if isinstance(kind, type) else "another type"


def _list_choices(info: Any) -> list[str]:
    """Describes each choice of a literal or a union, or any other type as its only choice."""
    if isinstance(info, msgspec.inspect.Metadata):
        info = info.type
    name = type(info).__name__
    if name == "LiteralType":
        return [repr(value) for value in info.values]
    return (
        [word for inner in info.types for word in _list_choices(inner)]
        if name == "UnionType"
        else [_describe_type(info)]
    )


def _join_words(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


# -- arguments


Find = Callable[[str], Any]
"""Function that returns the object with a name. It raises KeyError for an unknown name.

It is needed for annotations, whose names a module may import for type checkers only.
"""


class _Names(dict[str, Any]):
    """Namespace for annotations: the module's own names, then those that `find` resolves."""

    def __init__(self, module_names: Mapping[str, Any], find: Find) -> None:
        super().__init__(module_names)
        self.find = find

    def __missing__(self, name: str) -> Any:
        return self.find(name)


def wrap_checked(function: _Function, find: Find) -> _Function:
    """Wraps a function so that its arguments are checked against their annotations.

    Args:
        function: Function to wrap.
        find: Function that resolves names that only type checkers import. An annotation with an unknown name
            is not checked.
    """
    if "session" in function.__annotations__:
        # what a notebook shows as the type of the first argument
        function.__annotations__["session"] = "Session"
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    positional = names[: code.co_argcount]
    kinds: dict[str, Any] = {}
    label = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not kinds:
            kinds.update(_resolve_types(function, names, find))
        by_position = dict(zip(positional, args, strict=False))
        for name, value in (by_position | kwargs).items():
            kind = kinds.get(name)
            if kind is None:
                continue
            accepted_value = convert_value(value, kind, f"{label}({name})")
            if isinstance(value, tuple) and isinstance(accepted_value, list):
                accepted_value = tuple(accepted_value)
            if name in by_position:
                index = positional.index(name)
                args = (*args[:index], accepted_value, *args[index + 1 :])
            else:
                kwargs[name] = accepted_value
        _check_call(function, names, args, kwargs, label)
        return function(*args, **kwargs)

    return call  # type: ignore[return-value]


_VARIABLE, _OPEN = 0x04, 0x08
"""Flags of a code object: the function has `*args` (_VARIABLE) or `**kwargs` (_OPEN)."""


def _check_call(
    function: Callable[..., Any],
    names: tuple[str, ...],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    label: str,
) -> None:
    """Refuses unknown and missing arguments.

    Raises:
        Misuse: An argument is unknown or missing. The message names it and the arguments of the function.
    """
    code = function.__code__
    positional = names[: code.co_argcount]
    given_names = positional[: len(args)]
    optional = {
        *positional[len(positional) - len(function.__defaults__ or ()) :],
        *(function.__kwdefaults__ or ()),
    }
    problems = [f"has two values for '{name}'" for name in given_names if name in kwargs]
    if not code.co_flags & _OPEN:
        problems += [f"has no argument '{name}'" for name in kwargs if name not in names]
    if len(args) > len(positional) and not code.co_flags & _VARIABLE:
        problems.append(f"takes {many_text(len(positional), 'value')} without a name, not {len(args)}")
    problems += [f"needs '{name}'" for name in names if name not in {*given_names, *kwargs, *optional}]
    if problems:
        arguments = ", ".join(name for name in names if name not in ("self", "session"))
        raise Misuse(problems[0], where=label, hint=f"its arguments: {arguments}")


def _resolve_types(function: Callable[..., Any], names: tuple[str, ...], find: Find) -> dict[str, Any]:
    """Resolves the types of a function's arguments.

    The type is None for an argument that cannot be checked.
    """
    namespace = _Names(function.__globals__, find)
    kinds: dict[str, Any] = dict.fromkeys(names)
    for name, text in function.__annotations__.items():
        if name not in kinds:
            continue
        try:
            kind = _drop_paths(eval(text, {}, namespace) if isinstance(text, str) else text)
            msgspec.inspect.type_info(kind)
            # raises ValidationError for a type that msgspec can check, TypeError for others
            msgspec.convert(object(), build_type(kind))
        except msgspec.ValidationError:
            pass
        except (NameError, TypeError, KeyError, AttributeError):
            continue
        kinds[name] = kind
    return kinds


def _drop_paths(kind: Any) -> Any:
    """Replaces a path type, also in a union, by `str`, because paths are converted to text."""
    if get_origin(kind) in (Union, UnionType):
        return reduce(or_, map(_drop_paths, get_args(kind)))
    return str if get_origin(kind) is os.PathLike else kind


def check_methods(kind: type, find: Find) -> None:
    """Wraps the constructor and all public methods of a class with `wrap_checked`."""
    for name, member in list(vars(kind).items()):
        if (
            callable(member)
            and hasattr(member, "__code__")
            and (not name.startswith("_") or name == "__init__")
        ):
            setattr(kind, name, wrap_checked(member, find))
