"""Machines with memories: reads the memories of a machine from the config file, a profile or a preset.

A machine lists its memories from the outermost in:

    [machine.npu]
    array = "64x64"
    clock = "1 GHz"
    unit = "64x64x64"              # tiles are multiples of it, cut at the edges; without: the array's
    mac_pj = 0.2                   # energy of a multiply-accumulate; without: no energy
    overlap = "double"             # fill and drain of the array: ideal, none or double
    rates = { int8 = 4096 }        # multiply-accumulates per cycle by number type

    [[machine.npu.memory]]
    name = "DRAM"
    bytes_per_cycle = 16           # or read_bytes_per_cycle and write_bytes_per_cycle

    [[machine.npu.memory]]
    name = "scratchpad"
    size = "256 KiB"
    holds = "A B"                  # without: A B C; other operands bypass the memory
    buffers = 2                    # or "A=2 B=2 C=1 out=2"

    [[machine.npu.memory]]
    name = "accumulator"
    size = "64 KiB"
    holds = "C"
    read_pj = 1.2                  # energy of an access of `read_word` bytes; also write_pj, write_word
    cores = 1                      # cores that share the memory outside

A machine without memories has two: the outermost one, and its `buffer`.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, get_args

from msgspec.structs import replace

from explorer.base.errors import Misuse, suggest_name
from explorer.facts.cost import Hardware
from explorer.facts.mapping import Buffers, MachineMemory, MemoryMachine, Overlap
from explorer.host import input_files
from explorer.settings import machines
from explorer.settings.rates import MAX_RATE, MIN_RATE, read_per_cycle
from explorer.settings.toml_lines import find_line

_OPERANDS = "ABC"

_MIN_ENERGY, _MAX_ENERGY = 1e-9, 1e15
"""Smallest and largest energy of an access or of a multiply-accumulate, in picojoules."""

_NUMBER_TYPES = (
    *("float64", "float32", "float16", "bfloat16"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
    *("int64", "uint64", "int32", "uint32", "int16", "uint16", "int8", "uint8", "int4", "uint4"),
)
"""Number types that `rates` can name: those of the left operand of a matmul."""


def find_memory_machine(named: str, where: str = "--machine") -> MemoryMachine:
    """Finds a machine by a name or a file, with its memories.

    Args:
        named: Name or file, as for `machines.find_hardware`.
        where: Option that an error message names.

    Raises:
        Misuse: The machine does not exist, or one of its memories is invalid.
    """
    hardware = machines.find_hardware(named, where=where)
    return read_memories(hardware, machines.read_machine_table(hardware))


def find_machine_of_mapping(name: str, path: str) -> MemoryMachine:
    """Finds the machine that a mapping file names.

    Args:
        name: Name of the machine.
        path: Path of the mapping file.

    Raises:
        Misuse: No machine in the config file and no preset has this name, or one of its memories is invalid.
    """
    if name not in machines.load_hardware():
        hint = "add --machine FILE, the file that describes it"
        problem = f"it is for machine '{name}', which is not in the config file"
        raise Misuse(problem, where=path, hint=hint, code="other_machine")
    return find_memory_machine(name, path)


def find_memories(hardware: Hardware) -> MemoryMachine:
    """Finds the memories of a machine that is already described.

    A machine that was typed, and is in no file, has its buffer as its only memory on the chip.

    Raises:
        Misuse: The machine has no memories, or one of them is invalid.
    """
    is_typed = not os.path.isfile(hardware.origin) and hardware not in machines.list_presets().values()
    return read_memories(hardware, {} if is_typed else machines.read_machine_table(hardware))


def list_machines_with_memories() -> dict[str, Hardware]:
    """Lists the named machines with memories or a buffer: those of the user, then the presets.

    Raises:
        Misuse: The config file cannot be read.
    """
    return {
        name: hardware
        for name, hardware in machines.load_hardware().items()
        if hardware.buffer is not None or machines.read_machine_table(hardware).get("memory")
    }


def read_memories(hardware: Hardware, table: Mapping[str, Any]) -> MemoryMachine:
    """Reads the memories of a machine from its table.

    Raises:
        Misuse: A setting is invalid.
    """
    where = f"{hardware.origin or 'preset'}, [machine.{hardware.name}]"
    entries = table.get("memory", ())
    source = _read_source(hardware)
    if not isinstance(entries, (list, tuple)):
        raise Misuse("'memory' is not a list", where=where, hint=f"write [[machine.{hardware.name}.memory]]")
    memories = tuple(
        _read_memory(entry, _Place(hardware, source, index)) for index, entry in enumerate(entries)
    ) or _describe_buffer(hardware, where)
    _check_memories(memories, where)
    overlap = table.get("overlap", "ideal")
    if overlap not in get_args(Overlap):
        hint = suggest_name(str(overlap), get_args(Overlap)) or "write ideal, none or double"
        raise Misuse(f"there is no overlap '{overlap}'", where=where, hint=hint)
    rates = table.get("rates", {})
    if not isinstance(rates, dict):
        raise Misuse("'rates' is not a table", where=where, hint="write rates = { int8 = 4096 }")
    return MemoryMachine(
        hardware,
        memories,
        unit=_read_unit(table, hardware, where),
        overlap=overlap,
        mac_pj=_read_energy(table["mac_pj"], f"{where} mac_pj") if "mac_pj" in table else None,
        rates={
            _check_number_type(name, where): read_per_cycle(rate, f"{where} rates.{name}", "macs")
            for name, rate in rates.items()
        },
        first_read=machines.read_flag(table.get("first_read", False), f"{where} first_read"),
        registers=machines.read_flag(table.get("registers", True), f"{where} registers"),
    )


def _describe_buffer(hardware: Hardware, where: str) -> tuple[MachineMemory, ...]:
    """Describes the two memories of a machine that has only a buffer."""
    outer = MachineMemory("memory", bytes_per_cycle=hardware.bytes_per_cycle)
    if hardware.buffer is None:
        hint = f'add buffer = "512 KiB", or [[machine.{hardware.name}.memory]] for each memory'
        raise Misuse(f"machine '{hardware.name}' has no memories", where=where, hint=hint)
    count = 2 if hardware.double_buffered else 1
    return outer, MachineMemory("buffer", size=hardware.buffer, buffers=Buffers(count, count, count))


def _read_unit(table: Mapping[str, Any], hardware: Hardware, where: str) -> tuple[int, int, int]:
    """Reads M, K and N of the unit; by default the array's rows, rows and columns, or 1 without an array."""
    if "unit" not in table:
        if hardware.array is None:
            return 1, 1, 1
        rows, columns = hardware.array
        return rows, rows, columns
    text = str(table["unit"])
    parts = re.split(r"\s*[xX×]\s*", text.strip())
    sizes = [int(part) if re.fullmatch(r"\d{1,6}", part, re.ASCII) else 0 for part in parts]
    if len(sizes) != 3 or not all(sizes):
        raise Misuse(
            f"'{text}' is not a unit", where=f"{where} unit", hint='write M, K and N, such as "64x64x64"'
        )
    return sizes[0], sizes[1], sizes[2]


def _check_number_type(name: str, where: str) -> str:
    if name not in _NUMBER_TYPES:
        hint = suggest_name(name, _NUMBER_TYPES) or "write rates = { int8 = 4096 }"
        raise Misuse(f"'{name}' is not a number type", where=f"{where} rates", hint=hint)
    return name


def _read_energy(value: Any, where: str) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not _MIN_ENERGY <= value <= _MAX_ENERGY:
        raise Misuse(f"'{value}' is not an energy", where=where, hint="write picojoules, such as 1.2")
    return float(value)


def _read_count(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1 << 20:
        raise Misuse(f"'{value}' is not a number", where=where, hint="write a whole number of at least 1")
    return value


def _read_text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise Misuse(f"'{value}' is not text of one line", where=where, hint='write name = "scratchpad"')
    return value.strip()


def _read_operands(value: Any, where: str) -> str:
    operands = "".join(re.split(r"[\s,]+", value.strip())) if isinstance(value, str) else ""
    if len(set(operands)) < len(operands) and not set(operands) - set(_OPERANDS):
        raise Misuse(f"'{value}' names an operand twice", where=where, hint="write it once")
    if not operands or set(operands) - set(_OPERANDS):
        raise Misuse(f"'{value}' names no operand", where=where, hint='write A, B and C, such as "A B"')
    return "".join(operand for operand in _OPERANDS if operand in operands)


def _parse_block(value: Any, where: str) -> tuple[int, int]:
    """Reads the rows and columns of a transfer, such as '16x64'."""
    match = re.fullmatch(r"(\d{1,6})\s*[xX×]\s*(\d{1,6})", str(value).strip(), re.ASCII)
    if match is None or not int(match[1]) or not int(match[2]):
        raise Misuse(f"'{value}' is not a block", where=where, hint='write rows and columns, such as "16x64"')
    return int(match[1]), int(match[2])


def _read_by_operand(value: Any, where: str, names: tuple[str, ...]) -> dict[str, int]:
    """Reads a number for A, B and C, or a text such as 'A=2 B=2 C=1', by operand in `names`."""
    if not isinstance(value, str):
        return dict.fromkeys(names[:3], _read_count(value, where))
    numbers = {}
    hint = f'write "{names[0]}=2 {names[1]}=1"'
    if not value.strip():
        raise Misuse("the text is empty", where=where, hint=hint)
    for word in value.split():
        name, _, number = word.partition("=")
        if name in numbers:
            raise Misuse(f"'{word}' is a second number of {name}", where=where, hint="leave one of them out")
        if name not in names or not re.fullmatch(r"0*[1-9]\d{0,6}", number, re.ASCII):
            raise Misuse(f"'{word}' is not a number of an operand", where=where, hint=hint)
        numbers[name] = int(number)
    return numbers


_FIELDS: Mapping[str, Callable[[Any, str], Any]] = {
    "name": _read_text,
    "size": machines.read_memory_size,
    "holds": _read_operands,
    "buffers": lambda value, where: Buffers(**_read_by_operand(value, where, ("A", "B", "C", "out"))),
    "read_bytes_per_cycle": lambda value, where: read_per_cycle(value, where, "bytes"),
    "write_bytes_per_cycle": lambda value, where: read_per_cycle(value, where, "bytes"),
    "bytes_per_cycle": lambda value, where: read_per_cycle(value, where, "bytes"),
    "read_word": lambda value, where: _read_by_operand(value, where, ("A", "B", "C")),
    "write_word": lambda value, where: _read_by_operand(value, where, ("A", "B", "C")),
    "read_pj": _read_energy,
    "write_pj": _read_energy,
    "cores": _read_count,
    "ways": _read_count,
    "transfer": _parse_block,
    "inside": machines.read_flag,
    "source": _read_text,
}
"""Settings of a memory, each with the function that reads it. The keys are fields of `MachineMemory`."""


def _read_source(hardware: Hardware) -> str:
    """Reads the text of the file that describes a machine, or '' if it comes from no file."""
    if not os.path.isfile(hardware.origin):
        return ""
    is_own = hardware.origin == machines.find_config_path()
    return input_files.read_content(hardware.origin, internal=is_own).decode("utf-8", "replace")


class _Place(NamedTuple):
    """Place of a memory in the file of its machine, for errors.

    Attributes:
        hardware: The machine.
        source: Text of the file, or ''.
        position: Index of the memory in the machine.
    """

    hardware: Hardware
    source: str
    position: int

    def describe(self, key: str = "") -> str:
        """Names the file, the line of a setting, the machine and the memory."""
        name = self.hardware.name
        tables = (f"machine.{name}.memory", "memory", "profile.memory")
        lines = (
            [find_line(self.source, [(table, self.position)], key) for table in tables] if self.source else []
        )
        line = next((line for line in lines if line), "")
        file = f"{self.hardware.origin or 'preset'}{line}"
        return f"{file}, [machine.{name}], memory {self.position + 1} {key}".strip()


def _read_memory(entry: Any, place: _Place) -> MachineMemory:
    if not isinstance(entry, Mapping) or "name" not in entry:
        raise Misuse("a memory without a name", where=place.describe(), hint='write name = "scratchpad"')
    for key in entry:
        if key not in _FIELDS:
            raise Misuse(
                f"there is no setting '{key}' of a memory",
                where=place.describe(key),
                hint=suggest_name(key, _FIELDS),
            )
    memory = MachineMemory(**{key: _FIELDS[key](value, place.describe(key)) for key, value in entry.items()})
    for fault in _list_faults(memory):
        raise Misuse(fault.problem, where=place.describe(fault.key), hint=fault.hint)
    return memory


class _Fault(NamedTuple):
    """A setting of a memory that contradicts another one, or a number that no machine has."""

    key: str
    problem: str
    hint: str


_RATES = "read_bytes_per_cycle", "write_bytes_per_cycle", "bytes_per_cycle"
_ENERGIES = "read_pj", "write_pj"


def _list_faults(memory: MachineMemory) -> Iterator[_Fault]:
    """Yields the faults of a memory whose settings are valid one by one."""
    if memory.ways and memory.size is None:
        yield _Fault("ways", "a cache with ways needs a size", 'add size = "32 KiB"')
    if memory.size is not None:
        if memory.ways and memory.size % memory.ways:
            problem = f"{memory.size:,} bytes do not divide into {memory.ways:,} ways"
            yield _Fault("ways", problem, "write the ways of each set, such as ways = 8")
        for key, words in (("read_word", memory.read_word), ("write_word", memory.write_word)):
            for operand, size in words.items():
                if size > memory.size:
                    problem = f"a word of {operand} of {size:,} bytes, in a memory of {memory.size:,} bytes"
                    yield _Fault(key, problem, "write the bytes of one access, such as 8")
    for key in _RATES:
        rate = getattr(memory, key)
        if rate is not None and not MIN_RATE <= rate <= MAX_RATE:
            yield _Fault(key, f"'{rate}' is not a rate", "write the bytes of a cycle, such as 64")
    for key in _ENERGIES:
        energy = getattr(memory, key)
        if energy is not None and not _MIN_ENERGY <= energy <= _MAX_ENERGY:
            yield _Fault(key, f"'{energy}' is not an energy", "write picojoules, such as 1.2")


def check_machine(machine: MemoryMachine, where: str) -> None:
    """Refuses a machine that no file could describe, such as one from Python or from a changed manifest.

    Args:
        machine: The machine.
        where: Place for the error.

    Raises:
        Misuse: A memory or a number of the machine is invalid.
    """
    machines.complete(replace(machine.hardware, origin=where))
    if not machine.memories:
        raise Misuse("the machine has no memories", where=where, hint="write [[machine.NAME.memory]]")
    for memory in machine.memories:
        place = f"{where}, memory '{memory.name}'"
        _read_operands(memory.holds, place)
        _read_text(memory.name, place)
        for fault in _list_faults(memory):
            raise Misuse(fault.problem, where=f"{place} {fault.key}", hint=fault.hint)
    for dtype, rate in machine.rates.items():
        read_per_cycle(rate, f"{where}, rates.{_check_number_type(dtype, where)}", "macs")
    if machine.mac_pj is not None:
        _read_energy(machine.mac_pj, f"{where}, mac_pj")
    _check_memories(machine.memories, where)


def _check_memories(memories: tuple[MachineMemory, ...], where: str) -> None:
    """Refuses memories that contradict each other.

    Raises:
        Misuse: A name is reserved or repeated, two memories multiply the cores, or the outermost memory does
            not hold all operands for all cores.
    """
    names = [memory.name for memory in memories]
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if "array" in names:
        raise Misuse("'array' names the innermost level, not a memory", where=where, hint="rename the memory")
    if duplicate is not None:
        raise Misuse(f"two memories are called '{duplicate}'", where=where)
    for outer, inner in itertools.pairwise(memories):
        if inner.cores == outer.cores > 1 and not inner.inside and not set(inner.holds) & set(outer.holds):
            total = outer.cores * inner.cores
            raise Misuse(
                f"'{outer.name}' and '{inner.name}' both have {outer.cores} cores: that is {total:,} in all",
                where=where,
                hint=f"leave cores out of '{inner.name}', which is inside each core; or add inside = true",
            )
    if memories[0].holds != _OPERANDS or memories[0].cores > 1:
        raise Misuse(
            f"the outermost memory, '{names[0]}', must hold A, B and C for all cores",
            where=where,
            hint="list the outermost memory first, such as DRAM",
        )
