"""`explorer doctor` says what is wrong and what mends it, where little else works, and names nobody."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from explorer.base.tested_versions import TESTED, find_version_range, read_installed_version
from tests import documents
from tests.base.test_installation import ROOT, package
from tests.systems import explored


def doctor(folder: Path, *words: str, **environment: str) -> tuple[int, str, str]:
    """`explorer doctor` where the packages of a folder come before all others, in a home that is empty."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    variables |= {"PYTHONPATH": os.pathsep.join((str(folder), str(ROOT))), "HOME": str(folder), **environment}
    command = [sys.executable, "-m", "explorer", "doctor", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, cwd=folder)
    return done.returncode, done.stdout, done.stderr


def document(folder: Path, **environment: str) -> tuple[int, dict[str, Any]]:
    code, out, err = doctor(folder, "--json", **environment)
    assert err == ""
    told = json.loads(out)
    jsonschema.validate(told, documents.schema("doctor"))
    assert code == (1 if told["problems"] else 0)
    return code, told


def state_of(told: dict[str, Any], package: str) -> str:
    return next(one["state"] for one in told["packages"] if one["package"] == package)


def test_a_whole_installation_is_told_on_one_screen(tmp_path: Path) -> None:
    code, out, err = doctor(tmp_path)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[-1] == "Nothing is wrong."
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    for row in TESTED[1:]:
        version = read_installed_version(row.package)
        assert f" {row.package} " in out
        assert version in out
    assert str(tmp_path) not in out, "the user's home is called ~"
    assert "~/.config/explorer/config.toml" in out
    assert f"{sys.version.split()[0]} (tested: " in out


def test_its_document_is_what_the_manual_says(tmp_path: Path) -> None:
    code, told = document(tmp_path, SSH_CONNECTION="1 2 3 4", TERM="xterm-256color", COLORTERM="truecolor")
    assert code == 0
    assert (told["terminal"]["over_ssh"], told["terminal"]["colors"]) == (True, 1 << 24)
    assert [one["use"] for one in told["folders"]] == ["config", "cache", "state", "temporary"]
    assert all(one["writable"] for one in told["folders"])
    assert told["machine"]["processors"] >= 1
    assert told["machine"]["memory_bytes"] > told["machine"]["free_bytes"] > 0
    assert {one["name"] for one in told["extras"]} >= {"plot", "torch", "transformers", "train"}


BROKEN = {
    "old": ({"version": "1.20.0"}, "onnxruntime 1.20.0 is installed; 1.23 or newer is needed"),
    "broken": (
        {"version": "1.30.0", "code": "raise OSError('no such library')"},
        "onnxruntime 1.30.0 is installed but cannot be imported (OSError: no such library)",
    ),
    "crash": (
        {"version": "1.30.0", "code": "import os; os.abort()"},
        "onnxruntime 1.30.0 is installed but cannot be imported (it ends the process",
    ),
    "files": (
        {"version": "1.30.0", "code": "", "files": "onnxruntime/__init__.py onnxruntime/capi/it.so"},
        "onnxruntime 1.30.0 is installed but its file onnxruntime/capi/it.so is missing",
    ),
    "lacks": (
        {"version": "1.30.0", "code": "import of_another"},
        "onnxruntime 1.30.0 needs of_another, which is not installed",
    ),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", BROKEN)
def test_what_is_wrong_with_a_package_has_the_command_that_mends_it(tmp_path: Path, kind: str) -> None:
    made, what = BROKEN[kind]
    package(tmp_path, "onnxruntime", **made)
    code, told = document(tmp_path)
    (problem,) = told["problems"]
    assert code == 1
    assert problem["what"].startswith(what)
    mends = "'onnxruntime>=1.23'" if kind in ("old", "lacks") else "onnxruntime==1.30.0"
    assert mends in problem["command"]
    assert " install " in problem["command"]
    assert state_of(told, "onnxruntime") == ("old" if kind == "old" else "broken")


def test_packages_behind_one_that_ends_its_process_are_tried_too(tmp_path: Path) -> None:
    package(tmp_path, "filelock", "4.0", "import os; os._exit(7)")
    package(tmp_path, "tomlkit", "0.14", "raise OSError('no such library')")
    code, told = document(tmp_path)
    assert code == 1
    assert {one["what"] for one in told["problems"]} == {
        "filelock 4.0 is installed but cannot be imported (it ends the process with exit code 7)",
        "tomlkit 0.14 is installed but cannot be imported (OSError: no such library)",
    }
    assert [one["package"] for one in told["packages"] if one["state"] == "broken"] == ["filelock", "tomlkit"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("module", ["msgspec", "numpy", "platformdirs", "psutil", "rich", "textual"])
def test_it_answers_without_what_everything_else_needs(tmp_path: Path, module: str) -> None:
    row = find_version_range(module)
    assert row is not None
    package(tmp_path, module, f"{row.highest}.99", "raise RuntimeError('not today')")
    for words in ((), ("--json",)):
        code, out, err = doctor(tmp_path, *words)
        assert (code, err) == (1, "")
        assert f"{module} {row.highest}.99 is installed but cannot be imported" in out
        # numpy is below most others: they are whole again when it is
        assert out.count("cannot be imported") == 1


def test_a_folder_in_the_way_is_named_with_what_to_do(tmp_path: Path) -> None:
    package(tmp_path, "msgspec", code="")
    code, told = document(tmp_path)
    assert code == 1
    (problem,) = told["problems"]
    assert problem["what"].startswith("msgspec is imported from ~, not from ")
    assert (problem["command"], problem["advice"]) == ("", "take ~ off PYTHONPATH, or rename msgspec there")


def test_a_newer_version_is_marked_and_is_no_problem(tmp_path: Path) -> None:
    package(tmp_path, "tomlkit", "99.1", "")
    code, out, _ = doctor(tmp_path)
    assert code == 0
    assert "> tomlkit" in out
    assert "> newer than the tested versions" in out


def test_a_home_that_cannot_be_written_is_three_problems_with_commands(tmp_path: Path) -> None:
    home = tmp_path / "file"
    home.write_text("")
    code, told = document(tmp_path, HOME=str(home))
    assert code == 1
    assert [one["writable"] for one in told["folders"]] == [False, False, False, True]
    commands = [one["command"].partition("=")[0] for one in told["problems"]]
    assert commands == [f"export XDG_{kind}_HOME" for kind in ("CONFIG", "CACHE", "STATE")]


def test_a_config_file_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    config = tmp_path / "mine.toml"
    config.write_text("[machine.npu\n")
    code, told = document(tmp_path, EXPLORER_CONFIG=str(config))
    assert code == 1
    assert told["problems"][0]["what"].startswith("~/mine.toml is not TOML: ")
    assert told["folders"][0]["path"] == "~/mine.toml"


def test_on_windows_it_answers_and_names_wsl(tmp_path: Path) -> None:
    done = explored("windows", tmp_path, "doctor")
    assert done.returncode == 1, done.stderr
    assert done.stderr == ""
    assert "only --help, --version and doctor answer" in done.stdout
    assert "wsl --install" in done.stdout


def test_on_macos_it_answers(tmp_path: Path) -> None:
    done = explored("macos", tmp_path, "doctor", "--json")
    assert done.stderr == ""
    assert "macOS" in json.loads(done.stdout)["machine"]["system"]
