"""Starts the screen: on a model, on the chooser, or on a saved session (`--resume`)."""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

from explorer.base.errors import BadModel, ExplorerError, Misuse, suggest_only_near
from explorer.base.exit_codes import DONE
from explorer.cli.arguments.command import ParsedArgs
from explorer.cli.commands import VERBS
from explorer.cli.output.printing import print_pieces
from explorer.process import signals
from explorer.report import outline_words
from explorer.session import headers
from explorer.tui import app


def run(args: ParsedArgs) -> int:
    """Show the screen until the user quits. Returns the exit code.

    Raises:
        Misuse: The model or the session does not exist, or there is no terminal.
        BadModel: The folder of the session does not exist anymore.
    """
    with signals.exit_on_signals():
        if args.resume:
            return _resume(args)
        return _open(args.models[0], args) if args.models else _choose("", args)


def _show(source: str, options: dict[str, Any], **arguments: Any) -> int:
    gc.disable()  # collections take 10 % of the start; the app enables them after the first paint
    try:
        return app.run(source, options, **arguments)
    finally:
        gc.enable()


def _open(source: str, args: ParsedArgs) -> int:
    """Open the screen on a model, or the chooser on a folder with several models.

    Without a terminal, the models of such a folder are printed. Errors that can be found without the screen
    are raised before it opens.
    """
    second_model = args.models[1] if len(args.models) > 1 else None
    for model in args.models:
        _check_source(model)
    if second_model and os.path.isdir(second_model) and headers.list_choices(second_model) is not None:
        raise Misuse("there are several models in it", where=second_model, hint="name one of them")
    if os.path.isdir(source):
        models = headers.list_choices(source)
        if models is not None and not _is_at_terminal():
            print_pieces(outline_words.compose_text(models))
            return DONE
        if models is not None:
            if second_model is not None:
                raise Misuse("there are several models in it", where=source, hint="name one of them")
            return _choose(source, args)
    if args.overlay:
        from explorer.settings.overlay import read  # imported on demand: it loads the facts

        for path in args.overlay:
            read(path)
    command = (
        f"explorer info {source}" if second_model is None else f"explorer diff {source} {second_model} --tree"
    )
    _need_terminal(f"{command} prints instead")
    options = {"remote": args.remote, "memory": args.memory, "beside": second_model}
    return _show(source, args.opening, overlays=args.overlay, **options)


def _choose(folder: str, args: ParsedArgs) -> int:
    """Open the chooser on a folder, or with '' on all models that can be opened."""
    if args.overlay:
        raise Misuse("belongs to one model", where="--overlay", hint="explorer MODEL --overlay FILE")
    _need_terminal("name a model, or type explorer list to see what there is")
    return _show("", args.opening, remote=args.remote, memory=args.memory, folder=folder)


def _resume(args: ParsedArgs) -> int:
    """Resume a saved session, in the folder where it was started."""
    _need_terminal("resume the session in a terminal")
    from msgspec.structs import asdict

    from explorer.process import saved_sessions  # imported on demand: it loads the facts

    model = args.models[0] if args.models else None
    stored_session, saved = saved_sessions.find(model, os.environ, trust=args.trust)
    try:
        os.chdir(saved.cwd)
        _check_source(saved.source)
    except OSError as error:
        stored_session.release()
        raise BadModel(f"the session's folder is gone ({error.strerror})", where=saved.cwd) from None
    except ExplorerError:
        stored_session.release()
        raise
    options = {**asdict(saved.opening), "trust": args.trust}
    memory = args.memory or saved.memory
    return _show(saved.source, options, remote=args.remote, memory=memory, resumed=(stored_session, saved))


def _is_at_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


_NO_CURSOR = ("dumb", "unknown")
"""Values of TERM for terminals that cannot move their cursor."""


def _need_terminal(hint: str) -> None:
    """Reject input or output that is not a terminal, and a terminal that cannot move its cursor."""
    if not _is_at_terminal():
        raise Misuse("the screen needs a terminal", hint=hint)
    term = os.environ.get("TERM", "")
    if term.lower() in _NO_CURSOR:
        raise Misuse(f"no screen with TERM={term}", hint=hint)


def _check_source(source: str) -> None:
    """Reject a path that does not exist and a file that is no model, without opening the screen."""
    code, _, callable_name = source.rpartition(":")
    if callable_name and code.endswith(".py"):
        if os.path.exists(code):
            return
        source = code
    if not os.path.exists(source) and (hint := suggest_only_near(source, VERBS)):
        raise Misuse("no such verb or model", where=source, hint=hint)
    headers.check_source(source)
