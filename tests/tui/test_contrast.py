"""Text that must be read is seen: placeholders and the row of the cursor, in all themes."""

from __future__ import annotations

import pytest
from rich.color import Color as RichColor
from rich.color import ColorSystem
from rich.style import Style
from textual.color import Color
from textual.widgets import Input

from explorer.tui.text.theme import ALL_THEMES, pair
from explorer.tui.tree.widget import LayerTree
from tests.tui.hands import screen

READABLE = 3.0
"""Least ratio of contrast, as of large text in WCAG 2."""


def contrast(style: Style) -> float:
    assert style.color is not None
    assert style.bgcolor is not None
    color, background = (Color.from_rich_color(each) for each in (style.color, style.bgcolor))
    light, dark = sorted((_luminance(color), _luminance(background)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(color: Color) -> float:
    parts = (part / 255 for part in color.rgb)
    linear = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("theme", ALL_THEMES, ids=lambda theme: theme.name)
async def test_placeholders_and_the_row_of_the_cursor_can_be_read(theme: object) -> None:
    async with screen(size=(100, 30)) as hands:
        app = hands.pilot.app
        app.register_theme(theme)  # type: ignore[arg-type]
        app.theme = theme.name  # type: ignore[attr-defined]
        await hands.press("down")
        tree = hands.main.query_one(LayerTree)
        spans = [
            segment for segment in tree.strip(tree.cursor - tree.scroll_offset.y, 80) if segment.text.strip()
        ]
        assert len(spans) > 2
        for text, style, _ in spans:
            assert style is not None
            assert contrast(style) >= READABLE or not text.strip(" █▉▊▋▌▍▎▏"), text
        await hands.press("m")
        entry = app.screen.query_one("#peak", Input)
        style = entry.rich_style + entry.get_component_rich_style("input--placeholder", partial=True)
        assert contrast(style) >= READABLE


@pytest.mark.parametrize("dark", [True, False])
def test_a_warning_can_be_read_in_the_palettes_of_terminals_with_16_colors(dark: bool) -> None:
    theme = pair("standard")[not dark]
    number = RichColor.parse(str(theme.warning)).downgrade(ColorSystem.STANDARD).number
    assert number is not None
    # as a console, xterm and Visual Studio Code draw it
    palettes = {5: ("#aa00aa", "#cd00cd", "#bc05bc"), 11: ("#ffff55", "#ffff00", "#f5f543")}
    for color in palettes[number]:
        assert contrast(Style(color=color, bgcolor=theme.background)) >= READABLE


@pytest.mark.parametrize("theme", ALL_THEMES, ids=lambda theme: theme.name)
async def test_every_word_of_every_tab_can_be_read(theme: object) -> None:
    async with screen(size=(140, 40)) as hands:
        app = hands.pilot.app
        app.register_theme(theme)  # type: ignore[arg-type]
        app.theme = theme.name  # type: ignore[attr-defined]
        await hands.press("down", "down")
        words = 0
        for tab in "123456":
            await hands.press(tab)
            for line in app.screen._compositor.render_strips():
                for text, style, _ in line:
                    if any(character.isalnum() for character in text):
                        assert style is not None
                        assert contrast(style) >= READABLE, (tab, text)
                        words += 1
        assert words > 500
