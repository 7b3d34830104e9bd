"""Machines that are written down: what is typed is read again, and nothing else of the file changes."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from explorer.base.errors import Misuse
from explorer.cli.main import main
from explorer.facts.cost import Hardware
from explorer.settings import machine_file, machines
from explorer.settings.machine_file import (
    SETTINGS,
    build_machine,
    format_settings,
    parse_machine,
    save_machine,
)
from explorer.settings.memories import find_memory_machine


def alike(a: Hardware, b: Hardware) -> bool:
    return all(
        getattr(a, key) == (pytest.approx(getattr(b, key)) if getattr(b, key) else getattr(b, key))
        for key in SETTINGS
    )


@pytest.mark.parametrize("name", machines.list_presets())
def test_every_preset_is_said_by_settings_and_by_no_more_than_it_needs(name: str) -> None:
    preset = machines.list_presets()[name]
    texts = format_settings(preset)
    assert alike(parse_machine(texts), preset)
    for key in texts:
        try:
            less = parse_machine({other: text for other, text in texts.items() if other != key})
        except Misuse:
            continue
        assert not alike(less, preset), f"{key} follows from the others"


_rate = st.floats(1e3, 1e18)


@given(
    peak=_rate,
    bandwidth=_rate,
    clock=st.none() | st.floats(1e3, 1e12),
    buffer=st.none() | st.integers(1, 1 << 62),
    array=st.none() | st.tuples(st.integers(1, 512), st.integers(1, 512)),
    double=st.booleans(),
)
@example(peak=1e3, bandwidth=1e3, clock=None, buffer=(1 << 61) + 1, array=None, double=False)
def test_any_machine_comes_back_as_it_was_typed(
    peak: float,
    bandwidth: float,
    clock: float | None,
    buffer: int | None,
    array: tuple[int, int] | None,
    double: bool,
) -> None:
    machine = machines.complete(
        Hardware("", None, None, clock, buffer, array, double, peak_macs=peak, bandwidth=bandwidth)
    )
    assert alike(parse_machine(format_settings(machine)), machine)


def test_one_machine_more_leaves_the_rest_of_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "deeper" / "config.toml"
    save_machine("npu", parse_machine({"peak_macs": "4T", "bandwidth": "100GB/s"}), str(path))
    before = "# mine\n[tile]\nsize = 3  # as it was\n\n" + path.read_text()
    path.write_text(before)
    array = build_machine(machines.list_presets()["array-64"], {"buffer": "512 KiB"})
    saved = save_machine("a.b+c", array, str(path))
    assert path.read_text().startswith(before.rstrip())
    assert saved == machines.find_hardware("a.b+c", config=str(path))
    assert (saved.buffer, saved.array, saved.peak_macs) == (512 << 10, (64, 64), 4.096e12)
    with pytest.raises(Misuse, match="there is a machine 'npu' already"):
        save_machine("npu", array, str(path))
    save_machine("npu", array, str(path), overwrite=True)
    assert tomllib.loads(path.read_text())["tile"] == {"size": 3}
    assert alike(machines.find_hardware("npu", config=str(path)), array)


_WITH_MEMORIES = """
[machine.npu]
macs_per_cycle = 256
clock = "1 GHz"
unit = "16x16x16"
overlap = "double"
rates = { int8 = 512 }
[[machine.npu.memory]]
name = "DRAM"
bytes_per_cycle = 16
[[machine.npu.memory]]
name = "SRAM"
size = "64 KiB"
buffers = "A=2 B=2 C=1"
"""


def test_a_copy_of_a_machine_keeps_its_memories(tmp_path: Path) -> None:
    source, path = tmp_path / "npu.toml", tmp_path / "config.toml"
    source.write_text(_WITH_MEMORIES)
    save_machine("copy", machines.find_hardware(str(source)), str(path))
    preset = machines.find_hardware("gemmini")
    save_machine("array", preset, str(path))
    copy, array = (find_memory_machine(f"{path}:{name}") for name in ("copy", "array"))
    original = find_memory_machine(str(source))
    assert (copy.unit, copy.overlap, copy.rates) == ((16, 16, 16), "double", {"int8": 512.0})
    assert copy.memories == original.memories
    assert array.memories == find_memory_machine("gemmini").memories


def test_a_machine_made_from_another_keeps_its_memories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    machine_file.add_machine("faster", "gemmini", {"clock": "2GHz"})
    assert find_memory_machine("faster").memories == find_memory_machine("gemmini").memories
    assert find_memory_machine("faster").hardware.clock == 2e9


@pytest.mark.parametrize("name", ["", "a/b", "npu.toml", "-x", "a b", "ä", "x" * 65])
def test_a_name_that_could_not_be_asked_for_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    with pytest.raises(Misuse, match="is not a name"):
        save_machine(name, machines.list_presets()["h100"], str(path))
    assert not path.exists()


@pytest.mark.parametrize("text", ["machine = 3\n", "[machine\n", "[machine.npu]\nx = 1\n[machine.npu]\n"])
def test_a_file_that_holds_no_machines_is_left_as_it_is(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(Misuse):
        save_machine("npu2", machines.list_presets()["h100"], str(path))
    assert path.read_text() == text


def test_the_command_line_starts_from_a_preset_and_says_what_it_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.toml"
    monkeypatch.setenv("EXPLORER_CONFIG", str(path))
    assert main(["machines", "--save", "fast", "--machine", "h100", "--bandwidth", "5TB/s"]) == 0
    assert "5.00 TB/s" in capsys.readouterr().out
    assert machines.find_hardware("fast").peak_macs == machines.list_presets()["h100"].peak_macs
    for wrong in (
        ["--save", "fast", "--machine", "h100"],
        ["--clock", "1GHz"],
        ["--save", "x"],
        ["--save", "x", "--machine", "h100", "--array", "64xpotato"],
        ["--save", "x", "--peak-macs", "4T", "--macs-per-cycle", "10", "--clock", "1GHz"],
    ):
        kept = path.read_text()
        assert main(["machines", *wrong]) == 2
        assert capsys.readouterr().err.count("\n") == 1
        assert path.read_text() == kept


def test_a_machine_whose_macs_are_not_those_of_its_array_is_written_and_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    words = ["machines", "--save", "npu", "--array", "64x64", "--clock", "1GHz", "--bytes-per-cycle", "64"]
    assert main(words) == 0
    assert "are not the" not in capsys.readouterr().out
    assert main([*words, "--macs-per-cycle", "100", "--force"]) == 0
    assert "100 MACs a cycle do not match an array of 64 x 64, which" in capsys.readouterr().out
