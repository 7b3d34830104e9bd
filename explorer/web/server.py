"""Web server (textual-serve, aiohttp) of the screen: a token before every path, one session a visitor.

textual-serve asks nobody who he is. Here every path, and the web socket, needs a visitor's cookie, and the
one way to a cookie is the link with the token that the server prints. What the browser sends is keys, sizes
and focus: it can name no option of the program.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import os
import re
import secrets
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import aiohttp_jinja2
from aiohttp import web
from textual_serve.server import Server, to_int

from explorer.base.errors import Misuse
from explorer.host import scratch
from explorer.process.saved_sessions import Opening
from explorer.web import screen
from explorer.web.visitor import BrowserPage, VisitorSession

_KEPT = 3600.0
"""Seconds that a session waits for its page to come back."""
_MOST = 16
"""Sessions at once; each has an engine of its own."""
_LARGEST = 1 << 20
"""Bytes of a message from a page: keys, or a text that was pasted."""
_BROKEN = (AssertionError, AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError)
"""What a message that no page of ours sends makes its reader stumble over."""
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline';"
    " img-src 'self' data:; font-src 'self' data:; connect-src 'self' ws://{host} wss://{host};"
    " frame-ancestors 'none'"
)
_ELSEWHERE = re.compile(r"<link[^>]*//fonts\.googleapis\.com[^>]*>")
"""The page loads nothing from elsewhere; its template would ask Google for a font."""
_FOCUS = (
    "<script>addEventListener('load', () => "
    "document.querySelector('.xterm-helper-textarea')?.focus())</script>"
)
"""Keys go to the screen at once, and not only behind a click."""
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def served(name: str, folder: str, host: str, port: int, **opening: Any) -> ScreenServer:
    """What serves the screen on a model, or on a folder to choose one from.

    Args:
        name: What it is called in the folder; '.' for the folder itself.
        folder: Below which files may be opened.
        host: Address to listen at.
        port: Port to listen at; 0 for one that is free.
        **opening: Fields of `Opening`.
    """
    title = f"explorer {os.path.basename(folder if name == '.' else name)}"
    return ScreenServer(screen.command(name, Opening(**opening)), folder, title=title, host=host, port=port)


class ScreenServer(Server):
    """Serves a program to who has the token.

    Args:
        words: The command of a visitor's program.
        folder: Where it runs, and all that it may name.
        title: Of the page.
        host: The address to listen at.
        port: Likewise; 0 for one that is free.
    """

    def __init__(
        self, words: Sequence[str], folder: str, *, title: str, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        super().__init__(title, host=host, port=port, title=title)
        self.token = secrets.token_urlsafe(32)
        self._words, self._folder = words, folder
        self._states = scratch.Folder()
        self._visitors: dict[str, VisitorSession] = {}

    async def run(self, ready: Callable[[str], None]) -> None:
        """Serves until SIGINT or SIGTERM comes; then every session has ended.

        Args:
            ready: Gets the link that lets a visitor in, once it can be followed.

        Raises:
            Misuse: It cannot listen there.
        """
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, ended.set)
        runner = web.AppRunner(await self._make_app(), access_log=None, shutdown_timeout=1)
        try:
            await runner.setup()
            try:
                await web.TCPSite(runner, self.host, self.port).start()
            except OSError as error:
                where, reason = f"{self.host}:{self.port}", error.strerror or str(error)
                hint = "choose another --port or --host"
                raise Misuse(f"cannot listen there: {reason}", where=where, hint=hint) from None
            self.port = runner.addresses[0][1]
            ready(self.link)
            await ended.wait()
        finally:
            await runner.cleanup()
            self._states.remove()

    @property
    def link(self) -> str:
        """The address that lets a visitor in."""
        host = socket.gethostname() if self.host in {"0.0.0.0", "::", ""} else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/?token={self.token}"

    @property
    def cookie(self) -> str:
        """The name of the visitor's cookie; those of one host are shared by all its ports."""
        return f"explorer-{self.port}"

    async def _make_app(self) -> web.Application:
        app = await super()._make_app()
        app.middlewares.append(self._guard)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Lets a visitor through, makes one of who brings the token, and tells others nothing."""
        origin = request.headers.get("Origin")
        known = request.cookies.get(self.cookie) in self._visitors
        if origin is not None and origin.partition("://")[2] != request.host:
            known = False  # the page of another server, in the same browser
        elif secrets.compare_digest(request.query.get("token", "").encode(), self.token.encode()):
            return self._welcome(known)
        if not known:
            text = "Open the link that `explorer serve` printed.\n"
            return web.Response(status=403, text=text, headers=_HEADERS)
        try:
            response = await handler(request)
        except web.HTTPException as error:
            error.headers.update(_HEADERS)
            raise
        if not response.prepared:
            policy = _POLICY.format(host=request.host)
            response.headers.update({**_HEADERS, "Content-Security-Policy": policy})
        return response

    def _welcome(self, known: bool) -> web.Response:
        """Leads from the link to the page, so that the token leaves the address bar.

        No redirection: a browser that followed the link from elsewhere would not send the cookie along.
        """
        text = '<!DOCTYPE html><meta http-equiv="refresh" content="0;url=/">'
        response = web.Response(
            text=f"{text}<title>{html.escape(self.title)}</title>", content_type="text/html", headers=_HEADERS
        )
        if not known:
            visitor = secrets.token_urlsafe(32)
            state = os.path.join(self._states.path, str(len(self._visitors)))
            self._visitors[visitor] = VisitorSession(self._words, self._folder, state)
            response.set_cookie(self.cookie, visitor, httponly=True, samesite="Strict")
        return response

    async def handle_index(self, request: web.Request) -> web.Response:
        """The page; its addresses are those by which the browser found it, through whatever tunnel."""
        scheme = "wss" if request.scheme == "https" else "ws"
        context = {
            "font_size": min(max(to_int(request.query.get("fontsize", "16"), 16), 4), 64),
            "app_websocket_url": f"{scheme}://{request.host}/ws",
            "config": {"static": {"url": "/static/"}},
            "application": {"name": self.title},
        }
        page = aiohttp_jinja2.render_template("app_index.html", request, context)
        page.text = _ELSEWHERE.sub("", page.text or "").replace("</body>", f"{_FOCUS}</body>")
        return page

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """The line between a page and its visitor's program."""
        websocket = web.WebSocketResponse(heartbeat=15, max_msg_size=_LARGEST)
        width, height = (to_int(request.query.get(name, ""), 80) for name in ("width", "height"))
        visitor = self._visitors[request.cookies[self.cookie]]
        await websocket.prepare(request)
        if not visitor.running and not await self._has_room():
            await websocket.send_bytes(b"explorer: too many sessions are open here; come back later\r\n")
            await websocket.close()
            return websocket
        page = BrowserPage(websocket.send_bytes, websocket.send_str, websocket.close)
        try:
            await visitor.show(page, width, height)
            with contextlib.suppress(*_BROKEN):
                await self._process_messages(websocket, visitor)
        finally:
            visitor.leave(page, _KEPT)
        await websocket.close()
        return websocket

    async def handle_download(self, request: web.Request) -> web.StreamResponse:
        """Nothing: the screen writes its files into the folder."""
        raise web.HTTPNotFound

    async def _has_room(self) -> bool:
        """Whether one more session may begin; one that nobody watches makes room."""
        running = [visitor for visitor in self._visitors.values() if visitor.running]
        if len(running) >= _MOST and (alone := next((v for v in running if not v.watched), None)):
            await alone.stop()
            return True
        return len(running) < _MOST

    async def on_startup(self, app: web.Application) -> None:
        """Nothing: who runs it is told when it can be followed."""

    async def on_shutdown(self, app: web.Application) -> None:
        """Ends every session."""
        await asyncio.gather(*(visitor.stop() for visitor in self._visitors.values()))
