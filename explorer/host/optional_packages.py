"""Optional packages: they may be missing, print messages, and raise any exception.

torch and TensorFlow are extras. Their output, and that of a model's own code, is discarded: standard output
is for the answer. A broken installation is reported as such.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from explorer.base.errors import MissingExtra, broken_package, install_command, missing


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Discards all output of the block."""
    level = logging.root.manager.disable
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(level)


def search_here() -> None:
    """Allows imports of the user's code in the current folder, after the program's own modules.

    This lasts: the code's own imports may come later, inside its functions.
    """
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.append(folder)


def error_line(error: BaseException) -> str:
    """An exception in one line, without a traceback."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def check_version(module: str = "", source: str = "") -> None:
    """Refuses a package that is too old, without importing it.

    Args:
        module: The imported name of an extra's package; '' for the packages of every installation.
        source: The place that needs it.

    Raises:
        MissingExtra: The package is older than pyproject's lower bound.
    """
    from explorer.base.installation import outdated  # 2 ms that a header does not wait for

    fault = outdated(module)
    if fault is not None:
        raise MissingExtra(fault.what, where=source, hint=fault.hint)


def require(package: str, source: str) -> Any:
    """Imports a package of an extra, or a module of this program that needs torch.

    Args:
        package: A dotted name.
        source: The user's input that needs it.

    Raises:
        MissingExtra: It is not installed, too old, or broken.
    """
    name = package.partition(".")[0]
    extra = "torch" if name == "explorer" else name
    check_version(extra, source)
    try:
        return importlib.import_module(package)
    except Exception as error:
        # a package that does not match its numpy or protobuf may raise anything
        if (failure := broken_package(error, source)) is not None:
            raise failure from error
        if isinstance(error, ModuleNotFoundError):
            raise missing(error, extra, source) from error
        raise MissingExtra(
            f"{name} is installed but cannot be imported ({error_line(error)})",
            where=source,
            hint=f"repair it, for instance with: {install_command(extra)}",
        ) from error
