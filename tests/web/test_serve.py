"""`explorer serve`: who has the link sees the screen, others nothing, and no name leads out of the folder."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import aiohttp
import psutil
import pyte
import pytest

from explorer import Session, list_models
from explorer.base.errors import Misuse
from explorer.facts import TileSpec
from explorer.facts.sweep import SweepSpec
from explorer.settings import machines
from explorer.settings import tiling as tilings
from tests.terminal import PATIENCE, ROOT
from tests.web.served import Served

PATHS = (
    "/",
    "/ws",
    "/static/js/textual.js",
    "/static/",
    "/download/x",
    "/nowhere",
    "/%2e%2e/%2e%2e/etc/passwd",
)
CELLS = (100, 30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("served")
    shutil.copy(ROOT / "sample_models" / "lenet.onnx", made)
    return made


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    running = Served(folder / "lenet.onnx")
    yield running
    running.end()


def visitor() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))


async def let_in(client: aiohttp.ClientSession, served: Served) -> None:
    async with client.get(served.link) as answer:
        assert answer.status == 200


class Browser:
    """A page: what the web socket brings is drawn on a terminal."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.screen = pyte.Screen(*CELLS)
        self._stream = pyte.ByteStream(self.screen)

    @property
    def text(self) -> str:
        return "\n".join(self.screen.display)

    async def keys(self, typed: str) -> None:
        await self.socket.send_str(json.dumps(["stdin", typed]))

    async def until(self, seen: Callable[[str], bool], seconds: float = PATIENCE) -> str:
        end = time.monotonic() + seconds
        while not seen(self.text):
            assert time.monotonic() < end, self.text
            try:
                message = await self.socket.receive(timeout=1)
            except TimeoutError:
                continue
            assert message.type is aiohttp.WSMsgType.BINARY, (message, self.text)
            self._stream.feed(message.data)
        return self.text


def line(client: aiohttp.ClientSession, served: Served) -> aiohttp.client._WSRequestContextManager:
    columns, rows = CELLS
    return client.ws_connect(f"{served.address}/ws?width={columns}&height={rows}")


@pytest.mark.parametrize("query", ["", "?token=", "?token=wrong", "?token=%C3%A9"])
async def test_without_the_token_no_path_answers(served: Served, query: str) -> None:
    async with visitor() as client:
        for path in PATHS:
            async with client.get(served.address + path + query) as answer:
                assert answer.status == 403, path
                assert "Set-Cookie" not in answer.headers, path
                assert "lenet" not in await answer.text(), path


@pytest.mark.parametrize("cookie", [None, "wrong"])
async def test_without_the_cookie_the_web_socket_does_not_open(served: Served, cookie: str | None) -> None:
    port = served.address.rpartition(":")[2]
    headers = {} if cookie is None else {"Cookie": f"explorer-{port}={cookie}"}
    async with visitor() as client:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await client.ws_connect(f"{served.address}/ws", headers=headers)
    assert refused.value.status == 403


async def test_the_page_of_another_server_does_not_get_the_web_socket(served: Served) -> None:
    async with visitor() as client:
        await let_in(client, served)
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await client.ws_connect(f"{served.address}/ws", origin="http://127.0.0.1:1")
    assert refused.value.status == 403


async def test_the_token_is_exchanged_for_a_cookie_that_scripts_and_other_sites_do_not_get(
    served: Served,
) -> None:
    async with visitor() as client:
        async with client.get(served.link) as answer:
            cookie = answer.headers["Set-Cookie"]
            assert {"HttpOnly", "SameSite=Strict"} <= set(cookie.split("; "))
            assert served.token not in cookie + await answer.text()
        async with client.get(served.address) as answer:
            page = await answer.text()
            assert "lenet.onnx" in page
            assert served.token not in page
        async with client.get(f"{served.address}/static/js/textual.js") as answer:
            assert answer.status == 200


@pytest.mark.parametrize(
    "path", ["/static/../server.py", "/static/%2e%2e/server.py", "/lenet.onnx", "/static//etc/hosts"]
)
async def test_who_is_let_in_reads_no_file_through_a_path(served: Served, path: str) -> None:
    from yarl import URL

    async with visitor() as client:
        await let_in(client, served)
        async with client.get(URL(served.address + path, encoded=True)) as answer:
            assert answer.status in {403, 404}


async def test_a_visitor_tiles_the_model_and_finds_the_verdict_again_after_a_reload(served: Served) -> None:
    async with visitor() as client:
        await let_in(client, served)
        async with line(client, served) as socket:
            page = Browser(socket)
            await page.until(lambda text: "conv1" in text and "q quit" in text and "MACs 416" in text)
            await page.keys("t")
            await page.until(lambda text: "Enter apply" in text and "Lower bound" in text)
            await page.keys("\r")
            await page.until(lambda text: "Proven equal" in text)
        async with line(client, served) as socket:
            again = await Browser(socket).until(lambda text: "Proven equal" in text and "lenet.onnx" in text)
            assert "39 tile matmuls" in again

    async with visitor() as other:
        await let_in(other, served)
        async with line(other, served) as socket:
            theirs = await Browser(socket).until(lambda text: "MACs 416" in text and "conv1" in text)
            assert "tile 64" not in theirs


@pytest.mark.slow
async def test_a_visitor_of_a_folder_chooses_from_it_opens_another_and_none_from_outside(
    folder: Path, tmp_path: Path
) -> None:
    shutil.copy(ROOT / "sample_models" / "mlp_128.onnx", folder)
    shutil.copy(ROOT / "sample_models" / "jsc_tiny.onnx", tmp_path / "secret.onnx")
    served = Served(folder)
    try:
        async with visitor() as client:
            await let_in(client, served)
            async with line(client, served) as socket:
                page = Browser(socket)
                await page.until(lambda text: "61.71 k" in text and "16.38 k" in text)
                assert "torchvision" not in page.text
                await page.keys("lenet")
                await page.until(lambda text: "mlp_128" not in text)
                await page.keys("\r")
                await page.until(lambda text: "MACs 416" in text and "conv1" in text)
                await page.keys("O")
                await page.until(lambda text: "Recent" in text)
                await page.keys(f"{tmp_path}/secret.onnx\r")
                await page.until(lambda text: "outside the folder that is served" in text)
                await page.keys("\x15mlp\r")
                await page.until(lambda text: "2/2 mlp_128.onnx" in text)
    finally:
        served.end()
        (folder / "mlp_128.onnx").unlink()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("way", ["up", "absolute", "link"])
def test_a_visitors_session_writes_and_reads_nothing_outside_the_folder(
    folder: Path, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "out").unlink(missing_ok=True)
    (folder / "out").symlink_to(tmp_path)
    start = {"up": folder / ".." / "x", "absolute": tmp_path / "x", "link": folder / "out" / "x"}[way]
    monkeypatch.setenv("EXPLORER_SERVED", str(folder))
    other = start.with_name("other.onnx")
    shutil.copy(folder / "lenet.onnx", tmp_path / "other.onnx")
    if way == "up":
        other = folder / ".." / os.path.relpath(tmp_path / "other.onnx", folder.parent)
    with Session(str(folder / "lenet.onnx")) as session:
        session.tile(TileSpec())
        for name in (
            lambda: session.save(f"{start}.onnx"),
            lambda: session.save(f"{start}.onnx", overwrite=True),
            lambda: session.script(f"{start}.sh"),
            lambda: session.sweep(SweepSpec(((8, 8, 8),)), output=f"{start}.db"),
            lambda: session.diff(other=str(other)),
            lambda: tilings.read(f"{start}.toml"),
            lambda: machines.find_hardware(f"{start}.toml", where="machine"),
            lambda: list_models(str(start.parent)),
        ):
            with pytest.raises(Misuse, match="outside the folder that is served"):
                name()
        for source in ("alexnet", "os:getcwd"):
            with pytest.raises(Misuse, match="only files of the folder that is served"):
                session.diff(other=source)
        session.save(str(folder / "tiled.onnx"))
    assert [path.name for path in tmp_path.iterdir()] == ["other.onnx"]
    (folder / "tiled.onnx").unlink()
    (folder / "out").unlink()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "message", ["{", "[]", "7", '["resize", {"width": "x"}]', '["stdin"]', '["resize", 5]']
)
async def test_a_message_that_no_page_sends_ends_that_line_alone(served: Served, message: str) -> None:
    async with visitor() as client:
        await let_in(client, served)
        async with line(client, served) as socket:
            await socket.send_str(message)
            async for _ in socket:
                pass
            assert socket.closed
        async with client.get(served.address) as answer:
            assert answer.status == 200


async def test_a_size_that_no_page_has_costs_no_memory(served: Served) -> None:
    async with visitor() as client:
        await let_in(client, served)
        async with client.ws_connect(f"{served.address}/ws?width=999999999&height=999999999") as socket:
            await socket.send_str('["resize", {"width": 999999999, "height": -5}]')
            await socket.receive(timeout=120)
            largest = max(program.memory_info().rss for program in served.programs())
    assert largest < 1 << 30


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
async def test_everything_ends_with_the_server(folder: Path, number: int) -> None:
    served = Served(folder)
    async with visitor() as client:
        await let_in(client, served)
        async with line(client, served) as socket:
            page = Browser(socket)
            await page.until(lambda text: "lenet.onnx" in text)
            await page.keys("\r")  # the list of models gives way to the screen
            await page.until(lambda text: "MACs 416" in text)
            programs = served.programs()
            assert len(programs) >= 2
            code = await asyncio.to_thread(served.end, number)
    assert code == (-number if number == signal.SIGKILL else 0)
    assert not psutil.wait_procs(programs, timeout=120)[1]


@pytest.mark.slow
async def test_who_leaves_the_screen_begins_anew(served: Served) -> None:
    async with visitor() as client:
        await let_in(client, served)
        async with line(client, served) as socket:
            page = Browser(socket)
            await page.until(lambda text: "MACs 416" in text)
            await page.keys("q")
            async for _ in socket:
                pass
        async with line(client, served) as socket:
            await Browser(socket).until(lambda text: "MACs 416" in text)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("lenet.onnx", "--trust"), "no such option"),
        (("lenet.onnx", "--rules", "rules.py"), "no such option"),
        (("package.module:callable",), "code is not served"),
        (("model.py:build",), "code is not served"),
        (("nowhere.onnx",), "no such file"),
        (("lenet.onnx", "--port", "65536"), "the largest port is 65,535"),
    ],
)
def test_what_runs_code_or_is_no_model_is_refused(folder: Path, words: tuple[str, ...], said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "explorer", "serve", *words],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert not done.stdout


@pytest.mark.slow
def test_a_port_that_is_taken_is_one_line(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = [sys.executable, "-m", "explorer", "serve", str(folder), "--port", str(port)]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert f"127.0.0.1:{port}" in done.stderr
    assert done.stderr.count("\n") == 1


def test_it_listens_to_this_machine_alone_unless_asked(served: Served) -> None:
    addresses = {
        c.laddr.ip for c in psutil.Process(served.process.pid).net_connections() if c.status == "LISTEN"
    }
    assert addresses == {"127.0.0.1"}
