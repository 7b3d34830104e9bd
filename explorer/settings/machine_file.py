"""Reads and writes machines in the config file, as the settings that determine each machine.

Values that follow from other settings are not written, so that changing one setting (the clock) changes the
values that depend on it.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from explorer.base.errors import Misuse
from explorer.base.units import bytes_text, sizes_text
from explorer.facts.cost import Hardware
from explorer.facts.profile.machine import CopyRate, MeasuredMachine
from explorer.facts.roofline import Machines, NamedMachine
from explorer.host import input_files, output_files, own_files
from explorer.settings.machines import (
    MEASURED,
    MEMORY_KEYS,
    complete,
    describe_measured,
    find_config_path,
    find_hardware,
    parse_setting,
    read_machine_table,
)
from explorer.settings.rates import Unit, parse_rate

SETTINGS = (
    *("peak_macs", "bandwidth", "macs_per_cycle", "bytes_per_cycle", "clock", "buffer", "array"),
    "double_buffered",
)
"""Settings of a machine in the order in which the dialog asks for them: fields of `Hardware`."""

_RATES: Mapping[str, tuple[Unit, str]] = {
    "peak_macs": ("macs", ""),
    "bandwidth": ("bytes", "B/s"),
    "clock": ("hertz", "Hz"),
}
_PREFIXES = ((12, "T"), (9, "G"), (6, "M"), (3, "k"))
_SIZES = ((30, "GiB"), (20, "MiB"), (10, "KiB"))
_IMPLIED: Mapping[str, tuple[str, ...]] = {
    "peak_macs": ("macs_per_cycle", "array"),
    "bandwidth": ("bytes_per_cycle",),
    "array": ("macs_per_cycle",),
}
"""Settings that a changed setting replaces."""
_ONE_GHZ = 1e9
"""Clock of a measured core in Hz. The real clock changes while programs run, so a cycle is 1 ns."""
_CORE_UNIT = "6x1x16"
"""Smallest matmul (M x K x N) of a core: BLIS keeps its 6 x 16 sums in the registers of a core with AVX2."""
_MAIN_MEMORY = 0
"""Level of the main memory in `CopyRate.level`; caches have 1 and above."""
_NAME = re.compile(r"[A-Za-z0-9_][\w.+-]{0,63}", re.ASCII)


def format_settings(machine: Hardware) -> dict[str, str]:
    """Writes the independent settings of a machine as text: '4.096T', '1GHz', '512 KiB', '64x64'."""
    settings = {key: getattr(machine, key) for key in SETTINGS}
    if machine.clock:
        for rate, cycle_rate in (("peak_macs", "macs_per_cycle"), ("bandwidth", "bytes_per_cycle")):
            per_second, per_cycle = settings[rate], settings[cycle_rate]
            if per_second and per_cycle and math.isclose(per_second, per_cycle * machine.clock, rel_tol=1e-9):
                # keep the shorter text, which the user wrote: 120 GB/s, not 36.3636... bytes per cycle
                cycle_length = len(_format_setting(cycle_rate, per_cycle))
                is_cycle_shorter = cycle_length <= len(_format_setting(rate, per_second))
                settings[rate if is_cycle_shorter else cycle_rate] = None
    if machine.array and machine.macs_per_cycle == machine.array[0] * machine.array[1]:
        settings["macs_per_cycle"] = None
    if machine.double_buffered:  # the default
        settings["double_buffered"] = None
    return {key: _format_setting(key, value) for key, value in settings.items() if value is not None}


def _format_setting(key: str, value: Any) -> str:
    """Writes the value of a setting as a short text that reads back as the same value."""
    if key == "array":
        return sizes_text(value)
    if key == "double_buffered":
        return "yes" if value else "no"
    if key == "buffer":
        return next(
            (f"{value >> bits} {unit}" for bits, unit in _SIZES if not value % (1 << bits)), str(value)
        )
    if key not in _RATES:
        return f"{value:.15g}"
    unit, word = _RATES[key]
    spellings = (
        f"{value / 10**power:.12g}{prefix}{word}" for power, prefix in _PREFIXES if value >= 10**power
    )
    return next((text for text in spellings if parse_rate(text, key, unit) == value), f"{value:.17g}")


def parse_machine(
    settings: Mapping[str, str], name: str = "", origin: str = "", *, has_memories: bool = False
) -> Hardware:
    """Builds a complete machine from settings as text.

    Args:
        settings: The settings.
        name: Name of the machine.
        origin: Source of the settings.
        has_memories: Whether the machine has memories, whose rates can replace the machine's own.

    Raises:
        Misuse: A setting is invalid, three settings contradict each other, or the compute rate or the
            bandwidth is missing.
    """
    read = {key: parse_setting(key, text) for key, text in settings.items() if text.strip()}
    machine = complete(Hardware(name, **read, origin=origin))
    has_rates = (machine.peak_macs and machine.bandwidth) or (
        machine.macs_per_cycle and machine.bytes_per_cycle
    )
    if not has_rates and not has_memories:
        raise Misuse(
            "the rates of computing and of moving bytes are missing",
            where=name,
            hint="add peak MACs/s and bytes/s; or MACs and bytes a cycle, and the clock",
        )
    return machine


def build_machine(start: Hardware | None, typed: Mapping[str, str]) -> Hardware:
    """Builds a machine from the settings of `start`, if given. Typed settings replace those of `start`."""
    settings = format_settings(start) if start is not None else {}
    dropped = {key for setting in typed for key in _IMPLIED.get(setting, ())}
    return parse_machine({**{key: text for key, text in settings.items() if key not in dropped}, **typed})


def save_machine(
    name: str,
    machine: Hardware,
    config: str | None = None,
    *,
    overwrite: bool = False,
    measured: MeasuredMachine | None = None,
    memories: Mapping[str, Any] | None = None,
) -> Hardware:
    """Writes a machine into the config file. Other lines and comments of the file stay.

    Args:
        name: Name for `--machine`: letters, digits, `_`, `-`, `+` and `.`.
        machine: Known properties of the machine.
        config: Path of the config file, or None for the user's own, which is created if it does not exist.
        overwrite: Whether to replace an existing machine with this name.
        measured: Measurements of the machine, or None.
        memories: Settings that describe the machine's memories, by `MEMORY_KEYS`. None takes them from the
            file or the preset in which `machine` was found.

    Returns:
        The machine as the file has it.

    Raises:
        Misuse: The name is invalid or exists already, or the file cannot be read or written.
    """
    path = check_name(name, config, overwrite=overwrite)
    if memories is None:
        memories = find_memory_settings(machine)
    settings = format_settings(complete(machine))
    content = _insert_machine(_read_text(path), path, name, {**settings, **memories}, overwrite, measured)
    folder = os.path.dirname(os.path.abspath(path))
    try:
        if config is None:
            own_files.make_folder(folder)
        else:
            os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise Misuse(f"cannot be made: {error.strerror}", where=folder) from None
    with output_files.write_atomically(path, overwrite=True) as temporary:
        with output_files.open_text(temporary) as file:
            file.write(content)
        if config is None:
            os.chmod(temporary, own_files.PRIVATE_FILE)
    return find_hardware(name, path)


def check_name(name: str, config: str | None = None, *, overwrite: bool = False) -> str:
    """Checks that a machine named `name` can be written, and returns the path of the config file.

    Raises:
        Misuse: See `save_machine`.
    """
    if not _NAME.fullmatch(name) or name.endswith(".toml"):
        raise Misuse(f"'{name}' is not a name of a machine", where="--save", hint="such as npu or npu-2")
    path = config or find_config_path()
    _insert_machine(_read_text(path), path, name, {}, overwrite)
    folder = os.path.dirname(os.path.abspath(path))
    output_files.check_target(path, overwrite=True, models=(), weights=(), new_folder=folder)
    return path


def save_measured(
    name: str, measured: MeasuredMachine, config: str | None = None, *, overwrite: bool = False
) -> Machines:
    """Writes a measured machine: its peak rate of float32, its bandwidth, and all measurements.

    The buffer is the largest cache that belongs to a single core, if the system reports it. If one core was
    measured, it is written as a second machine, with its caches as memories.

    Raises:
        Misuse: See `save_machine`.
    """
    float32_peak = next(level for level in measured.peaks if level.dtype == "float32")
    cache_sizes = [level.bytes for level in measured.caches if level.processors == 1]
    machine = Hardware(
        peak_macs=_round_rate(float32_peak.macs_per_second),
        bandwidth=_round_rate(measured.bandwidth.bytes_per_second),
        buffer=max(cache_sizes, default=None),
    )
    saved = save_machine(name, machine, config, overwrite=overwrite, measured=measured)
    whole_machine = describe_measured(saved, measured)
    core = _save_core(name, measured, config, overwrite=overwrite)
    return Machines(saved.origin, (whole_machine,) if core is None else (whole_machine, core))


def build_core_name(name: str) -> str:
    """Returns the name of the machine that is one core of the measured machine `name`."""
    return f"{name}-core"


def _save_core(
    name: str, measured: MeasuredMachine, config: str | None, *, overwrite: bool
) -> NamedMachine | None:
    """Writes one core of a measured machine with its caches, or returns None if no copy was measured."""
    if measured.core is None or not measured.core.copies:
        return None
    copies = {copy.level: copy for copy in measured.core.copies}
    caches = {cache.level: cache for cache in measured.caches if cache.level in copies}

    def describe(copy: CopyRate) -> str:
        return f"copy of {bytes_text(copy.bytes // 2)} by one thread, measured {measured.date}"

    memory = copies[_MAIN_MEMORY]
    memories: list[dict[str, Any]] = [
        {"name": "memory", **_convert_copy_rates(memory), "source": describe(memory)}
    ]
    for level in sorted(caches, reverse=True):
        cache, copy = caches[level], copies[level]
        ways = {"ways": cache.ways} if cache.ways else {}
        source = f"size{' and ways' * bool(ways)} read from the system; {describe(copy)}"
        size = {"name": f"L{level}", "size": bytes_text(cache.bytes)}
        memories.append({**size, **ways, **_convert_copy_rates(copy), "source": source})
    machine = Hardware(
        macs_per_cycle=_round_rate(measured.core.macs_per_second / _ONE_GHZ),
        bytes_per_cycle=2 * _round_rate(memory.bytes_per_second / _ONE_GHZ),
        clock=_ONE_GHZ,
    )
    saved = save_machine(
        build_core_name(name),
        machine,
        config,
        overwrite=overwrite,
        memories={"unit": _CORE_UNIT, "memory": memories},
    )
    about = f"one core of {measured.processor} with its caches, measured {measured.date}; a cycle is 1 ns"
    return NamedMachine(saved.name, about, "float32", saved, saved.origin)


def _convert_copy_rates(copy: CopyRate) -> dict[str, float]:
    """Returns the rates of a memory, in bytes per cycle, from a copy.

    The rate of a copy counts each byte once, although the byte is read and written: the memory moves twice as
    much.
    """
    rate = _round_rate(copy.bytes_per_second / _ONE_GHZ)
    return {"read_bytes_per_cycle": rate, "write_bytes_per_cycle": rate}


def _round_rate(rate: float) -> float:
    """Rounds a rate to four digits, because its measurement is not more precise."""
    return float(f"{rate:.4g}")


def add_machine(
    name: str, start: str | None, typed: Mapping[str, str], *, overwrite: bool = False
) -> Machines:
    """Writes the machine `start` with changed settings into the user's config file as `name`.

    Without `start`, the typed settings are all its settings.

    Raises:
        Misuse: See `save_machine`. Also raised if the machine `start` does not exist.
    """
    start_machine = None if start is None else find_hardware(start)
    machine = build_machine(start_machine, typed)
    memories = {} if start_machine is None else find_memory_settings(start_machine, machine)
    saved = save_machine(name, machine, overwrite=overwrite, memories=memories)
    return Machines(saved.origin, (NamedMachine(saved.name, "", "", saved, saved.origin),))


def _read_text(path: str) -> str:
    try:
        return input_files.parse_toml(input_files.read_content(path), path)[0]
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise Misuse(f"cannot be read ({error.strerror or error})", where=path) from None


def find_memory_settings(machine: Hardware, changed: Hardware | None = None) -> dict[str, Any]:
    """Finds the settings of a machine's memories in the file or preset with this machine.

    Args:
        machine: The machine.
        changed: A copy of the machine with other figures, or None. If the outermost memory had the machine's
            bytes per cycle, it gets those of `changed`. If the array changed, a unit that equaled the old
            array is dropped.

    Returns:
        Settings by `MEMORY_KEYS`; empty if the machine has no memories.
    """
    if not machine.name:
        return {}
    try:
        table = read_machine_table(machine)
    except (Misuse, FileNotFoundError):  # the machine is not from a file
        return {}
    settings = {key: table[key] for key in MEMORY_KEYS if key in table}
    if changed is None or not settings.get("memory"):
        return settings
    outermost, *inner = settings["memory"]
    rate = changed.bytes_per_cycle
    before = machine.bytes_per_cycle
    is_changed = rate is not None and before is not None and not math.isclose(rate, before, rel_tol=1e-9)
    if is_changed and outermost.get("bytes_per_cycle") == before:
        settings["memory"] = [{**outermost, "bytes_per_cycle": rate}, *inner]
    if machine.array is not None and changed.array != machine.array:
        rows, columns = machine.array
        if settings.get("unit") == f"{rows}x{rows}x{columns}":
            del settings["unit"]
    return settings


def _insert_machine(
    text: str,
    path: str,
    name: str,
    settings: Mapping[str, Any],
    overwrite: bool,
    measured: MeasuredMachine | None = None,
) -> str:
    """Adds or replaces a machine in the text of the config file."""
    import tomlkit  # imported late: only writing needs it

    document = tomlkit.parse(text)
    machines = document.setdefault("machine", tomlkit.table(is_super_table=True))
    if not isinstance(machines, dict):
        raise Misuse("'machine' holds no machines", where=path, hint="write [machine.NAME]")
    if name in machines and not overwrite:
        raise Misuse(
            f"there is a machine '{name}' already", where=path, hint="choose another name, or add --force"
        )
    table = tomlkit.table()
    memories = settings.get("memory", ())
    for key, value in settings.items():
        if key == "double_buffered":
            table.add(key, value == "yes")
        elif isinstance(value, dict):
            table.add(key, _build_inline_table(value))
        elif key != "memory":
            table.add(key, value)
    if measured is not None:
        table.add(MEASURED, _write_table(measured))
    if memories:
        entries = tomlkit.aot()
        for memory in memories:
            entry = tomlkit.table()
            entry.update(memory)
            entries.append(entry)
        table.add("memory", entries)
    machines[name] = table
    return tomlkit.dumps(document)


def _build_inline_table(fields: Mapping[str, Any]) -> Any:
    """Builds a TOML table on one line."""
    import tomlkit  # imported late: only writing needs it

    table = tomlkit.inline_table()
    table.update(fields)
    return table


def _drop_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Drops fields that are None, because TOML has no null."""
    return {key: value for key, value in fields.items() if value is not None}


def _write_table(measured: MeasuredMachine) -> Any:
    """Writes the measurements as a TOML table with one line for each measurement."""
    import tomlkit  # imported late: only writing needs it

    table = tomlkit.table()
    for key, value in _drop_none(msgspec.to_builtins(measured)).items():
        if isinstance(value, (list, tuple)):
            items = tomlkit.array().multiline(any(isinstance(member, dict) for member in value))
            items.extend([_drop_none(member) if isinstance(member, dict) else member for member in value])
            table.add(key, items)
        elif isinstance(value, dict):
            table.add(key, _build_inline_table(value))
        else:
            table.add(key, value)
    return table
