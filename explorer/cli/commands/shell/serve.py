"""`explorer serve`: serves the screen to browsers that have the printed link."""

from __future__ import annotations

import os

from explorer.base.errors import Misuse
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import Option
from explorer.cli.output.answer import Answer
from explorer.cli.output.printing import print_pieces
from explorer.session import headers

_LOOPBACK = "127.0.0.1"
_MOST = 65_535


def _run(args: ParsedArgs, progress: object) -> Answer:
    # imported on demand: the help imports this module
    import asyncio

    from explorer.host.optional_packages import require

    source = args.models[0]
    if ":" in source and not os.path.exists(source):
        raise Misuse("code is not served to a browser", where=source, hint="serve a file of the model")
    if args.port > _MOST:
        raise Misuse(f"a port is {_MOST:,} at most", where=f"--port {args.port}")
    headers.check(source)
    require("textual_serve", "serve")
    from explorer.web.server import served

    folder, name = _folder_and_name(source)
    server = served(
        name,
        folder,
        args.host,
        args.port,
        weights=args.weights,
        dims=args.dim,
        input_shapes=args.input_shape,
        observe=args.observe,
        past=args.past,
    )

    def ready(link: str) -> None:
        print_pieces([f"{link}\n", f"serves {folder} to anyone with this link; Ctrl+C ends it\n"])

    asyncio.run(server.run(ready))
    return Answer(pieces=tuple)


def _folder_and_name(source: str) -> tuple[str, str]:
    """Return the served folder, and the model's path in it."""
    if os.path.isdir(source):
        folder = os.path.realpath(source)
        return folder, folder if headers.choices(source) is None else "."
    if os.path.exists(source):
        folder, name = os.path.split(os.path.realpath(source))
        return folder, name
    return os.getcwd(), source


COMMAND = Command(
    "serve",
    "open the screen in a browser",
    ("MODEL",),
    (
        Option(
            "--port",
            "port to listen at (default 8000; 0 for one that is free)",
            "N",
            "8000",
            least=0,
            manual="`serve`: port to listen at; 0 for one that is free",
        ),
        Option(
            "--host",
            "address to listen at (default 127.0.0.1: this machine alone)",
            "ADDRESS",
            _LOOPBACK,
            manual="`serve`: address to listen at; without it only this machine is answered",
        ),
        *("--dim", "--input-shape", "--weights", "--observe", "--past", "--version", "--help"),
    ),
    ("explorer serve model.onnx", "explorer serve models/ --port 0"),
    _run,
    usage="serve MODEL",
    manual="the screen in a browser, for anyone with the printed link; files only below the model's folder",
    instant=True,
    group="tools",
)
