"""Public API: `explorer/session/methods/public_api.py`, the types of what features add to a session.

    python -m tests.public_api          write it anew
    python -m tests.public_api --check  exit 1 where it is not as it would be written

Features are loaded by their names, so that a type checker cannot see what they add. This file, made of their
source, is what it reads instead: signatures, types and the first line of what each is for.
"""

from __future__ import annotations

import ast
import copy
import subprocess
import sys
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path

from explorer.base.features import list_offers

ROOT = Path(__file__).parents[1]
STUB = ROOT / "explorer/session/methods/public_api.py"
_OWN = ("changes", "states", "figure_methods", "connections", "exports")
"""Modules of `explorer.session.methods`, whose functions every session has."""


def homes() -> dict[str, str]:
    """All methods of a session that are no methods of the class itself: name to full name."""
    own: dict[str, str] = {}
    for module in _OWN:
        name = f"explorer.session.methods.{module}"
        functions = (node for node in _tree(name).body if isinstance(node, ast.FunctionDef))
        own |= {f.name: f"{name}.{f.name}" for f in functions if not f.name.startswith("_")}
    return own | dict(list_offers("methods"))


def stub() -> str:
    """The file's text."""
    imports: dict[str, set[str]] = defaultdict(set)
    methods = [_signature(home, imports, method=True) for home in homes().values()]
    functions = [_signature(home, imports, method=False) for home in list_offers("functions").values()]
    imports["explorer.session.parts.session_parts"].add("SessionParts")
    lines = [f"import {name}" for name in sorted(imports.pop("", ()))]
    lines += [f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(imports.items())]
    text = "\n".join(
        [
            '"""Types of the methods and functions of a session, written by `python -m tests.public_api`."""',
            "",
            "from __future__ import annotations",
            "",
            *lines,
            "",
            "class PublicMethods:",
            '    """Methods that modules of `methods` and features add to `Session`."""',
            "",
            "    parts: SessionParts",
            "",
            *(f"    {line}" for method in methods for line in method.splitlines()),
            "",
            *functions,
        ]
    )
    ruff = (sys.executable, "-m", "ruff")
    how = ("--stdin-filename", str(STUB), "-")
    sorted_text = _through((*ruff, "check", "-q", "--fix", "--select", "I,F401", *how), text)
    return _through((*ruff, "format", "-q", *how), sorted_text)


def _through(command: tuple[str, ...], text: str) -> str:
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def _tree(module: str) -> ast.Module:
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8"))


def _signature(home: str, imports: dict[str, set[str]], *, method: bool) -> str:
    """A function without its body; what its types are called is added to the imports.

    One that takes a record or what the record holds has an overload for each.
    """
    module, _, name = home.rpartition(".")
    tree = _tree(module)
    node = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    sources = _sources(tree, module)
    arguments = node.args
    if method:
        first = [*arguments.posonlyargs, *arguments.args][0]
        first.arg, first.annotation = "self", None
    for value in [*arguments.defaults, *arguments.kw_defaults]:
        if isinstance(value, ast.Name):
            imports[sources[value.id]].add(value.id)
    typed = [*arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    for annotation in [node.returns, *(one.annotation for one in typed if one is not None)]:
        for part in ast.walk(annotation) if annotation is not None else ():
            if isinstance(part, ast.Name) and part.id in sources:
                imports[sources[part.id]].add(part.id)
    doc = (ast.get_docstring(node) or "").splitlines()[0]
    node.body = [ast.Expr(ast.Constant(doc)), *ast.parse("raise NotImplementedError").body]
    either = next((one for one in typed if one is not None and _is_record_or_more(one.annotation)), None)
    if either is None:
        return ast.unparse(node)
    imports["typing"] |= {"overload", "Any"}
    return "\n".join([*_overloads(node, either), _implementation(node)])


def _is_record_or_more(annotation: ast.expr | None) -> bool:
    """Whether an argument is a record, or the first of what the record holds."""
    return (
        isinstance(annotation, ast.BinOp)
        and isinstance(annotation.left, ast.Name)
        and annotation.left.id.endswith("Spec")
        and isinstance(annotation.right, ast.Subscript)
    )


def _overloads(node: ast.FunctionDef, either: ast.arg) -> list[str]:
    """The function with the record, which is needed then, and with what is in it."""
    texts = []
    both = either.annotation
    assert isinstance(both, ast.BinOp)
    for kind in (both.left, both.right):
        either.annotation = kind
        version = copy.deepcopy(node)
        if kind is both.left:
            named = [one.arg for one in version.args.args]
            version.args.defaults = version.args.defaults[named.index(either.arg) + 1 :]
            version.args.defaults = version.args.defaults[: len(named) - named.index(either.arg) - 1]
        version.decorator_list = [ast.Name("overload")]
        version.body = [ast.Expr(ast.Constant(...))]
        texts.append(ast.unparse(version))
    either.annotation = both
    return texts


def _implementation(node: ast.FunctionDef) -> str:
    node.args = ast.parse("def f(self, *args: Any, **kwargs: Any): pass").body[0].args  # type: ignore[attr-defined]
    node.returns = ast.Name("Any")
    return ast.unparse(node)


def _sources(tree: ast.Module, module: str) -> dict[str, str]:
    """Names that a module's annotations may use: where each comes from."""
    sources = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            sources |= {alias.name: "" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            sources |= {alias.asname or alias.name: node.module for alias in node.names}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            sources |= dict.fromkeys(names, module)
    return sources


def main(words: list[str]) -> int:
    """Writes the file, or says whether it is as it should be."""
    text = stub()
    if words == ["--check"]:
        return int(STUB.read_text(encoding="utf-8") != text)
    STUB.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
