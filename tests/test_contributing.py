"""The verb that CONTRIBUTING shows works as it is printed there, in a copy of the program."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8")
FILES = dict(
    re.findall(r"^`features/rewrite/(\w+\.py)`.*?```python\n(.*?)```", TEXT, re.DOTALL | re.MULTILINE)
)
TABLES = """
_lines = {{}}
exec({lines!r}, {{}}, _lines)
for _kind, _offers in _lines.items():
    FEATURE.offers[_kind].update(_offers)
"""
SCRIPT = """
import sys
from explorer import Session
from explorer.cli.main import main
from explorer.features.rewrite.prune_record import PruneSpec
model, output = sys.argv[1:]
assert main(["prune", model, "-o", output, "--share", "0.9"]) == 0
assert main(["prune", model, "-o", output + "2", "--share", "2"]) == 2
with Session(model) as session:
    fact = session.do("prune", PruneSpec(0.25))
    assert session.history().entries[1].label == "25% pruned"
    assert fact.command.endswith("--share 0.25"), fact.command
    session.undo()
"""
SCREEN = """
import asyncio
import sys
import time
from explorer.process.client import EngineProcess
from explorer.tui.program import ExplorerApp

async def press_keys(engine):
    app = ExplorerApp(sys.argv[1], engine)

    async def wait_until(is_reached):
        end = time.monotonic() + 60
        while not is_reached():
            assert time.monotonic() < end, app.screen
            await pilot.pause(0.05)

    async with app.run_test(size=(100, 30)) as pilot:
        store = app.screen.store
        await wait_until(lambda: store.analysis is not None)
        await pilot.press("J")
        await wait_until(lambda: app.screen.query("#share"))
        assert app.screen.query_one("#box").border_title == "Prune"
        await pilot.press("backspace", "backspace", "backspace", *"0.75", "enter")
        await wait_until(lambda: store.history is not None and len(store.history.entries) == 2)
        assert store.history.entries[1].label == "75% pruned"

if __name__ == "__main__":
    engine = EngineProcess(sys.argv[1])
    try:
        asyncio.run(press_keys(engine))
    finally:
        engine.close()
"""
"""Presses the key of the verb on the screen, types a share, and waits for the new state."""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the program with the verb; all but the feature are links."""
    program = tmp_path / "explorer"
    (program / "features").mkdir(parents=True)
    for folder in (ROOT / "explorer", ROOT / "explorer" / "features"):
        for path in folder.iterdir():
            if path.name not in ("features", "rewrite"):
                (program / path.relative_to(ROOT / "explorer")).symlink_to(path)
    room = program / "features" / "rewrite"
    shutil.copytree(ROOT / "explorer" / "features" / "rewrite", room)
    for name, code in FILES.items():
        path = room / name
        if name == "__init__.py":
            code = path.read_text(encoding="utf-8") + TABLES.format(lines=code)
        elif name == "keys.py":
            code = f"{path.read_text(encoding='utf-8')}COMMANDS += {code}"
        path.write_text(code, encoding="utf-8")
    return tmp_path


def test_the_verb_of_the_page_is_three_files_and_two_tables() -> None:
    assert sorted(FILES) == sorted(
        ["prune_record.py", "prune.py", "prune_command.py", "__init__.py", "keys.py"]
    )


def run_script(copy: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Runs a script on the copy of the program."""
    path = copy / "script.py"
    path.write_text(script, encoding="utf-8")
    words = (sys.executable, str(path), str(ROOT / "sample_models/lenet.onnx"), "pruned.onnx")
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    return subprocess.run(words, cwd=copy, env=environment, capture_output=True, text=True)


def test_the_key_of_the_verb_asks_for_its_options_and_makes_a_state(copy: Path) -> None:
    done = run_script(copy, SCREEN)
    assert not done.returncode, done.stderr


def test_the_verb_of_the_page_works(copy: Path) -> None:
    done = run_script(copy, SCRIPT)
    assert not done.returncode, done.stderr
    assert "written  pruned.onnx   55,323 numbers are zero" in done.stdout
    assert "--share: '2' is not a number between 0 and 1" in done.stderr
    assert not (copy / "pruned.onnx2").exists()
