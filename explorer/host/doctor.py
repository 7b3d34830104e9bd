"""Doctor: what is installed here, what the machine and its terminal are, what is wrong, and what mends it.

It answers where nothing else does, so it needs the standard library alone: facts, which need msgspec, are no
part of it. Each part that fails is a problem of its own instead of the end of all.
"""

from __future__ import annotations

import os
import platform
import sys
from typing import Literal

from explorer.base import installation
from explorer.base.extras import EXTRAS, extra_command
from explorer.base.installation import Fault, module_name
from explorer.base.record import record
from explorer.base.tested_versions import TESTED, installed_version, is_tested, range_text, release
from explorer.base.version import __version__
from explorer.host import input_files
from explorer.host.imports import ImportTrial
from explorer.host.system import NOWHERE, user_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any, TypeVar

    from explorer.base.installation import Distribution
    from explorer.host.system import Kind

    T = TypeVar("T")
    U = TypeVar("U")


@record
class Problem:
    """One thing that is wrong.

    Attributes:
        what: The problem in one line.
        command: The command that mends it; empty where none does.
        advice: The next step where no command mends it; empty where one does, or where none is known.
    """

    what: str
    command: str
    advice: str


@record
class PythonInfo:
    """The Python that runs the program.

    Attributes:
        version: Its version.
        executable: Its path.
        tested: The versions that the tests passed with.
        program: The folder of the program's code.
    """

    version: str
    executable: str
    tested: str
    program: str


@record
class PackageInfo:
    """A package that the program uses.

    Attributes:
        package: The name that pip knows.
        version: The installed version; null where the package is absent, empty where its metadata is.
        tested: The versions that the tests passed with.
        extra: The extra that brings the package; empty for a package of every installation.
        state: `newer` than the tested versions is no problem, nor is an `absent` package of an extra.
    """

    package: str
    version: str | None
    tested: str
    extra: str
    state: Literal["fine", "newer", "absent", "missing", "old", "broken"]


@record
class ExtraInfo:
    """An extra.

    Attributes:
        name: As in `pip install 'explorer-nn[NAME]'`.
        installed: Whether each of its packages is installed.
        lacks: Its packages that are not installed.
        command: The command that installs it.
    """

    name: str
    installed: bool
    lacks: tuple[str, ...]
    command: str


@record
class FolderInfo:
    """A folder that the program keeps files in.

    Attributes:
        use: What it holds.
        path: The folder; for `config` the file.
        exists: Whether it is there.
        writable: Whether it can be written, or made.
    """

    use: Literal["config", "cache", "state", "temporary"]
    path: str
    exists: bool
    writable: bool


@record
class TerminalInfo:
    """The terminal.

    Attributes:
        width: Cells in a line; null without a terminal.
        height: Lines; null without a terminal.
        name: The variable TERM.
        colors: How many colors it shows; 0 where NO_COLOR or TERM turns them off.
        encoding: The encoding of standard output.
        over_ssh: Whether the session comes over SSH.
        inside: `tmux` or `screen`, where one of them stands between; else empty.
    """

    width: int | None
    height: int | None
    name: str
    colors: int
    encoding: str
    over_ssh: bool
    inside: str


@record
class MachineInfo:
    """The machine.

    Attributes:
        system: Operating system, its release, the architecture, the C library.
        processor: The processor's name.
        processors: Processors that this process may use.
        memory_bytes: Memory of the machine, or of the container if that is less; null where unknown.
        free_bytes: Memory that is free; null where unknown.
        gpus: Names of the GPUs.
        gpu_sources: Where the program looked for GPUs.
    """

    system: str
    processor: str
    processors: int
    memory_bytes: int | None
    free_bytes: int | None
    gpus: tuple[str, ...]
    gpu_sources: tuple[str, ...]


@record
class Checkup:
    """The answer of `explorer doctor`.

    Attributes:
        explorer: The program's version.
        python: The Python that runs it.
        machine: Processors, memory, GPUs.
        terminal: Size, colors, encoding.
        folders: Where files are kept.
        packages: Each package that the program uses.
        extras: Each extra.
        problems: What is wrong; the exit code is 1 if anything is.
    """

    explorer: str
    python: PythonInfo
    machine: MachineInfo
    terminal: TerminalInfo
    folders: tuple[FolderInfo, ...]
    packages: tuple[PackageInfo, ...]
    extras: tuple[ExtraInfo, ...]
    problems: tuple[Problem, ...]


def checkup(*, extras: bool = False) -> Checkup:
    """Looks at everything.

    Args:
        extras: Whether packages of extras are imported, too, which takes seconds.
    """
    problems: list[Problem] = []
    installed = installation.distributions()
    tried = [row for row in TESTED[1:] if extras or not installation.extra_name(row)]
    tried = [row for row in tried if installation.distribution(row, installed) is not None]
    # nothing of it is of use on Windows
    names = [] if os.name == "nt" else map(module_name, tried)
    trial = _asked(lambda: ImportTrial(names), None, "imports cannot be tried", problems)
    python, machine, terminal = _python(problems), _machine(problems), _terminal(problems)
    folders = tuple(_folders(problems))
    packages = _packages(installed, trial, problems)
    return Checkup(
        __version__, python, machine, terminal, folders, packages, tuple(_extras(packages)), tuple(problems)
    )


def short_path(text: str) -> str:
    """A text with '~' for the user's home: what is pasted into a bug report names nobody."""
    import re

    for home in {os.environ.get("HOME", "").rstrip("/\\"), os.path.expanduser("~").rstrip("/\\")}:
        if len(home) > 1:
            text = re.sub(rf"(?<![\w/.-]){re.escape(home)}(?![\w.-])", "~", text)
    return text


def _add(problem: Problem, problems: list[Problem]) -> None:
    """Adds a problem, unless the command of another mends it, too."""
    mends = problem.command or problem.what
    if all(mends not in (other_problem.command, other_problem.what) for other_problem in problems):
        problems.append(problem)


def _problem(fault: Fault) -> Problem:
    return Problem(short_path(fault.what), _pip(fault.command), short_path(fault.advice))


def _pip(command: str) -> str:
    """A command of pip's, for the environment that this is."""
    if not command.startswith("pip "):
        return command
    import shutil

    folder = os.path.dirname(sys.executable)
    pip_path = shutil.which("pip")
    if pip_path and os.path.dirname(os.path.realpath(pip_path)) == os.path.realpath(folder):
        return command
    python = short_path(sys.executable)
    if installation.imported_place("pip") is None:
        return f"uv pip{command.removeprefix('pip').replace(' install', f' install --python {python}', 1)}"
    return f"{python} -m {command}"


def _asked(ask: Callable[[], T], otherwise: U, subject: str, problems: list[Problem]) -> T | U:
    """What `ask` returns; where it fails, that is a problem."""
    try:
        return ask()
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        fault = installation.import_fault(error)
        problem = Problem(f"{subject}: {short_path(reason)}", "", "") if fault is None else _problem(fault)
        _add(problem, problems)
        return otherwise


# -- Python and its packages


def _python(problems: list[Problem]) -> PythonInfo:
    row = TESTED[0]
    version = installed_version("python")
    if release(version) < release(row.lowest):
        message = f"Python {version} runs this; {row.lowest} or newer is needed"
        problems.append(Problem(message, f"python{row.highest} -m venv .venv", ""))
    program = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    fault = installation.own_fault()
    if fault is not None:
        _add(_problem(fault), problems)
    return PythonInfo(version, short_path(sys.executable or "?"), range_text(row), short_path(program))


_STANDS_ON = {
    **dict.fromkeys(("gguf", "ml_dtypes", "onnx", "onnxruntime"), "numpy"),
    "textual": "rich",
    **dict.fromkeys(
        ("torchvision", "torchinfo", "onnxscript", "transformers", "torchao", "lightning"), "torch"
    ),
}
"""Packages that cannot be imported where another cannot be."""


def _packages(
    installed: Mapping[str, Distribution], trial: ImportTrial | None, problems: list[Problem]
) -> tuple[PackageInfo, ...]:
    states: dict[str, PackageInfo] = {}
    for row in TESTED[1:]:
        extra = installation.extra_name(row)
        package = installation.distribution(row, installed)
        version = None if package is None else package.version
        state: Any = "fine" if package is None or is_tested(row.package, package.version) else "newer"
        fault = None if package is None else installation.age_fault(row, package.version)
        if fault is not None:
            state = "old"
        else:
            fault = installation.file_fault(row, package)
            if package is None and fault is not None:
                state, fault = ("absent", None) if extra else ("missing", fault)
            elif fault is not None:
                state = "broken"
        if fault is not None:
            _add(_problem(fault), problems)
        version = "" if version is None and state == "fine" else version
        states[module_name(row)] = PackageInfo(row.package, version, range_text(row), extra, state)
    well = ("fine", "newer")
    for module, fault in (trial.faults() if trial else {}).items():
        below = states.get(_STANDS_ON.get(module, ""))
        if states[module].state in well:
            states[module].state = "broken"
            # what stands on a broken package is whole again when that is
            if below is None or below.state in well:
                _add(_problem(fault), problems)
    return tuple(states.values())


def _extras(packages: Sequence[PackageInfo]) -> Iterator[ExtraInfo]:
    for name in dict.fromkeys(EXTRAS.values()):
        mine = [package for package in packages if package.extra == name]
        lacks = tuple(package.package for package in mine if package.state == "absent")
        yield ExtraInfo(name, not lacks, lacks, extra_command(name))


# -- folders


def _folders(problems: list[Problem]) -> Iterator[FolderInfo]:
    kinds: tuple[tuple[Kind, str], ...] = (
        ("config", "machines cannot be saved"),
        ("cache", "models are analyzed anew each time"),
        ("state", "sessions cannot be resumed"),
    )
    for kind, loss in kinds:
        folder = _asked(lambda kind=kind: user_folder(kind, os.environ), "?", f"the {kind} folder", problems)  # type: ignore[misc]
        path = folder
        if kind == "config":
            path = os.environ.get("EXPLORER_CONFIG") or os.path.join(folder, "config.toml")
            folder = os.path.dirname(path) or os.curdir
            _check_config(path, problems)
        near = _nearest(folder)
        writable = folder != "?" and _is_writable(near) and not (path != folder and os.path.isdir(path))
        if not writable and folder != "?":
            message = f"nothing can be written to {short_path(folder)}: {loss}"
            problems.append(Problem(message, _mend(kind, near), ""))
        path_text = "none: there is no home folder" if folder.startswith(NOWHERE) else short_path(path)
        yield FolderInfo(kind, path_text, os.path.exists(path), writable)
    yield _temporary(problems)


def _temporary(problems: list[Problem]) -> FolderInfo:
    import tempfile

    try:
        path = tempfile.gettempdir()
    except OSError:
        path = os.environ.get("TMPDIR", "/tmp")
        message = "there is no folder for temporary files: no model can be tiled or run"
        problems.append(Problem(message, "export TMPDIR=~/tmp && mkdir -p ~/tmp", ""))
        return FolderInfo("temporary", short_path(path), os.path.exists(path), False)
    return FolderInfo("temporary", short_path(path), True, True)


def _check_config(path: str, problems: list[Problem]) -> None:
    try:
        content = input_files.content(path, internal=True)
        import tomllib  # 30 ms, where there is a file

        tomllib.loads(content.decode("utf-8-sig"))
    except FileNotFoundError:
        pass
    except NotADirectoryError:
        pass
    except OSError as error:
        problems.append(
            Problem(f"{short_path(path)} cannot be read: {error.strerror}", "", "set EXPLORER_CONFIG")
        )
    except ValueError as error:
        reason = " ".join(str(error).split())[:120]
        problems.append(Problem(f"{short_path(path)} is not TOML: {reason}", "", "correct that line"))


def _nearest(path: str) -> str:
    """The folder itself, or the nearest one above it that is there."""
    path = os.path.abspath(path)
    while not os.path.lexists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


def _is_writable(folder: str) -> bool:
    return os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)


def _mend(kind: str, near: str) -> str:
    """A command after which the folder can be written."""
    import shlex

    mine = getattr(os, "getuid", lambda: None)()
    place = short_path(near)
    quoted = place if shlex.quote(place[1:]) == place[1:] else shlex.quote(near)
    try:
        about = os.stat(near)
    except OSError:
        about = None
    home = os.path.expanduser("~")
    if about is not None and os.path.isdir(near) and f"{near}/".startswith(f"{home}/") and mine:
        return f"chmod u+rwx {quoted}" if about.st_uid == mine else f'sudo chown -R "$USER" {quoted}'
    import tempfile

    return f"export XDG_{kind.upper()}_HOME={tempfile.gettempdir()}/explorer-{kind}"


# -- the terminal


def _terminal(problems: list[Problem]) -> TerminalInfo:
    environment = os.environ
    size = next(filter(None, map(_size, (1, 2, 0))), None)
    name = environment.get("TERM", "")
    encoding = getattr(sys.stdout, "encoding", None) or "?"
    if size is not None and not encoding.lower().replace("-", "").startswith("utf"):
        message = f"standard output is {encoding}: lines and bars are drawn in plain letters"
        problems.append(Problem(message, "export LC_ALL=C.UTF-8", ""))
    inside = "tmux" if environment.get("TMUX") else "screen" if environment.get("STY") else ""
    ssh = any(environment.get(key) for key in ("SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY"))
    columns, rows = size or (None, None)
    return TerminalInfo(columns, rows, name, _colors(environment), encoding.lower(), ssh, inside)


def _size(number: int) -> tuple[int, int] | None:
    try:
        columns, rows = os.get_terminal_size(number)
    except (OSError, ValueError, AttributeError):
        return None
    return (columns, rows) if columns > 0 else None


def _colors(environment: Mapping[str, str]) -> int:
    name = environment.get("TERM", "")
    if "NO_COLOR" in environment or name == "dumb":
        return 0
    if environment.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return 1 << 24
    return 256 if "256color" in name else 16 if name else 0


# -- the machine


def _machine(problems: list[Problem]) -> MachineInfo:
    from explorer.host import processor

    name = _asked(processor.name, platform.machine(), "the processor", problems)
    many = _asked(lambda: len(processor.processors()), os.cpu_count() or 1, "the processors", problems)
    memory, gpus = _asked(_memory, None, "the memory", problems), _asked(_gpus, None, "the GPU", problems)
    whole, free = memory or (None, None)
    names, sources = gpus or ((), ())
    if os.name == "nt":
        message = "this is Windows: only --help, --version and doctor answer"
        problems.append(Problem(message, "wsl --install", ""))
    return MachineInfo(_system(), name, many, whole, free, names, sources)


def _system() -> str:
    if sys.platform == "darwin":
        parts = ["macOS", platform.mac_ver()[0], platform.machine()]
    else:
        parts = [platform.system(), platform.release(), platform.machine()]
    library = " ".join(filter(None, platform.libc_ver())) if sys.platform.startswith("linux") else ""
    return ", ".join(filter(None, (" ".join(filter(None, parts)), library)))


def _memory() -> tuple[int | None, int | None]:
    import psutil

    memory = psutil.virtual_memory()
    whole, free = int(memory.total), int(memory.available)
    limit = _text("/sys/fs/cgroup/memory.max").strip()
    if limit.isdecimal() and 0 < int(limit) < whole:
        used = _text("/sys/fs/cgroup/memory.current").strip()
        free = min(free, int(limit) - int(used)) if used.isdecimal() else min(free, int(limit))
        whole = int(limit)
    return whole, free


_DRIVERS = "/proc/driver/nvidia/gpus"


def _gpus() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of GPUs and where they were looked for: drivers' own files first, which takes no process."""
    looked: list[str] = []
    names: list[str] = []
    if sys.platform.startswith("linux"):
        looked += [_DRIVERS, "/dev/kfd"]
        try:
            cards = sorted(os.listdir(_DRIVERS))
        except OSError:
            cards = []
        for card in cards:
            lines = _text(f"{_DRIVERS}/{card}/information").splitlines()
            models = [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
            names.append(models[0] if models and models[0] else "NVIDIA GPU")
        if os.path.exists("/dev/kfd"):
            names.append("AMD GPU (ROCm)")
    if sys.platform == "darwin" and platform.machine() == "arm64":
        return ("Apple GPU (Metal)",), ("the processor",)
    if not names:
        looked.append("nvidia-smi")
        names += _nvidia_smi()
    return tuple(names), tuple(looked)


def _nvidia_smi() -> list[str]:
    import shutil
    import subprocess

    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    words = [program, "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", timeout=5, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []


def _text(path: str) -> str:
    try:
        return input_files.content(path, internal=True).decode("utf-8", "replace")
    except OSError:
        return ""
