"""Installed packages on disk: their versions, missing files, and the commands that repair them.

The information comes from folder names and pip's lists of files, so a broken package is never imported.
Looking for outdated versions at startup takes a millisecond.
"""

from __future__ import annotations

import os
import sys

from explorer.base.extras import find_extra, format_extra_command
from explorer.base.record import record
from explorer.base.tested_versions import (
    TESTED,
    find_package,
    find_version_range,
    has_wheels,
    iterate_causes,
    list_failing_packages,
    parse_release,
    read_installed_version,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from explorer.base.tested_versions import VersionRange

_TESTS = {"test", "tests"}
_CODE = (".py", ".pyd", ".dll", ".dylib", ".so")


@record
class Distribution:
    """A package that pip installed.

    Args:
        version: Version in its metadata; '' without one.
        folder: Folder of its modules.
        metadata: Folder of its metadata.
    """

    version: str
    folder: str
    metadata: str


@record
class Fault:
    """A fault of a package, with its repair.

    Args:
        message: Description of the fault.
        command: Command that repairs it; '' if there is none.
        advice: Next step if there is no command.
    """

    message: str
    command: str
    advice: str = ""

    @property
    def hint(self) -> str:
        """Next step in words."""
        return f"type: {self.command}" if self.command else self.advice


def get_module_name(row: VersionRange) -> str:
    """Returns the import name of a package in the table of tested versions."""
    return row.module or row.package


def get_extra_name(row: VersionRange) -> str:
    """Returns the extra that contains a package of the table; '' for a package of every installation."""
    return find_extra(get_module_name(row))


def find_distributions(folders: Sequence[str] | None = None) -> dict[str, Distribution]:
    """Finds the installed packages, by name in lower case with '_' for '-' and '.'.

    Args:
        folders: Folders with modules, in search order; `sys.path` by default.
    """
    all_packages: dict[str, Distribution] = {}
    for folder in sys.path if folders is None else folders:
        folder_packages: dict[str, Distribution] = {}
        try:
            entries = os.listdir(folder or os.curdir)
        except OSError:
            continue  # an archive, or a folder that does not exist
        for entry in entries:
            if not entry.endswith((".dist-info", ".egg-info")):
                continue
            name, _, remainder = os.path.splitext(entry)[0].partition("-")
            key, version = _normalize_name(name), remainder.partition("-")[0]
            # `pip install --target` leaves the metadata of the older version in the folder
            if key not in folder_packages or parse_release(version) > parse_release(
                folder_packages[key].version
            ):
                folder_packages[key] = Distribution(version, folder, os.path.join(folder, entry))
        all_packages = {**folder_packages, **all_packages}
    return all_packages


def find_distribution(row: VersionRange, installed: Mapping[str, Distribution]) -> Distribution | None:
    """Finds the installed package of a row of the table, or returns None if it is not installed."""
    return installed.get(_normalize_name(row.package))


def format_install_command(row: VersionRange) -> str:
    """Returns the command that installs or upgrades a package, or all packages of its extra."""
    extra = get_extra_name(row)
    return format_extra_command(extra) if extra else f"pip install '{row.package}>={row.lowest}'"


def format_repair_command(row: VersionRange, version: str) -> str:
    """Returns the command that reinstalls a package in the same version.

    A plain `pip install` would skip it.
    """
    exact = f"=={version.partition('+')[0]}" if version else ""
    return f"pip install --force-reinstall --no-deps {row.package}{exact}"


def build_age_fault(row: VersionRange, version: str) -> Fault | None:
    """Builds the fault of a version that is too old, or returns None for other versions."""
    if not parse_release(version) or parse_release(version) >= parse_release(row.lowest):
        return None
    message = f"{row.package} {version} is installed; {row.lowest} or newer is needed"
    return Fault(message, format_install_command(row))


def find_outdated(module: str = "") -> Fault | None:
    """Finds the first package that is too old.

    Args:
        module: Import name of the only package to check; '' for the packages of every installation.
    """
    packages = TESTED[1:]  # the first row is Python
    rows = [
        row for row in packages if (get_module_name(row) == module if module else not get_extra_name(row))
    ]
    installed = find_distributions()
    faults = (
        build_age_fault(row, package.version)
        for row in rows
        if (package := find_distribution(row, installed)) is not None
    )
    return next((fault for fault in faults if fault is not None), None)


def list_missing_files(package: Distribution) -> list[str]:
    """Lists the code files of a package that pip wrote and that are now missing or empty.

    It skips tests, because small images remove them.
    """
    try:
        with open(os.path.join(package.metadata, "RECORD"), encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    folders: dict[str, list[tuple[str, bool]]] = {}
    for line in lines:  # PATH,HASH,SIZE
        path, _, remainder = line.partition(",")
        folder, _, name = path.rpartition("/")
        if _is_code(name) and not path.startswith(("..", "/")) and not _TESTS & {*folder.split("/")}:
            folders.setdefault(folder, []).append((name, not remainder.endswith(",0")))
    missing_paths = []
    for folder, names in folders.items():
        directory = os.path.join(package.folder, folder)
        try:
            existing_names = set(os.listdir(directory))
        except OSError:
            existing_names = set()
        for name, has_content in names:
            path = os.path.join(directory, name)
            # checking the size of thousands of source files would take too long
            if name not in existing_names or (
                has_content and not name.endswith(".py") and not os.path.getsize(path)
            ):
                missing_paths.append(f"{folder}/{name}" if folder else name)
    return missing_paths


def find_import_folder(module: str) -> str | None:
    """Finds the folder from which a package would be imported, without importing it.

    Returns:
        The folder, None if the package cannot be imported, or '' for a folder without code.
    """
    if module in sys.modules and sys.modules[module] is None:
        return None
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec(module)
    if spec is None:
        return None
    if not spec.origin:
        return ""
    directory = os.path.dirname(spec.origin)
    return directory if spec.submodule_search_locations is None else os.path.dirname(directory)


def build_missing_fault(row: VersionRange) -> Fault:
    """Builds the fault of a package that is not installed.

    If the package has no wheels for this Python, the command creates an environment with an older Python.
    """
    if not has_wheels(row):
        version = ".".join(read_installed_version("python").split(".")[:2])
        message = (
            f"this needs {get_module_name(row)}, whose newest tested release, {row.highest}, has no wheels"
            f" for Python {version}"
        )
        return Fault(message, f"python{min(row.python, TESTED[0].highest, key=parse_release)} -m venv .venv")
    return Fault(f"this needs {get_module_name(row)}, which is not installed", format_install_command(row))


def find_file_fault(row: VersionRange, package: Distribution | None) -> Fault | None:
    """Finds a fault of a package's files from their names and sizes, or returns None.

    The fault is a package that is not installed, files that are missing, or another package of the same name
    that comes first on the import path.

    Args:
        row: Row of the package in the table of tested versions.
        package: The installed package, or None if it is not installed.
    """
    import_folder = find_import_folder(get_module_name(row))
    if package is None:
        return None if import_folder else build_missing_fault(row)
    if import_folder is None and get_module_name(row) in sys.modules:
        return build_missing_fault(row)  # None in sys.modules blocks the import
    label = f"{row.package} {package.version}".strip()
    missing_paths = list_missing_files(package)
    if missing_paths or not import_folder:
        problem = (
            f"{len(missing_paths):,} of its files are missing ({missing_paths[0]})"
            if missing_paths
            else "its files are missing"
        )
        if len(missing_paths) == 1:
            problem = f"its file {missing_paths[0]} is missing"
        return Fault(f"{label} is installed but {problem}", format_repair_command(row, package.version))
    if not _is_same_folder(import_folder, package.folder) and not _is_editable(package):
        message = (
            f"{row.package} is imported from {import_folder}, not from {package.folder} where {label} is"
            " installed"
        )
        return Fault(
            message, "", f"take {import_folder} off PYTHONPATH, or rename {get_module_name(row)} there"
        )
    return None


def build_own_fault() -> Fault | None:
    """Builds the fault of missing files of the program itself.

    Returns None if no file is missing or pip did not install the program.
    """
    package = find_distributions().get("explorer_nn")
    own_folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    missing_paths = (
        list_missing_files(package)
        if package is not None and _is_same_folder(package.folder, own_folder)
        else []
    )
    if package is None or not missing_paths:
        return None
    problem = (
        f"{len(missing_paths):,} of the program's own files are"
        if len(missing_paths) > 1
        else "a file of the program's own is"
    )
    message = f"{problem} missing ({missing_paths[0]})"
    return Fault(message, f"pip install --force-reinstall --no-deps {_find_own_source(package)}")


def _find_own_source(package: Distribution) -> str:
    """Returns the source of the program for pip: its folder if that still exists, otherwise its name."""
    import json
    import shlex

    try:
        with open(os.path.join(package.metadata, "direct_url.json"), encoding="utf-8") as file:
            folder = str(json.load(file)["url"]).removeprefix("file://")
    except (OSError, ValueError, KeyError, TypeError):
        return "explorer-nn"
    return shlex.quote(folder) if os.path.isabs(folder) and os.path.isdir(folder) else "explorer-nn"


def find_import_fault(error: BaseException) -> Fault | None:
    """Finds the broken, missing or shadowed package behind a failure, or returns None."""
    if isinstance(error, ImportError) and (error.name or "").partition(".")[0] == "explorer":
        return build_own_fault()
    row = _find_failed_import(error)
    installed = find_distributions()
    for candidate in (row,) if row else filter(None, map(find_version_range, list_failing_packages(error))):
        package = find_distribution(candidate, installed)
        fault = (package and build_age_fault(candidate, package.version)) or find_file_fault(
            candidate, package
        )
        if fault is not None:
            return fault
    if row is None:
        return None
    package = find_distribution(row, installed)
    reason = " ".join(str(error).split())[:200]  # an error may quote pages of text
    label = f"{row.package} {package.version if package else ''}".strip()
    message = f"{label} is installed but cannot be imported ({type(error).__name__}: {reason})"
    missing_module = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
    if missing_module and find_package(missing_module) != row.package:
        return Fault(f"{label} needs {missing_module}, which is not installed", format_install_command(row))
    return Fault(message, format_repair_command(row, package.version if package else ""))


def _find_failed_import(error: BaseException) -> VersionRange | None:
    """Finds the row of the package whose import failed, or returns None if no import failed."""
    for cause in iterate_causes(error):
        # a frame at the top level of a module belongs to its import
        packages = [find_package(name) for name in _list_importing_modules(cause)]
        named_package = find_package(cause.name or "") if isinstance(cause, ImportError) else ""
        for package in filter(None, (named_package, *reversed(packages))):
            return find_version_range(package)
    return None


def _list_importing_modules(error: BaseException) -> list[str]:
    """Lists the modules in an error's traceback that were being imported, outermost first."""
    names, step = [], error.__traceback__
    while step is not None:
        frame = step.tb_frame
        if frame.f_code.co_name == "<module>":
            names.append(frame.f_globals.get("__name__") or "")
        step = step.tb_next
    return names


def _is_editable(package: Distribution) -> bool:
    try:
        with open(os.path.join(package.metadata, "direct_url.json"), encoding="utf-8") as file:
            return '"editable": true' in file.read()
    except (OSError, ValueError):
        return False


def _is_same_folder(first: str, second: str) -> bool:
    return os.path.realpath(first) == os.path.realpath(second or os.curdir)


def _is_code(name: str) -> bool:
    return name.endswith(_CODE) or ".so." in name


def _normalize_name(name: str) -> str:
    return name.replace("-", "_").replace(".", "_").lower()
