"""What the program promises about itself: light to import, one way only, public what is named public.

The import linter sees import statements; a deferred import inside a function is invisible to it, so here
modules are imported in fresh processes and `sys.modules` is asked.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import explorer

ROOT = Path(__file__).parent.parent
HEAVY = {"ml_dtypes", "numpy", "onnx", "onnxruntime", "onnxscript", "torch", "torchinfo", "torchvision"}


def modules() -> list[str]:
    found = [m.name for m in pkgutil.walk_packages(explorer.__path__, "explorer.")]
    return ["explorer", *(name for name in found if not name.endswith("__main__"))]


def imported_by(*statements: str) -> list[set[str]]:
    """Names in sys.modules after each statement, one after the other in one fresh process."""
    code = "import json, sys\n"
    code += "".join(f"{statement}\nprint(json.dumps(sorted(sys.modules)))\n" for statement in statements)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return [set(json.loads(line)) for line in done.stdout.splitlines()]


def tops(names: set[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


def test_what_starts_loads_nothing_heavy_and_each_part_only_what_it_needs() -> None:
    model = ROOT / "sample_models" / "mlp_128.onnx"
    statements = [
        "import explorer.cli.main",
        "import explorer.tui.app, explorer.tui.program",
        "import explorer.process.client",
        "import explorer.report, explorer.report.document",
        "import explorer.report.present.look.info, explorer.report.present.tiling.tile",
        "import explorer.session",
        f"from explorer import Session\nassert Session({str(model)!r}).open().totals.params",
    ]
    seen = imported_by(*statements)
    for statement, names in zip(statements, seen, strict=True):
        assert not tops(names) & HEAVY, statement
    command_line, screen = seen[:2]
    assert not tops(command_line) & {"rich", "textual"}, "the command line is up before anything that draws"
    # the first paint waits for nothing that the first answer brings: facts take 5 ms, pipes to it 7
    assert not screen & {"explorer.facts", "explorer.settings.filter", "multiprocessing.connection"}
    assert not {name for name in screen if name.startswith("explorer.engine")}


def test_the_shared_nouns_need_little_beside_the_standard_library() -> None:
    (seen,) = imported_by(
        "import explorer.base.errors, explorer.facts, explorer.settings.filter, explorer.base.units"
    )
    assert not {
        name
        for name in tops(seen) - {"explorer", "msgspec"}
        if name not in sys.stdlib_module_names and "_" not in name
    }


TORCH = importlib.util.find_spec("torch") is not None
LIGHTNING = importlib.util.find_spec("lightning") is not None


def needs_torch(name: str) -> bool:
    """Whether a module imports torch as soon as it is imported itself."""
    return imports(name, "torch")


def imports(name: str, package: str) -> bool:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    text = Path(spec.origin).read_text(encoding="utf-8")
    return re.search(rf"^(import|from) {package}\b", text, re.MULTILINE) is not None


def test_all_names_what_is_public() -> None:
    wrong = {}
    for name in modules():
        if (not TORCH and needs_torch(name)) or (not LIGHTNING and imports(name, "lightning")):
            continue
        module = importlib.import_module(name)
        declared = getattr(module, "__all__", None)
        if declared is None:
            continue  # what is private there begins with an underscore
        made_here = [
            key
            for key, value in vars(module).items()
            if not key.startswith("_")
            and (inspect.isfunction(value) or inspect.isclass(value))
            and value.__module__ == name
        ]
        differ = {public for public in declared if not hasattr(module, public) or declared.count(public) > 1}
        differ |= set(made_here) - set(declared)
        if differ:
            wrong[name] = sorted(differ)
    assert wrong == {}, "not there, twice, or public and not in __all__"


def test_the_public_api_is_what_the_package_says() -> None:
    assert dir(explorer) == sorted(explorer.__all__)
    for name in explorer.__all__:
        assert getattr(explorer, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = explorer.nonsense


def test_no_path_of_anybodys_machine_is_in_the_project() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    spot = re.compile(rb"(?<![\w.~$}/])/(?:%s)/\w" % b"|".join((b"work", b"root", b"home", b"Users")))
    for name in listed.stdout.decode().split("\0"):
        path = ROOT / name
        if name and path.is_file():
            found = spot.search(path.read_bytes())
            assert found is None, f"{name}: {found.group()!r}" if found else ""
