"""Assumptions about undocumented behavior of textual-serve and Textual's web driver, one function each.

Each docstring has three parts. `Assumes:` states the undocumented fact, `Seen:` the versions in which it was
verified, and `Otherwise:` what happens if it does not hold.
"""

from __future__ import annotations

from aiohttp import WSMsgType, web
from textual_serve.app_service import AppService

BEGIN = b"__GANGLION__\n"
"""First output of Textual's web driver.

Assumes: The driver writes these bytes before any packet.
Seen: textual 8.2.8.
Otherwise: The page shows the line that the screen did not start.
"""


async def handle_messages(websocket: web.WebSocketResponse, service: AppService) -> None:
    """Handle the messages of a page (keys, sizes, focus) until it disconnects.

    Assumes: The page's script sends lists such as `["stdin", "x"]`, and understands `["pong", ...]`.
    Seen: textual-serve 1.1.3.
    Otherwise: Unknown messages are ignored.
    """
    async for message in websocket:
        if message.type != WSMsgType.TEXT:
            continue
        kind, *arguments = message.json()
        match kind:
            case "stdin":
                await service.send_bytes(arguments[0].encode("utf-8"))
            case "resize":
                await service.set_terminal_size(arguments[0]["width"], arguments[0]["height"])
            case "ping":
                await websocket.send_json(["pong", arguments[0]])
            case "blur":
                await service.blur()
            case "focus":
                await service.focus()
