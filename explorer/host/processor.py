"""Processor of this machine: its name, its cores, its caches, as the system tells them."""

from __future__ import annotations

import glob
import os
import platform
import re

_CPU = "/sys/devices/system/cpu"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SYSCONF = ((1, "SC_LEVEL1_DCACHE_SIZE"), (2, "SC_LEVEL2_CACHE_SIZE"), (3, "SC_LEVEL3_CACHE_SIZE"))


def name() -> str:
    """What the system calls the processor; its architecture where there is no name."""
    found = re.search(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", _text("/proc/cpuinfo"), re.MULTILINE)
    return (found[1].strip() if found else platform.processor()) or platform.machine()


def processors() -> tuple[int, ...]:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def cores(root: str = _CPU) -> int:
    """Cores that this process may use: of a core with two threads one counts."""
    mine = processors()
    alike = {_text(f"{root}/cpu{at}/topology/thread_siblings_list").strip() or str(at) for at in mine}
    return len(alike)


def caches(root: str = _CPU) -> tuple[tuple[int, int, int], ...]:
    """(level, bytes, processors that share it) of each cache for data; 0 processors where it is not told."""
    found = set()
    for folder in glob.glob(f"{root}/cpu{processors()[0]}/cache/index*"):
        size = re.fullmatch(r"(\d+)([KMG]?)", _text(f"{folder}/size").strip())
        level = _text(f"{folder}/level").strip()
        if size and level.isdecimal() and _text(f"{folder}/type").strip() != "Instruction":
            shared = _listed(_text(f"{folder}/shared_cpu_list"))
            found.add((int(level), int(size[1]) * _UNITS[size[2]], shared))
    told = ((level, _configured(key), 0) for level, key in _SYSCONF)
    return tuple(sorted(found)) or tuple(one for one in told if one[1] > 0)


def free_bytes() -> int | None:
    """Memory that can be had without others giving theirs up; None where it is not told."""
    found = re.search(r"^MemAvailable:\s*(\d+) kB", _text("/proc/meminfo"), re.MULTILINE)
    return int(found[1]) << 10 if found else None


def saturates_bytes() -> bool:
    """Whether it is an x86 without VNNI, where onnxruntime adds two products of bytes in 16 bits."""
    flags = re.search(r"^flags\s*:(.*)$", _text("/proc/cpuinfo"), re.MULTILINE)
    return flags is not None and re.search(r"\b(avx512_|avx_)vnni\b", flags[1]) is None


def _configured(key: str) -> int:
    try:
        return os.sysconf(key)
    except (ValueError, OSError, AttributeError):
        return 0


def _listed(text: str) -> int:
    """How many processors '0-3,8' is."""
    spans = re.findall(r"(\d+)(?:-(\d+))?", text)
    return sum(int(last or first) - int(first) + 1 for first, last in spans)


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
