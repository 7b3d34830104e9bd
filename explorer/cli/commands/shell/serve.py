"""Command `explorer serve`: shows the screen in browsers that open the printed link."""

from __future__ import annotations

import os

from explorer.base.errors import Misuse
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import Option
from explorer.cli.output.answer import Answer
from explorer.cli.output.printing import print_pieces
from explorer.session import headers

_LOOPBACK = "127.0.0.1"
_MAX_PORT = 65_535
"""Largest TCP port: a port number has 16 bits."""


def _run(args: ParsedArgs, progress: object) -> Answer:
    # imports inside the function keep the help fast, because the help imports this module
    import asyncio

    from explorer.host.optional_packages import require

    source = args.models[0]
    if ":" in source and not os.path.exists(source):
        raise Misuse("code is not served to a browser", where=source, hint="serve a file of the model")
    if args.port > _MAX_PORT:
        hint = f"choose a port from 0 to {_MAX_PORT:,}"
        raise Misuse(f"the largest port is {_MAX_PORT:,}", where=f"--port {args.port}", hint=hint)
    headers.check_source(source)
    require("textual_serve", "serve")
    from explorer.web.server import create_server

    folder, name = _split_source(source)
    server = create_server(
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

    def print_link(link: str) -> None:
        print_pieces([f"{link}\n", f"serves {folder} to anyone with this link; Ctrl+C ends it\n"])

    asyncio.run(server.run(print_link))
    return Answer(pieces=tuple)


def _split_source(source: str) -> tuple[str, str]:
    """Return the folder whose files visitors may open, and the model to show.

    The model is a file's name in the folder, the path of the folder if it is one model, or '.' if it has
    several models, among which visitors choose. The name of a torchvision model stays as it is, with the
    current folder.
    """
    if os.path.isdir(source):
        folder = os.path.realpath(source)
        return folder, folder if headers.list_choices(source) is None else "."
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
            "port to listen on (default 8000; 0 for a free port)",
            "N",
            "8000",
            least=0,
            manual="`serve`: port to listen on; 0 for one that is free",
        ),
        Option(
            "--host",
            "address to listen on (default 127.0.0.1: this machine alone)",
            "ADDRESS",
            _LOOPBACK,
            manual="`serve`: address to listen on; without it, only this machine can connect",
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
