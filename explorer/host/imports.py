"""Trial imports of packages in other processes, in which a package can raise, crash or hang without harm."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time

from explorer.base.extras import find_extra
from explorer.base.installation import (
    Fault,
    find_distribution,
    find_distributions,
    format_install_command,
    format_repair_command,
    get_module_name,
)
from explorer.base.tested_versions import TESTED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_SECONDS = 40.0
"""Seconds for each process. Imports usually take one second, and many on a busy machine or a network disk."""
_SECONDS_MORE = 10.0
"""Seconds for the remaining packages after a package hangs."""
_TRIED_FIRST = {"numpy", "rich", "torch"}
_UNUSED = {"tflite"}
"""Packages of which the program imports single modules. Importing the package would import all of them."""
_MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_CODE = """
import json, os, sys
answers = os.fdopen(os.dup(1), "w")
nothing = os.open(os.devnull, os.O_WRONLY)
os.dup2(nothing, 1)
os.dup2(nothing, 2)
sys.path[:] = json.loads(sys.argv[1])
for name in sys.argv[2:]:
    print(name, file=answers, flush=True)
    reason = ""
    try:
        __import__(name)
    except BaseException as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    print(reason, file=answers, flush=True)
answers.flush()
os._exit(0)
"""
"""Program of a child process: prints each name, then '' or the reason why its import failed."""


class ImportTrial:
    """Trial imports of packages, started at once: one process for the base installation and one for each
    extra.

    If a package ends its process, another process tries the remaining packages.

    Args:
        modules: Top-level names of the packages.
    """

    def __init__(self, modules: Iterable[str]) -> None:
        groups: dict[str, list[str]] = {}
        # dependencies come first, because a broken dependency also breaks its dependents
        for module in sorted(modules, key=lambda name: name not in _TRIED_FIRST):
            if module not in _UNUSED:
                groups.setdefault(find_extra(module), []).append(module)
        self._path = json.dumps([folder for folder in sys.path if isinstance(folder, str)])
        # the processes run at the same time and share the processors
        self._until = time.monotonic() + _SECONDS * max(1, len(groups) // 3)
        self._children = [(names, _start_child(self._path, names)) for names in groups.values()]

    def collect_faults(self) -> dict[str, Fault]:
        """Waits for all trials and returns the faults of the packages that cannot be imported, by module."""
        reason_by_module: dict[str, str] = {}
        for names, child in self._children:
            reason_by_module |= self._collect_reasons(names, child)
        return _drop_repeated_faults(
            {name: _build_fault(name, reason) for name, reason in reason_by_module.items()}, reason_by_module
        )

    def _collect_reasons(self, names: Sequence[str], child: subprocess.Popen[str]) -> dict[str, str]:
        """Collects the reasons why modules of one group cannot be imported, by module.

        If a module hangs or ends its process, a new process tries the modules after it.

        Args:
            names: Modules of the group, in the order in which they are imported.
            child: Process that imports them.
        """
        reasons: dict[str, str] = {}
        deadline = self._until
        while True:
            is_late = False
            try:
                output, _ = child.communicate(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                is_late = True
                child.kill()
                output, _ = child.communicate()
            lines = output.splitlines()
            reasons |= {name: reason for name, reason in zip(lines[::2], lines[1::2], strict=False) if reason}
            unfinished = lines[-1] if len(lines) % 2 else ""
            if unfinished not in names:
                return reasons
            reasons[unfinished] = (
                "it takes too long" if is_late else f"it ends the process with exit code {child.returncode}"
            )
            names = names[names.index(unfinished) + 1 :]
            if not names:
                return reasons
            child = _start_child(self._path, names)
            deadline = max(self._until, time.monotonic() + _SECONDS_MORE)


def _start_child(path: str, names: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-I", "-c", _CODE, path, *names],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        errors="replace",
    )


def _build_fault(module: str, reason: str) -> Fault:
    row = next(row for row in TESTED if get_module_name(row) == module)
    package = find_distribution(row, find_distributions())
    version = package.version if package else ""
    label = f"{row.package} {version}".strip()
    if missing_module := _find_missing_package(module, reason):
        return Fault(f"{label} needs {missing_module}, which is not installed", format_install_command(row))
    return Fault(
        f"{label} is installed but cannot be imported ({reason})", format_repair_command(row, version)
    )


def _find_missing_package(module: str, reason: str) -> str:
    """Finds the missing package that a module imports; '' if the import failed for another reason."""
    match = _MISSING_MODULE.match(reason)
    return match[1] if match is not None and match[1].partition(".")[0] != module else ""


def _drop_repeated_faults(faults: dict[str, Fault], reasons: dict[str, str]) -> dict[str, Fault]:
    """Removes the faults of packages that fail only because another package does."""
    first_by_reason = {reason: name for name, reason in reversed(reasons.items())}
    root_faults = {name: fault for name, fault in faults.items() if first_by_reason[reasons[name]] == name}
    broken = {name for name in root_faults if not _find_missing_package(name, reasons[name])}
    return {
        name: fault
        for name, fault in root_faults.items()
        if not any(f"'{broken_name}" in reasons[name] for broken_name in broken - {name})
    }
