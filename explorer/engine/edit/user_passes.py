"""Passes of users: functions from an `onnx.ModelProto` to an `onnx.ModelProto`, with a name and options.

A pass comes from a Python file, which runs only with `--trust`, from an installed package with an entry point
of the group `explorer.passes`, or from the running program. `explorer.passes.graph_pass` declares it. A
package's code is imported only when its passes are listed or applied.
"""

from __future__ import annotations

import contextlib
import contextvars
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import BadModel, Misuse, format_choices, suggest_name
from explorer.engine.formats.onnx import reader, writer
from explorer.engine.formats.onnx.validate import validate
from explorer.engine.graph.model import Model, list_graphs
from explorer.engine.operators.user_file import build_error, collect_declarations, locate
from explorer.facts.user_pass import PassOption, UserPass
from explorer.host import output_files

if TYPE_CHECKING:
    from explorer.facts import Layer

GROUP = "explorer.passes"
"""Group of the entry points of packages with passes."""

_NAME = re.compile(r"[a-z][a-z0-9]*([-_.][a-z0-9]+)*")
_TYPES: Mapping[Any, str] = {bool: "bool", int: "int", float: "float", str: "str"}
_SWITCH = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}
_MARK = "explorer_pass"
"""Attribute of a function that holds its declaration."""

_collected: contextvars.ContextVar[dict[str, DeclaredPass] | None] = contextvars.ContextVar(
    "passes of the file being loaded", default=None
)
"""Passes that the file being loaded has declared so far, by name; None if no file is being loaded."""

_DECLARED: dict[str, DeclaredPass] = {}
"""Passes that a program or a notebook declared itself, by name; a later one replaces an earlier one."""


class DeclaredPass(Struct, frozen=True):
    """A pass with its function.

    Attributes:
        about: Name, purpose and options.
        function: Function that computes the new model.
        path: File of the function.
        takes_layers: Whether the second argument of the function is the layer table.
    """

    about: UserPass
    function: Callable[..., Any]
    path: str
    takes_layers: bool

    @property
    def location(self) -> str:
        """File and line of the function."""
        code = getattr(inspect.unwrap(self.function), "__code__", None)
        return f"{self.path}:{code.co_firstlineno}" if code is not None else self.path


def declare(function: Callable[..., Any], name: str, summary: str) -> None:
    """Declares a function as a pass of the file being loaded, or else as a pass of this program.

    Raises:
        Misuse: The name is not valid or already taken, or the arguments of the function are not valid.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Misuse(f"{name!r} is not a name of a pass", hint="use small letters, digits and '-'")
    if not callable(function):
        raise Misuse(f"the pass '{name}' is of type {type(function).__name__}, not a function")
    code = getattr(inspect.unwrap(function), "__code__", None)
    path = code.co_filename if code is not None else ""
    takes_layers, options = _read_signature(function, name)
    line = f":{code.co_firstlineno}" if code is not None else ""
    home = f"{os.path.basename(path)}{line}"
    declared = DeclaredPass(UserPass(name, summary, options, home), function, path, takes_layers)
    with contextlib.suppress(AttributeError):  # a callable object may refuse attributes
        setattr(function, _MARK, declared)
    table = _collected.get()
    if table is None:
        _DECLARED[name] = declared
        return
    if name in table:
        raise Misuse(
            f"two passes are named '{name}'", hint=f"rename one; the first is at {table[name].location}"
        )
    table[name] = declared


def _read_signature(function: Callable[..., Any], name: str) -> tuple[bool, tuple[PassOption, ...]]:
    """Reads the options of a pass from its keyword arguments.

    Returns:
        Whether the function takes the layer table, and the options.
    """
    parameters = list(inspect.signature(function).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    options = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    if len(positional) not in (1, 2) or len(positional) + len(options) != len(parameters):
        raise Misuse(
            f"the pass '{name}' takes {inspect.signature(function)}",
            hint="write def NAME(model, *, option=default), or def NAME(model, layers, *, option=default)",
        )
    hints = _read_hints(function, options, name)
    names_by_key: dict[str, str] = {}
    declared = []
    for parameter in options:
        key = parameter.name.replace("_", "").lower()
        if key in names_by_key:
            raise Misuse(
                f"the pass '{name}' names two options alike: '{names_by_key[key]}' and '{parameter.name}'",
                hint="rename one",
            )
        names_by_key[key] = parameter.name
        declared.append(_read_option(parameter, hints.get(parameter.name), name))
    return len(positional) == 2, tuple(declared)


def _read_hints(
    function: Callable[..., Any], options: Sequence[inspect.Parameter], name: str
) -> dict[str, Any]:
    """Reads the types of the options, which may be written as text. Other arguments need no type."""

    def stub() -> None:
        return None

    stub.__annotations__ = {p.name: p.annotation for p in options if p.annotation is not p.empty}
    try:
        return get_type_hints(stub, getattr(inspect.unwrap(function), "__globals__", {}), include_extras=True)
    except (NameError, TypeError, SyntaxError) as fault:
        raise Misuse(f"the pass '{name}' has an option whose type is not known: {fault}") from None


def _read_option(parameter: inspect.Parameter, annotation: Any, name: str) -> PassOption:
    """Returns the option that a parameter of a pass declares."""
    where = f"option '{parameter.name}' of the pass '{name}'"
    if parameter.default is parameter.empty:
        raise Misuse(f"{where} has no default", hint=f"write {parameter.name}=VALUE")
    text = ""
    if get_origin(annotation) is Annotated:
        annotation, *notes = get_args(annotation)
        text = next((note for note in notes if isinstance(note, str)), "")
    choices = tuple(map(str, get_args(annotation))) if get_origin(annotation) is Literal else ()
    kind = str if choices else type(parameter.default) if annotation is None else annotation
    is_choice = not choices or parameter.default in choices
    if kind not in _TYPES or not is_choice or not isinstance(parameter.default, kind):
        raise Misuse(
            f"{where} has the type {getattr(annotation, '__name__', annotation)} and the default"
            f" {parameter.default!r}",
            hint="types are bool, int, float, str and Literal of texts",
        )
    return PassOption(parameter.name.replace("_", "-"), _TYPES[kind], str(parameter.default), text, choices)


def find_pass(name: str, path: str | None, *, trust: bool) -> DeclaredPass:
    """Finds a pass in a file, in the installed packages, or among those that this program declared.

    Args:
        name: Name of the pass.
        path: File with passes, or None.
        trust: Whether the file may run.

    Raises:
        Misuse: No pass has this name, or several have it; or the file may not run or fails.
    """
    table = {} if path is None else load_file(path, trust=trust)
    points = [point for point in entry_points(group=GROUP) if point.name == name]
    homes = [f"the package {_name_package(point)}" for point in points]
    homes += [table[name].location] if name in table else []
    if len(homes) > 1:
        message = f"{len(homes)} plug-ins have a pass '{name}': {' and '.join(homes)}"
        raise Misuse(message, where=name, hint="rename one, or uninstall a package")
    if name in table:
        return table[name]
    if points:
        return _load_entry_point(points[0])
    if name in _DECLARED:
        return _DECLARED[name]
    valid_names = [*table, *(point.name for point in entry_points(group=GROUP)), *_DECLARED]
    hint = suggest_name(name, set(valid_names)) or "name a file with passes: --passes FILE --trust"
    raise Misuse(f"there is no pass '{name}'", where="apply", hint=hint)


def has_command(name: str, path: str | None) -> bool:
    """Whether a command can apply a pass. No command can apply a pass that a notebook declared."""
    return path is not None or any(point.name == name for point in entry_points(group=GROUP))


def list_passes(path: str | None, *, trust: bool) -> tuple[UserPass, ...]:
    """Lists the passes of a file and of the installed packages, whose code is imported.

    A package's pass that cannot be loaded is listed with the reason.

    Raises:
        Misuse: The file may not run or fails.
    """
    declared = () if path is None else load_file(path, trust=trust).values()
    return (*(declared_pass.about for declared_pass in declared), *map(_describe, entry_points(group=GROUP)))


def _describe(point: EntryPoint) -> UserPass:
    """Returns what a package says about its pass, or the reason why the pass cannot be loaded."""
    try:
        return _load_entry_point(point).about
    except Misuse as fault:
        problem = f"{fault.what}; {fault.hint}" if fault.hint else fault.what
        return UserPass(point.name, "", home=_name_package(point), problem=problem)


def load_file(path: str, *, trust: bool) -> Mapping[str, DeclaredPass]:
    """Runs a Python file with passes.

    Returns:
        The passes by name.

    Raises:
        Misuse: The file may not run, cannot be read, fails, or declares no pass.
    """
    hint = "write `@explorer.passes.graph_pass('my-pass')` above a function"
    no_pass = Misuse("the file declares no pass", where=path, hint=hint)
    return collect_declarations(path, "passes", "--passes", _collected, no_pass, trust=trust)


def _name_package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value


def _load_entry_point(point: EntryPoint) -> DeclaredPass:
    """Imports the pass of an installed package."""
    where = f"the package {_name_package(point)}"
    try:
        with contextlib.redirect_stdout(sys.stderr):
            function = point.load()
    except Misuse as fault:
        raise Misuse(fault.what, where=where, hint=fault.hint) from None
    except (Exception, SystemExit) as fault:
        raise Misuse(f"the pass '{point.name}' cannot be loaded: {fault}", where=where) from None
    declared = getattr(function, _MARK, None)
    if not isinstance(declared, DeclaredPass) or declared.about.name != point.name:
        raise Misuse(
            f"the entry point '{point.name}' is not a pass of this name",
            where=where,
            hint=f"write `@explorer.passes.graph_pass('{point.name}')` above the function",
        )
    return replace(declared, about=replace(declared.about, home=_name_package(point)))


def read_options(declared: DeclaredPass, texts: Mapping[str, str]) -> dict[str, Any]:
    """Reads the typed options of a pass.

    Returns:
        The values by argument name of the function.

    Raises:
        Misuse: The pass has no such option, or a value is invalid.
    """
    options = {option.name: option for option in declared.about.options}
    values: dict[str, Any] = {}
    for typed_name, text in texts.items():
        name = typed_name.replace("_", "-")
        option = options.get(name)
        if option is None:
            hint = suggest_name(name, options) or (
                f"it has {', '.join(options)}" if options else "it has no options"
            )
            raise Misuse(
                f"the pass '{declared.about.name}' has no option '{typed_name}'", where="--option", hint=hint
            )
        if name.replace("-", "_") in values:
            raise Misuse(f"'{name}' has two values", where="--option", hint="give one")
        values[name.replace("-", "_")] = _read_value(option, text)
    return values


def _read_value(option: PassOption, text: str) -> Any:
    where = f"--option {option.name}"
    if option.choices and text not in option.choices:
        raise Misuse(f"'{text}' is not known", where=where, hint=format_choices(option.choices))
    if option.type == "bool":
        if text.lower() not in _SWITCH:
            raise Misuse(f"'{text}' is neither yes nor no", where=where)
        return _SWITCH[text.lower()]
    try:
        return {"int": int, "float": float, "str": str}[option.type](text)
    except ValueError:
        kind = "a whole number" if option.type == "int" else "a number"
        raise Misuse(f"'{text}' is not {kind}", where=where) from None


def run_pass(
    declared: DeclaredPass, model: Model, layers: Sequence[Layer], options: Mapping[str, Any], folder: str
) -> tuple[Model, bool]:
    """Runs a pass on a model.

    Args:
        declared: The pass.
        model: The model, with up to 2 GiB of weights.
        layers: Rows of the layer table.
        options: Values by argument name.
        folder: Temporary folder for the result, which must exist as long as the result is used.

    Returns:
        The new model, and whether it differs from `model`.

    Raises:
        BadModel: The model is too large for a pass.
        Misuse: The pass raises an error or returns an invalid model.
    """
    import onnx  # takes a tenth of a second

    name = declared.about.name
    size = sum(tensor.nbytes for graph in list_graphs(model.graph) for tensor in graph.initializers.values())
    if size >= writer.PROTOBUF_LIMIT:
        raise BadModel(f"its weights have {size:,} bytes, and a pass takes 2 GiB at most", where=model.path)
    proto = onnx.load_from_string(writer.encode(model))
    content_before = proto.SerializeToString(deterministic=True)
    arguments = (proto, tuple(layers)) if declared.takes_layers else (proto,)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            result = declared.function(*arguments, **options)
    except Misuse as fault:
        where = locate(fault.__traceback__, declared.path, declared.location)
        raise Misuse(fault.what, where=where, hint=fault.hint) from None
    except (Exception, SystemExit) as fault:
        raise build_error(f"the pass '{name}' failed", fault, declared.path, declared.location) from None
    if not isinstance(result, onnx.ModelProto):
        hint = "end it with `return model`" if result is None else ""
        message = f"the pass '{name}' returned {type(result).__name__}, not an onnx.ModelProto"
        raise Misuse(message, where=declared.location, hint=hint)
    path = os.path.join(folder, "pass.onnx")
    try:
        content = result.SerializeToString(deterministic=True)
        with output_files.open_binary(path) as file:
            file.write(content)
        return replace(validate(reader.read(path)), path=model.path), content != content_before
    except BadModel as error:
        problem = f"the pass '{name}' returned an invalid graph: {error.what}"
        raise Misuse(problem, where=declared.location, hint=error.hint) from None
    except ValueError as error:  # protobuf refuses messages above 2 GiB
        raise Misuse(f"the pass '{name}' returned a model that cannot be written: {error}") from None
