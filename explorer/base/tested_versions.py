"""Tested versions of Python and every library, for error messages, `explorer doctor` and `tests.compat`.

The program never refuses a newer version, but error messages mention it, because it is a likely cause. It
refuses an older version (`explorer.base.installation`).
"""

from __future__ import annotations

import re
import sys

from explorer.base.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "TESTED",
    "VersionRange",
    "iterate_causes",
    "has_wheels",
    "read_installed_version",
    "is_tested",
    "parse_release",
    "list_failing_packages",
    "find_package",
    "format_range",
    "find_version_range",
    "build_version_note",
]


@record
class VersionRange:
    """The oldest and the newest release of a package with which the tests passed."""

    package: str
    """Name for pip; `python` for Python itself."""
    lowest: str
    """Lower bound in pyproject.toml."""
    highest: str
    """Newest release. Its later patch releases also count as tested."""
    module: str = ""
    """Import name, if it differs from the package's name."""
    python: str = ""
    """Newest Python for which the newest tested release has wheels; '' if it has them for all."""


TESTED = (
    # 3.14: every dependency has wheels for it, but no test has run on it yet
    VersionRange("python", "3.11", "3.13"),
    VersionRange("dask", "2025.1", "2026.8"),
    VersionRange("distributed", "2025.1", "2026.8"),
    VersionRange("filelock", "3.30", "4.3"),
    VersionRange("gguf", "0.19", "0.19"),
    VersionRange("grandalf", "0.8", "0.8"),
    VersionRange("jinja2", "3.1.4", "3.1"),
    VersionRange("lightning", "2.5.2", "2.6"),
    VersionRange("matplotlib", "3.9", "3.11"),
    VersionRange("ml_dtypes", "0.5", "0.6"),
    VersionRange("msgspec", "0.20", "0.23"),
    VersionRange("numpy", "2.0", "2.5"),
    VersionRange("onnx", "1.19", "1.23"),
    VersionRange("onnxruntime", "1.23", "1.32", python="3.14"),
    VersionRange("onnxscript", "0.6.1", "0.7"),
    VersionRange("platformdirs", "4.0", "4.14"),
    VersionRange("psutil", "6", "7.2"),
    VersionRange("regex", "2024.4.16", "2026.11"),
    VersionRange("rich", "14.2", "15.0"),
    VersionRange("tensorboardX", "2.6.1", "2.6"),
    VersionRange("tensorflow", "2.18.1", "2.21", python="3.13"),
    VersionRange("textual", "8.2.8", "8.2"),
    VersionRange("textual-serve", "1.1.3", "1.1", module="textual_serve"),
    VersionRange("tf2onnx", "1.17", "1.17"),
    VersionRange("tflite", "2.18", "2.18"),
    VersionRange("threadpoolctl", "3.5", "3.8"),
    VersionRange("tomlkit", "0.13", "0.15"),
    VersionRange("torch", "2.9", "2.15"),
    VersionRange("torchao", "0.18", "0.18"),
    VersionRange("torchinfo", "1.8", "1.8"),
    VersionRange("torchvision", "0.24", "0.29"),
    VersionRange("transformers", "5.0", "5.24"),
)
"""Row of Python, then one row for each dependency and each package of an extra, in alphabetical order."""

_ROWS = {row.package: row for row in TESTED}
_PACKAGES = {row.module or row.package: row.package for row in TESTED}
"""Package name by import name."""


def read_installed_version(package: str) -> str:
    """Reads the installed version of a package from its metadata; '' if it is not installed."""
    if package == "python":
        return ".".join(map(str, sys.version_info[:3]))
    from importlib import metadata  # 20 ms

    try:
        return metadata.version(package) or ""
    except metadata.PackageNotFoundError:
        return ""


def find_package(module: str) -> str:
    """Finds the package of the table that contains a module; '' if there is none."""
    return _PACKAGES.get(module.partition(".")[0], "")


def find_version_range(package: str) -> VersionRange | None:
    """Finds the row of a package, or returns None."""
    return _ROWS.get(package)


def format_range(row: VersionRange) -> str:
    """Formats the tested versions of a package: '5.0 to 5.24'."""
    return row.lowest if row.lowest == row.highest else f"{row.lowest} to {row.highest}"


def has_wheels(row: VersionRange) -> bool:
    """Whether the newest tested release of a package has wheels for the running Python."""
    return not row.python or parse_release(read_installed_version("python"))[:2] <= parse_release(row.python)


def is_tested(package: str, version: str) -> bool:
    """Whether a version of a package is inside the tested range.

    Args:
        package: Name for pip. A package without a row counts as tested.
        version: Version such as `2.14.1+cpu`. Everything after the leading numbers is ignored. A version
            without them counts as tested.
    """
    row = _ROWS.get(package)
    numbers = parse_release(version)
    if row is None or not numbers:
        return True
    highest = parse_release(row.highest)
    return parse_release(row.lowest) <= numbers and numbers[: len(highest)] <= highest


def build_version_note(package: str) -> str:
    """Builds a note such as `tested with transformers 5.0 to 5.24; 5.31.0 is installed`.

    Returns '' if the version is inside the tested range or the package is not installed.
    """
    version = read_installed_version(package)
    if not version or is_tested(package, version):
        return ""
    row = _ROWS[package]
    name = "Python" if package == "python" else package
    return f"tested with {name} {format_range(row)}; {version} is installed"


def list_failing_packages(error: BaseException) -> list[str]:
    """Lists the packages in whose code a failure occurred, the package nearest to the failure first.

    They are read from the error, from its traceback, and from the errors that caused it. Only packages in the
    table `TESTED` are listed.
    """
    names = [name.partition(".")[0] for cause in iterate_causes(error) for name in _list_error_modules(cause)]
    return list(dict.fromkeys(_PACKAGES[name] for name in names if name in _PACKAGES))


def parse_release(version: str) -> tuple[int, ...]:
    """Parses the leading numbers of a version, for comparisons: (2, 14, 1) for `2.14.1+cpu`; may be empty."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def iterate_causes(error: BaseException) -> Iterator[BaseException]:
    """Yields an error, then the errors from which it was raised."""
    visited: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in visited:
        visited.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _list_error_modules(error: BaseException) -> Iterator[str]:
    """Yields the names of the modules that an error involves, innermost first.

    They are the module that could not be imported, the module of the object that lacks an attribute, the
    module of the error's class, and the modules in the traceback.
    """
    if isinstance(error, ImportError):
        yield error.name or ""
    if isinstance(error, AttributeError) and error.obj is not None:
        owner = error.obj
        module = getattr(owner, "__name__", None) if isinstance(owner, type(sys)) else type(owner).__module__
        yield module or ""
    yield type(error).__module__
    frames = []
    step = error.__traceback__
    while step is not None:
        frames.append(step.tb_frame.f_globals.get("__name__") or "")
        step = step.tb_next
    yield from reversed(frames)
