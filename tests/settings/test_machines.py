"""Machines as users write them: rates in several spellings, names in a file of theirs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from explorer.base.errors import Misuse
from explorer.facts.cost import Hardware
from explorer.facts.roofline import Machine
from explorer.settings import machines
from explorer.settings.rates import parse_rate


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e11", 1e11),
        ("100e9", 100e9),
        ("100G", 100e9),
        ("100GB", 100e9),
        ("100GB/s", 100e9),
        ("51.2 GB/s", 51.2e9),
        ("51.2GiB/s", 51.2 * 2**30),
        ("1.2TB/s", 1.2e12),
        (".5 TiB / s", 2**39),
        ("800_000 kB/s", 800e6),
        ("64bytes/s", 64.0),
    ],
)
def test_a_bandwidth_may_be_written_in_decimal_and_binary_units(text: str, value: float) -> None:
    assert parse_rate(text, "--bandwidth", "bytes") == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4T", 4e12),
        ("4e12", 4e12),
        ("4 TMAC/s", 4e12),
        ("4TMACs", 4e12),
        ("8 TFLOPS", 4e12),
        ("2E", 2e18),
        ("2e3G", 2e12),
    ],
)
def test_a_peak_counts_multiply_accumulates_and_halves_flops(text: str, value: float) -> None:
    assert parse_rate(text, "--peak-macs", "macs") == value


@pytest.mark.parametrize(
    ("text", "unit", "says"),
    [
        ("", "bytes", "not a rate"),
        ("fast", "bytes", "not a rate"),
        ("-1G", "bytes", "not a rate"),
        ("0", "bytes", "above 0"),
        ("1e999", "bytes", "above 0"),
        ("nan", "bytes", "not a rate"),
        ("100Gb/s", "bytes", "counts bits"),
        ("100 TMAC/s", "bytes", "not a unit of bytes"),
        ("100GB/s", "macs", "not a unit of multiply-accumulates"),
        ("8 TOPS", "macs", "not a unit of multiply-accumulates"),
        ("100GB/h", "bytes", "not a rate"),
        ("1e12e", "bytes", "not a unit"),
    ],
)
def test_what_cannot_be_a_rate_is_one_clear_line(text: str, unit: machines.Unit, says: str) -> None:
    with pytest.raises(Misuse, match=says) as caught:
        parse_rate(text, "--here", unit)
    assert str(caught.value).startswith("--here: ")
    assert "such as" in str(caught.value)


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "config.toml"
    path.write_text(
        '[machine.npu]\npeak_macs = "4T"\nbandwidth = "51.2 GB/s"\n'
        "[machine.laptop]\npeak_macs = 1e11\nbandwidth = 40_000_000_000\n"
    )
    return str(path)


def test_a_machine_is_named_or_given_by_its_rates_or_both(config: str) -> None:
    assert machines.find("npu", config=config) == Machine("npu", 4e12, 51.2e9, config)
    assert machines.find("laptop", config=config) == Machine("laptop", 1e11, 4e10, config)
    assert machines.find(None, "4T", "100GB/s") == Machine("", 4e12, 1e11)
    assert machines.find(peak_macs=1e12, bandwidth=1e10) == Machine("", 1e12, 1e10)
    mixed = machines.find("npu", None, "100GB/s", config)
    assert (mixed.peak_macs, mixed.bandwidth) == (4e12, 1e11)
    assert mixed.origin == f"{config}, command line"


def test_a_mistyped_name_names_the_nearest(config: str, tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=r"no machine is called 'nppu'; did you mean 'npu'\?"):
        machines.find("nppu", config=config)
    with pytest.raises(Misuse, match=r"choose from: .*npu.*; explorer machines lists presets"):
        machines.find("zzz", config=config)
    nowhere = str(tmp_path / "none.toml")
    with pytest.raises(Misuse, match=r"write one into .*none.toml"):
        machines.find("npu", config=nowhere)
    assert machines.read_hardware_profiles(nowhere) == {}


def test_half_a_machine_says_what_is_missing() -> None:
    with pytest.raises(Misuse, match="--bandwidth missing"):
        machines.find(None, "4T")
    with pytest.raises(Misuse, match="--peak-macs and --bandwidth missing"):
        machines.find()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[machine.npu\n", "not TOML"),
        ("\xff", "not TOML"),
        ("machine = 3\n", r"write \[machine.NAME\]"),
        ("machine.npu = 3\n", "not a machine"),
        ("[machine.npu]\nbandwidth = 1e9\n", "'peak_macs' is missing"),
        (
            "[machine.npu]\npeak_macs = 1e9\nbandwith = 1e9\n",
            r"no setting 'bandwith'; did you mean 'bandwidth'\?",
        ),
        ("[machine.npu]\npeak_macs = true\nbandwidth = 1e9\n", "'True' is not a rate"),
        ("[machine.npu]\npeak_macs = -1\nbandwidth = 1e9\n", "above 0"),
        ("[machine.npu]\npeak_macs = nan\nbandwidth = 1e9\n", "above 0"),
        (f"[machine.npu]\npeak_macs = {10**400}\nbandwidth = 1e9\n", "more than any machine"),
        (
            '[machine.npu]\npeak_macs = "4T"\nbandwidth = "wide"\n',
            r"\[machine.npu\] bandwidth: 'wide' is not a rate",
        ),
    ],
)
def test_a_bad_config_file_is_one_clear_line_that_names_it(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(Misuse, match=says) as caught:
        machines.find("npu", config=str(path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_is_no_config_file(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="cannot be read"):
        machines.read_hardware_profiles(str(tmp_path))


def test_the_config_file_lies_where_the_desktop_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert machines.find_config_path({"EXPLORER_CONFIG": "/here.toml"}) == "/here.toml"
    assert machines.find_config_path({"XDG_CONFIG_HOME": "/cfg"}) == "/cfg/explorer/config.toml"
    assert machines.find_config_path({}).endswith("/.config/explorer/config.toml")


PROFILE = (
    'macs_per_cycle = 4096\nbytes_per_cycle = "64 B"\nclock = "1 GHz"\nbuffer = "512 KiB"\narray = "64x32"\n'
)


@pytest.fixture
def npu(tmp_path: Path) -> str:
    path = tmp_path / "npu.toml"
    path.write_text(PROFILE)
    return str(path)


def test_a_profile_may_be_a_file_of_its_own(npu: str) -> None:
    found = machines.find_hardware(npu)
    assert found == Hardware("npu", 4096, 64, 1e9, 512 << 10, (64, 32), True, 4096e9, 64e9, npu)


@pytest.mark.parametrize("around", ["[profile]\n", "[machine.npu]\n"])
def test_a_profile_may_stand_in_a_table_beside_a_tiling(tmp_path: Path, around: str) -> None:
    path = tmp_path / "npu.toml"
    path.write_text(f"[tile]\ntile = 32\n{around}{PROFILE}[[site]]\non = false\n")
    found = machines.find_hardware(str(path))
    assert (found.name, found.clock, found.array) == ("npu", 1e9, (64, 32))
    flat = tmp_path / "flat.toml"
    flat.write_text(f"{PROFILE}[tile]\ntile = 32\n")
    assert machines.find_hardware(str(flat)).macs_per_cycle == 4096


def test_of_several_machines_in_a_file_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "machines.toml"
    path.write_text("[machine.small]\nmacs_per_cycle = 16\n[machine.large]\nmacs_per_cycle = 1024\n")
    with pytest.raises(Misuse, match=r"it holds 2 machines; write .*machines.toml:small"):
        machines.find_hardware(str(path))
    assert machines.find_hardware(f"{path}:large").macs_per_cycle == 1024
    with pytest.raises(Misuse, match=r"no machine is called 'larg'; did you mean 'large'\?"):
        machines.find_hardware(f"{path}:larg")
    assert machines.find_hardware("small", config=str(path)).macs_per_cycle == 16
    with pytest.raises(Misuse, match="no machine is called 'npu'"):
        machines.find_hardware("npu", config=str(path))


def test_what_follows_from_what_is_said_of_a_machine_is_filled_in() -> None:
    rates = machines.complete(Hardware(peak_macs=4e12, bandwidth=51.2e9, clock=1e9))
    assert (rates.macs_per_cycle, rates.bytes_per_cycle) == (4000, 51.2)
    cycles = machines.complete(Hardware(macs_per_cycle=4000, bytes_per_cycle=51.2, clock=1e9))
    assert (cycles.peak_macs, cycles.bandwidth) == (4e12, 51.2e9)
    clock = machines.complete(Hardware(macs_per_cycle=4000, peak_macs=4e12, bandwidth=51.2e9))
    assert (clock.clock, clock.bytes_per_cycle) == (1e9, 51.2)
    array = machines.complete(Hardware(array=(64, 32)))
    assert (array.macs_per_cycle, array.peak_macs, array.clock) == (2048, None, None)
    half = machines.complete(Hardware(array=(64, 32), peak_macs=1e12, clock=1e9))
    assert half.macs_per_cycle == 1000, "what the two rates say goes before the array's cells"
    for machine in (rates, cycles, clock, array, half):
        assert machines.complete(machine) == machine


def test_a_machine_of_cycles_and_a_clock_has_a_roofline(tmp_path: Path, npu: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f"[machine.npu]\n{PROFILE}[machine.bare]\nmacs_per_cycle = 16\nbytes_per_cycle = 4\n")
    assert machines.find("npu", config=str(path)) == Machine("npu", 4096e9, 64e9, str(path))
    with pytest.raises(Misuse, match=r"\[machine.bare\]: 'peak_macs' is missing; .*or the clock"):
        machines.find("bare", config=str(path))
    assert set(machines.read_hardware_profiles(str(path))) == {"npu", "bare"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no machines"),
        ("[tile]\ntile = 4\n", "holds no machines"),
        (
            "macs_per_cycle = 0\n",
            "npu.toml macs_per_cycle: '0' is not a rate above 0; .*in a cycle, such as 4096",
        ),
        ('bytes_per_cycle = "64 B/s"\n', "npu.toml bytes_per_cycle: '64 B/s' is not a rate"),
        ('macs_per_cycle = "64 B"\n', "'B' is not a unit of multiply-accumulates"),
        ('clock = "fast"\n', "npu.toml clock: 'fast' is not a rate; .*such as 1 GHz"),
        ('clock = "1 GB"\n', "'GB' is not a unit of cycles per second"),
        ("clock = inf\n", "is not a rate above 0"),
        ('buffer = "much"\n', "npu.toml buffer: 'much' is not a size of memory; write 512 KiB"),
        ("buffer = 0\n", "'0' is not a size of memory"),
        ("buffer = nan\n", "'nan' is not a size of memory"),
        ("buffer = true\n", "'True' is not a size of memory"),
        ("buffer = 1.5\n", "'1.5' is not a size of memory"),
        (f"buffer = {10**400}\n", "is not a size of memory"),
        ('array = "64x"\n', "npu.toml array: '64x' is not an array; write its rows and columns"),
        ('array = "0x4"\n', "'0x4' is not an array"),
        ("array = [1, 2, 3]\n", "is not an array"),
        ("array = [true, 2]\n", "is not an array"),
        ("array = 1.5\n", "is not an array"),
        ('double_buffered = "maybe"\n', "double_buffered: 'maybe' is neither true nor false"),
        ("double_buffered = 1\n", "'1' is neither true nor false"),
        ("macs_per_cycel = 4\n", r"no setting 'macs_per_cycel'; did you mean 'macs_per_cycle'\?"),
        (
            "macs_per_cycle = 4\nclock = 1e9\npeak_macs = 5e9\n",
            r"peak_macs is 5e\+09, but macs_per_cycle x clock is 4e\+09; leave one of the three out",
        ),
        ("profile = 3\n", "this is not a machine"),
        ("machine = {}\n", r"it holds 0 machines; write \[machine.NAME\]"),
        ("macs_per_cycle\n", "not TOML"),
    ],
)
def test_a_bad_profile_is_one_clear_line_that_names_it(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "npu.toml"
    path.write_text(text)
    with pytest.raises(Misuse, match=says) as caught:
        machines.find_hardware(str(path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_profile_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=r"none.toml: there is no such file; a machine is a TOML file or a name"):
        machines.find_hardware(str(tmp_path / "none.toml"))
    with pytest.raises(Misuse, match="cannot be read"):
        machines.find_hardware(f"{tmp_path}{os.sep}")


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("buffer", "512 KiB", 512 << 10),
        ("buffer", "2M", 2 << 20),
        ("buffer", "1.5kB", 1536),
        ("buffer", 4096, 4096),
        ("array", "64", (64, 64)),
        ("array", 8, (8, 8)),
        ("array", "16 x 8", (16, 8)),
        ("array", [16, 8], (16, 8)),
        ("clock", "800MHz", 8e8),
        ("clock", "1.2 GHz", 1.2e9),
        ("macs_per_cycle", "4k", 4000),
        ("macs_per_cycle", "4096 MACs/cycle", 4096),
        ("bytes_per_cycle", "51.2 B/cycle", 51.2),
        ("double_buffered", "no", False),
    ],
)
def test_a_setting_is_read_as_it_is_typed(key: str, text: object, value: object) -> None:
    assert machines.parse_setting(key, text) == value


def test_a_setting_that_is_typed_wrong_is_named() -> None:
    with pytest.raises(Misuse, match=r"^buffer: 'x' is not a size of memory"):
        machines.parse_setting("buffer", "x")
    with pytest.raises(Misuse, match="no setting 'cache'"):
        machines.parse_setting("cache", "x")


def test_presets_are_known_by_name_and_say_their_type_and_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.toml"
    monkeypatch.setenv("EXPLORER_CONFIG", str(config))
    named = {one.name: one for one in machines.list_machines().machines}
    # half of the FLOPS that the datasheets have, without sparsity
    assert machines.find("a100") == Machine("a100", 156e12, 2.039e12, "preset, dense bfloat16")
    assert machines.find_hardware("h100").peak_macs == pytest.approx(494.7e12)
    assert machines.find_hardware("array-64").macs_per_cycle == 4096
    assert all(one.dtype and one.source and one.about for one in named.values())
    assert all(one.hardware.peak_macs and one.hardware.bandwidth for one in named.values())
    config.write_text('[machine.a100]\npeak_macs = "1T"\nbandwidth = "1 GB/s"\n[machine.mine]\nclock = 1\n')
    assert machines.find("a100").peak_macs == 1e12, "what a user calls so is his"
    first = machines.list_machines().machines[:2]
    assert [(one.name, one.source) for one in first] == [("a100", str(config)), ("mine", str(config))]
    with pytest.raises(Misuse, match=r"did you mean 'h100'"):
        machines.find("h10")
