"""Converting from the screen: what the model can become, and what came of it, with the evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from textual.widgets import Input

from explorer.facts.conversion import Conversion, StoredEvidence
from explorer.report.present.compare.convert import conversion
from explorer.tui.text.drawing import draw
from explorer.tui.text.lines import line_text
from tests.tui.hands import Hands, screen

KINDS = (("ONNX", (".onnx",)), ("TorchScript", (".pt", ".pth")))
STORED = StoredEvidence(
    tensors=2,
    nbytes=28,
    differing=(),
    sha256="ab" * 32,
    passed=True,
    verdict="equal byte for byte: 2",
)
FACT = Conversion(
    source="a.safetensors",
    source_format="safetensors",
    format="checkpoint",
    output="a.pt",
    file_bytes=2048,
    how="copying 2 tensors",
    stored=STORED,
    notes=("tied by the metadata: b is a",),
    command="explorer convert a.safetensors -o a.pt",
)


def scripted(hands: Hands, fact: Conversion = FACT, kinds: Any = KINDS) -> None:
    hands.engine._conversions = lambda: kinds  # type: ignore[attr-defined]
    hands.engine._convert = lambda **asked: replace(fact, output=fact.output and asked["output"])  # type: ignore[attr-defined]


async def test_the_dialog_says_what_the_model_can_become_and_suggests_a_file_that_it_is_not() -> None:
    async with screen(size=(120, 40)) as hands:
        scripted(hands)
        await hands.press("W")
        assert hands.pilot.app.screen.query_one(Input).value == "alexnet.pt"
        assert "ONNX (.onnx), TorchScript (.pt, .pth)" in " ".join(hands.dialog().split())


async def test_what_was_written_is_shown_with_its_evidence(tmp_path: Path) -> None:
    target = str(tmp_path / "out.pt")
    async with screen(size=(120, 40)) as hands:
        scripted(hands)
        await hands.press("W")
        hands.pilot.app.screen.query_one(Input).value = target
        await hands.press("enter")
        assert ("convert", (), {"output": target, "overwrite": False}) in hands.engine.asked
        assert "Converted to out.pt" in hands.dialog()
        assert "equal byte for byte" in hands.dialog()


@pytest.mark.slow
async def test_a_file_is_replaced_only_after_a_yes(tmp_path: Path) -> None:
    target = tmp_path / "out.pt"
    target.write_bytes(b"precious")
    async with screen() as hands:
        scripted(hands)
        await hands.press("W")
        hands.pilot.app.screen.query_one(Input).value = str(target)
        await hands.press("enter")
        assert "Replace it?" in hands.dialog()
        await hands.press("n")
        assert not [m for m, _, _ in hands.engine.asked if m == "convert"]


async def test_what_came_out_different_is_called_so(tmp_path: Path) -> None:
    wrong = replace(
        STORED, passed=False, differing=(("b\x1b[31m", "its bytes differ"),), verdict="different: 1 of 2"
    )
    async with screen(size=(120, 40)) as hands:
        scripted(hands, replace(FACT, output="", file_bytes=None, stored=wrong))
        await hands.press("W")
        hands.pilot.app.screen.query_one(Input).value = str(tmp_path / "out.pt")
        await hands.press("enter")
        assert "Different" in hands.dialog()
        assert "no file written" in hands.dialog()
        assert "its bytes differ" in hands.dialog()
        assert "\x1b" not in hands.dialog()


async def test_a_model_that_cannot_be_converted_says_so() -> None:
    async with screen() as hands:
        scripted(hands, kinds=())
        await hands.press("W")
        assert "cannot be converted" in hands.dialog()


@pytest.mark.slow
async def test_a_tiled_model_is_onnx_already() -> None:
    async with screen(size=(120, 40)) as hands:
        scripted(hands)
        await hands.press("t")
        await hands.press("enter", "escape", "W")
        assert not [m for m, _, _ in hands.engine.asked if m == "conversions"]


def test_the_page_fits_in_a_narrow_terminal() -> None:
    for width in (40, 80):
        assert all(len(line_text(line)) <= width for line in draw(conversion(FACT), width))
