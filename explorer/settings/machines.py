"""Machine descriptions of the user: two rates as options, or a named machine in a file.

The command line and the screen accept the same spellings. A roofline needs the rates per second: `peak_macs`
and `bandwidth`. The cost of a tiling needs the rates per cycle: `macs_per_cycle` and `bytes_per_cycle`. The
clock converts one kind of rate into the other.

The config file is $EXPLORER_CONFIG, otherwise explorer/config.toml in $XDG_CONFIG_HOME or ~/.config:

    [machine.npu]
    peak_macs = "4T"          # or 4e12: multiply-accumulates per second
    bandwidth = "51.2 GB/s"   # or 51.2e9: bytes per second
    macs_per_cycle = 4096     # the settings from here on are optional
    bytes_per_cycle = 64
    clock = "1 GHz"
    buffer = "512 KiB"        # for the current tiles
    array = "64x64"           # rows and columns of a systolic array
    double_buffered = true    # the next tiles are transferred during the computation

Presets (`machine_presets`) need no file. A measured machine (`explorer machines --measure`) has a table
`measured` next to its settings. The machine on which the program runs is called `here`.

A machine can also be a separate file, called a profile, with these settings at the top level or in a table
[profile]. The same file may hold the tables of a tiling for `--config`.
"""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from explorer.base.compat import build_type
from explorer.base.errors import Misuse, suggest_name, suggest_only_near
from explorer.base.units import many_text
from explorer.facts.cost import Hardware
from explorer.facts.profile.machine import MeasuredMachine
from explorer.facts.roofline import Machine, Machines, NamedMachine
from explorer.host import input_files, processor
from explorer.host.system import find_user_folder
from explorer.settings.machine_presets import PRESETS
from explorer.settings.parse import parse_bytes
from explorer.settings.rates import RATE_HINTS, Unit, read_per_cycle, read_rate
from explorer.settings.tables import TABLES

HERE = "here"
"""Default name of the measured machine on which the program runs."""
MEASURED = "measured"
"""Name of the table with the measurements of a machine."""

MEMORY_KEYS = ("memory", "unit", "overlap", "mac_pj", "rates", "first_read", "registers")
"""Settings of a machine that describe its memories; see `settings.memories`."""

_RATE_UNITS: Mapping[str, Unit] = {"peak_macs": "macs", "bandwidth": "bytes"}


_MAX_BUFFER = 1 << 62


def read_memory_size(value: Any, where: str) -> int:
    """Reads a size of memory: a text in powers of 1024 ('512 KiB'), or a number of bytes.

    Raises:
        Misuse: The value is not a whole number of bytes above 0.
    """
    hint = "write 512 KiB, 2M or a number of bytes"
    size: float = -1
    if isinstance(value, str):
        size = parse_bytes(value)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        size = value
    # NaN fails the comparison
    if not 1 <= size <= _MAX_BUFFER or size != int(size):
        raise Misuse(f"'{value}' is not a size of memory", where=where, hint=hint)
    return int(size)


def _read_array_size(value: Any, where: str) -> tuple[int, int]:
    """Reads rows and columns: '64x64', '64', or a list of two numbers."""
    pieces = re.split(r"\s*[xX×,]\s*", value.strip()) if isinstance(value, str) else value
    sides = pieces if isinstance(pieces, list) else [pieces]
    sides = sides * 2 if len(sides) == 1 else sides
    sizes = [int(s) if isinstance(s, str) and re.fullmatch(r"\d{1,6}", s, re.ASCII) else s for s in sides]
    is_valid = all(isinstance(s, int) and not isinstance(s, bool) and 1 <= s <= 1 << 16 for s in sizes)
    if len(sizes) != 2 or not is_valid:
        raise Misuse(
            f"'{value}' is not an array", where=where, hint='write its rows and columns, such as "64x64"'
        )
    return sizes[0], sizes[1]


def read_flag(value: Any, where: str) -> bool:
    """Reads true or false: a TOML value, or 'true', 'yes', 'false' or 'no'."""
    words = {"true": True, "yes": True, "false": False, "no": False}
    flag = words.get(value.strip().lower()) if isinstance(value, str) else value
    if not isinstance(flag, bool):
        raise Misuse(f"'{value}' is neither true nor false", where=where, hint="write true or false")
    return flag


_SETTINGS: Mapping[str, Callable[[Any, str], Any]] = {
    "peak_macs": lambda value, where: read_rate(value, where, "macs"),
    "bandwidth": lambda value, where: read_rate(value, where, "bytes"),
    "macs_per_cycle": lambda value, where: read_per_cycle(value, where, "macs"),
    "bytes_per_cycle": lambda value, where: read_per_cycle(value, where, "bytes"),
    "clock": lambda value, where: read_rate(value, where, "hertz"),
    "buffer": read_memory_size,
    "array": _read_array_size,
    "double_buffered": read_flag,
}
"""Settings of a machine, each with the function that reads it. The keys are fields of `Hardware`."""


def parse_setting(key: str, value: Any, where: str = "") -> Any:
    """Reads one setting of a machine from a typed text or a TOML value.

    Args:
        key: Field of `Hardware`: 'macs_per_cycle', 'bytes_per_cycle', 'clock', 'buffer', 'array', ...
        value: Text ('4096', '64 B', '1 GHz', '512 KiB', '64x64') or the value itself.
        where: Option, entry or field for the error; the setting by default.

    Raises:
        Misuse: The setting does not exist or is invalid.
    """
    if key not in _SETTINGS:
        raise Misuse(f"there is no setting '{key}'", where=where, hint=suggest_name(key, _SETTINGS))
    return _SETTINGS[key](value, where or key)


def replace_buffer(machine: Hardware | None, text: str, where: str) -> Hardware:
    """Replaces the buffer of a machine. Without a machine, only the buffer is known.

    Raises:
        Misuse: The text is not a size.
    """
    return replace(machine or Hardware(), buffer=parse_setting("buffer", text, where))


def complete(machine: Hardware) -> Hardware:
    """Computes the values that follow from the settings of a machine.

    A rate per second is a rate per cycle times the clock; two of the three determine the third. An array does
    one multiply-accumulate per cell and cycle, unless a rate is given.

    Raises:
        Misuse: A number is not above 0, or three numbers contradict each other.
    """
    where = machine.origin or machine.name or "the machine"
    for key in _SETTINGS:
        value = getattr(machine, key)
        if value is not None:
            parse_setting(key, list(value) if key == "array" else value, f"{where}, {key}")
    peak, bandwidth, clock = machine.peak_macs, machine.bandwidth, machine.clock
    macs, moved = machine.macs_per_cycle, machine.bytes_per_cycle
    if macs is None and machine.array is not None and (peak is None or clock is None):
        macs = machine.array[0] * machine.array[1]
    clock = clock or _divide(peak, macs) or _divide(bandwidth, moved)
    macs, moved = macs or _divide(peak, clock), moved or _divide(bandwidth, clock)
    for key, rate, cycle_key, per_cycle in (
        ("peak_macs", peak, "macs_per_cycle", macs),
        ("bandwidth", bandwidth, "bytes_per_cycle", moved),
    ):
        if rate and per_cycle and clock and not math.isclose(rate, per_cycle * clock, rel_tol=1e-6):
            raise Misuse(
                f"{key} is {rate:.6g}, but {cycle_key} x clock is {per_cycle * clock:.6g}",
                where=where,
                hint="leave one of the three out",
            )
    return replace(
        machine,
        macs_per_cycle=macs,
        bytes_per_cycle=moved,
        clock=clock,
        peak_macs=peak or _multiply_by_clock(macs, clock),
        bandwidth=bandwidth or _multiply_by_clock(moved, clock),
    )


def _divide(rate: float | None, part: float | None) -> float | None:
    # twelve digits, more than a typed number has, drop the rounding error of the division
    return float(f"{rate / part:.12g}") if rate and part else None


def _multiply_by_clock(per_cycle: float | None, clock: float | None) -> float | None:
    return float(f"{per_cycle * clock:.12g}") if per_cycle and clock else None


def find_config_path(environment: Mapping[str, str] | None = None) -> str:
    """Returns the path of the config file with the user's machines. The file need not exist."""
    env = os.environ if environment is None else environment
    if env.get("EXPLORER_CONFIG"):
        return env["EXPLORER_CONFIG"]
    return os.path.join(find_user_folder("config", env), "config.toml")


@functools.cache
def list_presets() -> Mapping[str, Hardware]:
    """Returns the preset machines by name, completed by `complete`."""
    return {
        row.name: _parse_machine(row.name, dict(row.settings), "preset", f"preset, dense {row.dtype}")
        for row in PRESETS
    }


def find_other_peak_type(machine: Machine | Hardware, multiplied: str) -> str:
    """Returns the number type of a preset's peak rate if a model multiplies another type, otherwise ''.

    Args:
        machine: The machine; its peak may differ from the preset's, and then has no known type.
        multiplied: Number type that the model multiplies, or '' if it is unknown.
    """
    row = next((row for row in PRESETS if row.name == machine.name), None)
    if row is None or not multiplied or list_presets()[row.name].peak_macs != machine.peak_macs:
        return ""
    types = {"float16" if dtype == "bfloat16" else dtype for dtype in (row.dtype, multiplied)}
    return row.dtype if len(types) > 1 else ""  # both 16-bit types have the same rate


def describe_other_peak(machine: Machine | Hardware, multiplied: str) -> str:
    """Returns a note that the peak rate of a machine is of another type than the model multiplies, or ''."""
    peak_type = find_other_peak_type(machine, multiplied)
    return (
        f"the peak rate of {machine.name} is of {peak_type}, but the model multiplies {multiplied}"
        if peak_type
        else ""
    )


def load_hardware(config: str | None = None) -> dict[str, Hardware]:
    """Returns all machines that `--machine` accepts, by name: the user's own, then the presets.

    A machine of the user's own replaces a preset of the same name.
    """
    own_hardware = read_hardware_profiles(config)
    return {
        **own_hardware,
        **{name: machine for name, machine in list_presets().items() if name not in own_hardware},
    }


def list_machines(config: str | None = None) -> Machines:
    """Lists every named machine with its source."""
    rows = {row.name: row for row in PRESETS}
    measured_by_name = read_measurements(config)
    machines = []
    for name, hardware in load_hardware(config).items():
        row = rows[name] if list_presets().get(name) == hardware else None
        if name in measured_by_name:
            machines.append(describe_measured(hardware, measured_by_name[name]))
            continue
        about, dtype, source = (row.about, row.dtype, row.source) if row else ("", "", hardware.origin)
        machines.append(NamedMachine(name, about, dtype, hardware, source))
    return Machines(config or find_config_path(), tuple(machines))


def describe_measured(machine: Hardware, measurement: MeasuredMachine) -> NamedMachine:
    """Describes a measured machine of the config file."""
    loaded = " while it was loaded" if measurement.loaded else ""
    threads = many_text(measurement.threads, "thread")
    about = f"{measurement.processor}, {threads}, measured {measurement.date}{loaded}"
    return NamedMachine(machine.name, about, measurement.peaks[0].dtype, machine, machine.origin, measurement)


def read_measurements(config: str | None = None) -> dict[str, MeasuredMachine]:
    """Reads the measurements of the machines of the config file, by name.

    Raises:
        Misuse: The file cannot be read, or a table of measurements is invalid.
    """
    path = config or find_config_path()
    try:
        entries = _read_toml(path, is_own=config is None).get("machine", {})
    except FileNotFoundError:
        return {}
    measured_by_name = {}
    for name, entry in entries.items() if isinstance(entries, dict) else ():
        if isinstance(entry, dict) and MEASURED in entry:
            try:
                measured_by_name[name] = msgspec.convert(entry[MEASURED], build_type(MeasuredMachine))
            except msgspec.ValidationError as error:
                hint = "explorer machines --measure --force writes it again"
                raise Misuse(str(error), where=f"{path}, [machine.{name}.{MEASURED}]", hint=hint) from None
    return measured_by_name


def find_measured(machine: Machine | None) -> MeasuredMachine | None:
    """Returns the measurements of a machine of the config file.

    Returns None for a machine without measurements, and for one whose rates were changed since.
    """
    measurement = None if machine is None else read_measurements().get(machine.name)
    if measurement is None or machine is None or find_roofline_hardware(machine).origin != find_config_path():
        return None
    return measurement


def check_here(name: str | None, config: str | None = None) -> None:
    """Refuses the name `here` if it belongs to another machine, which shares the home folder.

    Raises:
        Misuse: The machine `here` was measured on another processor.
    """
    measured = read_measurements(config).get(HERE) if name == HERE else None
    if measured is not None and measured.processor != processor.name():
        raise Misuse(
            f"'{HERE}' was measured on another machine: {measured.processor}",
            where="--machine",
            hint="explorer machines --measure --force measures this one",
        )


def find_roofline_hardware(machine: Machine) -> Hardware:
    """Returns the named machine with the rates of a roofline machine, or a machine with only these rates."""
    try:
        named_hardware = load_hardware().get(machine.name)
    except Misuse:
        named_hardware = None
    if named_hardware is not None and (named_hardware.peak_macs, named_hardware.bandwidth) == (
        machine.peak_macs,
        machine.bandwidth,
    ):
        return named_hardware
    return Hardware(
        machine.name, peak_macs=machine.peak_macs, bandwidth=machine.bandwidth, origin=machine.origin
    )


def read_hardware_profiles(config: str | None = None) -> dict[str, Hardware]:
    """Reads the machines of the config file by name, with completed rates. Empty if the file does not exist.

    Args:
        config: Path of the config file, or None for the user's own.

    Raises:
        Misuse: The file cannot be read or is invalid.
    """
    path = config or find_config_path()
    try:
        return _read_machines(_read_toml(path, is_own=config is None), path)
    except FileNotFoundError:
        return {}


def _read_toml(path: str, *, is_own: bool = False) -> dict[str, Any]:
    """Reads a TOML file; `is_own` tells whether it is the config file, which confinement never refuses.

    Raises:
        FileNotFoundError: There is no such file.
        Misuse: The file cannot be read, or is not TOML.
    """
    try:
        return input_files.parse_toml(input_files.read_content(path, internal=is_own), path)[1]
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(path) from None
    except OSError as error:
        raise Misuse(f"cannot be read ({error.strerror or error})", where=path) from None


def _read_machines(content: Mapping[str, Any], path: str) -> dict[str, Hardware]:
    """Reads the tables `[machine.NAME]` of the file `path`, by name."""
    entries = content.get("machine", {})
    if not isinstance(entries, dict):
        raise Misuse("'machine' holds no machines", where=path, hint="write [machine.NAME]")
    return {
        name: _parse_machine(name, entry, f"{path}, [machine.{name}]", path)
        for name, entry in entries.items()
    }


def _parse_machine(name: str, entry: Any, where: str, path: str) -> Hardware:
    if not isinstance(entry, dict):
        raise Misuse(
            "this is not a machine", where=where, hint='write peak_macs = "4T" and bandwidth = "100GB/s"'
        )
    memories = entry.get("memory")
    entry = {key: value for key, value in entry.items() if key not in (MEASURED, *MEMORY_KEYS)}
    for key in entry:
        if key not in _SETTINGS:
            hint = suggest_name(key, (*_SETTINGS, *MEMORY_KEYS))
            raise Misuse(f"there is no setting '{key}'", where=where, hint=hint)
    if entry.keys().isdisjoint(("bytes_per_cycle", "bandwidth")):
        entry |= _take_outermost_rate(memories)
    settings = {key: parse_setting(key, value, f"{where} {key}") for key, value in entry.items()}
    return replace(complete(Hardware(name, **settings, origin=where)), origin=path)


def _take_outermost_rate(memories: Any) -> dict[str, Any]:
    """Takes the bytes per cycle of a machine from its outermost memory, if it has one rate for both ways."""
    outermost = memories[0] if isinstance(memories, (list, tuple)) and memories else None
    rate = outermost.get("bytes_per_cycle") if isinstance(outermost, dict) else None
    return {} if rate is None else {"bytes_per_cycle": rate}


def _has_cycles(machine: Hardware) -> bool:
    return machine.macs_per_cycle is not None or machine.bytes_per_cycle is not None


def _build_roofline_machine(machine: Hardware) -> Machine:
    """Takes the two rates of a roofline from a machine.

    Raises:
        Misuse: One of the rates is unknown.
    """
    for key, unit in _RATE_UNITS.items():
        if getattr(machine, key) is None:
            where = f"{machine.origin}, [machine.{machine.name}]"
            hint = RATE_HINTS[unit] + (" (or the clock)" if _has_cycles(machine) else "")
            raise Misuse(f"'{key}' is missing", where=where, hint=hint)
    assert machine.peak_macs is not None
    assert machine.bandwidth is not None
    return Machine(machine.name, machine.peak_macs, machine.bandwidth, machine.origin)


def find_hardware(named: str, config: str | None = None, where: str = "--machine") -> Hardware:
    """Finds a machine by a name or a file that the user typed, and completes its rates.

    Args:
        named: Name in the config file, TOML file with a profile or a single machine ('npu.toml'), or a
            machine of such a file ('machines.toml:npu').
        config: Path of the config file, or None for the user's own.
        where: Option for the error.

    Raises:
        Misuse: The file or name does not exist, or the file is invalid.
    """
    path, colon, name = named.rpartition(":")
    if not colon or not path.endswith(".toml"):
        path, name = named, ""
    if not path.endswith(".toml") and os.sep not in path:
        check_here(named, config)
        return _find_named(named, load_hardware(config), config or find_config_path(), where)
    try:
        content = _read_toml(path)
    except FileNotFoundError:
        raise Misuse("there is no such file", where=path, hint="a machine is a TOML file or a name") from None
    if "machine" in content:
        machines = _read_machines(content, path)
        if name or len(machines) == 1:
            return _find_named(name or next(iter(machines)), machines, path, where)
        hint = f"write {path}:{next(iter(machines))}" if machines else "write [machine.NAME]"
        raise Misuse(f"it holds {len(machines)} machines", where=path, hint=hint)
    profile = content.get("profile", {key: value for key, value in content.items() if key not in TABLES})
    if name or not profile:
        raise Misuse("it holds no machines", where=path, hint="write macs_per_cycle, bytes_per_cycle, clock")
    return _parse_machine(os.path.splitext(os.path.basename(path))[0], profile, path, path)


def read_machine_table(machine: Hardware) -> Mapping[str, Any]:
    """Reads the settings of a machine from its file or preset again, with the settings of its memories.

    Args:
        machine: Machine that `find_hardware` found.
    """
    row = next((row for row in PRESETS if row.name == machine.name), None)
    if row is not None and list_presets()[row.name] == machine:
        return {**row.settings, "memory": row.memory} if row.memory else row.settings
    content = _read_toml(machine.origin)
    entries = content.get("machine", {})
    entry = entries.get(machine.name) if "machine" in content else content.get("profile", content)
    return entry if isinstance(entry, dict) else {}


def _find_named(
    name: str,
    machines: Mapping[str, Hardware],
    path: str,
    where: str,
    settings: str = "macs_per_cycle, bytes_per_cycle",
) -> Hardware:
    """Returns the machine `name`.

    Raises:
        Misuse: `machines` has no such machine. The hint names a similar machine, or `settings` to write.
    """
    if name in machines:
        return machines[name]
    own_machines = {
        machine_name: machine
        for machine_name, machine in machines.items()
        if list_presets().get(machine_name) != machine
    }
    if name == HERE and len(own_machines) < len(machines):
        raise Misuse("this machine is not measured", where=where, hint="run explorer machines --measure")
    hint = suggest_only_near(name, machines)
    if not hint:
        suggestion = suggest_name(name, own_machines) or f"write one into {path}: [machine.NAME] {settings}"
        hint = (
            f"{suggestion}; explorer machines lists presets"
            if len(own_machines) < len(machines)
            else suggestion
        )
    raise Misuse(f"no machine is called '{name}'", where=where, hint=hint)


def find(
    name: str | None = None,
    peak_macs: str | float | None = None,
    bandwidth: str | float | None = None,
    config: str | None = None,
) -> Machine:
    """Finds the roofline machine that the user typed.

    Args:
        name: Name of a machine in the config file or of a preset. Typed rates replace its own.
        peak_macs: Multiply-accumulates per second, as a number or a text.
        bandwidth: Bytes per second, as a number or a text.
        config: Path of the config file, or None for the user's own.

    Raises:
        Misuse: No machine has that name, one of the two rates is missing, or a rate is invalid.
    """
    rates = {
        "peak_macs": None if peak_macs is None else read_rate(peak_macs, "--peak-macs", "macs"),
        "bandwidth": None if bandwidth is None else read_rate(bandwidth, "--bandwidth", "bytes"),
    }
    named_machine: Machine | None = None
    if name is not None:
        path = config or find_config_path()
        check_here(name, config)
        named_machine = _build_roofline_machine(
            _find_named(name, load_hardware(path), path, "--machine", "peak_macs, bandwidth")
        )
    peak, typed_bandwidth = rates["peak_macs"], rates["bandwidth"]
    if named_machine is not None:
        rates_origin = "" if peak is None and typed_bandwidth is None else ", command line"
        return Machine(
            named_machine.name,
            peak or named_machine.peak_macs,
            typed_bandwidth or named_machine.bandwidth,
            named_machine.origin + rates_origin,
        )
    if peak is None or typed_bandwidth is None:
        missing = [f"--{key.replace('_', '-')}" for key, value in rates.items() if value is None]
        hint = "such as --peak-macs 4T --bandwidth 100GB/s, or --machine NAME (explorer machines lists names)"
        raise Misuse(
            f"the machine is not known: {' and '.join(missing)} missing", where="roofline", hint=hint
        )
    return Machine("", peak, typed_bandwidth)
