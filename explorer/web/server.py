"""Web server (textual-serve, aiohttp) of the screen: a token before every path, one session a visitor.

textual-serve asks nobody who he is. Here every path, and the web socket, needs a visitor's cookie, and the
one way to a cookie is the link with the token that the server prints. What the browser sends is keys, sizes
and focus: it can name no option of the program. Connections come through a gate (`web.gate`), and the server
answers to its own names alone: another name in `Host` is a page that had its own name point here.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import ipaddress
import itertools
import logging
import os
import re
import secrets
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import aiohttp_jinja2
import jinja2
from aiohttp import web
from textual_serve.server import Server, to_int

from explorer.base.errors import Misuse
from explorer.host import scratch
from explorer.process.saved_sessions import Opening
from explorer.web import screen
from explorer.web.compat import obey
from explorer.web.gate import Gate
from explorer.web.visitor import BrowserPage, VisitorSession

_KEPT = 3600.0
"""Seconds that a session waits for its page to come back."""
_MOST = 16
"""Sessions at once; each has an engine of its own."""
_MOST_VISITORS = 256
"""Cookies that are known at once."""
_MOST_LINES = 2
"""Web sockets of a visitor: the page that shows the session, and one that takes its place."""
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
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([\w.-]+))(?::[0-9]{1,5})?", re.ASCII)
"""Host of a request: an address of IPv6 in brackets, or a name or an address, and a port."""
_ELSEWHERE = re.compile(r"<link[^>]*//fonts\.googleapis\.com[^>]*>")
"""The page loads nothing from elsewhere; its template would ask Google for a font."""
_FOCUS = (
    "<script>addEventListener('load', () => "
    "document.querySelector('.xterm-helper-textarea')?.focus())</script>"
)
"""Keys go to the screen at once, and not only behind a click."""
_LOGGERS = ("aiohttp", "asyncio", "textual-serve")
"""Libraries that tell the terminal of every request that is none, with a traceback."""
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
        self._numbers = itertools.count()
        self._visitors: dict[str, VisitorSession] = {}
        self._gate: Gate | None = None

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
        self.quiet()
        runner = web.AppRunner(
            self._application(), access_log=None, shutdown_timeout=1, lingering_time=0, keepalive_timeout=1
        )
        try:
            await runner.setup()
            assert runner.server is not None
            self._gate = Gate(runner.server)
            try:
                self.port = await self._gate.listen(self.host, self.port)
            except OSError as error:
                where, reason = f"{self.host}:{self.port}", error.strerror or str(error)
                hint = "choose another --port or --host"
                raise Misuse(f"cannot listen there: {reason}", where=where, hint=hint) from None
            ready(self.link)
            await ended.wait()
        finally:
            if self._gate is not None:
                self._gate.close()
            await runner.cleanup()
            self._states.remove()

    def quiet(self) -> None:
        """Says nothing of clients: what they send would fill the log, and libraries add a traceback."""
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        for name in _LOGGERS:
            logging.getLogger(name).addHandler(logging.NullHandler())
            logging.getLogger(name).propagate = False

    @property
    def link(self) -> str:
        """The address that lets a visitor in."""
        host = socket.gethostname() if self.host in {"0.0.0.0", "::", ""} else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/?token={self.token}"

    @property
    def cookie(self) -> str:
        """The name of the visitor's cookie; those of one host are shared by all its ports."""
        return f"explorer-{self.port}"

    def _application(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        aiohttp_jinja2.setup(app, loader=jinja2.FileSystemLoader(self.templates_path))
        app.add_routes(
            [
                web.get("/", self.handle_index, name="index"),
                web.get("/ws", self.handle_websocket, name="websocket"),
                web.static("/static", self.statics_path, name="static"),
            ]
        )
        app.on_shutdown.append(self.on_shutdown)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Lets a visitor through, makes one of who brings the token, and tells others nothing."""
        try:
            response = await self._answer(request, handler)
        except web.HTTPException as error:
            error.headers.update(_HEADERS)
            error.force_close()
            raise
        if not response.prepared:
            response.headers.update(_HEADERS)
            response.force_close()  # the next request comes through the gate, too
        return response

    async def _answer(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        if not self._is_named(request.headers.getall("Host", [])):
            text = "This is no address of `explorer serve`; open the link that it printed.\n"
            return web.Response(status=421, text=text)
        origin = request.headers.get("Origin")
        is_known = request.cookies.get(self.cookie) in self._visitors
        if origin is not None and origin.partition("://")[2] != request.host:
            is_known = False  # the page of another server, in the same browser
        elif request.method == "GET" and request.path == "/" and self._is_token(request.query):
            return self._welcome(is_known)
        if not is_known:
            text = "Open the link that `explorer serve` printed.\n"
            return web.Response(status=403, text=text)
        response = await handler(request)
        if not response.prepared:
            response.headers["Content-Security-Policy"] = _POLICY.format(host=request.host)
        return response

    def _is_token(self, query: Mapping[str, str]) -> bool:
        given = query.get("token", "").encode("utf-8", "surrogateescape")
        return secrets.compare_digest(given, self.token.encode())

    def _is_named(self, hosts: Sequence[str]) -> bool:
        """Whether a request names this server: by an address, which no name server can turn elsewhere, or a
        name of this machine; the port may be a tunnel's.
        """
        if len(hosts) != 1:
            return False
        matched = _HOST.fullmatch(hosts[0])
        if matched is None:
            return False
        name = (matched[1] or matched[2]).lower()
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in {"localhost", self.host.lower(), socket.gethostname().lower()}
        return True

    def _welcome(self, is_known: bool) -> web.Response:
        """Leads from the link to the page, so that the token leaves the address bar.

        No redirection: a browser that followed the link from elsewhere would not send the cookie along.
        """
        text = '<!DOCTYPE html><meta http-equiv="refresh" content="0;url=/">'
        response = web.Response(
            text=f"{text}<title>{html.escape(self.title)}</title>", content_type="text/html", headers=_HEADERS
        )
        if not is_known:
            self._forget()
            visitor = secrets.token_urlsafe(32)
            state = os.path.join(self._states.path, str(next(self._numbers)))
            self._visitors[visitor] = VisitorSession(self._words, self._folder, state)
            response.set_cookie(self.cookie, visitor, httponly=True, samesite="Strict")
        return response

    def _forget(self) -> None:
        """Forgets the oldest visitors without a session: each link that is followed makes one."""
        idle = [key for key, visitor in self._visitors.items() if not visitor.running and not visitor.watched]
        for key in idle[: max(len(self._visitors) + 1 - _MOST_VISITORS, 0)]:
            del self._visitors[key]

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
        self._keep(request, visitor)
        if not visitor.running and not await self._has_room():
            await websocket.send_bytes(b"explorer: too many sessions are open here; come back later\r\n")
            await websocket.close()
            return websocket
        page = BrowserPage(websocket.send_bytes, websocket.send_str, websocket.close)
        try:
            await visitor.show(page, width, height)
            with contextlib.suppress(*_BROKEN):
                await obey(websocket, visitor)
        finally:
            visitor.leave(page, _KEPT)
        await websocket.close()
        return websocket

    def _keep(self, request: web.Request, visitor: VisitorSession) -> None:
        """Lets the line of a visitor stay open, in place of those before it."""
        if self._gate is None or request.transport is None:
            return
        self._gate.keep(request.transport)
        visitor.lines.append(request.transport)
        while len(visitor.lines) > _MOST_LINES:
            self._gate.drop(visitor.lines.pop(0))

    async def _has_room(self) -> bool:
        """Whether one more session may begin; one that nobody watches makes room."""
        running = [visitor for visitor in self._visitors.values() if visitor.running]
        if len(running) >= _MOST and (alone := next((v for v in running if not v.watched), None)):
            await alone.stop()
            return True
        return len(running) < _MOST

    async def on_shutdown(self, app: web.Application) -> None:
        """Ends every session."""
        await asyncio.gather(*(visitor.stop() for visitor in self._visitors.values()))
