"""What lies in the current folder is looked at and not run, whatever process does it, and stays as it is."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import explorer
from explorer.cli import main
from explorer.process.client import EngineProcess

ROOT = Path(__file__).parents[2]
Sample = Callable[[str], Path]

HOSTILE = (
    *("msgspec", "json", "numpy", "onnx", "onnxruntime", "torch", "distributed", "tempfile", "resource"),
    *("matplotlib", "sitecustomize", "usercustomize", "triton", "numba", "torch_xla", "code"),
)


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder in which every library has a namesake that leaves a mark when it is run."""
    mark = "open(__file__ + '.ran', 'w').close()\n"
    for name in HOSTILE:
        (tmp_path / f"{name}.py").write_text(mark)
    (tmp_path / "explorer").mkdir()
    (tmp_path / "explorer" / "__init__.py").write_text(mark)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ran(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.ran"))


@pytest.mark.slow
def test_the_engine_of_the_screen_runs_nothing_of_the_current_folder(trap: Path, sample: Sample) -> None:
    engine = EngineProcess(str(sample("lenet")))
    try:
        assert engine.submit("open").future.result(120).totals.macs
        assert engine.submit("verify", after=0).future.result(120).passed
    finally:
        engine.close()
    assert ran(trap) == []


@pytest.mark.slow
def test_nor_does_a_worker_of_a_sweep(trap: Path, sample: Sample) -> None:
    from explorer.facts.sweep import SweepSpec
    from explorer.session import sweep_files

    fact = sweep_files(sample("lenet"), spec=SweepSpec(((16, 16, 16),)), verify=True, draws=1, workers=2)
    assert fact.proved == 1
    assert ran(trap) == []


@pytest.mark.slow
def test_nor_does_the_command(trap: Path, sample: Sample) -> None:
    # whoever types `python -m explorer` there runs the folder explorer/, and nothing can be done about it
    (trap / "explorer" / "__init__.py").unlink()
    (trap / "explorer").rmdir()
    home = trap / "home"
    home.mkdir()
    before = sorted(os.listdir(trap))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(home)}
    for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "ORT_DISABLE_TELEMETRY"):
        environment.pop(name, None)
    words = [sys.executable, "-m", "explorer", "verify", str(sample("lenet")), str(sample("lenet"))]
    subprocess.run(words, cwd=trap, check=True, stdout=subprocess.DEVNULL, env=environment)
    assert ran(trap) == []
    assert sorted(os.listdir(trap)) == before
    assert os.listdir(home) == [], "a library that reports to its maker wrote here"


@pytest.mark.parametrize("set_by_user", [None, "0"])
def test_onnxruntime_reports_nothing_whoever_imports_it(
    set_by_user: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    if set_by_user is not None:
        monkeypatch.setenv("ORT_DISABLE_TELEMETRY", set_by_user)
    runpy.run_path(explorer.__file__)
    assert os.environ["ORT_DISABLE_TELEMETRY"] == (set_by_user or "1")


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [("profile", "--steps", "1"), ("plot", "-o", "m.svg"), ("plot", "-o", "m.svg", "--no-cache")],
)
def test_no_library_writes_into_the_users_home(
    tmp_path: Path, sample: Sample, words: tuple[str, ...]
) -> None:
    names = ("XDG_CACHE_HOME", "ORT_DISABLE_TELEMETRY", "MPLCONFIGDIR", "EXPLORER_NO_CACHE")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    home = tmp_path / "home"
    home.mkdir()
    verb, *more = words
    command = [sys.executable, "-m", "explorer", verb, str(sample("lenet")), *more]
    environment |= {"PYTHONPATH": str(ROOT), "HOME": str(home)}
    subprocess.run(command, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL, env=environment)
    wrote = {path.relative_to(home).parts[:2] for path in home.rglob("*") if path.is_file()}
    assert wrote == (set() if "--no-cache" in words else {(".cache", "explorer")})


def test_code_that_is_named_is_found_there_and_takes_no_librarys_place(
    trap: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("my_net", "helping", "json_of_the_user"):
        monkeypatch.setitem(sys.modules, name, None)  # so that it is forgotten at the end
        del sys.modules[name]
    net = "import torch, helping\n\ndef net():\n    return torch.nn.Linear(8, helping.SIZE)\n"
    (trap / "my_net.py").write_text(net)
    (trap / "helping.py").write_text("SIZE = 5\n")
    for name in ("json", "code"):
        (trap / f"{name}.py").write_text(net)
    before = sys.modules["json"]
    for named in ("my_net:net", "json.py:net"):
        assert main.main(["info", named, "--input-shape", "input:1,8", "--quiet"]) == 0
        assert "45" in capfd.readouterr().out
    assert sys.modules["json"] is before
    assert main.main(["info", "code:net"]) == 2
    assert "name the file: code.py:net" in capfd.readouterr().err
    assert not list(trap.rglob("__pycache__")), "the user's folder stays as it is"
    assert ran(trap) == []
