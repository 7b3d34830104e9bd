"""Optional packages, which are not ours: had or missing, chatty, and raising whatever they like.

torch and TensorFlow are extras. What they, or a model's own code, print goes nowhere: standard output belongs
to the answer. A broken installation is said to be one.
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
    """Nothing that is said inside reaches the terminal."""
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
    """Lets the user's code in the current folder be imported, behind all that the program itself imports.

    For good: the code's own imports may come later, inside its functions.
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
        module: The package of an extra, by the name that is imported; '' for those of every installation.
        source: What needs it.

    Raises:
        MissingExtra: It is older than pyproject's lower bound.
    """
    from explorer.base.installation import outdated  # 2 ms that a header does not wait for

    fault = outdated(module)
    if fault is not None:
        raise MissingExtra(fault.what, where=source, hint=fault.hint)


def require(package: str, source: str) -> Any:
    """Imports a package of an extra, or a module of ours that needs torch.

    Args:
        package: A dotted name.
        source: What the user asked for, which needs it.

    Raises:
        MissingExtra: It is not installed, older than can be used, or broken.
    """
    name = package.partition(".")[0]
    extra = "torch" if name == "explorer" else name
    check_version(extra, source)
    try:
        return importlib.import_module(package)
    except Exception as error:
        # one that does not fit its numpy or protobuf raises whatever it stumbles over
        if (failure := broken_package(error, source)) is not None:
            raise failure from error
        if isinstance(error, ModuleNotFoundError):
            raise missing(error, extra, source) from error
        raise MissingExtra(
            f"{name} is installed but cannot be imported ({error_line(error)})",
            where=source,
            hint=f"repair it, for instance with: {install_command(extra)}",
        ) from error
