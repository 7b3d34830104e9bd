"""Optional packages, which may be missing, print messages, and raise any exception.

torch and TensorFlow are extras. Their output, and that of a model's own code, is discarded, because standard
output is for the answer. A broken installation is reported as such.
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

from explorer.base.errors import (
    MissingExtra,
    explain_broken,
    explain_missing,
    format_install_command,
)


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


@contextlib.contextmanager
def silence_output() -> Iterator[None]:
    """Discards all output of the process to standard output and standard error.

    Libraries in C++ write to the streams of the process, which `silence` does not redirect.
    """
    with contextlib.ExitStack() as stack:
        null_device = os.open(os.devnull, os.O_WRONLY)
        stack.callback(os.close, null_device)
        for stream in (1, 2):
            try:
                saved = os.dup(stream)
            except OSError:
                # standard output is closed: nothing to discard
                continue
            stack.callback(os.close, saved)
            stack.callback(os.dup2, saved, stream)
            os.dup2(null_device, stream)
        yield


def search_here() -> None:
    """Allows imports of the user's code from the current folder, after the program's own modules.

    This is permanent, because the code may import modules later, inside its functions.
    """
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.append(folder)


def format_error(error: BaseException) -> str:
    """Formats an exception in one line, without a traceback."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def check_version(module: str = "", source: str = "") -> None:
    """Refuses a package that is too old, without importing it.

    Args:
        module: Import name of a package of an extra; '' for the packages of every installation.
        source: Input of the user that needs the package.

    Raises:
        MissingExtra: The package is older than the lower bound in pyproject.toml.
    """
    from explorer.base.installation import find_outdated  # takes 2 ms; reading a header must not wait for it

    fault = find_outdated(module)
    if fault is not None:
        raise MissingExtra(fault.message, where=source, hint=fault.hint)


def require(package: str, source: str) -> Any:
    """Imports a package of an extra, or a module of this program that needs torch.

    Args:
        package: Dotted name.
        source: Input of the user that needs it.

    Raises:
        MissingExtra: The package is not installed, too old, or broken.
    """
    name = package.partition(".")[0]
    extra = "torch" if name == "explorer" else name
    check_version(extra, source)
    try:
        return importlib.import_module(package)
    except Exception as error:
        # a package that does not match its numpy or protobuf may raise any exception
        if (failure := explain_broken(error, source)) is not None:
            raise failure from error
        if isinstance(error, ModuleNotFoundError):
            raise explain_missing(error, extra, source) from error
        raise MissingExtra(
            f"{name} is installed but cannot be imported ({format_error(error)})",
            where=source,
            hint=f"repair it, for instance with: {format_install_command(extra)}",
        ) from error
