"""Another batch size from the screen: the batch and the file are asked for, and the rows are shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input

from explorer.facts.conversion import Conversion
from tests.tui.hands import Hands, screen
from tests.tui.scripted import proof


def scripted(hands: Hands) -> None:
    def rebatch(size: Any, path: str, **_: Any) -> Conversion:
        return Conversion(
            source="alexnet",
            source_format="onnx",
            format="onnx",
            output=path,
            file_bytes=2048,
            how="rewriting its batch",
            verification=proof(),
            notes=(f"batch {size}",),
            command=f"explorer rebatch alexnet {size} -o {path}",
        )

    hands.engine._rebatch = rebatch  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("batch", "axes", "size", "read"),
    [("32", "", 32, {}), ("N", "x:1 mask:0", "N", {"x": 1, "mask": 0})],
)
async def test_the_batch_and_the_file_are_asked_for_and_the_result_is_shown(
    tmp_path: Path, batch: str, axes: str, size: int | str, read: dict[str, int]
) -> None:
    target = str(tmp_path / "out.onnx")
    async with screen(size=(120, 40)) as hands:
        scripted(hands)
        await hands.press("a", "asterisk")
        dialog = hands.pilot.app.screen
        dialog.query_one("#batch", Input).value = batch
        dialog.query_one("#axes", Input).value = axes
        await hands.rest()
        assert (axes.split(":")[0] or "the first axis of each input") in " ".join(hands.dialog().split())
        await hands.press("enter")
        assert hands.pilot.app.screen.query_one(Input).value == f"alexnet_{batch}.onnx"
        hands.pilot.app.screen.query_one(Input).value = target
        await hands.press("enter")
        assert ("rebatch", (size, target), {"axes": read, "overwrite": False}) in hands.engine.asked
        assert "Written to out.onnx" in hands.dialog()
        assert f"batch {batch}" in hands.dialog()


@pytest.mark.parametrize(
    ("field", "text", "reason"),
    [("batch", "0", "'0' is not a batch"), ("axes", "x", "'x' names no axis of an input")],
)
async def test_a_batch_that_cannot_be_is_refused_in_the_dialog(field: str, text: str, reason: str) -> None:
    async with screen(size=(100, 30)) as hands:
        scripted(hands)
        await hands.press("asterisk")
        hands.pilot.app.screen.query_one("#batch", Input).value = "4"
        hands.pilot.app.screen.query_one(f"#{field}", Input).value = text
        await hands.rest()
        await hands.press("enter")
        assert reason in " ".join(hands.dialog().split())
        assert not [method for method, *_ in hands.engine.asked if method == "rebatch"]
