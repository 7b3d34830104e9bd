"""Names of other libraries that nobody documents: where the source uses them outside the rooms for them.

A syntax tree shows no types. So a private attribute counts as foreign unless a class or a module of the
program defines the name, and as foreign all the same where it is a well-known one of torch's.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from explorer.host.gc_pause import pause_garbage_collector

SOURCE = Path(__file__).parent.parent / "explorer"
ROOMS = ("engine/compat/", "base/compat.py", "tui/compat.py", "web/compat.py")
"""Where assumptions about other libraries stand."""

_STANDARD = {"_asdict", "_exit", "_field_defaults", "_fields", "_getframe", "_make", "_replace", "_thread"}
"""Documented in Python's own manual in spite of the underscore."""
_OF_TORCH = {
    "_apply", "_backward_hooks", "_backward_pre_hooks", "_buffers", "_forward_hooks", "_forward_pre_hooks",
    "_modules", "_ops", "_parameters", "_run",
}  # fmt: skip
"""Foreign wherever they are read from something else than `self`, though a class of ours has one too."""
_NAME_OF_CLASS = re.compile(r"\.__(name|module|qualname)__\b")
_IS_EXCEPTION = re.compile(r"\b(\w*Error|\w*Exception)\b")
_TEXT_TESTS = {"startswith", "endswith", "find", "index", "count", "search", "match", "fullmatch"}
"""Methods of texts and patterns that look for a text in another one."""
_OPERATORS = ("torch.ops.", "_ATEN")
"""What comes behind is the name of an operator, which torch keeps for the files that have it."""
_BY_NAME = {"getattr", "hasattr", "setattr", "delattr"}
_REGISTERED = {
    "engine/formats/torch_module/loaded_module.py",
    "engine/operators/user_file.py",
    "host/child.py",
}
"""Put a module of the user's or their own into `sys.modules`, as importlib's manual does."""


def uses(folder: Path = SOURCE) -> list[str]:
    """A line `file:line: what` for each use outside the rooms."""
    with pause_garbage_collector():  # none of the nodes is garbage
        files = {
            path: list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
            for path in sorted(folder.rglob("*.py"))
        }
    own = {name for nodes in files.values() for name in defined(nodes)} - _OF_TORCH
    lines = []
    for path, nodes in files.items():
        name = path.relative_to(folder).as_posix()
        if not name.startswith(ROOMS):
            lines += [
                f"{name}:{line}: {what}" for line, what in found(nodes, own, registers=name in _REGISTERED)
            ]
    return lines


def is_private(name: str) -> bool:
    return re.match(r"_[A-Za-z]", name) is not None and name not in _STANDARD


def defined(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Private names that the source defines: functions, classes, attributes of `self`, fields, constants."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
            yield node.attr


def is_self(node: ast.AST) -> bool:
    return is_named(node, "self", "cls")


def is_named(node: ast.AST, *names: str) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def found(nodes: Sequence[ast.AST], own: set[str], *, registers: bool = False) -> Iterator[tuple[int, str]]:
    """Line and text of each use of what another library does not document."""
    foreign: dict[str, str] = {}  # what is imported from elsewhere, by the name that it has here
    for node in nodes:
        for name, where in imported(node):
            if not where.startswith(("explorer", "__future__")):
                foreign[name] = where
                if any(is_private(piece) for piece in where.split(".")):
                    yield node.lineno, f"imports {where}"
    yield from parsed_messages(nodes)
    for node in nodes:
        # most nodes are looked at without their text, which takes long to write
        if isinstance(node, ast.Attribute):
            value = node.value
            foreign_name = is_private(node.attr) and not is_self(value) and node.attr not in own
            if foreign_name and not ast.unparse(value).startswith(_OPERATORS):
                yield node.lineno, f"reads {ast.unparse(node)}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _BY_NAME:
            key = node.args[1] if len(node.args) > 1 else None
            named = isinstance(key, ast.Constant) and isinstance(key.value, str) and is_private(key.value)
            if named and not ast.unparse(node.args[0]).startswith(_OPERATORS):
                yield node.lineno, f"reads {ast.unparse(node)}"
            if node.func.id in ("setattr", "delattr") and is_foreign(node.args[0], foreign):
                yield node.lineno, f"patches {ast.unparse(node)}"
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "sys.modules":
                if not registers:
                    yield node.lineno, f"writes {ast.unparse(node)}"
            elif is_foreign(node, foreign):
                yield node.lineno, f"patches {ast.unparse(node)}"
        if isinstance(node, ast.Compare):
            texts = {one.value for one in (node.left, *node.comparators) if isinstance(one, ast.Constant)}
            if texts - own and _NAME_OF_CLASS.search(text := ast.unparse(node)):
                yield node.lineno, f"compares {text}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            called = node.func
            if called.attr in ("startswith", "endswith") and _NAME_OF_CLASS.search(ast.unparse(called.value)):
                yield node.lineno, f"compares {ast.unparse(node)}"


def parsed_messages(all_nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """Line and text of each place that decides by the text of an exception."""
    if not any(isinstance(node, ast.Call) and is_named(node.func, "str") for node in all_nodes):
        return
    for function in all_nodes:
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        nodes = list(ast.walk(function))
        names = {node.name for node in nodes if isinstance(node, ast.ExceptHandler)}
        arguments = [node for node in nodes if isinstance(node, ast.arg) and node.annotation is not None]
        names |= {one.arg for one in arguments if _IS_EXCEPTION.search(ast.unparse(one.annotation or one))}
        texts = {f"str({name})" for name in names if name}
        for node in nodes if texts else ():
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
                read = [node.left, *node.comparators]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                read = [node.func.value, *node.args] if node.func.attr in _TEXT_TESTS else []
            else:
                continue
            if any(text in ast.unparse(part) for part in read for text in texts):
                yield node.lineno, f"parses {ast.unparse(node)}"


def imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    """The names that an import binds, each with the dotted path of what it is."""
    if isinstance(node, ast.Import):
        for one in node.names:
            yield (one.asname or one.name.partition(".")[0]), one.name
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        for one in node.names:
            yield (one.asname or one.name), f"{node.module}.{one.name}"


def is_foreign(node: ast.AST, foreign: dict[str, str]) -> bool:
    """Whether something is, or is in, a module or class of another library; Python's own are not meant."""
    name = base(node)
    within = re.match(r"sys\.modules\[['\"]([\w.]+)['\"]\]", ast.unparse(node)) if name == "sys" else None
    path = within[1] if within else foreign.get(name, "")
    return bool(path) and path.partition(".")[0] not in sys.stdlib_module_names


def base(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


if __name__ == "__main__":
    print("\n".join(uses()))
