"""The page on mappings: its machine file and its ten commands run as they stand there, in their order."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from explorer.cli import main

PAGE = Path(__file__).parents[3] / "explorer" / "manual" / "mapping.md"


@pytest.mark.slow
def test_the_ten_commands_lead_to_a_proved_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text()
    machine = re.search(r"```toml\n(.*?)```", text, re.DOTALL)
    assert machine is not None
    Path("npu.toml").write_text(machine[1])
    made = re.search(r"^    explorer (make .*)$", text, re.MULTILINE)
    assert made is not None
    commands = re.findall(r"^\| \d+ \| `explorer (.*?)` \|", text, re.MULTILINE)
    assert len(commands) == 10
    printed = []
    for command in (made[1], *commands):
        assert main.main(shlex.split(command)) == 0, command
        printed.append(capsys.readouterr().out)
    assert "equal within rounding" in printed[8]
    assert "counters of bytes equal the plan" in printed[9]
    assert "counters of bytes equal the plan" in printed[10]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "code", "m.toml", "model.onnx", "npu.toml", "tiled.onnx",
    ]  # fmt: skip
