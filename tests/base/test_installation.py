"""An installation that is old or broken is one line with the command that mends it, not a traceback."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from explorer.base import installation, tested_versions
from explorer.base.tested_versions import TESTED, find_version_range

ROOT = Path(__file__).parents[2]
LENET = ROOT / "sample_models" / "lenet.onnx"


def package(folder: Path, name: str, version: str = "", code: str | None = None, files: str = "") -> Path:
    """A package in a folder of its own: its metadata where it has a version, its code where it has any."""
    if version:
        metadata = folder / f"{name}-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (metadata / "RECORD").write_text("".join(f"{file},sha256=x,9\n" for file in files.split()))
    if code is not None:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(code)
    return folder


def run(folder: Path, *words: object) -> tuple[int, str, str]:
    """`explorer WORDS` where the packages of a folder come before all others."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))}
    command = [sys.executable, "-m", "explorer", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("words", [("info", LENET), ("tile", LENET, "-o", "tiled.onnx"), (LENET,)], ids=str)
def test_a_version_that_is_too_old_is_a_line_before_any_work(
    tmp_path: Path, words: tuple[object, ...]
) -> None:
    package(tmp_path, "onnxruntime", "1.22.1")
    says = "onnxruntime 1.22.1 is installed; 1.23 or newer is needed; type: pip install 'onnxruntime>=1.23'"
    assert run(tmp_path, *words) == (2, "", f"explorer: {says}\n")
    assert not (tmp_path / "tiled.onnx").exists()


@pytest.mark.parametrize(
    "words", [("outline", LENET), ("--version",), ("help",), ("tile", "--help")], ids=str
)
def test_what_needs_no_package_answers_beside_one_that_is_too_old(
    tmp_path: Path, words: tuple[object, ...]
) -> None:
    package(tmp_path, "numpy", "1.26.4")
    code, out, err = run(tmp_path, *words)
    assert (code, err) == (0, "")
    assert out


def test_an_extra_that_is_too_old_is_a_line(tmp_path: Path) -> None:
    package(tmp_path, "torch", "2.8.0+cpu")
    says = "torch 2.8.0+cpu is installed; 2.9 or newer is needed; type: pip install 'explorer-nn[torch]'"
    assert run(tmp_path, "info", "alexnet") == (2, "", f"explorer: alexnet: {says}\n")
    assert run(tmp_path, "info", LENET)[0] == 0, "a file of ONNX's needs no torch"


@pytest.mark.parametrize("module", ["msgspec", "numpy", "onnxruntime", "rich", "matplotlib"])
def test_a_package_that_raises_on_import_is_a_line(tmp_path: Path, module: str) -> None:
    row = find_version_range(module)
    assert row is not None
    version = f"{row.highest}.9"
    package(tmp_path, module, version, "raise OSError('no such\\nlibrary')")
    words = (
        ("plot", LENET, "-o", "made.svg") if module == "matplotlib" else ("tile", LENET, "-o", "made.onnx")
    )
    code, _, err = run(tmp_path, *words)
    where = "made.svg: " if module == "matplotlib" else ""
    assert code == 2
    assert err.splitlines()[-1] == (
        f"explorer: {where}{module} {version} is installed but cannot be imported (OSError: no such library);"
        f" type: pip install --force-reinstall --no-deps {module}=={version}"
    )
    # an answer that cannot be drawn comes behind the work
    assert module == "rich" or not list(tmp_path.glob("made.*"))


def test_a_package_without_its_files_is_a_line(tmp_path: Path) -> None:
    files = "matplotlib/__init__.py matplotlib/rcsetup.py matplotlib/ft2font.so matplotlib/tests/test_it.py"
    package(tmp_path, "matplotlib", "3.10.1", "from . import rcsetup", files)
    code, _, err = run(tmp_path, "plot", LENET, "-o", "made.svg")
    says = "matplotlib 3.10.1 is installed but 2 of its files are missing (matplotlib/rcsetup.py)"
    mends = "pip install --force-reinstall --no-deps matplotlib==3.10.1"
    assert (code, err) == (2, f"explorer: made.svg: {says}; type: {mends}\n")


def test_a_package_that_lacks_one_of_its_own_is_a_line(tmp_path: Path) -> None:
    package(tmp_path, "numpy", "2.3.1", "import of_numpy_alone")
    code, _, err = run(tmp_path, "tile", LENET, "-o", "made.onnx")
    says = "numpy 2.3.1 needs of_numpy_alone, which is not installed; type: pip install 'numpy>=2.0'"
    assert (code, err) == (2, f"explorer: {says}\n")


def test_a_folder_in_the_way_of_a_package_is_named(tmp_path: Path) -> None:
    package(tmp_path, "numpy", code="array = None")
    code, _, err = run(tmp_path, "tile", LENET, "-o", "made.onnx")
    assert code == 2
    assert err.startswith(f"explorer: numpy is imported from {tmp_path}, not from ")
    assert err.endswith(f"take {tmp_path} off PYTHONPATH, or rename numpy there\n")
    assert err.count("\n") == 1


def test_a_missing_file_of_the_program_itself_is_a_line(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "explorer", tmp_path / "explorer", ignore=shutil.ignore_patterns("__pycache__"))
    gone = "explorer/report/present/look/info.py"
    package(tmp_path, "explorer_nn", "0.1.0", files=f"explorer/__init__.py {gone}")
    (tmp_path / gone).unlink()
    mends = "pip install --force-reinstall --no-deps explorer-nn"
    says = f"a file of the program's own is missing ({gone}); type: {mends}"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "explorer", "info", str(LENET)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"explorer: {says}\n")


def test_the_first_folder_and_the_newest_metadata_in_it_count(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, name in ((first, "Textual_Serve-1.1.4"), (first, "textual.serve-1.1.10"), (second, "a.b-9")):
        (folder / f"{name}.dist-info").mkdir(parents=True)
    (second / "textual_serve-2.0.dist-info").mkdir()
    known = installation.find_distributions([str(tmp_path / "none"), str(first), str(second)])
    assert {name: held.version for name, held in known.items()} == {"textual_serve": "1.1.10", "a_b": "9"}
    row = find_version_range("textual-serve")
    assert row is not None
    assert installation.find_distribution(row, known) is known["textual_serve"]


def test_metadata_of_old_installers_keep_the_full_name_and_version(tmp_path: Path) -> None:
    for name in ("plain", "dated-2.31-py3.11", "short-1.5"):
        (tmp_path / f"{name}.egg-info").mkdir()
    packages = installation.find_distributions([str(tmp_path)])
    assert {name: package.version for name, package in packages.items()} == {
        "plain": "",
        "dated": "2.31",
        "short": "1.5",
    }


def test_every_row_of_the_table_names_a_command() -> None:
    for row in TESTED[1:]:
        extra = installation.get_extra_name(row)
        command = (
            f"pip install 'explorer-nn[{extra}]'" if extra else f"pip install '{row.package}>={row.lowest}'"
        )
        assert installation.format_install_command(row) == command


@pytest.mark.parametrize(
    ("package", "python", "lacks"),
    [
        ("onnxruntime", "3.15.0", "no wheels for Python 3.15"),
        ("onnxruntime", "3.14.2", ""),
        ("tensorflow", "3.14.2", "no wheels for Python 3.14"),
        ("tensorflow", "3.13.9", ""),
        ("numpy", "3.15.0", ""),
    ],
)
def test_a_package_without_wheels_for_this_python_names_another_python(
    monkeypatch: pytest.MonkeyPatch, package: str, python: str, lacks: str
) -> None:
    for module in (tested_versions, installation):
        monkeypatch.setattr(module, "read_installed_version", lambda package: python)
    row = find_version_range(package)
    assert row is not None
    fault = installation.build_missing_fault(row)
    assert (lacks or "which is not installed") in fault.message
    assert fault.command.startswith("python3.13 -m venv" if lacks else "pip install ")


def test_a_home_that_cannot_be_written_costs_what_is_kept_and_no_answer(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("a file")
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "EXPLORER_"))
    }
    variables |= {"HOME": str(home), "PYTHONPATH": str(ROOT)}

    def explored(words: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "explorer", *words.split(), "--quiet"]
        done = subprocess.run(command, capture_output=True, text=True, env=variables, cwd=tmp_path)
        return done.returncode, done.stderr

    works = (
        f"info {LENET}",
        f"tile {LENET} -o tiled.onnx --draws 1",
        "machines",
        "cache",
        f"plot {LENET} -o a.svg",
    )
    assert [explored(words) for words in works] == [(0, "")] * len(works)
    code, said = explored("machines --save npu --peak-macs 4T --bandwidth 100GB/s")
    assert (code, said.count("\n")) == (2, 1)
    assert f"{home}/.config/explorer" in said
    assert home.read_text() == "a file"
