"""The screen in a real browser, headless Chromium: what it is sent is drawn on a terminal and read."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyte
import pytest

from tests.terminal import PATIENCE, ROOT
from tests.web.served import Served

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
# what a page is sent and sends is held by tests/web/test_serve.py, too
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    shutil.copy(ROOT / "sample_models" / "lenet.onnx", tmp_path)
    running = Served(tmp_path / "lenet.onnx")
    yield running
    running.end()


@pytest.fixture
def page() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 1100, "height": 700})
        opened.set_default_timeout(1000 * PATIENCE)
        yield opened
        browser.close()


class Shown:
    """What the page's web sockets brought; a new one begins with an empty terminal."""

    def __init__(self, page: Any) -> None:
        self.page = page
        page.on("websocket", self._begin)

    def _begin(self, socket: Any) -> None:
        size = {name: int(value) for name, (value,) in parse_qs(urlsplit(socket.url).query).items()}
        screen = self.screen = pyte.Screen(size["width"], size["height"])
        stream = pyte.ByteStream(screen)
        socket.on("framereceived", lambda data: isinstance(data, bytes) and stream.feed(data))

    def until(self, seen: Callable[[str], bool], seconds: float = PATIENCE) -> None:
        end = time.monotonic() + seconds
        while not seen(text := "\n".join(self.screen.display)):
            assert time.monotonic() < end, text
            self.page.wait_for_timeout(100)


def test_a_colleague_opens_the_link_tiles_the_model_and_reloads_the_verdict(
    served: Served, page: Any
) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    shown = Shown(page)
    page.goto(served.link)
    page.wait_for_url(f"{served.address}/")
    page.wait_for_selector("body.-first-byte")
    shown.until(lambda text: "MACs 416" in text and "conv1" in text)
    page.keyboard.press("t")
    shown.until(lambda text: "Enter apply" in text and "Lower bound" in text)
    page.keyboard.press("Enter")
    shown.until(lambda text: "Proven equal" in text)
    page.set_viewport_size({"width": 900, "height": 600})
    page.reload()
    page.wait_for_selector("body.-first-byte")
    shown.until(lambda text: "Proven equal" in text and "lenet.onnx" in text and "39 tile matmuls" in text)
    assert not page.query_selector("body.-closed")
    assert all(url.startswith(served.address) for url in asked if not url.startswith("data:"))


_KEYS = (
    *"tSQHdvIGDVfmZieczsFRMrux&=!|#%BLyTnN123456.-[]<>0",
    *(("Enter",) * 8),
    *(("Escape",) * 8),
    *("ArrowDown", "ArrowUp", "ArrowLeft", "ArrowRight", "Tab", "PageDown", "PageUp", "End", "Home", "Space"),
)
"""Without q, which ends the session, and / and ~, which begin a path outside of the folder."""


def test_a_minute_of_random_hands_leaves_no_error_in_the_console(served: Served, page: Any) -> None:
    seed = int(time.time() * 1000) % 10**9
    print(f"seed {seed}")
    rng, errors = random.Random(seed), list[str]()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda told: told.type == "error" and errors.append(f"{told.text} {told.location}"))
    shown = Shown(page)
    page.goto(served.link)
    page.wait_for_selector("body.-first-byte")
    shown.until(lambda text: "MACs 416" in text)
    end, done = time.monotonic() + 60, list[str]()
    while time.monotonic() < end and not errors:
        action = rng.choice(
            (*["key"] * 8, "text", "click", "size", "wheel", *["reload"] * (rng.random() < 0.1))
        )
        width, height = page.viewport_size["width"], page.viewport_size["height"]
        done.append(action)
        if action == "key":
            done[-1] = rng.choice(_KEYS)
            page.keyboard.press(done[-1])
        elif action == "text":
            page.keyboard.insert_text(
                rng.choice(("16", "conv", "8x4x8", "int8", "\u4e2d\U0001f600", "a" * 3000))
            )
        elif action == "click":
            page.mouse.click(rng.randrange(width), rng.randrange(height))
        elif action == "wheel":
            page.mouse.wheel(0, rng.choice((-300, 300)))
        elif action == "size":
            page.set_viewport_size({"width": rng.randrange(60, 2400), "height": rng.randrange(40, 1400)})
        else:
            page.reload()
            page.wait_for_selector("body.-first-byte")
        page.wait_for_timeout(10 * 100 ** (rng.random() ** 2.5))
    assert not errors, (seed, errors, done[-40:])
    page.set_viewport_size({"width": 1100, "height": 700})
    page.reload()  # `Shown` has the size with which the page began
    page.wait_for_selector("body.-first-byte")
    for _ in range(15):
        page.keyboard.press("Escape")
        page.wait_for_timeout(200)
    shown.until(lambda text: "lenet.onnx" in text and "params" in text)
    assert not page.query_selector("body.-closed"), done[-40:]
    assert not errors, (seed, errors)


def test_without_the_token_the_browser_shows_no_screen(served: Served, page: Any) -> None:
    assert page.goto(served.address).status == 403
    assert "lenet" not in page.content()
    assert not served.programs()
