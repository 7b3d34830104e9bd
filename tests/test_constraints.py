"""The tested versions of every dependency: one for each, inside pyproject's bounds, and they fit together."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from explorer.base.tested_versions import TESTED, is_tested
from tests import constraints
from tests.manual import command
from tests.resolver import ROOT, answers, compile_pins

PINS = {
    name: [Requirement(line) for line in lines]
    for name, lines in constraints.pins(constraints.FILE.read_text()).items()
}


def direct() -> list[Requirement]:
    """What the README's test command asks for."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [line for extra in constraints.extras() for line in project["optional-dependencies"][extra]]
    asked = [Requirement(line) for line in [*project["dependencies"], *extras]]
    return [one for one in asked if one.name != project["name"]]


def test_the_readmes_test_command_installs_the_versions_of_the_file() -> None:
    assert f"-c {constraints.FILE.relative_to(ROOT)}" in command("tests")


@pytest.mark.parametrize("asked", direct(), ids=lambda asked: asked.name)
def test_every_dependency_has_versions_inside_its_bounds(asked: Requirement) -> None:
    name = canonicalize_name(asked.name)
    if name in constraints.RANGES:
        assert [str(one.specifier) for one in PINS[name]] == [
            str(Requirement(f"x{constraints.RANGES[name]}").specifier)
        ]
        return
    for one in PINS[name]:
        (pin,) = one.specifier
        assert pin.operator == "=="
        assert asked.specifier.contains(pin.version, prereleases=True)


def test_what_torch_pins_itself_is_left_out() -> None:
    assert not [name for name in PINS if name.startswith(("nvidia-", "cuda-", "triton"))]


def test_the_table_of_tested_versions_holds_those_of_the_file() -> None:
    outside = [
        f"{row.package} {pin.version}"
        for row in TESTED
        for one in PINS.get(canonicalize_name(row.package), ())
        for pin in one.specifier
        if pin.operator == "==" and not is_tested(row.package, pin.version)
    ]
    assert not outside


@pytest.mark.slow
@pytest.mark.parametrize("torch", ["torch==2.14.*", "torch"])
def test_the_file_resolves_with_the_lowest_and_the_highest_torch(torch: str, tmp_path: Path) -> None:
    if not answers():
        pytest.skip("no package index answers here")
    asked = tmp_path / "torch.txt"
    asked.write_text(torch)
    done = compile_pins(constraints.extras(), asked, "--universal", "--constraint", constraints.FILE)
    assert done.returncode == 0, done.stderr


def test_without_uv_the_file_stays_as_it_is_and_a_line_names_the_extra() -> None:
    before = constraints.FILE.read_bytes()
    code = "import tests.constraints as c; c.find_uv = lambda: None; raise SystemExit(c.main())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "uv is not installed: pip install 'explorer-nn[compat]'\n"
    assert constraints.FILE.read_bytes() == before
