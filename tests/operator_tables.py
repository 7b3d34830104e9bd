"""Operator tables: every place in the engine where an ONNX operator has a meaning of its own.

    python -m tests.operator_tables Conv      the tables with and without `Conv`, and the lines that name it
    python -m tests.operator_tables           all tables

A table is a module-level mapping, set or tuple of the engine whose keys or elements are names of operators.
Tables are discovered, not listed: a new table appears here without a line in this file. Run the command for a
similar operator before you add one; the tables that name the similar operator are those that yours may lack.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import explorer.engine
from explorer.engine.operators.registry import OPERATORS

ROOT = Path(__file__).parents[1]
OPERATOR_NAMES = frozenset(name for _, name in OPERATORS)
_MIN_SHARE = 0.8
"""Share of a table's keys that are names of operators; the rest may be classes or names of PyTorch."""


@dataclass(frozen=True)
class OperatorTable:
    """One table of operators.

    Attributes:
        file: Path of the file that defines it, relative to the repository.
        name: Name of the module-level variable.
        line: Line of its definition, from 1.
        purpose: First sentence of the text below the definition, else of the module's docstring.
        operators: Names of the operators in it.
    """

    file: str
    name: str
    line: int
    purpose: str
    operators: frozenset[str]

    @property
    def place(self) -> str:
        """The file and the line of the definition."""
        return f"{self.file}:{self.line}"


def operator_tables() -> list[OperatorTable]:
    """All tables of the engine, ordered by module and line."""
    modules = pkgutil.walk_packages(explorer.engine.__path__, "explorer.engine.")
    return [table for module in sorted(m.name for m in modules) for table in _tables_of(module)]


def mentions(operator: str) -> list[str]:
    """Lines of the engine, as `file:line: source`, that compare an operator's name outside a table."""
    lines = []
    for path in sorted((ROOT / "explorer/engine").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if f'"{operator}"' not in source:
            continue
        numbers = {line for node in ast.walk(ast.parse(source)) for line in _compared(node, operator)}
        texts = source.splitlines()
        lines += [f"{path.relative_to(ROOT)}:{n}: {texts[n - 1].strip()}" for n in sorted(numbers)]
    return lines


def _compared(node: ast.AST, operator: str) -> Iterator[int]:
    if isinstance(node, ast.Compare):
        for part in ast.walk(node):
            if isinstance(part, ast.Constant) and part.value == operator:
                yield part.lineno


def _tables_of(module_name: str) -> Iterator[OperatorTable]:
    module = importlib.import_module(module_name)
    path = Path(str(module.__file__))
    body = ast.parse(path.read_text(encoding="utf-8")).body
    summary = _first_sentence(module.__doc__ or "")
    for node, following in zip(body, [*body[1:], None], strict=True):
        name = _assigned_name(node)
        operators = _operator_names(getattr(module, name, None)) if name else None
        if name and operators:
            text = following.value if isinstance(following, ast.Expr) else None
            described = isinstance(text, ast.Constant) and isinstance(text.value, str)
            purpose = _first_sentence(text.value) if described else summary
            yield OperatorTable(path.relative_to(ROOT).as_posix(), name, node.lineno, purpose, operators)


def _assigned_name(node: ast.stmt) -> str:
    match node:
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name
    return ""


def _operator_names(table: object) -> frozenset[str] | None:
    """Names of the operators in a table, or None if the value is not a table of operators."""
    if isinstance(table, str) or not isinstance(table, Mapping | Collection):
        return None
    keys = [key[-1] if isinstance(key, tuple) and key else key for key in table]
    names = frozenset(key for key in keys if isinstance(key, str) and key in OPERATOR_NAMES)
    return names if keys and len(names) >= _MIN_SHARE * len(keys) else None


def _first_sentence(text: str) -> str:
    return " ".join(text.split()).partition(". ")[0].rstrip(".")


def main(operator: str = "") -> None:
    tables = operator_tables()
    if not operator:
        _print_group("Tables", tables)
        return
    if operator not in OPERATOR_NAMES:
        print(f"{operator}: no record in explorer/engine/operators has this name yet.")
    _print_group(f"Tables that name {operator}", [t for t in tables if operator in t.operators])
    _print_group(f"Tables that do not name {operator}", [t for t in tables if operator not in t.operators])
    print(f"\nLines that compare with {operator}")
    print("\n".join(f"  {line}" for line in mentions(operator)) or "  none")


def _print_group(title: str, tables: list[OperatorTable]) -> None:
    print(f"\n{title} ({len(tables)})")
    for table in tables:
        print(f"  {table.place}  {table.name} ({len(table.operators)}): {table.purpose}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
