"""Dialogs of the sweep screens: tilings and number formats."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import ClassVar

from msgspec import Struct
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal

from explorer.base.errors import ExplorerError, Misuse
from explorer.base.units import many_text
from explorer.facts import Edges, TileSpec
from explorer.facts.cost import Hardware
from explorer.facts.quantize import FormatCost, FormatSweepSpec
from explorer.facts.sweep import SweepSpec, combine_tiles, count_combinations
from explorer.features.quantize.quantize_dialog import SAMPLES_HINT, format_samples, parse_samples
from explorer.settings.machines import replace_buffer
from explorer.settings.parse import parse_sizes, parse_tiles, write_path_word
from explorer.settings.quantize import parse_formats
from explorer.tui.dialogs.dialogs import FormDialog
from explorer.tui.dialogs.machine_dialog import MachineDialog
from explorer.tui.text.lines import escape_name
from explorer.tui.widgets.machine_field import MachineField
from explorer.tui.widgets.option_field import OptionField

_NAMES = ("tiles", "rows", "depths", "columns", "kept")  # ids of the text fields
_EDGES: Mapping[str, tuple[Edges, ...]] = {
    "partial": ("ragged",),
    "padded": ("padded",),
    "both": ("ragged", "padded"),
}
_FIELDS = (  # label and placeholder of each text field
    ("tiles", "16,32,64x64x16"),
    ("M", "as above; or sizes along M, such as 16,64"),
    ("K", "as above; or sizes along K"),
    ("N", "as above; or sizes along N"),
    ("keep in", "results.db"),
)


class SweepRequest(Struct, frozen=True):
    """Result of the dialog: the parsed request, and the typed text.

    Attributes:
        machine: Chosen machine. `hardware` is this machine with the typed buffer size.
        buffer: Text of the buffer field; '' uses the machine's buffer.
        output: Path of a file that keeps the rows, or '' for none.
        typed: Text of the fields, which the dialog shows the next time.
    """

    spec: SweepSpec
    hardware: Hardware | None = None
    verify: bool = False
    output: str = ""
    typed: tuple[str, ...] = ()
    machine: Hardware | None = None
    buffer: str = ""


class SweepDialog(FormDialog[SweepRequest]):
    """Ask for tiles, edges and a machine, and whether to verify each tiling.

    Args:
        request: Last request, or None for the first time.
        base: Sites and rules that are common to all tilings.
        hardware: The session's machine, or None.

    Attributes:
        site_count: Number of matmuls, or None if unknown.
        is_planning: Whether the matmuls are being counted.
        refusal: Reason that the model cannot be swept, or None.
    """

    # a letter is text in an entry, and a key binding on other fields
    BINDINGS: ClassVar[list[BindingType]] = [Binding("m", "machine", show=False)]
    TITLE_TEXT = "Sweep over tilings"
    HINT = "↑↓←→ choose · m other machine · Enter begin · Esc cancel"

    def __init__(
        self,
        request: SweepRequest | None,
        base: TileSpec,
        *,
        hardware: Hardware | None = None,
    ) -> None:
        super().__init__()
        self._request, self._base = request, base
        self.site_count: int | None = None
        self.is_planning = False
        self.refusal: ExplorerError | None = None
        self._machines = MachineField("machine", hardware, id="sweep-machine")

    def compose_fields(self) -> ComposeResult:
        """Yield the fields."""
        request = self._request
        typed = request.typed if request is not None else ("16,32,64,128", "", "", "", "")
        for name, (label, hint), value in zip(_NAMES, _FIELDS, typed, strict=True):
            yield from self.compose_row(label, value, hint, f"sweep-{name}")
        yield self._machines
        buffer = request.buffer if request is not None else ""
        yield from self.compose_row("buffer", buffer, "512KiB, in place of the machine's", "sweep-buffer")
        edges = next(
            (word for word, values in _EDGES.items() if request and values == request.spec.edges), ""
        )
        yield OptionField("edges", tuple(_EDGES), edges, id="sweep-edges")
        yield OptionField(
            "prove", ("no", "each"), "each" if request and request.verify else "", id="sweep-prove"
        )

    def describe(self) -> list[tuple[str, str]]:
        """State the number of tilings, and of the matmuls that each tiles."""
        text = many_text(count_combinations(self.read_answer().spec), "tiling")
        if self.is_planning:
            text += " · planning…"
        elif self.site_count is not None:
            text += f" of {many_text(self.site_count, 'matmul')}"
        return [(text, "dim"), (self._machines.complaint, "warn")]

    def read_answer(self) -> SweepRequest:
        """Return the request that the fields describe."""
        if self.refusal is not None:
            raise self.refusal
        typed = tuple(self.get_text(f"sweep-{name}").strip() for name in _NAMES)
        tiles_text, *axis_texts, output = typed
        texts_with_axes = zip(axis_texts, "MKN", strict=True)
        sizes = [parse_sizes(text, axis) if text else None for text, axis in texts_with_axes]
        tiles = combine_tiles(parse_tiles(tiles_text, "tiles") if tiles_text else None, *sizes)
        edges = _EDGES[self.query_one("#sweep-edges", OptionField).value]
        machine, buffer = self._machines.hardware, self.get_text("sweep-buffer").strip()
        return SweepRequest(
            spec=SweepSpec(tiles, edges, base=self._base),
            hardware=replace_buffer(machine, buffer, "buffer") if buffer else machine,
            verify=self.query_one("#sweep-prove", OptionField).index == 1,
            output=os.path.expanduser(output),
            typed=typed,
            machine=machine,
            buffer=buffer,
        )

    def action_machine(self) -> None:
        """Ask for another machine, which becomes the session's machine."""

        def on_answer(machine: Hardware | None) -> None:
            if machine is not None:
                self._machines.choose(machine)

        self.app.push_screen(MachineDialog(self._machines.hardware), on_answer)


COSTS: dict[str, FormatCost] = {"weight bytes": "weights", "BitOPs": "bitops"}
_DEFAULT_FORMATS = "int8,fixed8.4,mxfp8,mxfp4"


class FormatSweepRequest(Struct, frozen=True):
    """Result of the dialog for a sweep over number formats.

    Attributes:
        output: Path of a file that keeps the rows, or '' for none.
    """

    spec: FormatSweepSpec
    output: str = ""

    def words(self) -> Iterator[str]:
        """Yield the request as options of `explorer sweep`."""
        spec, defaults = self.spec, FormatSweepSpec(())
        yield from ("--quantize", ",".join(spec.formats))
        yield from ["--per-layer"] * spec.per_layer
        for name in ("bits", "snr", "cost", "draws", "seed"):
            if (value := getattr(spec, name)) != getattr(defaults, name):
                yield from (f"--{name}", f"{value:g}" if isinstance(value, float) else str(value))
        if spec.calibrate:
            yield from ("--calibrate", write_path_word(spec.calibrate))
        if self.output:
            yield from ("-o", write_path_word(self.output))


class FormatSweepDialog(FormDialog[FormatSweepRequest]):
    """Ask for formats, limits of a mixed precision, and samples.

    Args:
        request: Last request, or None for the first time.
    """

    TITLE_TEXT = "Sensitivity to number formats"
    HINT = "↑↓←→ choose, or type · Enter begin · Esc cancel"

    def __init__(self, request: FormatSweepRequest | None) -> None:
        super().__init__()
        self._request = request or FormatSweepRequest(FormatSweepSpec((), per_layer=True))

    def compose_fields(self) -> ComposeResult:
        """Yield the fields."""
        spec = self._request.spec
        formats = ",".join(spec.formats) or _DEFAULT_FORMATS
        yield from self.compose_row("formats", formats, "int8,weight=int4+input=int8", "sensitivity-formats")
        per_layer = OptionField("each layer", ("alone, and all but it", "no"), id="sensitivity-each")
        per_layer.index = int(not spec.per_layer)
        yield per_layer
        with Horizontal(classes="form-row"):
            yield from self.compose_pair("bits, most", _format_limit(spec.bits), "none", "sensitivity-bits")
            yield from self.compose_pair(" dB, least", _format_limit(spec.snr), "none", "sensitivity-snr")
        saved = next(word for word, cost in COSTS.items() if cost == spec.cost)
        yield OptionField("to save", tuple(COSTS), saved, id="sensitivity-cost")
        calibrate = format_samples(spec.calibrate, spec.draws)
        yield from self.compose_row("calibrate", calibrate, SAMPLES_HINT, "sensitivity-calibrate")
        with Horizontal(classes="form-row"):
            yield from self.compose_pair("seed", str(spec.seed or ""), "0", "sensitivity-seed")
            yield from self.compose_pair(" keep in", self._request.output, "formats.db", "sensitivity-kept")

    def describe(self) -> list[tuple[str, str]]:
        """Describe the trials."""
        spec = self.read_answer().spec
        clauses = [f"{escape_name(', '.join(spec.formats))}: on all layers"]
        clauses += ["on each layer alone, and on all but it"] if spec.per_layer else []
        if spec.bits is not None or spec.snr is not None:
            clauses.append("then layer by layer what adds the least noise for what it saves")
        return [(f"{'; '.join(clauses)}.", "dim")]

    def read_answer(self) -> FormatSweepRequest:
        """Return the request that the fields describe."""
        typed = self.get_text("sensitivity-formats")
        formats = tuple(dict.fromkeys(name for part in typed.split(",") if (name := part.strip())))
        if not formats:
            raise Misuse("there is no format", where="formats", hint="name some: int8,fixed8.4")
        for name in formats:
            parse_formats(name.replace("+", ","), "formats")
        spec = FormatSweepSpec(
            formats,
            per_layer=self.query_one("#sensitivity-each", OptionField).index == 0,
            bits=_parse_limit(self.get_text("sensitivity-bits"), "bits"),
            snr=_parse_limit(self.get_text("sensitivity-snr"), "dB"),
            cost=COSTS[self.query_one("#sensitivity-cost", OptionField).value],
            **parse_samples(self.get_text("sensitivity-calibrate"), self.get_text("sensitivity-seed")),
        )
        return FormatSweepRequest(spec, os.path.expanduser(self.get_text("sensitivity-kept").strip()))


def _format_limit(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def _parse_limit(typed: str, where: str) -> float | None:
    """Parse a limit; None for an empty field.

    Raises:
        Misuse: The text is not a number.
    """
    if not typed.strip():
        return None
    try:
        return float(typed)
    except ValueError:
        raise Misuse(f"'{typed.strip()}' is not a number", where=where, hint="write 6, or nothing") from None
