"""Processor of this machine: its name, cores, caches and instruction set, as the system reports them."""

from __future__ import annotations

import glob
import os
import platform
import re
import sys

from explorer.host import input_files

_CPU = "/sys/devices/system/cpu"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# levels of data caches, with the name of their size or their ways in sysconf (Linux) and sysctl (macOS)
_SYSCONF = ((1, "SC_LEVEL1_DCACHE_SIZE"), (2, "SC_LEVEL2_CACHE_SIZE"), (3, "SC_LEVEL3_CACHE_SIZE"))
_SYSCONF_WAYS = (
    (1, "SC_LEVEL1_DCACHE_ASSOC"),
    (2, "SC_LEVEL2_CACHE_ASSOC"),
    (3, "SC_LEVEL3_CACHE_ASSOC"),
)
_SYSCTL = ((1, "hw.l1dcachesize"), (2, "hw.l2cachesize"), (3, "hw.l3cachesize"))


def name() -> str:
    """Returns the name of the processor, or its architecture if the system reports no name."""
    match = re.search(
        r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", _read_text("/proc/cpuinfo"), re.MULTILINE
    )
    reported_name = match[1].strip() if match else _read_macos("machdep.cpu.brand_string")
    return reported_name or platform.processor() or platform.machine()


def list_processors() -> tuple[int, ...]:
    """Returns the indices of the processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def count_cores(root: str = _CPU) -> int:
    """Returns the number of cores that this process may use. A core with two threads counts once."""
    own_processors = list_processors()
    if not os.path.isdir(root):
        import psutil

        return min(psutil.cpu_count(logical=False) or len(own_processors), len(own_processors))
    core_ids = {
        _read_text(f"{root}/cpu{index}/topology/thread_siblings_list").strip() or str(index)
        for index in own_processors
    }
    return len(core_ids)


def list_caches(root: str = _CPU) -> tuple[tuple[int, int, int], ...]:
    """Lists data caches as (level, bytes, number of processors that share it). The number is 0 if unknown."""
    from_files: set[tuple[int, int, int]] = set()
    for folder in glob.glob(f"{root}/cpu{list_processors()[0]}/cache/index*"):
        size = re.fullmatch(r"(\d+)([KMG]?)", _read_text(f"{folder}/size").strip())
        level = _read_text(f"{folder}/level").strip()
        if size and level.isdecimal() and _read_text(f"{folder}/type").strip() != "Instruction":
            sharing_count = _count_listed(_read_text(f"{folder}/shared_cpu_list"))
            from_files.add((int(level), int(size[1]) * _UNITS[size[2]], sharing_count))
    from_system = [(level, _read_configured(key), 0) for level, key in _SYSCONF]
    from_system += [(level, int(_read_macos(key) or 0), 0) for level, key in _SYSCTL]
    return tuple(sorted(from_files)) or tuple(cache for cache in from_system if cache[1] > 0)


def read_cache_ways(root: str = _CPU) -> dict[int, int]:
    """Returns the ways of each level of data cache; levels that the system does not report are missing."""
    ways: dict[int, int] = {}
    for folder in glob.glob(f"{root}/cpu{list_processors()[0]}/cache/index*"):
        level, number = (
            _read_text(f"{folder}/{name}").strip() for name in ("level", "ways_of_associativity")
        )
        is_data = _read_text(f"{folder}/type").strip() != "Instruction"
        if is_data and level.isdecimal() and number.isdecimal() and int(number):
            ways[int(level)] = int(number)
    configured = ((level, _read_configured(key)) for level, key in _SYSCONF_WAYS)
    return ways or {level: number for level, number in configured if number > 0}


def free_bytes() -> int | None:
    """Returns the bytes of memory available without taking them from other processes; None if unknown."""
    import psutil

    try:
        return int(psutil.virtual_memory().available)
    except (OSError, psutil.Error):
        return None


_INSTRUCTIONS = (
    ("amx_int8", "amx"),
    ("avx512_vnni", "avx512_vnni"),
    ("avx512vnni", "avx512_vnni"),
    ("avx_vnni", "avx_vnni"),
    ("avxvnni", "avx_vnni"),
    ("avx512f", "avx512"),
    ("avx2", "avx2"),
    ("avx", "avx"),
    ("i8mm", "neon_i8mm"),
    ("asimddp", "neon_dotprod"),
    ("asimd", "neon"),
)
"""Flags of a processor with the name of their instruction set, the fastest for products of bytes first."""


def find_instruction_set(flags: str | None = None) -> str:
    """Returns the fastest instructions for products of bytes: 'avx2', 'avx512_vnni', 'neon_dotprod' or ''.

    Args:
        flags: Flags of the processor, or None to read them from the system.
    """
    if flags is None:
        lines = re.search(r"^(?:flags|Features)\s*:(.*)$", _read_text("/proc/cpuinfo"), re.MULTILINE)
        names = ("machdep.cpu.features", "machdep.cpu.leaf7_features")
        flags = lines[1] if lines else " ".join(map(_read_macos, names))
        arm_features = {"hw.optional.arm.FEAT_I8MM": "i8mm", "hw.optional.arm.FEAT_DotProd": "asimddp"}
        if not lines and sys.platform == "darwin" and platform.machine() == "arm64":
            flags += " asimd " + " ".join(
                flag for key, flag in arm_features.items() if _read_macos(key) == "1"
            )
    words = set(flags.lower().replace("avx1.0", "avx").split())
    return next((name for flag, name in _INSTRUCTIONS if flag in words), "")


def saturates_bytes() -> bool:
    """Whether this is an x86 processor without VNNI, on which onnxruntime adds two products of bytes in 16
    bits.
    """
    flags = re.search(r"^flags\s*:(.*)$", _read_text("/proc/cpuinfo"), re.MULTILINE)
    flag_text = flags[1] if flags else _read_macos("machdep.cpu.leaf7_features").lower()
    return bool(flag_text) and re.search(r"\b(avx512_?|avx_)vnni\b", flag_text) is None


def _read_macos(key: str) -> str:
    """Reads a value of the macOS kernel; '' if it does not exist or the system is not macOS."""
    if sys.platform != "darwin":
        return ""
    import subprocess

    try:
        process = subprocess.run(["/usr/sbin/sysctl", "-n", key], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return ""
    return process.stdout.strip()


def _read_configured(key: str) -> int:
    try:
        return os.sysconf(key)
    except (ValueError, OSError, AttributeError):
        return 0


def _count_listed(text: str) -> int:
    """Counts the processors in a list such as '0-3,8'."""
    spans = re.findall(r"(\d+)(?:-(\d+))?", text)
    return sum(int(last or first) - int(first) + 1 for first, last in spans)


def _read_text(path: str) -> str:
    try:
        with input_files.open_text(path, internal=True, errors="replace") as file:
            return file.read()
    except OSError:
        return ""
