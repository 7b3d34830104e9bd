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
from tests.spelling import misspelled

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
        "import explorer.report.present.look.info, explorer.features.tiling.tile_words",
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
    assert not tops(screen) & {"filelock", "psutil"}, "12 ms each"
    assert not tops(command_line) & {"filelock", "platformdirs", "psutil"}
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


DRAWING = (
    *("jinja2", "markupsafe"),
    *("matplotlib", "PIL", "fontTools", "contourpy", "kiwisolver", "cycler", "dateutil"),
)
"""Jinja2 and matplotlib, and what comes with them alone."""
WITHOUT_PICTURES = (
    *("info {0}", "outline {0}", "list sample_models", "layers {0}", "ops {0}", "memory {0}"),
    *("training {0}", "formats", "machines"),
    *("weights {0}", "activations {0}", "values {0} fc3"),
    *("compare {0} {0}", "graph {0} -o {1}/graph.svg", "plan {0} --tile 64", "settings {0} --tile 64"),
    *(
        "fold sample_models/mobilenet_small.onnx -o {1}/folded.onnx",
        "rebatch {0} 2 -o {1}/two.onnx",
        "roofline {0} --machine h100",
    ),
    *("tile {0} -o {1}/tiled.onnx --draws 1", "verify {0} {1}/tiled.onnx --draws 1", "blame {0} {0}"),
    *("diff {0} {1}/tiled.onnx", "quantize {0} --to int8 -o {1}/int8.onnx", "profile {0} --steps 2"),
    *("sweep {0} --tile 16,32 --machine h100", "split {0} -n 2", "compare {0} {0} --markdown"),
)
PICTURES = (
    *("plot {0} -o {1}/memory.svg", "plot {0} --what operators -o {1}/operators.png"),
    *("report {0} -o {1}/page.html", "report {0} -o {1}/page.md", "blame {0} {0} --plot {1}/error.svg"),
    *("split {0} -n 2 --plot {1}/pipeline.svg", "sweep {0} --quantize int8 --plot {1}/front.html"),
    *("sweep {0} --quantize int8,int4 --plot {1}/front.png", "serving {0} --plot {1}/serving.svg"),
)


def test_only_pictures_need_what_draws_them(tmp_path: Path) -> None:
    """The extra `plot` is a quarter of an installation: all else works without, and what needs it says so."""
    model = ROOT / "sample_models" / "lenet.onnx"
    code = (
        "import contextlib, io, json, sys\n"
        f"for name in {DRAWING!r}: sys.modules[name] = None\n"
        "from explorer.cli.main import main\n"
        "import explorer.tui.app, explorer.tui.screen.main, explorer.process.server\n"
        "for words in sys.argv[1:]:\n"
        "    with contextlib.redirect_stdout(io.StringIO()) as out:\n"
        "        with contextlib.redirect_stderr(io.StringIO()) as err:\n"
        "            code = main([*words.split(), '--quiet'])\n"
        "    print(json.dumps([words, code, err.getvalue()]))\n"
    )
    commands = [words.format(model, tmp_path) for words in (*WITHOUT_PICTURES, *PICTURES)]
    words = [sys.executable, "-c", code, *commands]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT)
    ends = [json.loads(line) for line in done.stdout.splitlines()]
    many = len(WITHOUT_PICTURES)
    assert [end for end in ends[:many] if end[1] not in (0, 1) or end[2]] == []
    for asked, code, said in ends[many:]:
        target = asked.split()[-1]
        lacks = "this needs matplotlib, which is not installed; type: pip install 'explorer-nn[plot]'"
        assert (code, said) == (2, f"explorer: {target}: {lacks}\n"), asked
        assert not Path(target).exists()


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


def test_what_people_read_is_spelled_as_in_american_english() -> None:
    sources = sorted((ROOT / "explorer").rglob("*.py"))
    pages = [*(ROOT / "explorer").rglob("*.md"), *(ROOT / ".github").glob("*.md"), ROOT / "README.md"]
    assert [word for path in (*sources, *pages) for word in misspelled(path)] == []


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.py", 'NOTE = f"{count} layers were analysed"', ["analysed"]),
        ("a.py", '"""Normalises colours."""\nfield = "utilisation"', ["Normalises", "colours"]),
        ("a.py", 'NOTE = "read `utilisation`, raise, rise, otherwise and precise"', []),
        ("a.md", "The neighbouring `colour`\n\n```console\n$ optimise\n```\n", ["neighbouring"]),
    ],
)
def test_a_british_spelling_is_found(name: str, text: str, words: list[str], tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert [line.rpartition(" ")[2] for line in misspelled(tmp_path / name)] == words
