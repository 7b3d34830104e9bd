"""Output of `explorer doctor` as text and as JSON. It works without rich and other packages."""

from __future__ import annotations

from explorer.base.units import bytes_text, many_text, printable
from explorer.report.outline_words import fitted, width

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from explorer.host.doctor import Checkup, FolderInfo, PackageInfo, TerminalInfo

_SIGNS = {"newer": ">", "missing": "!", "old": "!", "broken": "!"}
"""Mark of a package by its state; other states have no mark."""
_LABEL = 11
"""Characters of the labels at the start of the lines."""


def compose_text(fact: Checkup) -> Iterator[str]:
    """Yield lines that fit the terminal."""
    terminal_width = width()
    return (part for line in _compose_lines(fact) for part in fitted(line.rstrip("\n"), terminal_width))


def _compose_lines(fact: Checkup) -> Iterator[str]:
    python, machine = fact.python, fact.machine
    memory = f"{bytes_text(machine.memory_bytes)} of memory, {bytes_text(machine.free_bytes)} free"
    gpus = ", ".join(machine.gpus) or f"none found (looked at {', '.join(machine.gpu_sources)})"
    fields = [
        ("Explorer", f"{fact.explorer}   {python.program}"),
        ("Python", f"{python.version} (tested: {python.tested})   {python.executable}"),
        ("System", machine.system),
        ("Processor", f"{machine.processor}, {many_text(machine.processors, 'processor')}"),
        ("Memory", memory),
        ("GPU", gpus),
        ("Terminal", _describe_terminal(fact.terminal)),
        *((folder.use.capitalize(), _describe_folder(folder)) for folder in fact.folders),
    ]
    for label, text in fields:
        yield f"{label:<{_LABEL}}{printable(text)}\n"
    yield "\n"
    for line in _format_packages(fact.packages):
        yield f"{line.rstrip()}\n"
    if any(entry.state == "newer" for entry in fact.packages):
        yield "> newer than the tested versions\n"
    yield "\n"
    installed = [entry.name for entry in fact.extras if entry.installed]
    partial = [
        f"{entry.name} (without {', '.join(entry.lacks)})"
        for entry in fact.extras
        if _is_partial(fact, entry.name)
    ]
    missing = [
        entry.name for entry in fact.extras if not entry.installed and not _is_partial(fact, entry.name)
    ]
    for label, names in (("Extras", installed), ("in part", partial), ("not here", missing)):
        if names or label == "Extras":
            yield f"{label:<{_LABEL}}{', '.join(names) or 'none'}\n"
    yield "\n"
    if not fact.problems:
        yield "Nothing is wrong.\n"
    for entry in fact.problems:
        yield f"! {printable(entry.what)}\n"
        if entry.command or entry.advice:
            yield f"  {printable(entry.command or entry.advice)}\n"


def write_json(fact: Checkup, head: dict[str, Any]) -> Iterator[str]:
    """Yield the document of `explorer doctor`."""
    import json

    yield json.dumps({**head, **_convert_record(fact)}, indent=2)
    yield "\n"


def _convert_record(fact: Any) -> Any:
    """Convert a record to a dictionary, including nested records."""
    if isinstance(fact, tuple | list):
        return [_convert_record(member) for member in fact]
    if hasattr(type(fact), "__slots__") and hasattr(type(fact), "__annotations__"):
        return {name: _convert_record(getattr(fact, name)) for name in type(fact).__annotations__}
    return fact


def _is_partial(fact: Checkup, extra: str) -> bool:
    states = [package.state for package in fact.packages if package.extra == extra]
    return "absent" in states and set(states) != {"absent"}


def _format_packages(packages: Sequence[PackageInfo]) -> Iterator[str]:
    """Yield lines with two packages each: a sign, the name, the version and the tested range."""
    half = (len(packages) + 1) // 2
    columns = [_format_column(packages[:half]), _format_column(packages[half:])]
    for index in range(half + 1):
        yield "  ".join(column[index] for column in columns if index < len(column))


def _format_column(packages: Sequence[PackageInfo]) -> list[str]:
    rows = [(" ", "package", "installed", "tested")]
    rows += [
        (
            _SIGNS.get(package.state, " "),
            package.package,
            _format_version(package),
            _shorten_range(package.tested),
        )
        for package in packages
    ]
    widths = [max(len(row[index]) for row in rows) for index in range(4)]
    return [
        f"{sign} {name:<{widths[1]}}  {version:<{widths[2]}}  {tested:<{widths[3]}}"
        for sign, name, version, tested in rows
    ]


def _format_version(package: PackageInfo) -> str:
    return "-" if package.version is None else package.version or "?"


def _shorten_range(tested: str) -> str:
    """Shorten '2.0 to 2.5' to '2.0-2.5', and '8.2.8 to 8.2' (all later patches) to '8.2.8-8.2.x'."""
    low, _, high = tested.partition(" to ")
    return low if not high else f"{low}-{high}.x" if low.startswith(f"{high}.") else f"{low}-{high}"


def _describe_terminal(terminal: TerminalInfo) -> str:
    if terminal.width is None:
        size = "none"
    else:
        size = f"{terminal.width} x {terminal.height}"
    colors = {0: "no colors", 1 << 24: "16.7 million colors"}.get(
        terminal.colors, f"{terminal.colors} colors"
    )
    multiplexer = f", in {terminal.inside}" if terminal.inside else ""
    where = "over SSH" if terminal.over_ssh else "not over SSH"
    return (
        f"{size}, {terminal.name or 'TERM is not set'}, {colors}, {terminal.encoding}, {where}{multiplexer}"
    )


def _describe_folder(folder: FolderInfo) -> str:
    state = "" if folder.exists else " (not there yet)" if folder.writable else " (not there)"
    return f"{folder.path}{state if folder.writable else f'{state}, cannot be written'}"
