"""`explorer serve` among clients that mean harm: who has the link gets in, and the server says nothing."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import psutil
import pytest

from explorer.web import gate
from tests.terminal import ROOT
from tests.web.served import Served
from tests.web.test_serve import Browser

ATTACKS = 200
MAX_SECONDS = 2.0


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    running = Served(ROOT / "sample_models" / "lenet.onnx", tmp_path_factory.mktemp("log") / "stderr")
    yield running
    running.end()
    assert not (tmp_path_factory.getbasetemp() / "log0" / "stderr").read_bytes()


def address(served: Served) -> tuple[str, int]:
    host, _, port = served.address.removeprefix("http://").rpartition(":")
    return host, int(port)


def sent(served: Served, data: bytes, seconds: float = 5.0) -> bytes:
    """What the server answers to some bytes, until it closes the connection."""
    answer = b""
    with socket.create_connection(address(served), timeout=seconds) as line:
        with contextlib.suppress(ConnectionError):
            line.sendall(data)
            while part := line.recv(1 << 16):
                answer += part
    return answer


def status(answer: bytes) -> int:
    return int(answer.split()[1]) if answer.startswith(b"HTTP/1.") else 0


@contextlib.contextmanager
def half_sent(served: Served, count: int) -> Iterator[list[socket.socket]]:
    """Connections that each begin a request and do not end it."""
    lines = []
    try:
        for number in range(count):
            line = socket.create_connection(address(served), timeout=5)
            line.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Number: " + str(number).encode())
            lines.append(line)
        yield lines
    finally:
        for line in lines:
            line.close()


async def opened(served: Served) -> float:
    """Seconds until a visitor with the link sees the screen."""
    begun = time.monotonic()
    jar = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(cookie_jar=jar) as client:
        for path in (served.link, served.address, f"{served.address}/static/js/textual.js"):
            async with client.get(path) as answer:
                assert answer.status == 200
                await answer.read()
        async with client.ws_connect(f"{served.address}/ws?width=100&height=30") as line:
            await Browser(line).until(lambda text: "lenet.onnx" in text)
            return time.monotonic() - begun


async def test_a_visitor_comes_in_beside_two_hundred_requests_that_never_end(served: Served) -> None:
    alone = max([await opened(served) for _ in range(2)])
    with half_sent(served, ATTACKS) as lines:
        # on a machine that others keep busy a program takes longer to start, attacked or not
        assert await opened(served) < max(MAX_SECONDS, 2 * alone)
        ends = psutil.Process(served.process.pid).net_connections()
        assert sum(end.status == "ESTABLISHED" for end in ends) <= gate.MAX_CONNECTIONS
        # those who came first went first
        lines[0].settimeout(1)
        with contextlib.suppress(ConnectionError):
            assert lines[0].recv(1) == b""


HOST = b"Host: 127.0.0.1\r\n"


@pytest.mark.parametrize(
    ("data", "answers"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", {405}),  # TLS
        (b"GET\r\n\r\n", {405}),
        (b"GET  HTTP/1.1\r\n\r\n", {400}),
        (b"GET / HTTP/9.9\r\n" + HOST + b"\r\n", {400, 403}),
        (b"GET / HTTP/1.1\r\nHost 127.0.0.1\r\n\r\n", {400}),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: -1\r\n\r\n", {400}),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: 99999999999999\r\n\r\nx", {403}),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", {400, 403}),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"a" * (1 << 20), {431, 0}),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X: y\r\n" * 2000 + b"\r\n", {400, 431}),
        (b"GET /%ff%00 HTTP/1.1\r\n" + HOST + b"\r\n", {400, 403}),
        (b"GET /?token=%ff%fe HTTP/1.1\r\n" + HOST + b"\r\n", {400, 403}),
        (b"GET http://[::1 HTTP/1.1\r\n" + HOST + b"\r\n", {400, 403}),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Cookie: \xff=\xfe; ;;=\r\n\r\n", {400, 403}),
        (b"GET /ws HTTP/1.1\r\n" + HOST + b"Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n", {403}),
        (b"POST / HTTP/1.1\r\n" + HOST + b"\r\n", {405}),
        (b"HEAD / HTTP/1.1\r\n" + HOST + b"\r\n", {405}),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {405}),
    ],
)
def test_what_is_no_request_is_refused_and_closed(served: Served, data: bytes, answers: set[int]) -> None:
    begun = time.monotonic()
    assert status(sent(served, data)) in answers
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize(
    ("host", "answer"),
    [
        (b"127.0.0.1:1", 403),
        (b"localhost:9000", 403),
        (b"[::1]:8000", 403),
        (b"10.0.0.7", 403),
        (b"rebound.example", 421),
        (b"127.0.0.1.rebound.example", 421),
        (b"localhost@rebound.example", 421),
        (b"", 421),
        (b"127.0.0.1\r\nHost: localhost", 400),
    ],
)
def test_the_server_answers_to_its_own_names_alone(served: Served, host: bytes, answer: int) -> None:
    query = f"/?token={served.token}".encode()
    said = sent(served, b"GET / HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
    assert status(said) in {answer, 421 if answer == 400 else answer}
    if answer != 403:  # not for who has the token, either
        said = sent(served, b"GET " + query + b" HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
        assert b"Set-Cookie" not in said
        assert status(said) != 200


def test_a_request_that_names_no_host_gets_nothing(served: Served) -> None:
    said = sent(served, f"GET /?token={served.token} HTTP/1.0\r\n\r\n".encode())
    assert status(said) == 421
    assert b"Set-Cookie" not in said


@pytest.mark.parametrize(
    "line",
    ["POST /?token={}", "HEAD /?token={}", "PUT /?token={}", "GET /ws?token={}", "GET /static/?token={}"],
)
def test_the_token_is_taken_from_the_link_alone(served: Served, line: str) -> None:
    request = f"{line.format(served.token)} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n"
    said = sent(served, request.encode())
    assert status(said) in {403, 405}
    assert b"Set-Cookie" not in said


def test_a_connection_answers_one_request(served: Served) -> None:
    request = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    assert sent(served, request * 50).count(b"HTTP/1.1 ") == 1


async def test_a_server_with_few_files_writes_no_log(tmp_path: Path) -> None:
    """asyncio tells of every connection that it cannot take, and tries again at once: 70 MB in 40 s."""
    errors = tmp_path / "stderr"
    few = Served(ROOT / "sample_models" / "lenet.onnx", errors, files=40)
    try:
        with half_sent(few, ATTACKS):
            await asyncio.sleep(2)
            assert psutil.Process(few.process.pid).cpu_percent(1) < 50
        assert errors.stat().st_size < 1 << 12
        await asyncio.sleep(1.5)
        assert status(sent(few, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 10)) == 403
    finally:
        few.end()


class Echo(asyncio.Protocol):
    """Answers 'whole' to the first bytes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        assert isinstance(self.transport, asyncio.Transport)
        self.transport.write(b"whole " + data[:3])


async def test_a_head_that_comes_too_slowly_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "HEAD_SECONDS", 0.3)
    monkeypatch.setattr(gate, "ANSWER_SECONDS", 0.6)
    door = gate.Gate(Echo)
    port = await door.listen("127.0.0.1", 0)
    try:
        slow, slow_out = await asyncio.open_connection("127.0.0.1", port)
        quick, quick_out = await asyncio.open_connection("127.0.0.1", port)
        for letter in b"GET ":  # never quiet, never whole
            slow_out.write(bytes([letter]))
            await asyncio.sleep(0.05)
        quick_out.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await quick.readexactly(9) == b"whole GET"
        begun = time.monotonic()
        with contextlib.suppress(ConnectionError):
            assert await slow.read() == b""
        assert time.monotonic() - begun < 2
        with contextlib.suppress(ConnectionError):  # an answer has its time, too
            assert await quick.read() == b""
        for line in (slow_out, quick_out):
            line.close()
    finally:
        door.close()


async def test_web_sockets_are_never_closed_to_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "MAX_CONNECTIONS", 3)
    door = gate.Gate(Echo)
    port = await door.listen("127.0.0.1", 0)
    try:
        lines = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for reader, writer in lines:
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            await reader.readexactly(9)
        for transport in list(door._connections):
            door.keep(transport)
        refused, out = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(ConnectionError):
            assert await refused.read() == b""
        for reader, writer in lines:
            writer.write(b"GET")
            assert await reader.readexactly(9) == b"whole GET"
            writer.close()
        out.close()
    finally:
        door.close()
