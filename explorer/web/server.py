"""Web server that shows the terminal interface in a browser, with authentication and a session per visitor.

The server is based on textual-serve and aiohttp. textual-serve has no authentication. Here each path and the
web socket require a visitor's cookie, which only the printed link with the token sets. A browser can send
only keys, sizes and focus, but no options of the program. `web.gate` limits the number of connections and the
time of each request. The server answers only requests that name it in `Host`. This prevents DNS rebinding, in
which a malicious page resolves its own host name to the address of this server.
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
from explorer.web.compat import handle_messages
from explorer.web.gate import Gate
from explorer.web.visitor import BrowserPage, VisitorSession

_SESSION_SECONDS = 3600.0
"""Seconds after which a session, with its program, ends if no page connects to it."""
_MAX_SESSIONS = 16
"""Maximum number of sessions; each one has an engine process."""
_MAX_VISITORS = 256
"""Maximum number of known cookies."""
_MAX_SOCKETS = 2
"""Maximum number of web sockets per visitor: the page that shows the session, and its replacement."""
_MAX_MESSAGE_BYTES = 1 << 20
"""Maximum bytes of a message from a page, such as pasted text."""
_MESSAGE_ERRORS = (AssertionError, AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError)
"""Exceptions that a malformed message can cause in its handler."""
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_CONTENT_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline';"
    " img-src 'self' data:; font-src 'self' data:; connect-src 'self' ws://{host} wss://{host};"
    " frame-ancestors 'none'"
)
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([\w.-]+))(?::[0-9]{1,5})?", re.ASCII)
"""Host header of a request: an IPv6 address in brackets, or a name or IPv4 address; and an optional port."""
_FONT_LINK = re.compile(r"<link[^>]*//fonts\.googleapis\.com[^>]*>")
"""Link to a Google font in the template. It is removed: the page loads nothing from other servers."""
_SEND_SCRIPT = (
    "<script>const send = WebSocket.prototype.send; WebSocket.prototype.send = function (data) {"
    " if (this.readyState === WebSocket.OPEN) send.call(this, data);"
    " else if (this.readyState === WebSocket.CONNECTING)"
    " this.addEventListener('open', () => send.call(this, data), {once: true}); }</script>"
)
"""Script that keeps what the page sends before its web socket is open, and drops what it sends afterwards.

The page's own script sends focus and sizes in any state, which is an error in the browser's console.
"""
_ICON = '<link rel="icon" href="data:,">'
"""Empty icon of both pages. Without it a browser asks for one and reports an error in its console."""
_FOCUS_SCRIPT = (
    "<script>addEventListener('load', () => "
    "document.querySelector('.xterm-helper-textarea')?.focus())</script>"
)
"""Script that focuses the terminal, so that keys work without a click."""
_LOGGERS = ("aiohttp", "asyncio", "textual-serve")
"""Libraries that log a traceback for every malformed request."""
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def create_server(name: str, folder: str, host: str, port: int, **opening: Any) -> ScreenServer:
    """Create a server for the screen on a model, or on a folder to choose one from.

    Args:
        name: Path of the model in the folder; '.' for the folder itself.
        folder: Folder below which files may be opened.
        host: Address to listen on.
        port: Port to listen on; 0 for any free port.
        **opening: Fields of `Opening`.
    """
    title = f"explorer {os.path.basename(folder if name == '.' else name)}"
    return ScreenServer(
        screen.build_command(name, Opening(**opening)), folder, title=title, host=host, port=port
    )


class ScreenServer(Server):
    """Serves a program to visitors that have the token.

    Args:
        command: Command line of a visitor's program.
        folder: Working folder of the program, and the only folder in which it may open files.
        title: Title of the page.
        host: Address to listen on.
        port: Port to listen on; 0 for any free port.
    """

    def __init__(
        self, command: Sequence[str], folder: str, *, title: str, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        super().__init__(title, host=host, port=port, title=title)
        self.token = secrets.token_urlsafe(32)
        self._command, self._folder = command, folder
        self._state_folder = scratch.Folder()
        self._session_ids = itertools.count()
        self._visitors: dict[str, VisitorSession] = {}
        self._gate: Gate | None = None

    async def run(self, ready: Callable[[str], None]) -> None:
        """Serve until SIGINT, SIGTERM or SIGHUP arrives, then end all sessions.

        Args:
            ready: Callback that gets the link for visitors, once the server is listening.

        Raises:
            Misuse: The address or the port is not available.
        """
        loop, end_requested = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, end_requested.set)
        self.disable_logging()
        runner = web.AppRunner(
            self._build_application(),
            access_log=None,
            shutdown_timeout=1,
            lingering_time=0,
            keepalive_timeout=1,
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
            await end_requested.wait()
        finally:
            if self._gate is not None:
                self._gate.close()
            await runner.cleanup()
            self._state_folder.remove()

    def disable_logging(self) -> None:
        """Disable logging of client errors. Clients could fill the log, and libraries add tracebacks."""
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        for name in _LOGGERS:
            logging.getLogger(name).addHandler(logging.NullHandler())
            logging.getLogger(name).propagate = False

    @property
    def link(self) -> str:
        """The link for visitors, with the token."""
        host = socket.gethostname() if self.host in {"0.0.0.0", "::", ""} else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/?token={self.token}"

    @property
    def cookie(self) -> str:
        """Name of the visitor's cookie. It contains the port, because all ports of a host share cookies."""
        return f"explorer-{self.port}"

    def _build_application(self) -> web.Application:
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
        """Serve known visitors, welcome new visitors with the token, and reject all others."""
        try:
            response = await self._answer(request, handler)
        except web.HTTPException as error:
            error.headers.update(_HEADERS)
            error.force_close()
            raise
        if not response.prepared:
            response.headers.update(_HEADERS)
            response.force_close()  # the next request must pass the gate again
        return response

    async def _answer(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        if not self._is_own_host(request.headers.getall("Host", [])):
            text = "This is not an address of `explorer serve`. Open the link that it printed.\n"
            return web.Response(status=421, text=text)
        origin = request.headers.get("Origin")
        is_known = request.cookies.get(self.cookie) in self._visitors
        if origin is not None and origin.partition("://")[2] != request.host:
            is_known = False  # a page of another server in the same browser
        elif request.method == "GET" and request.path == "/" and self._is_token(request.query):
            return self._welcome(is_known)
        if not is_known:
            text = "Open the link that `explorer serve` printed.\n"
            return web.Response(status=403, text=text)
        response = await handler(request)
        if not response.prepared:
            response.headers["Content-Security-Policy"] = _CONTENT_POLICY.format(host=request.host)
        return response

    def _is_token(self, query: Mapping[str, str]) -> bool:
        token = query.get("token", "").encode("utf-8", "surrogateescape")
        return secrets.compare_digest(token, self.token.encode())

    def _is_own_host(self, hosts: Sequence[str]) -> bool:
        """Whether the host header names this server: by address, or by a name of this machine.

        Any IP address is accepted, because DNS rebinding needs a name. The port is not compared, because a
        tunnel may use another port.
        """
        if len(hosts) != 1:
            return False
        host_match = _HOST.fullmatch(hosts[0])
        if host_match is None:
            return False
        name = (host_match[1] or host_match[2]).lower()
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in {"localhost", self.host.lower(), socket.gethostname().lower()}
        return True

    def _welcome(self, is_known: bool) -> web.Response:
        """Set the cookie and load the page without the token in the address bar.

        An HTTP redirect would not work: after a link from another site, the browser would not send the
        cookie.
        """
        text = f'<!DOCTYPE html><meta http-equiv="refresh" content="0;url=/">{_ICON}'
        response = web.Response(
            text=f"{text}<title>{html.escape(self.title)}</title>", content_type="text/html", headers=_HEADERS
        )
        if not is_known:
            self._forget_idle_visitors()
            visitor = secrets.token_urlsafe(32)
            state = os.path.join(self._state_folder.path, str(next(self._session_ids)))
            self._visitors[visitor] = VisitorSession(self._command, self._folder, state)
            response.set_cookie(self.cookie, visitor, httponly=True, samesite="Strict")
        return response

    def _forget_idle_visitors(self) -> None:
        """Forget the oldest visitors that have no session. Each use of the link creates a visitor."""
        idle = [key for key, visitor in self._visitors.items() if not visitor.running and not visitor.watched]
        for key in idle[: max(len(self._visitors) + 1 - _MAX_VISITORS, 0)]:
            del self._visitors[key]

    async def handle_index(self, request: web.Request) -> web.Response:
        """Return the page. Its addresses use the host of the request, so that they work through a tunnel."""
        scheme = "wss" if request.scheme == "https" else "ws"
        context = {
            "font_size": min(max(to_int(request.query.get("fontsize", "16"), 16), 4), 64),
            "app_websocket_url": f"{scheme}://{request.host}/ws",
            "config": {"static": {"url": "/static/"}},
            "application": {"name": self.title},
        }
        page = aiohttp_jinja2.render_template("app_index.html", request, context)
        text = _FONT_LINK.sub("", page.text or "").replace("<head>", f"<head>{_SEND_SCRIPT}{_ICON}")
        page.text = text.replace("</body>", f"{_FOCUS_SCRIPT}</body>")
        return page

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """Connect a page to its visitor's program."""
        websocket = web.WebSocketResponse(heartbeat=15, max_msg_size=_MAX_MESSAGE_BYTES)
        width, height = (to_int(request.query.get(name, ""), 80) for name in ("width", "height"))
        visitor = self._visitors[request.cookies[self.cookie]]
        await websocket.prepare(request)
        self._limit_sockets(request, visitor)
        if not visitor.running and not await self._make_room():
            await websocket.send_bytes(b"explorer: too many sessions are open here; come back later\r\n")
            await websocket.close()
            return websocket
        page = BrowserPage(websocket.send_bytes, websocket.send_str, websocket.close)
        try:
            await visitor.show(page, width, height)
            with contextlib.suppress(*_MESSAGE_ERRORS):
                await handle_messages(websocket, visitor)
        finally:
            visitor.leave(page, _SESSION_SECONDS)
        await websocket.close()
        return websocket

    def _limit_sockets(self, request: web.Request, visitor: VisitorSession) -> None:
        """Keep the web socket of a visitor open, and close the visitor's oldest web sockets."""
        if self._gate is None or request.transport is None:
            return
        self._gate.keep(request.transport)
        visitor.sockets.append(request.transport)
        while len(visitor.sockets) > _MAX_SOCKETS:
            self._gate.drop(visitor.sockets.pop(0))

    async def _make_room(self) -> bool:
        """End a session without a page if too many sessions run; return whether another one may start."""
        running = [visitor for visitor in self._visitors.values() if visitor.running]
        if len(running) < _MAX_SESSIONS:
            return True
        unwatched = next((visitor for visitor in running if not visitor.watched), None)
        if unwatched is None:
            return False
        await unwatched.stop()
        return True

    async def on_shutdown(self, app: web.Application) -> None:
        """End all sessions."""
        await asyncio.gather(*(visitor.stop() for visitor in self._visitors.values()))
