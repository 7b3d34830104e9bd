"""The dialog of a sweep over number formats: which, on which layers, under which limits."""

from __future__ import annotations

import os
from collections.abc import Iterator

from msgspec import Struct
from textual.app import ComposeResult
from textual.containers import Horizontal

from explorer.base.errors import Misuse
from explorer.facts.quantize import FormatCost, FormatSweepSpec
from explorer.features.quantize.sample_fields import HINT, samples_of, samples_text
from explorer.settings.parse import path_word
from explorer.settings.quantize import parse_formats
from explorer.tui.dialogs.dialogs import FormDialog
from explorer.tui.text.lines import safe
from explorer.tui.widgets.options import OptionField

COSTS: dict[str, FormatCost] = {"weight bytes": "weights", "BitOPs": "bitops"}
_FORMATS = "int8,fixed8.4,mxfp8,mxfp4"


class FormatSweepRequest(Struct, frozen=True):
    """What is to be tried.

    Attributes:
        output: A file that keeps the rows; '' for none.
    """

    spec: FormatSweepSpec
    output: str = ""

    def words(self) -> Iterator[str]:
        """The same as options of `explorer sweep`."""
        spec, usual = self.spec, FormatSweepSpec(())
        yield from ("--quantize", ",".join(spec.formats))
        yield from ["--per-layer"] * spec.per_layer
        for name in ("bits", "snr", "cost", "draws", "seed"):
            if (value := getattr(spec, name)) != getattr(usual, name):
                yield from (f"--{name}", f"{value:g}" if isinstance(value, float) else str(value))
        if spec.calibrate:
            yield from ("--calibrate", path_word(spec.calibrate))
        if self.output:
            yield from ("-o", path_word(self.output))


class FormatSweepDialog(FormDialog[FormatSweepRequest]):
    """Asks for formats, limits of a mixed precision, and samples.

    Args:
        asked: What was asked for last; None for the first time.
    """

    TITLE_TEXT = "Sensitivity to number formats"
    HINT = "↑↓←→ choose, or type · Enter begins · Esc"

    def __init__(self, asked: FormatSweepRequest | None) -> None:
        super().__init__()
        self._asked = asked or FormatSweepRequest(FormatSweepSpec((), per_layer=True))

    def fields(self) -> ComposeResult:
        """The fields."""
        spec = self._asked.spec
        formats = ",".join(spec.formats) or _FORMATS
        yield from self.entry("formats", formats, "int8,weight=int4+input=int8", "sensitivity-formats")
        each = OptionField("each layer", ("alone, and all but it", "no"), id="sensitivity-each")
        each.index = int(not spec.per_layer)
        yield each
        with Horizontal(classes="form-row"):
            yield from self.pair_entry("bits, most", _number(spec.bits), "none", "sensitivity-bits")
            yield from self.pair_entry(" dB, least", _number(spec.snr), "none", "sensitivity-snr")
        saved = next(word for word, cost in COSTS.items() if cost == spec.cost)
        yield OptionField("to save", tuple(COSTS), saved, id="sensitivity-cost")
        calibrate = samples_text(spec.calibrate, spec.draws)
        yield from self.entry("calibrate", calibrate, HINT, "sensitivity-calibrate")
        with Horizontal(classes="form-row"):
            yield from self.pair_entry("seed", str(spec.seed or ""), "0", "sensitivity-seed")
            yield from self.pair_entry(" keep in", self._asked.output, "formats.db", "sensitivity-kept")

    def meaning(self) -> list[tuple[str, str]]:
        """What is tried."""
        spec = self.answer().spec
        said = [f"{safe(', '.join(spec.formats))}: on all layers"]
        said += ["on each layer alone, and on all but it"] if spec.per_layer else []
        if spec.bits is not None or spec.snr is not None:
            said.append("then layer by layer what adds the least noise for what it saves")
        return [(f"{'; '.join(said)}.", "dim")]

    def answer(self) -> FormatSweepRequest:
        """What the fields say."""
        typed = self.text_of("sensitivity-formats")
        formats = tuple(dict.fromkeys(name for piece in typed.split(",") if (name := piece.strip())))
        if not formats:
            raise Misuse("there is no format", where="formats", hint="name some: int8,fixed8.4")
        for name in formats:
            parse_formats(name.replace("+", ","), "formats")
        spec = FormatSweepSpec(
            formats,
            per_layer=self.query_one("#sensitivity-each", OptionField).index == 0,
            bits=_limit(self.text_of("sensitivity-bits"), "bits"),
            snr=_limit(self.text_of("sensitivity-snr"), "dB"),
            cost=COSTS[self.query_one("#sensitivity-cost", OptionField).value],
            **samples_of(self.text_of("sensitivity-calibrate"), self.text_of("sensitivity-seed")),
        )
        return FormatSweepRequest(spec, os.path.expanduser(self.text_of("sensitivity-kept").strip()))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def _limit(typed: str, where: str) -> float | None:
    """A limit; None where nothing is typed.

    Raises:
        Misuse: It is no number.
    """
    if not typed.strip():
        return None
    try:
        return float(typed)
    except ValueError:
        raise Misuse(f"'{typed.strip()}' is no number", where=where, hint="write 6, or nothing") from None
