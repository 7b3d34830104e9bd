"""Assumptions about textual-serve and Textual's web driver, beside what they document: one function each.

Its docstring has three parts: `Assumes:` the undocumented fact, `Seen:` the versions where it was tried, and
`Otherwise:` what happens when the fact does not hold.
"""

from __future__ import annotations

from aiohttp import WSMsgType, web
from textual_serve.app_service import AppService

BEGIN = b"__GANGLION__\n"
"""What Textual's web driver says first.

Assumes: it says so in these bytes, before any packet.
Seen: textual 8.2.8.
Otherwise: the page shows one line, that the screen did not start.
"""


async def obey(websocket: web.WebSocketResponse, service: AppService) -> None:
    """Does what the page asks for until it goes: keys, sizes, focus.

    Assumes: the page's script sends lists like `["stdin", "x"]`, and understands `["pong", ...]`.
    Seen: textual-serve 1.1.3.
    Otherwise: what is not understood is left undone.
    """
    async for message in websocket:
        if message.type != WSMsgType.TEXT:
            continue
        kind, *rest = message.json()
        match kind:
            case "stdin":
                await service.send_bytes(rest[0].encode("utf-8"))
            case "resize":
                await service.set_terminal_size(rest[0]["width"], rest[0]["height"])
            case "ping":
                await websocket.send_json(["pong", rest[0]])
            case "blur":
                await service.blur()
            case "focus":
                await service.focus()
