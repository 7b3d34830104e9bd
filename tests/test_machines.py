"""Machines as users write them: rates in several spellings, names in a file of theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from explorer import machines
from explorer.errors import Misuse
from explorer.facts.roofline import Machine


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
    assert machines.parse_rate(text, "--bandwidth", "bytes") == pytest.approx(value, rel=1e-12)


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
    assert machines.parse_rate(text, "--peak-macs", "macs") == value


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
        ("100 TMAC/s", "bytes", "no unit of bytes"),
        ("100GB/s", "macs", "no unit of multiply-accumulates"),
        ("8 TOPS", "macs", "no unit of multiply-accumulates"),
        ("100GB/h", "bytes", "not a rate"),
        ("1e12e", "bytes", "no unit"),
    ],
)
def test_what_cannot_be_a_rate_is_one_clear_line(text: str, unit: machines.Unit, says: str) -> None:
    with pytest.raises(Misuse, match=says) as caught:
        machines.parse_rate(text, "--here", unit)
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
    nowhere = str(tmp_path / "none.toml")
    with pytest.raises(Misuse, match=r"write one into .*none.toml"):
        machines.find("npu", config=nowhere)
    assert machines.profiles(nowhere) == {}


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
        machines.profiles(str(tmp_path))


def test_the_config_file_lies_where_the_desktop_says() -> None:
    assert machines.config_path({"EXPLORER_CONFIG": "/here.toml"}) == "/here.toml"
    assert machines.config_path({"XDG_CONFIG_HOME": "/cfg"}) == "/cfg/explorer/config.toml"
    assert machines.config_path({}).endswith("/.config/explorer/config.toml")
