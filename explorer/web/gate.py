"""Gate of the web server: what a connection has to send, and how soon, before aiohttp hears of it.

aiohttp waits an hour for the head of a request, and takes as many connections as the system gives: whoever
begins a hundred requests and ends none keeps everybody else out. Here a connection has ten seconds for one
head of a request, and there are so many at once; when one more comes, the oldest that has not sent its head
goes. Each answers one request: the next comes on a connection of its own, through the gate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

MOST_CONNECTIONS = 64
HEAD_SECONDS = 10.0
"""Time in which the whole head of a request has to come."""
MOST_HEAD = 16 << 10
"""Bytes of the head of a request."""
ANSWER_SECONDS = 60.0
"""Time in which a request is answered and the answer read, but for a web socket."""

_RESERVED = 32
"""Files that the server itself has open, with some to spare for a visitor's program."""
_LEAST = 4

_METHOD = b"GET "
_END = b"\r\n\r\n"
_REFUSALS = {
    405: "405 Method Not Allowed\r\nAllow: GET",
    431: "431 Request Header Fields Too Large",
}


def _refusal(status: int) -> bytes:
    head = f"HTTP/1.1 {_REFUSALS[status]}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    return head.encode()


def _room() -> int:
    """Connections at once: fewer where this process may open few files, half of which its sessions take."""
    try:
        import resource
    except ImportError:  # Windows
        return MOST_CONNECTIONS
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return min(MOST_CONNECTIONS, max(_LEAST, (files - _RESERVED) // 2))


class Gate:
    """The connections of a server.

    Args:
        serve: Makes the protocol that answers one connection, as aiohttp's `web.Server` does.
    """

    def __init__(self, serve: Callable[[], asyncio.Protocol]) -> None:
        self._serve = serve
        self._connections: dict[asyncio.BaseTransport, GatedConnection] = {}
        self._most = _room()
        self._listener: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> int:
        """Begins to listen; returns the port.

        Raises:
            OSError: It cannot listen there.
        """
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            lambda: GatedConnection(self, self._serve), host, port, backlog=MOST_CONNECTIONS
        )
        return int(self._listener.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Takes no more connections, and ends those that wait for a head."""
        if self._listener is not None:
            self._listener.close()
        for connection in [one for one in self._connections.values() if not one.passed]:
            connection.abort()

    def keep(self, transport: asyncio.BaseTransport | None) -> None:
        """Lets a web socket stay open for as long as it likes."""
        if transport in self._connections:
            self._connections[transport].keep()

    def drop(self, transport: asyncio.BaseTransport) -> None:
        """Ends a connection at once."""
        if transport in self._connections:
            self._connections[transport].abort()

    def enter(self, connection: GatedConnection, transport: asyncio.BaseTransport) -> bool:
        """Takes one more connection, in place of another where there is no room; whether it may stay."""
        if len(self._connections) >= self._most:
            # the dictionary is in the order in which they came
            waiting = [one for one in self._connections.values() if not one.passed]
            slow = [one for one in self._connections.values() if not one.kept]
            if not (waiting or slow):
                return False
            (waiting or slow)[0].abort()
        self._connections[transport] = connection
        return True

    def leave(self, transport: asyncio.BaseTransport) -> None:
        """A connection has ended."""
        self._connections.pop(transport, None)


class GatedConnection(asyncio.Protocol):
    """A connection: its own until the head of the request is whole, then the server's.

    Attributes:
        passed: The head is whole.
        kept: It is a web socket.
    """

    def __init__(self, gate: Gate, serve: Callable[[], asyncio.Protocol]) -> None:
        self.passed = self.kept = False
        self._gate, self._serve = gate, serve
        self._transport: asyncio.Transport | None = None
        self._head = bytearray()
        self._inner: asyncio.Protocol | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins to wait for the head."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if not self._gate.enter(self, transport):
            transport.abort()
            return
        self._limit(HEAD_SECONDS)

    def _limit(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.abort)

    def keep(self) -> None:
        """Lets it stay open."""
        self.kept = True
        if self._timer is not None:
            self._timer.cancel()

    def abort(self) -> None:
        """Ends it at once, whatever was not sent yet."""
        if self._transport is not None:
            # at once: the system tells of the end in the loop's next turn
            self._gate.leave(self._transport)
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Collects the head, then hands everything on."""
        if self._inner is not None:
            self._inner.data_received(data)
            return
        if self._transport is None or self._transport.is_closing():
            return
        self._head += data
        if not self._head.startswith(_METHOD[: len(self._head)]):
            self._refuse(405)
        elif _END not in self._head:
            if len(self._head) > MOST_HEAD:
                self._refuse(431)
        elif self._head.index(_END) > MOST_HEAD:
            self._refuse(431)
        else:
            self._pass()

    def _refuse(self, status: int) -> None:
        if self._transport is not None:
            self._transport.write(_refusal(status))
            self._transport.close()
            self._head.clear()

    def _pass(self) -> None:
        assert self._transport is not None
        self.passed = True
        self._limit(ANSWER_SECONDS)
        self._inner, head = self._serve(), bytes(self._head)
        self._head.clear()
        self._inner.connection_made(self._transport)
        self._inner.data_received(head)

    def eof_received(self) -> bool | None:
        """The other end sends no more: without a whole head nothing can be answered."""
        return None if self._inner is None else self._inner.eof_received()

    def pause_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Makes room."""
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._gate.leave(self._transport)
        if self._inner is not None:
            self._inner.connection_lost(exc)
