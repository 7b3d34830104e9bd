"""Hygiene: no module opens a file by itself, but for the doors.

The doors know the served folder, the kinds of file that are read (no pipe, no device, no folder) and sizes. A
reader that calls `open` knows none of it, and nobody notices: so it is looked for in the source.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from explorer.host.gc_pause import pause_garbage_collector

ROOT = Path(__file__).parent.parent.parent

DOORS = ("explorer.host.input_files", "explorer.host.output_files", "explorer.host.own_files")

OPENERS = {
    "open", "io.open", "io.open_code", "io.FileIO", "codecs.open", "os.open", "os.popen", "posix.open",
    "numpy.load", "numpy.loadtxt", "numpy.genfromtxt", "numpy.fromfile", "numpy.memmap", "numpy.fromregex",
    "numpy.lib.format.open_memmap", "mmap.mmap", "tomllib.load", "torch.load", "torch.jit.load",
    "torch.export.load", "torch.from_file", "torch.hub.load", "zipfile.ZipFile", "zipfile.is_zipfile",
    "tarfile.open", "tarfile.TarFile", "gzip.open", "gzip.GzipFile", "bz2.open", "bz2.BZ2File", "lzma.open",
    "lzma.LZMAFile", "onnx.load", "onnx.load_model", "safetensors.safe_open", "safetensors.torch.load_file",
    "safetensors.numpy.load_file", "sqlite3.connect", "shelve.open", "dbm.open", "linecache.getline",
    "linecache.getlines", "runpy.run_path", "shutil.copy", "shutil.copy2", "shutil.copyfile",
    "pandas.read_csv", "pandas.read_json", "fileinput.input",
}  # fmt: skip
METHODS = {"read_text": 2, "read_bytes": 0, "write_text": 4, "write_bytes": 1, "tofile": 3}
"""Methods that open a file, whatever object has them, and how many arguments they take."""

ROOMS = {
    "host/input_files.py": "the door to what users name",
    "host/output_files.py": "the door to what is written",
    "host/own_files.py": "the door to the program's own files",
    "host/scratch.py": "temporary folders, which this process made",
    "engine/split/torch/pipeline_script.py": "a program of its own, written beside the stages",
}
"""Modules that open files themselves, and why; `PLACES` has single calls of others."""

PLACES = {
    ("process/saved_sessions.py", "os.open"): "the lock of a session, which is written to",
    (
        "engine/split/torch/script_process.py",
        "runpy.run_path",
    ): "the program beside the stages",
    ("cli/verb_pages.py", ".read_text"): "pages of the site, which Sphinx reads from its own folder",
    ("cli/verb_pages.py", ".write_text"): "pages of the site, which Sphinx reads from its own folder",
    ("web/visitor.py", ".write_bytes"): "a page of a browser, and no file",
    ("base/installation.py", "open"): "what pip wrote of a package, below all doors",
    ("engine/sweep/store.py", "sqlite3.connect"): "SQLite opens by name; the door was asked before",
    ("engine/models/torch/module_file.py", "torch.load"): "torch maps by name; the door was asked before",
    ("engine/models/torch/onnx_export.py", "onnx.load"): "a file that torch has just written",
}


def aliases(nodes: Sequence[ast.AST]) -> dict[str, str]:
    """What a module calls a thing by, and what it is called where it comes from."""
    known = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for name in node.names:
                known[name.asname or name.name.partition(".")[0]] = (
                    name.name if name.asname else name.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            known |= {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
    return known


def full_name(node: ast.AST, known: dict[str, str]) -> str:
    """'numpy.load' of np.load; '' of what is no name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([known.get(node.id, node.id), *reversed(parts)])


def from_doors(nodes: Sequence[ast.AST], known: dict[str, str]) -> set[str]:
    """Names that stand for a file which a door opened: `with input_files.open_binary(path) as file`."""
    found = set()
    for node in nodes:
        pairs: list[tuple[ast.AST, ast.AST | None]] = []
        if isinstance(node, (ast.With, ast.AsyncWith)):
            pairs = [(item.context_expr, item.optional_vars) for item in node.items]
        elif isinstance(node, ast.Assign):
            pairs = [(node.value, target) for target in node.targets]
        for value, target in pairs:
            opened = isinstance(value, ast.Call) and full_name(value.func, known).startswith(DOORS)
            if opened and isinstance(target, ast.Name):
                found.add(target.id)
            elif opened and isinstance(target, ast.Attribute):
                found.add(full_name(target, known))
    return found


LAST = "|".join(sorted({name.rpartition(".")[2] for name in (*OPENERS, *METHODS)}))


def openers(source: str) -> Iterator[tuple[int, str]]:
    """Line and name of every call, or function handed on, that opens a file by its path."""
    if not re.search(rf"\b({LAST})\b", source):
        return
    nodes = list(ast.walk(ast.parse(source)))
    known = aliases(nodes)
    doors = from_doors(nodes, known)
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        name = full_name(node.func, known)
        first = node.args[0] if node.args else None
        if name in OPENERS:
            opened = full_name(first, known) in doors if first is not None else False
            # memory without a file, the null device, a descriptor that somebody opened
            harmless = isinstance(first, (ast.Constant, ast.UnaryOp)) and ast.unparse(first) == "-1"
            harmless |= first is not None and ast.unparse(first) == "os.devnull"
            harmless |= name == "open" and isinstance(first, ast.Call) and ast.unparse(first.func) == "os.dup"
            if not (opened or harmless):
                yield node.lineno, name
        elif isinstance(node.func, ast.Attribute) and len(node.args) <= METHODS.get(node.func.attr, -1):
            packaged = isinstance(node.func.value, ast.Call) and "files(" in ast.unparse(node.func.value)
            if not packaged:  # a file of this package
                yield node.lineno, f".{node.func.attr}"
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "open" and first is not None:
            mode = first.value if isinstance(first, ast.Constant) else None
            if isinstance(mode, str) and set(mode) <= set("rwxabt+"):  # Path.open
                yield node.lineno, ".open"
        if name not in ("isinstance", "issubclass", "cast"):
            for given in (*node.args, *(keyword.value for keyword in node.keywords)):
                if (handed := full_name(given, known)) in OPENERS:
                    yield given.lineno, handed


def test_no_module_opens_a_file_by_itself() -> None:
    package = ROOT / "explorer"
    found, rooms, places = [], set(), set()
    for path in sorted(package.rglob("*.py")):
        where = path.relative_to(package).as_posix()
        with pause_garbage_collector():
            opened = list(openers(path.read_text(encoding="utf-8")))
        for line, name in opened:
            if where in ROOMS:
                rooms.add(where)
            elif (where, name) in PLACES:
                places.add((where, name))
            else:
                found.append(f"{where}:{line}: {name}")
    assert not found, "use explorer.host.input_files, output_files or own_files:\n" + "\n".join(found)
    assert rooms == set(ROOMS), "a room that opens nothing needs no leave"
    assert places == set(PLACES), "a place that is gone needs no leave"


@pytest.mark.parametrize(
    "source",
    [
        "open(path)",
        "def f(p):\n    with open(p, 'rb') as file: return file.read()",
        "import os\nos.open(path, os.O_RDONLY)",
        "from os import open as begin\nbegin(path, 0)",
        "import numpy as np\nnp.load(path)",
        "import numpy\nnumpy.memmap(path)",
        "from numpy import fromfile\nfromfile(path)",
        "import mmap\nmmap.mmap(descriptor, 0)",
        "from zipfile import ZipFile as Z\nZ(path)",
        "import tomllib\ntomllib.load(file)",
        "import torch\ntorch.load(path, weights_only=True)",
        "from pathlib import Path\nPath(p).read_text()",
        "from pathlib import Path\nPath(p).open('rb')",
        "p.write_bytes(b'')",
        "from functools import partial\npartial(open, path)",
        "list(map(open, paths))",
        "import os\nwith os.fdopen(p) as file:\n    open(file)",
    ],
)
def test_a_reader_of_its_own_is_found(source: str) -> None:
    assert list(openers(source))


@pytest.mark.parametrize(
    "source",
    [
        "from explorer.host import input_files\nwith input_files.open_binary(p) as f:\n    torch.load(f)",
        "import mmap\nmmap.mmap(-1, 100)",
        "panes.tabs.open('layer')",
        "def f(x: 'mmap.mmap') -> None:\n    isinstance(x, mmap.mmap)",
        "session.open(on_progress=f)",
        "archive.open(name)",
        "open(os.devnull, 'w')",
    ],
)
def test_what_opens_no_path_is_left_alone(source: str) -> None:
    assert not list(openers(source))
