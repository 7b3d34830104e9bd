"""Assumptions about other libraries stand in their rooms, and say what happens when they do not hold."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import explorer
from tests import assumptions


def test_no_file_outside_the_rooms_relies_on_what_a_library_does_not_document() -> None:
    assert assumptions.uses() == []


BAD = {
    "from torch.utils._pytree import tree_leaves": "imports torch.utils._pytree.tree_leaves",
    "import textual._context": "imports textual._context",
    "from onnx import _internal as inside": "imports onnx._internal",
    "def f(module): return module._parameters": "reads module._parameters",
    "def f(tensor): return tensor.untyped_storage()._cdata": "reads tensor.untyped_storage()._cdata",
    "def f(x): return getattr(x, '_work', None)": "reads getattr(x, '_work', None)",
    "def f(x): return hasattr(x, '_from_config')": "reads hasattr(x, '_from_config')",
    "import torch\ntorch.lstm = None": "patches torch.lstm",
    "from torch import nn\nnn.Module.__call__ = None": "patches nn.Module.__call__",
    "import onnx\nsetattr(onnx, 'load', None)": "patches setattr(onnx, 'load', None)",
    "import onnx\ndel onnx.load": "patches onnx.load",
    "import sys\nsys.modules['sympy'] = None": "writes sys.modules['sympy']",
    "import sys\nsys.modules['torch'].lstm = None": "patches sys.modules['torch'].lstm",
    "def f(x): return type(x).__name__ == 'DynamicCache'": "compares type(x).__name__ == 'DynamicCache'",
    "def f(x): return 'torch.' in type(x).__module__": "compares 'torch.' in type(x).__module__",
    "def f():\n try: g()\n except ValueError as error:\n  if 'device' in str(error): raise": (
        "parses 'device' in str(error)"
    ),
    "def f(error: BaseException): return str(error).startswith('meta')": (
        "parses str(error).startswith('meta')"
    ),
    "def f(x): return type(x).__module__.startswith('torch.')": (
        "compares type(x).__module__.startswith('torch.')"
    ),
}


@pytest.mark.parametrize("source", BAD)
def test_what_is_not_documented_is_found(source: str, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(source, encoding="utf-8")
    lines = [line.partition(": ")[2] for line in assumptions.uses(tmp_path)]
    assert BAD[source] in lines
    (tmp_path / "engine" / "compat").mkdir(parents=True)
    (tmp_path / "bad.py").rename(tmp_path / "engine" / "compat" / "bad.py")
    assert assumptions.uses(tmp_path) == [], "in the room it is allowed"


@pytest.mark.parametrize(
    "source",
    [
        "class A:\n    def __init__(self): self._made = 1\ndef f(a): return a._made",
        "import torch\ndef f(): return torch.ops.aten._softmax",
        "def f(request): return request._replace(seed=1)",
        "import os\nos.environ['A'] = 'b'",
        "class Plan: pass\ndef f(x): return type(x).__name__ == 'Plan'",
        "import torch\ndef f(x): return type(x).__module__",
    ],
)
def test_our_own_names_and_documented_ones_are_not(source: str, tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(source, encoding="utf-8")
    assert assumptions.uses(tmp_path) == []


def is_written(value: object, module: str) -> bool:
    """Whether an attribute of a class is a function or a property in a module's source."""
    function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    return inspect.isfunction(function) and function.__module__ == module


def overridden(package: str) -> list[str]:
    """Private names of a foreign class that a class of ours has, too: it takes the place of the other."""
    lines = []
    for found in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
        if found.name in ("explorer.tui.compat", "explorer.web.compat"):
            continue
        module = importlib.import_module(found.name)
        for kind in vars(module).values():
            if inspect.isclass(kind) and kind.__module__ == found.name:
                foreign = [base for base in kind.__mro__ if not base.__module__.startswith("explorer")]
                # Textual writes attributes of its own into every class
                own = [name for name, value in vars(kind).items() if is_written(value, found.name)]
                lines += [
                    f"{found.name}: {kind.__name__}.{name} of {base.__module__}"
                    for name in filter(assumptions.is_private, own)
                    for base in foreign
                    if name in vars(base) and base.__module__.startswith("textual")
                ]
    return lines


@pytest.mark.parametrize("package", ["explorer.tui", "explorer.web"])
def test_no_class_of_the_screen_takes_the_place_of_a_private_method_of_its_library(package: str) -> None:
    if package == "explorer.web":
        pytest.importorskip("textual_serve")
    assert overridden(package) == []


@pytest.mark.parametrize("name", ["base/compat.py", "tui/compat.py", "web/compat.py"])
def test_an_assumption_says_where_it_was_seen_and_what_happens_without_it(name: str) -> None:
    tree = ast.parse((Path(explorer.__file__).parent / name).read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name[0] != "_":
            said = ast.get_docstring(node) or ""
            missing = [word for word in ("Assumes:", "Seen:", "Otherwise:") if word not in said]
            assert not missing, f"{name}, {node.name}: its docstring has no {', '.join(missing)}"


def test_msgspec_builds_types_in_one_thread_at_a_time() -> None:
    """`decode`, `convert` and `Decoder` get their types from `build_type`, also where no thread runs."""
    typed = re.compile(
        r"\bdecode\([^=]*?\btype=(?!build_type)|\bDecoder\((?!build_type|kind\)$)|msgspec\.convert\(", re.M
    )
    found = []
    for path in Path(explorer.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for match in typed.finditer(text) if "msgspec" in text else ():
            line = text[match.start() :].splitlines()[0]
            if "convert(" not in line or "build_type(" not in line:
                found.append(f"{path.name}: {line}")
    assert found == ["checked.py: msgspec.convert(value, kind)"], "these types were built before"
