"""Checkup (`explorer doctor`) as text and as JSON: by the standard library, so without rich, too."""

from __future__ import annotations

from explorer.base.units import bytes_text, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from explorer.host.doctor import Checkup, FolderInfo, PackageInfo, TerminalInfo

_SIGNS = {"newer": ">", "missing": "!", "old": "!", "broken": "!"}
_LABEL = 11


def as_text(fact: Checkup) -> Iterator[str]:
    """Lines for one screen of 80 columns."""
    python, machine = fact.python, fact.machine
    memory = f"{bytes_text(machine.memory_bytes)} of memory, {bytes_text(machine.free_bytes)} free"
    gpus = ", ".join(machine.gpus) or f"none found (looked at {', '.join(machine.gpu_sources)})"
    about = [
        ("Explorer", f"{fact.explorer}   {python.program}"),
        ("Python", f"{python.version} (tested: {python.tested})   {python.executable}"),
        ("System", machine.system),
        ("Processor", f"{machine.processor}, {_many(machine.processors, 'processor')}"),
        ("Memory", memory),
        ("GPU", gpus),
        ("Terminal", _terminal(fact.terminal)),
        *((folder.use.capitalize(), _folder(folder)) for folder in fact.folders),
    ]
    for label, text in about:
        yield f"{label:<{_LABEL}}{printable(text)}\n"
    yield "\n"
    for line in _packages(fact.packages):
        yield f"{line.rstrip()}\n"
    if any(entry.state == "newer" for entry in fact.packages):
        yield "> newer than what the tests passed with\n"
    yield "\n"
    here = [entry.name for entry in fact.extras if entry.installed]
    part = [
        f"{entry.name} (without {', '.join(entry.lacks)})"
        for entry in fact.extras
        if _is_partial(fact, entry.name)
    ]
    gone = [entry.name for entry in fact.extras if not entry.installed and not _is_partial(fact, entry.name)]
    for label, names in (("Extras", here), ("in part", part), ("not here", gone)):
        if names or label == "Extras":
            yield f"{label:<{_LABEL}}{', '.join(names) or 'none'}\n"
    yield "\n"
    if not fact.problems:
        yield "Nothing is wrong.\n"
    for entry in fact.problems:
        yield f"! {printable(entry.what)}\n"
        if entry.command or entry.advice:
            yield f"  {printable(entry.command or entry.advice)}\n"


def as_json(fact: Checkup, head: dict[str, Any]) -> Iterator[str]:
    """The document of `explorer doctor`."""
    import json

    yield json.dumps({**head, **_plain(fact)}, indent=2)
    yield "\n"


def _plain(fact: Any) -> Any:
    """A record as a dictionary, with those in it."""
    if isinstance(fact, tuple | list):
        return [_plain(member) for member in fact]
    if hasattr(type(fact), "__slots__") and hasattr(type(fact), "__annotations__"):
        return {name: _plain(getattr(fact, name)) for name in type(fact).__annotations__}
    return fact


def _is_partial(fact: Checkup, extra: str) -> bool:
    mine = [one.state for one in fact.packages if one.extra == extra]
    return "absent" in mine and set(mine) != {"absent"}


def _packages(packages: Sequence[PackageInfo]) -> Iterator[str]:
    """Two packages a line: a sign, the name, the version, the range that is tested."""
    half = (len(packages) + 1) // 2
    columns = [_column(packages[:half]), _column(packages[half:])]
    for at in range(half + 1):
        yield "  ".join(column[at] for column in columns if at < len(column))


def _column(packages: Sequence[PackageInfo]) -> list[str]:
    rows = [(" ", "package", "installed", "tested")]
    rows += [
        (_SIGNS.get(package.state, " "), package.package, _version(package), _range(package.tested))
        for package in packages
    ]
    wide = [max(len(row[at]) for row in rows) for at in range(4)]
    return [
        f"{sign} {name:<{wide[1]}}  {version:<{wide[2]}}  {tested:<{wide[3]}}"
        for sign, name, version, tested in rows
    ]


def _version(one: PackageInfo) -> str:
    return "-" if one.version is None else one.version or "?"


def _range(tested: str) -> str:
    """'2.0 to 2.5' as '2.0-2.5', and '8.2.8 to 8.2', which has all later patches, as '8.2.8-8.2.x'."""
    low, _, high = tested.partition(" to ")
    return low if not high else f"{low}-{high}.x" if low.startswith(f"{high}.") else f"{low}-{high}"


def _terminal(terminal: TerminalInfo) -> str:
    if terminal.width is None:
        size = "none"
    else:
        size = f"{terminal.width} x {terminal.height}"
    colors = {0: "no colors", 1 << 24: "16.7 million colors"}.get(
        terminal.colors, f"{terminal.colors} colors"
    )
    inside = f", in {terminal.inside}" if terminal.inside else ""
    where = "over SSH" if terminal.over_ssh else "not over SSH"
    return f"{size}, {terminal.name or 'TERM is not set'}, {colors}, {terminal.encoding}, {where}{inside}"


def _folder(one: FolderInfo) -> str:
    state = "" if one.exists else " (not there yet)" if one.writable else " (not there)"
    return f"{one.path}{state if one.writable else f'{state}, cannot be written'}"


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"
