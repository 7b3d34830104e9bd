"""TorchScript interpreter: parses the code in a TorchScript file and runs it statement by statement.

A TorchScript file contains the code of its classes as text. The grammar is a subset of Python's, so Python's
parser reads it, but Python never compiles or runs it: this module implements the statements. The code can
call only its own functions, TorchScript's builtins on plain values (`operators`), and torch's tensor
operators. Operators that access files are excluded.
"""

from __future__ import annotations

import ast
import re
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from msgspec import Struct, field

from explorer.base.errors import BadModel
from explorer.base.units import printable
from explorer.engine.compat.torch import buffers_of, children_of, parameters_of
from explorer.engine.formats.torch_replay import operators
from explorer.engine.formats.torch_replay.rebuilt_module import ReplayModule

MAX_SOURCE_LENGTH = 32 << 20
"""Maximum number of characters of a code file."""
MAX_STEPS = 200_000
"""Maximum number of steps of a run, about one second. Each statement takes one step, and operators take more.
The longest known real run, a scripted detector, takes about ten thousand steps."""
_LOOP_STEPS = 32
"""Steps of an operator inside a loop, because it may be a tensor operator."""
TRUSTED_FACTOR = 100
"""Factor by which trusted code may take more steps, such as the loop of a long recurrence."""
MAX_ARGUMENT_ITEMS = 1_000_000
"""Maximum number of items, including nested items, in the arguments of an operator on plain values."""


class ScriptError(Exception):
    """Raised for code that this interpreter cannot run."""


class ScriptClass(Struct):
    """A class with code in the file.

    Attributes:
        qualname: Qualified name in the file, such as '__torch__.torch.nn.modules.conv.Conv2d'. It may contain
            parts that TorchScript added to make it unique.
        base: Base class: 'Module', 'NamedTuple', 'Enum', 'Interface' or ''.
        fields: Names of the annotated attributes, in order.
        constants: Values of the constant attributes, by name.
        methods: Methods by name.
        parameters: Names of the attributes that are parameters.
        buffers: Names of the attributes that are buffers.
    """

    qualname: str
    base: str = ""
    fields: list[str] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    methods: dict[str, ast.FunctionDef] = field(default_factory=dict)
    parameters: frozenset[str] = frozenset()
    buffers: frozenset[str] = frozenset()


class Code:
    """The code in an archive. Each code file is parsed when it is first needed.

    Args:
        read: Function that returns the text of an archive entry by name, or None if it does not exist.
        where: Path of the file, for error messages.
        trusted: Whether the user trusts that the loops in the code end.

    Attributes:
        classes: Classes parsed so far, by qualified name.
        functions: Functions parsed so far, by qualified name.
        parsed: Names of the Python modules parsed so far.
    """

    def __init__(self, read: Callable[[str], str | None], where: str, trusted: bool = False) -> None:
        self.read = read
        self.where = where
        self.trusted = trusted
        self.classes: dict[str, ScriptClass] = {}
        self.functions: dict[str, ast.FunctionDef] = {}
        self.parsed: set[str] = set()

    def find_class(self, qualname: str) -> ScriptClass | None:
        """Returns the class with this qualified name, or None if the archive has no code for it."""
        self._parse(qualname.rpartition(".")[0])
        return self.classes.get(qualname)

    def find_function(self, qualname: str) -> ast.FunctionDef | None:
        """Returns the function with this qualified name, or None if the archive has no code for it."""
        self._parse(qualname.rpartition(".")[0])
        return self.functions.get(qualname)

    def _parse(self, module: str) -> None:
        """Parses the code of a Python module in the file, once; a module without code is ignored."""
        if module in self.parsed:
            return
        self.parsed.add(module)
        text = self.read(f"code/{module.replace('.', '/')}.py")
        if text is None:
            return
        if len(text) > MAX_SOURCE_LENGTH:
            raise BadModel(f"its code for {printable(module)} is larger than any model's", where=self.where)
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise BadModel(
                f"its code for {printable(module)} is broken", where=self.where, hint="save the model again"
            ) from error
        for definition in tree.body:
            if isinstance(definition, ast.ClassDef):
                self.classes[f"{module}.{definition.name}"] = self._build_class(
                    f"{module}.{definition.name}", definition
                )
            elif isinstance(definition, ast.FunctionDef):
                self.functions[f"{module}.{definition.name}"] = definition

    def _build_class(self, qualname: str, definition: ast.ClassDef) -> ScriptClass:
        base = definition.bases[0] if definition.bases else None
        script_class = ScriptClass(qualname, base.id if isinstance(base, ast.Name) else "")
        for part in definition.body:
            if isinstance(part, ast.FunctionDef):
                script_class.methods[part.name] = part
            elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                script_class.fields.append(part.target.id)
                if part.value is not None:
                    script_class.constants[part.target.id] = _parse_literal(part.value)
            elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Subscript):
                # __annotations__["0"] = ...: the field name is not an identifier
                script_class.fields.append(str(_parse_literal(part.target.slice)))
            elif isinstance(part, ast.Assign) and isinstance(part.targets[0], ast.Name):
                name = part.targets[0].id
                value = _parse_literal(part.value)
                if name == "__parameters__" and isinstance(value, list):
                    script_class.parameters = frozenset(map(str, value))
                elif name == "__buffers__" and isinstance(value, list):
                    script_class.buffers = frozenset(map(str, value))
                else:
                    script_class.constants[name] = value
        return script_class


def _parse_literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


# -- running


class ScriptFrame(Struct):
    """A running function.

    Attributes:
        names: Values of the local variables, by name.
        owner: Object whose method runs, or None for a plain function.
    """

    names: dict[str, Any]
    owner: Any = None


class _Reference(Struct, frozen=True):
    """A reference to a function or class of the file, used as a value."""

    qualname: str


class ScriptObject:
    """An instance of a class of the file that is not a module.

    Attributes:
        qualname: Qualified name of the class.
        values: Attributes by name, set after creation.
    """

    def __init__(self, qualname: str) -> None:
        self.qualname = qualname
        self.values: dict[str, Any] = {}


class _Return(Exception):
    """Raised by a return statement to leave the running function with a value."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


_ROOTS = frozenset({"torch", "ops", "__torch__", "CONSTANTS"})
"""First parts of the dotted names of globals."""
_CONVERSIONS: Mapping[str, Callable[[Any], Any]] = {"int": int, "float": float, "bool": bool}
"""Functions that read the number in a tensor, by the type in `annotate`."""
_NUMBERS = {"inf": float("inf"), "nan": float("nan"), "infj": complex(0, float("inf"))}
"""Numbers by their name in the code."""

_ENTRY = re.compile(r"forward(\d+|__\d+)?")
"""Names of the methods that run a submodule. A traced module that is called twice also has `forward1`."""

_FIXED_RESULTS = {
    "__torch__.torch.backends.mha.get_fastpath_enabled": False,
    "__torch__.torch.jit.is_scripting": True,
}
"""Fixed results of functions of torch. They disable a fast path, which would hide operators."""

_PACKED = (
    "its weights are packed for quantized operators, which are not opened in a file of TorchScript; count the"
    " module that was saved, as package.module:name"
)
"""Message for a layer with packed weights."""


class ScriptInterpreter:
    """Runs functions of a file's code. They can use the file's modules, its constants, and operators.

    Args:
        code: Code of the file.
        device: Device of new tensors.

    Attributes:
        constants: Constants of the code, by name, such as 'c0'.
        entry: Name of the method that the next call of a submodule runs, or '' for `forward`.
        steps: Number of steps of the current run.
        loop_depth: Number of loops that contain the current statement.
        mode: How the current run of the model proceeds.
    """

    def __init__(self, code: Code, device: torch.device) -> None:
        self.code = code
        self.device = device
        self.constants: dict[str, Any] = {}
        self.entry = ""
        self.steps = 0
        self.loop_depth = 0
        self.mode = operators.RunMode(device, False)

    def __deepcopy__(self, memo: Any) -> ScriptInterpreter:
        return self

    def enter(self, twin: ReplayModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the `forward` of a twin (see `rebuilt_module`), or the method that `self.entry` names."""
        name, self.entry = self.entry or "forward", ""
        kind: ScriptClass = twin.file_values["kind"]
        if twin.file_values["packed"]:
            raise ScriptError(_PACKED)
        if "constants" in twin.file_values:
            # the model itself: a new run starts
            self.steps = self.loop_depth = 0
            self.mode = operators.find_mode(self.device, args, kwargs)
            args = _convert_image_lists(kind, args)
        method = kind.methods.get(name) or kind.methods.get("forward__0")
        if method is None:
            raise ScriptError(f"{kind.qualname} has no {name}")
        check_size([*args, *kwargs.values()])
        result = self.run(method, (twin, *args), kwargs, owner=twin)
        check_size([result])
        return result

    def run(
        self, function: ast.FunctionDef, args: Sequence[Any], kwargs: Mapping[str, Any], owner: Any = None
    ) -> Any:
        """Runs a function of the file.

        Args:
            function: Parsed definition of the function.
            args: Positional arguments.
            kwargs: Keyword arguments.
            owner: Object whose method this is, or None for a plain function.

        Raises:
            ScriptError: The interpreter cannot run the function.
        """
        frame = ScriptFrame(self._bind_arguments(function, args, kwargs), owner)
        try:
            self._run_block(function.body, frame)
        except _Return as signal:
            return signal.value
        return None

    def _bind_arguments(
        self, function: ast.FunctionDef, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Returns the value of each argument of a function, by name."""
        names = [a.arg for a in function.args.args]
        if len(args) > len(names):
            raise ScriptError(f"{function.name} takes {len(names)} arguments and was given {len(args)}")
        arguments = dict(zip(names, args, strict=False))
        arguments.update({k: v for k, v in kwargs.items() if k in names})
        defaults = function.args.defaults
        for name, default in zip(names[len(names) - len(defaults) :], defaults, strict=True):
            if name not in arguments:
                arguments[name] = self._evaluate(default, ScriptFrame({}))
        missing = [n for n in names if n not in arguments]
        if missing:
            raise ScriptError(f"{function.name} was not given {', '.join(missing)}")
        return arguments

    # statements

    def _spend(self, steps: int) -> None:
        """Counts steps; raises an error above the limit."""
        self.steps += steps
        if self.steps > MAX_STEPS * (TRUSTED_FACTOR if self.code.trusted else 1):
            hint = "" if self.code.trusted else "; --trust lets it run a hundred times longer"
            raise ScriptError(f"its code runs endlessly{hint}")

    def _run_block(self, statements: Sequence[ast.stmt], frame: ScriptFrame) -> None:
        for statement in statements:
            self._spend(1)
            handler = _STATEMENTS.get(type(statement))
            if handler is None:
                raise ScriptError(f"'{type(statement).__name__}' is not TorchScript")
            handler(self, statement, frame)

    def _run_assignment(self, statement: ast.Assign, frame: ScriptFrame) -> None:
        value = self._evaluate(statement.value, frame)
        for target in statement.targets:
            self._bind_target(target, value, frame)

    def _run_declaration(self, statement: ast.AnnAssign, frame: ScriptFrame) -> None:
        if statement.value is not None:
            self._bind_target(statement.target, self._evaluate(statement.value, frame), frame)

    def _bind_target(self, target: ast.expr, value: Any, frame: ScriptFrame) -> None:
        if isinstance(target, ast.Name):
            frame.names[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            parts = list(value)
            if len(parts) != len(target.elts):
                raise ScriptError(f"{len(parts)} values for {len(target.elts)} names")
            for part, element in zip(target.elts, parts, strict=True):
                self._bind_target(part, element, frame)
        elif isinstance(target, ast.Attribute):
            self._set_attribute(self._evaluate(target.value, frame), target.attr, value)
        elif isinstance(target, ast.Subscript):
            self._evaluate(target.value, frame)[self._evaluate(target.slice, frame)] = value
        else:
            raise ScriptError(f"nothing can be assigned to '{type(target).__name__}'")

    def _run_expression(self, statement: ast.Expr, frame: ScriptFrame) -> None:
        self._evaluate(statement.value, frame)

    def _run_if(self, statement: ast.If, frame: ScriptFrame) -> None:
        branch = statement.body if bool(self._evaluate(statement.test, frame)) else statement.orelse
        self._run_block(branch, frame)

    def _run_while(self, statement: ast.While, frame: ScriptFrame) -> None:
        self.loop_depth += 1
        try:
            while bool(self._evaluate(statement.test, frame)):
                self._run_block(statement.body, frame)
        finally:
            self.loop_depth -= 1

    def _run_for(self, statement: ast.For, frame: ScriptFrame) -> None:
        self.loop_depth += 1
        try:
            for value in self._evaluate(statement.iter, frame):
                self._bind_target(statement.target, value, frame)
                self._run_block(statement.body, frame)
        finally:
            self.loop_depth -= 1

    def _run_return(self, statement: ast.Return, frame: ScriptFrame) -> None:
        raise _Return(None if statement.value is None else self._evaluate(statement.value, frame))

    def _run_with(self, statement: ast.With, frame: ScriptFrame) -> None:
        # the context managers in question, torch.no_grad and profiling, do not change results
        self._run_block(statement.body, frame)

    def _run_pass(self, statement: ast.stmt, frame: ScriptFrame) -> None:
        pass

    # expressions

    def _evaluate(self, node: ast.expr, frame: ScriptFrame) -> Any:
        handler = _EXPRESSIONS.get(type(node))
        if handler is None:
            raise ScriptError(f"'{type(node).__name__}' is not TorchScript")
        return handler(self, node, frame)

    def _evaluate_constant(self, node: ast.Constant, frame: ScriptFrame) -> Any:
        return node.value

    def _evaluate_name(self, node: ast.Name, frame: ScriptFrame) -> Any:
        if node.id in frame.names:
            return frame.names[node.id]
        if node.id in _NUMBERS:
            return _NUMBERS[node.id]
        raise ScriptError(f"'{node.id}' has no value")

    def _evaluate_attribute(self, node: ast.Attribute, frame: ScriptFrame) -> Any:
        dotted = _find_dotted_name(node, frame)
        if dotted is None:
            return self._get_attribute(self._evaluate(node.value, frame), node.attr)
        if dotted.startswith("CONSTANTS."):
            if node.attr not in self.constants:
                raise ScriptError(f"it has no constant {node.attr}")
            return self.constants[node.attr]
        if dotted.startswith("__torch__."):
            enumeration = self.code.find_class(dotted.rpartition(".")[0])
            if enumeration is not None and enumeration.base == "Enum":
                return enumeration.constants.get(node.attr)
            return _Reference(dotted)
        raise ScriptError(f"'{dotted}' is not a value")

    def _evaluate_subscript(self, node: ast.Subscript, frame: ScriptFrame) -> Any:
        value = self._evaluate(node.value, frame)
        if isinstance(node.slice, ast.Slice):
            bounds = (node.slice.lower, node.slice.upper, node.slice.step)
            return value[slice(*(None if b is None else self._evaluate(b, frame) for b in bounds))]
        return value[self._evaluate(node.slice, frame)]

    def _evaluate_sequence(self, node: ast.Tuple | ast.List, frame: ScriptFrame) -> Any:
        values = [self._evaluate(element, frame) for element in node.elts]
        return tuple(values) if isinstance(node, ast.Tuple) else values

    def _evaluate_mapping(self, node: ast.Dict, frame: ScriptFrame) -> Any:
        pairs = zip(node.keys, node.values, strict=True)
        return {self._evaluate(k, frame): self._evaluate(v, frame) for k, v in pairs if k is not None}

    def _evaluate_unary(self, node: ast.UnaryOp, frame: ScriptFrame) -> Any:
        value = self._evaluate(node.operand, frame)
        return not value if isinstance(node.op, ast.Not) else -value

    def _evaluate_choice(self, node: ast.IfExp, frame: ScriptFrame) -> Any:
        return self._evaluate(node.body if bool(self._evaluate(node.test, frame)) else node.orelse, frame)

    def _evaluate_call(self, node: ast.Call, frame: ScriptFrame) -> Any:
        target = node.func
        if isinstance(target, ast.Name) and target.id not in frame.names:
            return self._call_builtin(target.id, node, frame)
        args = [self._evaluate(a, frame) for a in node.args]
        kwargs = {k.arg: self._evaluate(k.value, frame) for k in node.keywords if k.arg is not None}
        if isinstance(target, ast.Attribute):
            dotted = _find_dotted_name(target, frame)
            if dotted is None:
                receiver = self._evaluate(target.value, frame)
                return self._call_method(frame, receiver, target.attr, args, kwargs)
            if dotted.startswith(("torch.", "ops.")):
                self._spend((_LOOP_STEPS if self.loop_depth else 1) + _count_steps(dotted, args))
                return self._call_operator(dotted, args, kwargs)
            return self._call_in_file(dotted, args, kwargs)
        callee = self._evaluate(target, frame)
        if isinstance(callee, _Reference):
            return self._call_in_file(callee.qualname, args, kwargs)
        raise ScriptError("this cannot be called")

    def _call_in_file(self, qualname: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        function = self.code.find_function(qualname)
        if function is not None:
            fixed_result = _FIXED_RESULTS.get(qualname)
            return self.run(function, args, kwargs) if fixed_result is None else fixed_result
        class_name, _, name = qualname.rpartition(".")
        if name == "__new__" and self.code.find_class(class_name) is not None:
            return ScriptObject(class_name)
        script_class = self.code.find_class(qualname)
        if script_class is None:
            raise ScriptError(f"its code lacks {qualname}")
        return self._create_instance(script_class, args, kwargs)

    def _call_builtin(self, name: str, node: ast.Call, frame: ScriptFrame) -> Any:
        if name == "uninitialized":
            return None
        if name in ("annotate", "unchecked_cast"):
            kind, value = node.args[0], self._evaluate(node.args[1], frame)
            convert = _CONVERSIONS.get(kind.id) if isinstance(kind, ast.Name) else None
            return convert(value) if convert and hasattr(value, "item") else value
        args = [self._evaluate(a, frame) for a in node.args]
        if name == "getattr":
            return self._get_attribute(args[0], str(args[1]))
        if name in ("int", "float", "bool", "str", "complex"):
            return self._call_operator(f"torch.{name}", args, {})
        if name in _BUILTINS:
            return _BUILTINS[name](*args)
        raise ScriptError(f"'{name}' is not TorchScript")

    # objects of the file, and operators

    def _call_method(
        self, frame: ScriptFrame, value: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Calls a method; the `forward` of a submodule through the module, so that its hooks run."""
        if isinstance(value, ReplayModule):
            if value is not frame.owner and _ENTRY.fullmatch(name):
                self.entry = name
                return value(*args, **kwargs)
            kind = value.file_values["kind"]
        elif isinstance(value, ScriptObject):
            script_class = self.code.find_class(value.qualname)
            if script_class is None:
                raise ScriptError(f"its code lacks {value.qualname}")
            kind = script_class
        else:
            raise ScriptError(f"a {type(value).__name__} has no method {name}")
        method = kind.methods.get(name)
        if method is None:
            raise ScriptError(f"{kind.qualname} has no method {name}")
        # the frame gets the receiver as its owner, so that operators count for the module whose method runs
        return self.run(method, (value, *args), kwargs, owner=value)

    def _get_attribute(self, value: Any, name: str) -> Any:
        if isinstance(value, ReplayModule):
            for table in (
                parameters_of(value),
                buffers_of(value),
                children_of(value),
                value.file_values["values"],
            ):
                if name in table:
                    return table[name]
            if name == "training":
                return value.training
            constants = value.file_values["kind"].constants
            if name in constants:
                return constants[name]
        elif isinstance(value, ScriptObject):
            if name in value.values:
                return value.values[name]
        elif isinstance(value, tuple) and name in getattr(value, "_fields", ()):
            return getattr(value, name)
        raise ScriptError(f"a {type(value).__name__} has no {name}")

    def _set_attribute(self, value: Any, name: str, new_value: Any) -> None:
        if isinstance(value, ScriptObject):
            value.values[name] = new_value
        elif isinstance(value, ReplayModule):
            # new attributes are dropped, so that each run starts with the state in the file
            if name in value.file_values["values"]:
                value.file_values["values"][name] = new_value
        else:
            raise ScriptError(f"a {type(value).__name__} has no {name}")

    def _create_instance(self, kind: ScriptClass, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Creates an instance of a class of the file."""
        if kind.base == "NamedTuple":
            values = dict(zip(kind.fields, args, strict=False)) | kwargs
            if all(f.isidentifier() and not f.startswith("_") for f in kind.fields):
                tuple_class = namedtuple("NamedTuple", kind.fields)  # type: ignore[misc]
                return tuple_class(**values)
            return tuple(values.values())
        instance = ScriptObject(kind.qualname)
        initializer = kind.methods.get("__init__")
        if initializer is not None:
            self.run(initializer, (instance, *args), kwargs, owner=instance)
        return instance

    def _call_operator(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if any(isinstance(a, ScriptObject) and ".torch.classes." in a.qualname for a in args):
            raise ScriptError(_PACKED)
        try:
            return operators.call(name, args, kwargs, self.mode)
        except operators.UnknownOperator as error:
            raise ScriptError(str(error)) from None


def _convert_image_lists(kind: ScriptClass, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Converts each tensor for which the model expects a list, such as a detector's images.

    A tensor with four axes becomes a list of its images, and another tensor becomes a list of one.
    """
    declared = kind.methods["forward"].args.args[1:]
    arguments = list(args)
    for index, (argument, value) in enumerate(zip(declared, args, strict=False)):
        is_list = argument.annotation is not None and ast.unparse(argument.annotation) == "List[Tensor]"
        if is_list and isinstance(value, torch.Tensor):
            arguments[index] = list(value.unbind(0)) if value.dim() == 4 else [value]
    return tuple(arguments)


_DEEP = frozenset(
    f"torch.{name}"
    for name in (
        "eq", "ne", "lt", "le", "gt", "ge", "str", "format", "percentFormat", "warn", "tensor", "as_tensor",
        "__contains__", "__is__", "__isnot__", "index", "count", "remove", "sort", "sorted", "max", "min",
    )
)  # fmt: skip
"""Operators that read nested lists completely."""


def _count_steps(name: str, args: Sequence[Any]) -> int:
    """Returns the number of steps of an operator on plain values: one for every 64 items that it may read.

    Raises:
        ScriptError: The arguments have over `MAX_ARGUMENT_ITEMS` items, such as a list that contains itself.
    """
    pending = [a for a in args if isinstance(a, (list, tuple, dict, str))]
    is_deep = name in _DEEP
    items_visited = 0
    while pending:
        value = pending.pop()
        items_visited += len(value)
        if items_visited > MAX_ARGUMENT_ITEMS:
            raise ScriptError("its code creates an endless list")
        if is_deep and not isinstance(value, str):
            items = value.values() if isinstance(value, dict) else value
            pending += [element for element in items if isinstance(element, (list, tuple, dict, str))]
    return items_visited >> 6


def check_size(values: Sequence[Any]) -> None:
    """Checks the size of the arguments or results of a layer.

    Raises:
        ScriptError: The values have more than a tenth of `MAX_ARGUMENT_ITEMS` items, or more than 100 levels.
    """
    pending = [(value, 0) for value in values if isinstance(value, (list, tuple, dict))]
    items_visited = 0
    while pending:
        value, depth = pending.pop()
        items_visited += len(value)
        if items_visited > MAX_ARGUMENT_ITEMS // 10 or depth > _MAX_LEVELS:
            raise ScriptError("its code creates an endless list")
        items = value.values() if isinstance(value, dict) else value
        pending += [(element, depth + 1) for element in items if isinstance(element, (list, tuple, dict))]


_MAX_LEVELS = 100
"""Maximum number of levels of nested lists in the arguments or results of a layer."""


def _find_dotted_name(node: ast.expr, frame: ScriptFrame) -> str | None:
    """Returns the dotted name of a global, such as 'torch.add', or None for an attribute of a value."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name) and node.id in _ROOTS and node.id not in frame.names:
        return ".".join([node.id, *reversed(parts)])
    return None


_BUILTINS: Mapping[str, Callable[..., Any]] = {
    "range": lambda *args: range(*map(int, args)),
    "len": len,
    "min": min,
    "max": max,
}
"""Builtins that code calls without a prefix."""

_STATEMENTS: dict[type, Callable[[ScriptInterpreter, Any, ScriptFrame], None]] = {
    ast.Assign: ScriptInterpreter._run_assignment,
    ast.AnnAssign: ScriptInterpreter._run_declaration,
    ast.Expr: ScriptInterpreter._run_expression,
    ast.If: ScriptInterpreter._run_if,
    ast.While: ScriptInterpreter._run_while,
    ast.For: ScriptInterpreter._run_for,
    ast.Return: ScriptInterpreter._run_return,
    ast.With: ScriptInterpreter._run_with,
    ast.Pass: ScriptInterpreter._run_pass,
}
_EXPRESSIONS: dict[type, Callable[[ScriptInterpreter, Any, ScriptFrame], Any]] = {
    ast.Constant: ScriptInterpreter._evaluate_constant,
    ast.Name: ScriptInterpreter._evaluate_name,
    ast.Attribute: ScriptInterpreter._evaluate_attribute,
    ast.Subscript: ScriptInterpreter._evaluate_subscript,
    ast.Tuple: ScriptInterpreter._evaluate_sequence,
    ast.List: ScriptInterpreter._evaluate_sequence,
    ast.Dict: ScriptInterpreter._evaluate_mapping,
    ast.UnaryOp: ScriptInterpreter._evaluate_unary,
    ast.IfExp: ScriptInterpreter._evaluate_choice,
    ast.Call: ScriptInterpreter._evaluate_call,
}
