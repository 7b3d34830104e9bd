"""Gate of the web server: limits connections before aiohttp handles them.

aiohttp waits an hour for the head of a request and accepts any number of connections, so a client that begins
a hundred requests and finishes none locks everybody out. The gate gives each connection ten seconds for the
head of one request, and limits the number of connections. Above the limit, a new connection closes the oldest
connection without a complete head. A connection serves one request; the next one passes the gate again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

MAX_CONNECTIONS = 64
HEAD_SECONDS = 10.0
"""Maximum time for receiving the head of a request."""
MAX_HEAD = 16 << 10
"""Maximum bytes of the head of a request."""
ANSWER_SECONDS = 60.0
"""Maximum time for answering a request and sending the answer, except for a web socket."""

_RESERVED_FILES = 32
"""Number of open files that are not connections: those of the server, and those of a visitor's program."""
_MIN_CONNECTIONS = 4

_METHOD = b"GET "
_HEAD_END = b"\r\n\r\n"
_REFUSALS = {
    405: "405 Method Not Allowed\r\nAllow: GET",
    431: "431 Request Header Fields Too Large",
}


def _encode_refusal(status: int) -> bytes:
    head = f"HTTP/1.1 {_REFUSALS[status]}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    return head.encode()


def _find_max_connections() -> int:
    """Return the maximum number of connections. Sessions need half of the files that the process may open."""
    try:
        import resource
    except ImportError:  # Windows
        return MAX_CONNECTIONS
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return min(MAX_CONNECTIONS, max(_MIN_CONNECTIONS, (files - _RESERVED_FILES) // 2))


class Gate:
    """The connections of a server.

    Args:
        serve: Function that creates the protocol of one connection, such as aiohttp's `web.Server`.
    """

    def __init__(self, serve: Callable[[], asyncio.Protocol]) -> None:
        self._serve = serve
        self._connections: dict[asyncio.BaseTransport, GatedConnection] = {}
        self._max_count = _find_max_connections()
        self._listener: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> int:
        """Start to listen, and return the port.

        Raises:
            OSError: The address or the port is not available.
        """
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            lambda: GatedConnection(self, self._serve), host, port, backlog=MAX_CONNECTIONS
        )
        return int(self._listener.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Accept no more connections, and close those without a complete head."""
        if self._listener is not None:
            self._listener.close()
        for connection in [candidate for candidate in self._connections.values() if not candidate.has_head]:
            connection.abort()

    def keep(self, transport: asyncio.BaseTransport | None) -> None:
        """Remove the time limit of a web socket."""
        if transport in self._connections:
            self._connections[transport].keep()

    def drop(self, transport: asyncio.BaseTransport) -> None:
        """Close a connection immediately."""
        if transport in self._connections:
            self._connections[transport].abort()

    def enter(self, connection: GatedConnection, transport: asyncio.BaseTransport) -> bool:
        """Add a connection. Above the limit, close the oldest connection that may be closed.

        These are connections without a complete head or, without any of them, connections that are not web
        sockets.

        Returns:
            Whether the connection was added.
        """
        if len(self._connections) >= self._max_count:
            # the dictionary is in order of arrival
            headless = [candidate for candidate in self._connections.values() if not candidate.has_head]
            answering = [candidate for candidate in self._connections.values() if not candidate.is_websocket]
            if not (headless or answering):
                return False
            (headless or answering)[0].abort()
        self._connections[transport] = connection
        return True

    def leave(self, transport: asyncio.BaseTransport) -> None:
        """Remove a closed connection."""
        self._connections.pop(transport, None)


class GatedConnection(asyncio.Protocol):
    """A connection that is passed to the server once the head of its request is complete.

    Attributes:
        has_head: Whether the head is complete.
        is_websocket: Whether the connection is a web socket, which has no time limit.
    """

    def __init__(self, gate: Gate, serve: Callable[[], asyncio.Protocol]) -> None:
        self.has_head = self.is_websocket = False
        self._gate, self._serve = gate, serve
        self._transport: asyncio.Transport | None = None
        self._head = bytearray()
        self._inner: asyncio.Protocol | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to wait for the head."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if not self._gate.enter(self, transport):
            transport.abort()
            return
        self._set_time_limit(HEAD_SECONDS)

    def _set_time_limit(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.abort)

    def keep(self) -> None:
        """Remove the time limit."""
        self.is_websocket = True
        if self._timer is not None:
            self._timer.cancel()

    def abort(self) -> None:
        """Close the connection immediately, discarding unsent data."""
        if self._transport is not None:
            # do not wait for `connection_lost`, which is called in the next iteration of the loop
            self._gate.leave(self._transport)
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Collect the head, then forward all data to the server."""
        if self._inner is not None:
            self._inner.data_received(data)
            return
        if self._transport is None or self._transport.is_closing():
            return
        self._head += data
        if not self._head.startswith(_METHOD[: len(self._head)]):
            self._refuse(405)
        elif _HEAD_END not in self._head:
            if len(self._head) > MAX_HEAD:
                self._refuse(431)
        elif self._head.index(_HEAD_END) > MAX_HEAD:
            self._refuse(431)
        else:
            self._forward_head()

    def _refuse(self, status: int) -> None:
        if self._transport is not None:
            self._transport.write(_encode_refusal(status))
            self._transport.close()
            self._head.clear()

    def _forward_head(self) -> None:
        assert self._transport is not None
        self.has_head = True
        self._set_time_limit(ANSWER_SECONDS)
        self._inner, head = self._serve(), bytes(self._head)
        self._head.clear()
        self._inner.connection_made(self._transport)
        self._inner.data_received(head)

    def eof_received(self) -> bool | None:
        """Handle the end of the input. Without a complete head, nothing can be answered."""
        return None if self._inner is None else self._inner.eof_received()

    def pause_writing(self) -> None:
        """Forward `asyncio.BaseProtocol.pause_writing` to the server."""
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Forward `asyncio.BaseProtocol.resume_writing` to the server."""
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from the gate."""
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._gate.leave(self._transport)
        if self._inner is not None:
            self._inner.connection_lost(exc)
