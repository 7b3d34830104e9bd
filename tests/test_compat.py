"""`python -m tests.compat`: its sets, its table and how it ends; the sets themselves take an hour."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.compat import __main__ as compat
from tests.compat import environment, version_table
from tests.compat.environment import Outcome, Unresolved, resolve
from tests.compat.version_sets import SETS, VersionSet, bounds
from tests.compat.version_table import as_markdown, as_text
from tests.resolver import MISSING, ROOT, answers

NEWEST = {"torch": "9.1", "numpy": "8.0"}


def good(asked: VersionSet, versions: dict[str, str], folder: Path) -> Outcome:
    return Outcome(asked.name, versions, passed=3)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the sets that were run; `lowest` and `numpy-2.0` alone have versions of their own."""
    names: list[str] = []

    def run(asked: VersionSet, versions: dict[str, str], folder: Path) -> Outcome:
        names.append(asked.name)
        return good(asked, versions, folder)

    def resolved(asked: VersionSet) -> dict[str, str]:
        return {**NEWEST, "numpy": "2.0"} if asked.name in ("lowest", "numpy-2.0") else dict(NEWEST)

    monkeypatch.setattr(compat, "find_uv", lambda: "uv")
    monkeypatch.setattr(compat, "resolve", resolved)
    monkeypatch.setattr(compat, "run_tests", run)
    return names


def test_the_list_names_every_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert compat.main(["--list"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == list(SETS)
    assert {"lowest", "tested", "newest", "pre", "torch-2.9", "transformers-5.0", "numpy-newest"} <= set(
        listed
    )


def test_versions_that_ran_before_are_not_run_again(
    runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert compat.main([]) == 0
    assert runs == ["lowest", "tested"]
    table = capsys.readouterr().out.partition("\n\n")[2].splitlines()
    assert len(table) == 1 + len(SETS)
    assert [line.split()[-2:] for line in table if line.startswith("numpy")] == [
        ["as", "lowest"],
        ["as", "tested"],
    ]


def test_a_set_that_fails_ends_with_1_and_names_the_first_failure(
    runs: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(asked: VersionSet, versions: dict[str, str], folder: Path) -> Outcome:
        bad = Outcome(asked.name, versions, passed=2, failed=1, failures=("test_it: 1 is not 2",))
        return bad if asked.name == "newest" else good(asked, versions, folder)

    monkeypatch.setattr(compat, "run_tests", run)
    assert compat.main(["--set", "lowest", "--set", "newest"]) == 1
    assert capsys.readouterr().out.rstrip().endswith("test_it: 1 is not 2")


def test_versions_that_do_not_fit_together_are_a_row(
    runs: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unresolved(asked: VersionSet) -> dict[str, str]:
        raise Unresolved("torch and numpy do not fit\nlong story")

    monkeypatch.setattr(compat, "resolve", unresolved)
    assert compat.main(["--set", "pre"]) == 1
    assert capsys.readouterr().out.rstrip().endswith("torch and numpy do not fit")
    assert runs == []


def test_a_set_in_which_nothing_ran_is_not_good(runs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "run_tests", lambda asked, versions, folder: Outcome(asked.name, versions))
    assert compat.main(["--set", "newest"]) == 1


def test_without_uv_it_says_so_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compat, "find_uv", lambda: None)
    assert compat.main(["--set", "newest"]) == 2
    assert capsys.readouterr() == ("", f"{MISSING}\n")


@pytest.mark.parametrize("words", [["--set", "oldest"], ["--write", "--set", "newest"]])
def test_words_that_mean_nothing_end_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        compat.main(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err


REPORT = """<testsuites><testsuite>
<testcase name="a"/><testcase name="b"><skipped message="no"/></testcase>
<testcase name="c[1]"><failure message="AssertionError: first&#10;second">at</failure></testcase>
<testcase name="d"><error message="">at</error></testcase>
<testcase name="e"><error message="collection failure">at\nE   ImportError: no x\n</error></testcase>
</testsuite></testsuites>"""


def test_a_report_of_pytest_is_counted(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    found = environment.counted(tmp_path / "report.xml")
    assert (found.passed, found.failed, found.skipped) == (1, 3, 1)
    assert found.failures == ("c[1]: AssertionError: first", "d: no message", "e: E   ImportError: no x")
    assert environment.counted(tmp_path / "none.xml").passed == 0


def test_a_table_of_the_manual_keeps_its_columns() -> None:
    from datetime import date

    outcomes = [
        Outcome("lowest", {"torch": "2.9.0"}, 3, 1, failures=("a | b",)),
        Outcome("pre", {}, same_as="x"),
    ]
    text = as_markdown(outcomes, "3.11.7", date(2026, 1, 2))
    assert text.startswith("Python 3.11.7 on Linux, January 2, 2026:\n")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {row.count("|") for row in rows} == {11}
    assert len(as_text(outcomes).splitlines()) == 3


@pytest.mark.parametrize("table", ["", "| old |\n"])
def test_a_new_table_takes_the_place_of_the_one_on_the_page(
    table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "versions.md"
    page.write_text(f"# Title\n\n<!-- table -->\n{table}<!-- end -->\n\nMore.\n")
    monkeypatch.setattr(version_table, "PAGE", page)
    version_table.write_page("| new |")
    assert page.read_text() == "# Title\n\n<!-- table -->\n| new |\n<!-- end -->\n\nMore.\n"


def test_the_suite_leaves_the_folder_out_unless_it_is_named() -> None:
    def collected(*words: str) -> Any:
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *words]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout

    assert "test_samples" in collected("tests/compat/test_samples.py")
    assert "no tests" in collected("tests", "--ignore-glob=tests/[!c]*", "--ignore-glob=tests/cli*")


@pytest.mark.slow
def test_every_lower_bound_is_the_version_that_the_lowest_set_runs_with() -> None:
    """A bound that another package's raises is one that nobody can install, and nobody tried."""
    if not answers():
        pytest.skip("no package index answers here")
    from packaging.version import Version

    lowest = SETS["lowest"]
    versions = resolve(lowest)
    raised = {
        name: versions.get(name)
        for name, bound in bounds(lowest).items()
        if Version(versions[name]) != Version(bound)
    }
    assert raised == {}
