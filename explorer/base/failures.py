"""Converts errors of Python and of libraries to an `ExplorerError`."""

from __future__ import annotations

from explorer.base.compat import is_about_array_size, is_about_digits
from explorer.base.errors import BadModel, ExplorerError, explain_broken
from explorer.base.surroundings import explain_surroundings


def find_known_failure(error: BaseException) -> ExplorerError | None:
    """Builds the error for a failure of the model or the installation, or returns None for other failures.

    It recognizes models that are nested too deeply or whose numbers are too large, such as a hostile file
    with loops of 2^62 iterations inside each other. It also recognizes packages that are missing, broken or
    too old, and folders that are missing or not writable. Code of a model, a rule or a pass may call
    `sys.exit`, which must not become the exit code of a command.
    """
    if (refused := explain_surroundings(error)) is not None:
        return refused
    if not isinstance(error, Exception):
        return _explain_exit(error)
    if isinstance(error, RecursionError):
        return BadModel("the model is nested deeper than can be followed")
    if isinstance(error, OverflowError) or is_about_digits(error):
        return BadModel("a figure of this model is larger than any that can be shown here")
    if is_about_array_size(error):
        return BadModel("a tensor of this model is larger than any memory")
    if isinstance(error, UnicodeEncodeError) and "surrogates" in error.reason:
        return BadModel(
            "a name in this model contains half of a character (a surrogate) and cannot be written"
        )
    return explain_broken(error)


def _explain_exit(error: BaseException) -> ExplorerError:
    """Builds the error for code that ends the program, with the line that does."""
    step = error.__traceback__
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    where = "" if step is None else f"{step.tb_frame.f_code.co_filename}:{step.tb_lineno}"
    if isinstance(error, SystemExit):
        problem = f"calls sys.exit({'' if error.code is None else repr(error.code)})"
    else:
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        problem = f"raises {text}, which is not a subclass of Exception"
    return BadModel(f"this code {problem}", where=where, hint="raise an exception instead")


def build_internal(error: BaseException) -> ExplorerError:
    """Builds the error for a bug of the program."""
    reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    hint = "this is a bug: EXPLORER_TRACEBACK=1 shows where; report it with the output of explorer doctor"
    return ExplorerError(f"internal error: {reason}", hint=hint)
