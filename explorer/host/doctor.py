"""Doctor: checks the installation, the machine and the terminal, and names a repair for each problem.

The doctor must also work with a broken installation. It therefore uses only the standard library, and records
without msgspec. If one check fails, the failure becomes a problem, and the other checks continue.
"""

from __future__ import annotations

import os
import platform
import sys
from functools import partial
from typing import Literal

from explorer.base import installation
from explorer.base.extras import EXTRAS, format_extra_command
from explorer.base.installation import Fault, get_module_name
from explorer.base.record import record
from explorer.base.tested_versions import (
    TESTED,
    format_range,
    is_tested,
    parse_release,
    read_installed_version,
)
from explorer.base.version import __version__
from explorer.host import input_files
from explorer.host.imports import ImportTrial
from explorer.host.system import NOWHERE, find_user_folder

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
    """One problem.

    Attributes:
        what: The problem in one line.
        command: Command that repairs it, or empty if no command does.
        advice: Next step without a command, or empty if there is a command or the next step is unknown.
    """

    what: str
    command: str
    advice: str


@record
class PythonInfo:
    """The Python that runs the program.

    Attributes:
        version: Version of Python.
        executable: Path of Python.
        tested: Versions with which the tests passed.
        program: Folder of the program's code.
    """

    version: str
    executable: str
    tested: str
    program: str


@record
class PackageInfo:
    """A package that the program uses.

    Attributes:
        package: Name for pip.
        version: Installed version; null if the package is absent, empty if its metadata is missing.
        tested: Versions with which the tests passed.
        extra: Extra that contains the package; empty for a package of every installation.
        state: State of the package. `newer` than the tested versions is not a problem, and neither is an
            `absent` package of an extra.
    """

    package: str
    version: str | None
    tested: str
    extra: str
    state: Literal["fine", "newer", "absent", "missing", "old", "broken"]


@record
class ExtraInfo:
    """An extra: a group of optional packages.

    Attributes:
        name: Name of the extra, as in `pip install 'explorer-nn[NAME]'`.
        installed: Whether all packages of the extra are installed.
        lacks: Packages of the extra that are not installed.
        command: Command that installs the extra.
    """

    name: str
    installed: bool
    lacks: tuple[str, ...]
    command: str


@record
class FolderInfo:
    """A folder in which the program keeps files.

    Attributes:
        use: Purpose of the folder.
        path: Path of the folder, or of the file for `config`.
        exists: Whether the path exists.
        writable: Whether the folder can be written or created.
    """

    use: Literal["config", "cache", "state", "temporary"]
    path: str
    exists: bool
    writable: bool


@record
class TerminalInfo:
    """The terminal.

    Attributes:
        width: Width in cells; null without a terminal.
        height: Height in lines; null without a terminal.
        name: Value of the variable TERM.
        colors: Number of colors that the terminal shows; 0 if NO_COLOR or TERM turns colors off.
        encoding: Encoding of standard output.
        over_ssh: Whether the session runs over SSH.
        inside: `tmux` or `screen` if the terminal runs in one; otherwise empty.
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
        system: Operating system with its release, the architecture, and the C library.
        processor: Name of the processor.
        processors: Number of processors that this process may use.
        memory_bytes: Memory of the machine, or the limit of the container if that is lower; null if unknown.
        free_bytes: Available memory; null if unknown.
        gpus: Names of the GPUs.
        gpu_sources: Places in which the program looked for GPUs.
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
        explorer: Version of the program.
        python: The Python that runs the program.
        machine: Processors, memory, and GPUs.
        terminal: Size, colors, and encoding.
        folders: Folders in which the program keeps files.
        packages: All packages that the program uses.
        extras: All extras.
        problems: Problems that were found; the exit code is 1 if there are any.
    """

    explorer: str
    python: PythonInfo
    machine: MachineInfo
    terminal: TerminalInfo
    folders: tuple[FolderInfo, ...]
    packages: tuple[PackageInfo, ...]
    extras: tuple[ExtraInfo, ...]
    problems: tuple[Problem, ...]


def run_checkup(*, extras: bool = False) -> Checkup:
    """Checks the installation, the machine, the terminal and the folders.

    Args:
        extras: Whether to import the packages of extras, too, which takes seconds.
    """
    problems: list[Problem] = []
    installed = installation.find_distributions()
    rows_to_try = [row for row in TESTED[1:] if extras or not installation.get_extra_name(row)]
    rows_to_try = [row for row in rows_to_try if installation.find_distribution(row, installed) is not None]
    # on Windows itself the packages are not used
    names = [] if os.name == "nt" else map(get_module_name, rows_to_try)
    trial = _try_or_report(lambda: ImportTrial(names), None, "imports cannot be tried", problems)
    python, machine, terminal = _check_python(problems), _check_machine(problems), _check_terminal(problems)
    folders = tuple(_check_folders(problems))
    packages = _check_packages(installed, trial, problems)
    return Checkup(
        __version__,
        python,
        machine,
        terminal,
        folders,
        packages,
        tuple(_list_extras(packages)),
        tuple(problems),
    )


def shorten_path(text: str) -> str:
    """Replaces the user's home folder in a text by '~', so that a bug report does not reveal a name."""
    import re

    for home in {os.environ.get("HOME", "").rstrip("/\\"), os.path.expanduser("~").rstrip("/\\")}:
        if len(home) > 1:
            text = re.sub(rf"(?<![\w/.-]){re.escape(home)}(?![\w.-])", "~", text)
    return text


def _add_problem(problem: Problem, problems: list[Problem]) -> None:
    """Adds a problem, unless a listed problem has the same command or text."""
    remedy = problem.command or problem.what
    if all(remedy not in (other_problem.command, other_problem.what) for other_problem in problems):
        problems.append(problem)


def _describe_problem(fault: Fault) -> Problem:
    return Problem(shorten_path(fault.message), _adapt_pip_command(fault.command), shorten_path(fault.advice))


def _adapt_pip_command(command: str) -> str:
    """Adapts a pip command to the running environment."""
    if not command.startswith("pip "):
        return command
    import shutil

    folder = os.path.dirname(sys.executable)
    pip_path = shutil.which("pip")
    if pip_path and os.path.dirname(os.path.realpath(pip_path)) == os.path.realpath(folder):
        return command
    python = shorten_path(sys.executable)
    if installation.find_import_folder("pip") is None:
        return f"uv pip{command.removeprefix('pip').replace(' install', f' install --python {python}', 1)}"
    return f"{python} -m {command}"


def _try_or_report(compute: Callable[[], T], default: U, subject: str, problems: list[Problem]) -> T | U:
    """Returns the result of `compute`, or `default` if it fails; the failure becomes a problem."""
    try:
        return compute()
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        fault = installation.find_import_fault(error)
        problem = (
            Problem(f"{subject}: {shorten_path(reason)}", "", "")
            if fault is None
            else _describe_problem(fault)
        )
        _add_problem(problem, problems)
        return default


# -- Python and its packages


def _check_python(problems: list[Problem]) -> PythonInfo:
    row = TESTED[0]
    version = read_installed_version("python")
    if parse_release(version) < parse_release(row.lowest):
        message = f"Python {version} runs this; {row.lowest} or newer is needed"
        problems.append(Problem(message, f"python{row.highest} -m venv .venv", ""))
    program = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    fault = installation.build_own_fault()
    if fault is not None:
        _add_problem(_describe_problem(fault), problems)
    return PythonInfo(version, shorten_path(sys.executable or "?"), format_range(row), shorten_path(program))


_DEPENDENCIES = {
    **dict.fromkeys(("gguf", "ml_dtypes", "onnx", "onnxruntime"), "numpy"),
    "textual": "rich",
    **dict.fromkeys(
        ("torchvision", "torchinfo", "onnxscript", "transformers", "torchao", "lightning"), "torch"
    ),
}
"""Packages that cannot be imported if another package cannot."""


def _check_packages(
    installed: Mapping[str, Distribution], trial: ImportTrial | None, problems: list[Problem]
) -> tuple[PackageInfo, ...]:
    """Returns the state of each package, and adds the problems of those that are old, missing or broken.

    Args:
        installed: Installed distributions by name.
        trial: Imports of the packages, or None if they could not be tried.
        problems: List to which problems are added.
    """
    states: dict[str, PackageInfo] = {}
    for row in TESTED[1:]:
        extra = installation.get_extra_name(row)
        package = installation.find_distribution(row, installed)
        version = None if package is None else package.version
        state: Any = "fine" if package is None or is_tested(row.package, package.version) else "newer"
        fault = None if package is None else installation.build_age_fault(row, package.version)
        if fault is not None:
            state = "old"
        else:
            fault = installation.find_file_fault(row, package)
            if package is None and fault is not None:
                state, fault = ("absent", None) if extra else ("missing", fault)
            elif fault is not None:
                state = "broken"
        if fault is not None:
            _add_problem(_describe_problem(fault), problems)
        version = "" if version is None and state == "fine" else version
        states[get_module_name(row)] = PackageInfo(row.package, version, format_range(row), extra, state)
    working_states = ("fine", "newer")
    for module, fault in (trial.collect_faults() if trial else {}).items():
        dependency = states.get(_DEPENDENCIES.get(module, ""))
        if states[module].state in working_states:
            states[module].state = "broken"
            # repairing a broken dependency also repairs this package
            if dependency is None or dependency.state in working_states:
                _add_problem(_describe_problem(fault), problems)
    return tuple(states.values())


def _list_extras(packages: Sequence[PackageInfo]) -> Iterator[ExtraInfo]:
    for name in dict.fromkeys(EXTRAS.values()):
        extra_packages = [package for package in packages if package.extra == name]
        missing_packages = tuple(package.package for package in extra_packages if package.state == "absent")
        yield ExtraInfo(name, not missing_packages, missing_packages, format_extra_command(name))


# -- folders


def _check_folders(problems: list[Problem]) -> Iterator[FolderInfo]:
    folder_kinds: tuple[tuple[Kind, str], ...] = (
        ("config", "machines cannot be saved"),
        ("cache", "models are analyzed again each time"),
        ("state", "sessions cannot be resumed"),
    )
    for kind, consequence in folder_kinds:
        find_folder = partial(find_user_folder, kind, os.environ)
        folder = _try_or_report(find_folder, "?", f"the {kind} folder", problems)
        path = folder
        if kind == "config":
            path = os.environ.get("EXPLORER_CONFIG") or os.path.join(folder, "config.toml")
            folder = os.path.dirname(path) or os.curdir
            _check_config(path, problems)
        existing_folder = _find_nearest_existing(folder)
        writable = (
            folder != "?" and _is_writable(existing_folder) and not (path != folder and os.path.isdir(path))
        )
        if not writable and folder != "?":
            message = f"nothing can be written to {shorten_path(folder)}: {consequence}"
            problems.append(Problem(message, _build_repair_command(kind, existing_folder), ""))
        path_text = "none: there is no home folder" if folder.startswith(NOWHERE) else shorten_path(path)
        yield FolderInfo(kind, path_text, os.path.exists(path), writable)
    yield _check_temporary_folder(problems)


def _check_temporary_folder(problems: list[Problem]) -> FolderInfo:
    import tempfile

    try:
        path = tempfile.gettempdir()
    except OSError:
        path = os.environ.get("TMPDIR", "/tmp")
        message = "there is no folder for temporary files: no model can be tiled or run"
        problems.append(Problem(message, "export TMPDIR=~/tmp && mkdir -p ~/tmp", ""))
        return FolderInfo("temporary", shorten_path(path), os.path.exists(path), False)
    return FolderInfo("temporary", shorten_path(path), True, True)


def _check_config(path: str, problems: list[Problem]) -> None:
    try:
        content = input_files.read_content(path, internal=True)
        import tomllib  # takes 30 ms, so import it only if there is a file

        tomllib.loads(content.decode("utf-8-sig"))
    except FileNotFoundError:
        pass
    except NotADirectoryError:
        pass
    except OSError as error:
        problems.append(
            Problem(f"{shorten_path(path)} cannot be read: {error.strerror}", "", "set EXPLORER_CONFIG")
        )
    except ValueError as error:
        reason = " ".join(str(error).split())[:120]
        problems.append(Problem(f"{shorten_path(path)} is not TOML: {reason}", "", "correct that line"))


def _find_nearest_existing(path: str) -> str:
    """Returns the folder itself, or its nearest parent that exists."""
    path = os.path.abspath(path)
    while not os.path.lexists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


def _is_writable(folder: str) -> bool:
    return os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)


def _build_repair_command(kind: str, existing_folder: str) -> str:
    """Returns a command that makes the folder writable, or that selects another folder."""
    import shlex

    user_id = getattr(os, "getuid", lambda: None)()
    short_path = shorten_path(existing_folder)
    # quotes would keep the shell from replacing '~'
    word = short_path if shlex.quote(short_path[1:]) == short_path[1:] else shlex.quote(existing_folder)
    try:
        status = os.stat(existing_folder)
    except OSError:
        status = None
    home = os.path.expanduser("~")
    if (
        status is not None
        and os.path.isdir(existing_folder)
        and f"{existing_folder}/".startswith(f"{home}/")
        and user_id
    ):
        return f"chmod u+rwx {word}" if status.st_uid == user_id else f'sudo chown -R "$USER" {word}'
    import tempfile

    return f"export XDG_{kind.upper()}_HOME={tempfile.gettempdir()}/explorer-{kind}"


# -- the terminal


def _check_terminal(problems: list[Problem]) -> TerminalInfo:
    environment = os.environ
    size = next(filter(None, map(_read_terminal_size, (1, 2, 0))), None)
    name = environment.get("TERM", "")
    encoding = getattr(sys.stdout, "encoding", None) or "?"
    if size is not None and not encoding.lower().replace("-", "").startswith("utf"):
        message = f"standard output is {encoding}: lines and bars are drawn in plain letters"
        problems.append(Problem(message, "export LC_ALL=C.UTF-8", ""))
    multiplexer = "tmux" if environment.get("TMUX") else "screen" if environment.get("STY") else ""
    over_ssh = any(environment.get(key) for key in ("SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY"))
    columns, rows = size or (None, None)
    return TerminalInfo(
        columns, rows, name, _count_colors(environment), encoding.lower(), over_ssh, multiplexer
    )


def _read_terminal_size(descriptor: int) -> tuple[int, int] | None:
    """Returns the columns and rows of the terminal behind a descriptor, or None without a terminal."""
    try:
        columns, rows = os.get_terminal_size(descriptor)
    except (OSError, ValueError, AttributeError):
        return None
    return (columns, rows) if columns > 0 else None


def _count_colors(environment: Mapping[str, str]) -> int:
    name = environment.get("TERM", "")
    if "NO_COLOR" in environment or name == "dumb":
        return 0
    if environment.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return 1 << 24
    return 256 if "256color" in name else 16 if name else 0


# -- the machine


def _check_machine(problems: list[Problem]) -> MachineInfo:
    from explorer.host import processor

    name = _try_or_report(processor.name, platform.machine(), "the processor", problems)
    processor_count = _try_or_report(
        lambda: len(processor.list_processors()), os.cpu_count() or 1, "the processors", problems
    )
    memory, gpus = (
        _try_or_report(_read_memory, None, "the memory", problems),
        _try_or_report(_find_gpus, None, "the GPU", problems),
    )
    total_bytes, free = memory or (None, None)
    names, sources = gpus or ((), ())
    if os.name == "nt":
        message = "this is Windows: only --help, --version and doctor answer"
        problems.append(Problem(message, "wsl --install", ""))
    return MachineInfo(_describe_system(), name, processor_count, total_bytes, free, names, sources)


def _describe_system() -> str:
    if sys.platform == "darwin":
        parts = ["macOS", platform.mac_ver()[0], platform.machine()]
    else:
        parts = [platform.system(), platform.release(), platform.machine()]
    library = " ".join(filter(None, platform.libc_ver())) if sys.platform.startswith("linux") else ""
    return ", ".join(filter(None, (" ".join(filter(None, parts)), library)))


def _read_memory() -> tuple[int | None, int | None]:
    """Returns the total and the available bytes of memory, within the limit of a container."""
    import psutil

    memory = psutil.virtual_memory()
    total_bytes, available_bytes = int(memory.total), int(memory.available)
    limit = _read_text("/sys/fs/cgroup/memory.max").strip()
    if limit.isdecimal() and 0 < int(limit) < total_bytes:
        used_text = _read_text("/sys/fs/cgroup/memory.current").strip()
        available_bytes = (
            min(available_bytes, int(limit) - int(used_text))
            if used_text.isdecimal()
            else min(available_bytes, int(limit))
        )
        total_bytes = int(limit)
    return total_bytes, available_bytes


_DRIVERS = "/proc/driver/nvidia/gpus"


def _find_gpus() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the names of GPUs, and the places searched.

    Files of drivers come first, because they need no child process.
    """
    sources: list[str] = []
    names: list[str] = []
    if sys.platform.startswith("linux"):
        sources += [_DRIVERS, "/dev/kfd"]
        try:
            cards = sorted(os.listdir(_DRIVERS))
        except OSError:
            cards = []
        for card in cards:
            lines = _read_text(f"{_DRIVERS}/{card}/information").splitlines()
            models = [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
            names.append(models[0] if models and models[0] else "NVIDIA GPU")
        if os.path.exists("/dev/kfd"):
            names.append("AMD GPU (ROCm)")
    if sys.platform == "darwin" and platform.machine() == "arm64":
        return ("Apple GPU (Metal)",), ("the processor",)
    if not names:
        sources.append("nvidia-smi")
        names += _run_nvidia_smi()
    return tuple(names), tuple(sources)


def _run_nvidia_smi() -> list[str]:
    import shutil
    import subprocess

    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    words = [program, "--query-gpu=name", "--format=csv,noheader"]
    try:
        result = subprocess.run(
            words, capture_output=True, text=True, errors="replace", timeout=5, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return (
        [line.strip() for line in result.stdout.splitlines() if line.strip()]
        if result.returncode == 0
        else []
    )


def _read_text(path: str) -> str:
    try:
        return input_files.read_content(path, internal=True).decode("utf-8", "replace")
    except OSError:
        return ""
