"""Quantize dialog: asks for number formats and previews, while the user types, which layers take them.

The preview is the engine's answer to the request in the fields, before any layer is changed.
"""

from __future__ import annotations

import asyncio
import glob
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar

from msgspec.structs import replace
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import Input

from explorer.base.errors import Cancelled, ExplorerError, Misuse
from explorer.base.options import list_declared_options, list_group
from explorer.facts import Layer
from explorer.facts.quantize import Quantization, QuantizedLayer, QuantizeRequest, QuantizeSpec
from explorer.features.quantize.layer_list import QuantizedLayers
from explorer.features.quantize.quantize_words import summarize_layer, totals
from explorer.report.blocks import Field, Fields
from explorer.settings.filter import is_query
from explorer.settings.quantize import BY_HAND, build_spec, read_field
from explorer.tui.dialogs.dialogs import Dialog, format_without_options
from explorer.tui.text.drawing import draw_side_by_side
from explorer.tui.text.lines import BLANK, Line, cut_line, escape_name, wrap
from explorer.tui.tree.sites import select_names
from explorer.tui.widgets.accumulator_field import AccumulatorField
from explorer.tui.widgets.combo import ComboField
from explorer.tui.widgets.line_view import LineList, LineView
from explorer.tui.widgets.option_field import STACKED, FieldLabel, OptionField, name_operators
from explorer.tui.widgets.text_input import create_text_input

PreviewFunction = Callable[[QuantizeSpec], Awaitable[Quantization]]
"""Async function that returns which layers take the formats of a spec."""

SAME = "as weights"
"""Word of the input field for the format of the weights."""
_SCALES = list_group(QuantizeSpec, "scales")
_OPTIONS = {
    option.name: option
    for record in (QuantizeSpec, QuantizeRequest)
    for option in list_declared_options(record)
}
_SITES, _CONFIG = _OPTIONS["sites"], _OPTIONS["config"]
_NO_BLOCK = _OPTIONS["block"].declared.words[0]
_SYMMETRIC_BY_WORD = dict(zip(_OPTIONS["symmetric"].declared.words, (None, True, False), strict=True))
_AS_BEFORE = "as before"
"""Word of the layers field for the layers of the last request."""
_TYPING_PAUSE = 0.15
"""Seconds without a key press after which the preview is computed again."""
_MAX_ERROR_LINES = 3
"""Maximum number of lines of an error in a dialog too small for the layer list."""
_MAX_LAYER_ROWS = 20
"""Maximum height of the layer list."""
_DIALOG_SHARE = 0.94
"""Share of the screen's height for the dialog: `max-height` of other dialogs in `dialogs.tcss`."""
_SECOND_LABEL_WIDTH = 9
"""Width of the label of the second field in a row, in cells."""
_FORMS = tuple(form for form in _OPTIONS["form"].choices if form != "torchao")
"""Forms that a state of the history can have."""


class QuantizeDialog(Dialog[QuantizeRequest]):
    """Dialog for the number formats of a model. Its result is the request in the fields.

    Args:
        preview: Function that asks the engine which layers take the formats of a spec.
        layers: Layer or layer group under the tree's cursor, with all layers inside it.
        is_graph: Whether the rows are values of a graph; see `select_names`.
        last: Request with the initial content of the fields, or None for the defaults.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "apply", show=False, priority=True),
        Binding("up", "app.focus_previous", show=False),
        Binding("down", "app.focus_next", show=False),
        Binding("pageup", "scroll_layers(-1)", show=False),
        Binding("pagedown", "scroll_layers(1)", show=False),
    ]
    TITLE_TEXT = "Quantize"
    HINT = "↑↓←→ choose, or type · Enter apply · Esc cancel"
    VERTICAL_BREAKPOINTS = [  # noqa: RUF012 (Textual declares it an instance variable)
        (0, "-fields-beside"),
        (30, STACKED),
    ]

    def __init__(
        self,
        preview: PreviewFunction,
        layers: Sequence[Layer],
        *,
        is_graph: bool = True,
        last: QuantizeRequest | None = None,
    ) -> None:
        super().__init__()
        self._compute_preview, self._cursor_layers, self._is_graph = preview, layers, is_graph
        self._last = last or QuantizeRequest(QuantizeSpec(form="fast"))
        self._full_preview: Quantization | None = None  # preview for all layers
        self._has_preview = False  # whether the first preview was shown
        self._previewed: QuantizeRequest | None = None  # request of the displayed preview
        self._is_computing = self._apply_when_ready = False
        self._list_height, self._is_small = 2, False

    def compose_body(self) -> ComposeResult:
        """Yield the fields, the headline, the layer list and the line about one layer."""
        spec = self._last.spec
        input_format = SAME if spec.input == spec.weight else spec.input
        zero_word = next(word for word, value in _SYMMETRIC_BY_WORD.items() if value is spec.symmetric)
        yield ComboField.from_option(_OPTIONS["weight"], spec.weight)
        yield ComboField.from_option(
            _OPTIONS["input"], input_format, words=(SAME, *_OPTIONS["input"].declared.words)
        )
        with Horizontal(classes="form-row"):
            yield ComboField.from_option(_OPTIONS["bias"], spec.bias)
            yield ComboField.from_option(
                _OPTIONS["block"],
                str(spec.block or _NO_BLOCK),
                id="quantize-block",
                label_width=_SECOND_LABEL_WIDTH,
            )
        with Horizontal(classes="form-row"):
            for option in _SCALES:
                yield OptionField.from_option(option, getattr(spec, option.name))
            yield OptionField.from_option(_OPTIONS["symmetric"], zero_word, label_width=_SECOND_LABEL_WIDTH)
        last_words = (_AS_BEFORE,) if spec.ops or spec.sites else ()
        yield ComboField.from_option(_SITES, words=(*_SITES.declared.words, *last_words), id="layers")
        with Horizontal(classes="form-row"):
            yield FieldLabel(_OPTIONS["calibrate"])
            samples = format_samples(self._last.calibrate, self._last.draws)
            yield create_text_input(samples, placeholder=SAMPLES_HINT, id="calibrate")
        with Horizontal(classes="form-row"):
            yield FieldLabel(_OPTIONS["seed"])
            seed = str(self._last.seed or "")
            yield create_text_input(seed, placeholder=str(_OPTIONS["seed"].default), id="quantize-seed")
            yield FieldLabel(_CONFIG, second=True)
            yield create_text_input(
                spec.config, placeholder=_CONFIG.declared.placeholder, id="quantize-config"
            )
        with Horizontal(classes="form-row"):
            percentile = f"{spec.percentile:g}"
            ranges = percentile if spec.calibrator == "percentile" else spec.calibrator
            yield ComboField.from_option(_OPTIONS["calibrator"], ranges)
            yield AccumulatorField(
                spec.accumulator, id="quantize-accumulator", label_width=_SECOND_LABEL_WIDTH
            )
        yield OptionField.from_option(_OPTIONS["form"], spec.form, words=_FORMS)
        yield LineView(id="plan", focusable=False)
        yield LineView(id="layers-head", focusable=False)
        yield QuantizedLayers(id="figures")
        yield LineView(id="about", focusable=False)

    def on_mount(self) -> None:
        """Fill the fields and compute the first preview."""
        self._fit_layer_list()
        if self._last.spec.ops or self._last.spec.sites:
            self.query_one("#layers", ComboField).set_value(_AS_BEFORE)
        self.query_one("#weight").focus()
        self._schedule_preview()

    def on_resize(self) -> None:
        """Adapt the height of the layer list."""
        self._fit_layer_list()

    def _fit_layer_list(self) -> None:
        """Give the layer list the free lines of the dialog, and hide other parts if there are too few."""
        field_rows = 13 if self.stacks_fields else 9
        other_rows = 4  # two borders, a headline and a line about one layer
        free_lines = int(self.app.size.height * _DIALOG_SHARE) - field_rows - other_rows
        layer_list, plan = self.query_one(QuantizedLayers), self.query_one("#plan")
        # a small dialog hides the header of the list first, then the line about a layer
        self.query_one("#layers-head").display = free_lines > 3
        self.query_one("#about").display = free_lines > 2
        self._list_height = max(1, min(_MAX_LAYER_ROWS, free_lines - 2))
        self._is_small = free_lines < _MAX_ERROR_LINES
        row_count = len(self._full_preview.layers) if self._full_preview is not None else self._list_height
        layer_list.styles.height = min(self._list_height, row_count)
        plan.set_class(free_lines > 6, "roomy")
        plan.styles.max_height = 2 if free_lines < 2 else None

    @on(Input.Changed, "#quantize-config")
    def _load_config(self) -> None:
        """Fill the fields from the config file as soon as a file of the typed name exists."""
        if (path := self._config_path) and os.path.isfile(path):
            try:
                self._show_spec(build_spec(path, {}))
            except ExplorerError:
                pass  # the next preview reports the error
        if self._has_preview:
            self._schedule_preview()

    @property
    def _config_path(self) -> str:
        """Path of the config file; '' for none."""
        return os.path.expanduser(self.query_one("#quantize-config", Input).value.strip())

    def _show_spec(self, spec: QuantizeSpec) -> None:
        """Fill the fields with the values of a spec."""
        self._last = replace(self._last, spec=spec)
        layers = self.query_one("#layers", ComboField)
        if spec.ops or spec.sites:
            layers.set_words([*layers.words[:3], _AS_BEFORE])  # three declared words: all, layer, operator
        words = {
            "weight": spec.weight,
            "input": SAME if spec.input == spec.weight else spec.input,
            "bias": spec.bias,
            "quantize-block": str(spec.block or _NO_BLOCK),
            "quantize-accumulator": AccumulatorField.word_of(spec.accumulator),
            "calibrator": f"{spec.percentile:g}" if spec.calibrator == "percentile" else spec.calibrator,
            "layers": _AS_BEFORE if spec.ops or spec.sites else layers.words[0],
        }
        for id, word in words.items():
            combo_field = self.query_one(f"#{id}", ComboField)
            combo_field.set_value(word)
            combo_field.refresh()
        zero_word = next(word for word, value in _SYMMETRIC_BY_WORD.items() if value is spec.symmetric)
        scales = {option.name: getattr(spec, option.name) for option in _SCALES}
        for id, word in {**scales, "symmetric": zero_word, "form": spec.form}.items():
            option_field = self.query_one(f"#{id}", OptionField)
            option_field.index = option_field.words.index(word)
            option_field.refresh()

    @on(OptionField.WordChosen)
    def _schedule_preview(self) -> None:
        """Compute the preview for the fields in the background, in place of an unfinished one."""
        self._previewed = None  # the displayed preview is outdated
        self._is_computing, self._apply_when_ready = True, False
        self.run_worker(self._refresh_preview(), group="preview", exclusive=True, exit_on_error=False)

    async def _refresh_preview(self) -> None:
        """Compute and show the preview for the fields, or the error in them."""
        await asyncio.sleep(_TYPING_PAUSE if self._has_preview else 0)
        try:
            if self._full_preview is None:
                self._show_message("computing the preview…", "dim")
                self._full_preview = await self._compute_preview(QuantizeSpec(ops=("*",)))
                self._show_layer_counts(self._full_preview.layers)
            request = self.build_request()
            preview = await self._compute_preview(request.spec)
        except Cancelled:
            return
        except ExplorerError as error:
            self._is_computing = self._apply_when_ready = False
            self._show_message(format_without_options(error), "bad")
            self._show_layers(())
            return
        self._previewed, self._is_computing, self._has_preview = request, False, True
        self._fit_layer_list()
        if self._apply_when_ready:
            self.action_apply()
            return
        self.query_one(QuantizedLayers).display = True
        self.query_one("#plan", LineView).show(lambda width: _format_headline(preview, width))
        self._show_layers(preview.layers)

    def _show_layers(self, layers: Sequence[QuantizedLayer]) -> None:
        """Show layers in the list, and the line about the first of them."""
        layer_list = self.query_one(QuantizedLayers)
        layer_list.set_rows(layers)
        self.query_one("#layers-head", LineView).show(lambda width: [layer_list.title(width)])
        self._show_layer()

    @on(LineList.RowHighlighted)
    def _show_layer(self) -> None:
        """Show the line about the layer under the list's cursor."""
        layer = self.query_one(QuantizedLayers).current
        text = "" if layer is None else layer.reason or summarize_layer(layer)
        role = "warn" if layer is not None and layer.reason else "dim"
        self.query_one("#about", LineView).show(
            lambda width: [cut_line(((f" {escape_name(text)}", role),), width)]
        )

    def _show_layer_counts(self, all_layers: Sequence[QuantizedLayer]) -> None:
        """Add the number of layers to each word of the layers field: 'all 12', 'this layer 1', ...."""
        names, ops = self._find_cursor_layers(all_layers)
        same_op_count = sum(layer.op in ops for layer in all_layers)
        everything, this_layer, this_kind = _SITES.declared.words
        words = everything, this_layer, name_operators(ops, this_kind)
        counts = zip(words, (len(all_layers), len(names), same_op_count), strict=True)
        self._fit_layer_list()
        field = self.query_one("#layers", ComboField)
        field.set_words([*(f"{word} {count:,}" for word, count in counts), *field.words[3:]])

    def _find_cursor_layers(self, all_layers: Sequence[QuantizedLayer]) -> tuple[list[str], list[str]]:
        """Return the names of the layers under the tree's cursor, and their operators."""
        names = select_names(
            self._cursor_layers, [layer.name for layer in all_layers], is_graph=self._is_graph
        )
        name_set = set(names)
        return names, list(dict.fromkeys(layer.op for layer in all_layers if layer.name in name_set))

    def _show_message(self, text: str, role: str) -> None:
        """Show a text in place of the headline. A small dialog shows its first lines only."""
        plan, is_small = self.query_one("#plan", LineView), self._is_small
        self.query_one(QuantizedLayers).display = not (is_small and role == "bad")
        max_lines = _MAX_ERROR_LINES if is_small else None
        plan.styles.max_height = max_lines

        def format_lines(width: int) -> Sequence[Line]:
            lines = wrap(((escape_name(text), role),), width) or [BLANK]
            if max_lines is None or len(lines) <= max_lines:
                return lines
            last_line = " ".join(_join_text(line) for line in lines[max_lines - 1 :])
            return [*lines[: max_lines - 1], cut_line(((last_line, role),), width)]

        plan.show(format_lines)

    def _read_field(self, id: str) -> str:
        """Return the value of the field with an ID."""
        return self.query_one(f"#{id}", OptionField).value

    def build_request(self) -> QuantizeRequest:
        """Return the request that the fields describe.

        Raises:
            ExplorerError: A field is invalid, or none of the selected layers can be quantized.
        """
        weight, input_format = self._read_field("weight"), self._read_field("input")
        ops, sites = self._read_layers()
        values: dict[str, Any] = dict(
            weight=weight,
            input=weight if input_format == SAME else input_format,
            bias=self._read_field("bias"),
            **{option.name: self._read_field(option.name) for option in _SCALES},
            symmetric=_SYMMETRIC_BY_WORD[self._read_field("symmetric")],
            block=self._read_block(),
            accumulator=self.query_one(AccumulatorField).bits,
            form=self._read_field("form"),
            ops=ops,
            sites=sites,
            **_parse_ranges(self._read_field("calibrator")),
        )
        last_spec = self._last.spec
        for name in ("unsaturated", "bias_correction"):
            # these options have no field, and another form may not support them
            values[name] = getattr(last_spec, name) and last_spec.form == values["form"]
        calibrate, seed = (self.query_one(f"#{id}", Input).value for id in ("calibrate", "quantize-seed"))
        return replace(self._last, spec=self._merge_config(values), **parse_samples(calibrate, seed))

    def _merge_config(self, values: dict[str, Any]) -> QuantizeSpec:
        """Return the spec of the config file, with the fields that differ from it.

        Without a config file, return the last spec with the fields, without rules that came from a config
        file. Rules that the user made by hand remain in both cases.

        Args:
            values: Fields of the spec by name, as the dialog shows them.
        """
        spec, path = self._last.spec, self._config_path
        if not path and not spec.config:
            return replace(spec, **values)
        manual_rules = tuple(rule for rule in spec.rules if rule.origin == BY_HAND)
        if not path:  # the user emptied the field, so the rules of the last config file are dropped
            return replace(QuantizeSpec(), **values, rules=manual_rules)
        file_spec = build_spec(path, {})
        overrides = {name: value for name, value in values.items() if value != getattr(file_spec, name)}
        merged = build_spec(path, overrides)
        return replace(merged, rules=(*manual_rules, *merged.rules))

    def _read_block(self) -> int:
        """Return the block size; 0 for none.

        Raises:
            Misuse: The field is not a valid block size.
        """
        typed = self._read_field("quantize-block")
        if typed == _NO_BLOCK:
            return 0
        size: int = read_field("block", int(typed) if typed.isdecimal() else typed, "block")
        return size

    def _read_layers(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the globs for operators and the globs for layer names. Without globs, all layers match.

        Raises:
            Misuse: None of the layers under the tree's cursor can be quantized.
        """
        field = self.query_one("#layers", ComboField)
        if field.typed:
            return (), _split_names(field.typed)
        if field.index == 0:
            return (), ()
        if field.value == _AS_BEFORE:
            return self._last.spec.ops, self._last.spec.sites
        all_layers = self._full_preview.layers if self._full_preview is not None else ()
        names, ops = self._find_cursor_layers(all_layers)
        if not names:
            where = self._cursor_layers[0].path if self._cursor_layers else "no layer"
            raise Misuse("no layer here multiplies or holds weights", where=where)
        return (tuple(ops), ()) if field.index == 2 else ((), tuple(map(glob.escape, names)))

    def action_scroll_layers(self, step: int) -> None:
        """Scroll the layer list by one page."""
        self.query_one(QuantizedLayers).action_page(step)

    def action_apply(self) -> None:
        """Close the dialog with the request, as soon as the preview for it is computed."""
        if self._previewed is not None:
            # samples do not change the preview, so their fields may be newer than the previewed request
            self.dismiss(self.build_request())
        elif self._is_computing:
            self._apply_when_ready = True
            self._show_message("quantization begins as soon as the layers are known", "dim")
        else:
            self.app.bell()  # the displayed error explains why


def _join_text(line: Line) -> str:
    """Return the text of a line without roles."""
    return "".join(part[0] for part in line)


def _split_names(typed: str) -> tuple[str, ...]:
    """Return the comma-separated names and globs in a text. A regular expression or a filter stays whole."""
    if typed.startswith("re:") or is_query(typed):
        return (typed,)
    return tuple(name for part in typed.split(",") if (name := part.strip()))


def _parse_ranges(typed: str) -> dict[str, Any]:
    """Return `calibrator` and `percentile` of a spec for a text of the field `ranges by`.

    The text is the name of a calibrator, or a number: the percentile.

    Raises:
        Misuse: The text is neither the name of a calibrator nor a valid percentile.
    """
    try:
        percent = float(typed)
    except ValueError:
        return {"calibrator": read_field("calibrator", typed, "ranges by")}
    return {"calibrator": "percentile", "percentile": read_field("percentile", percent, "ranges by")}


def _format_headline(preview: Quantization, width: int) -> list[Line]:
    """Return the lines that say how many layers take a format, and how much smaller the model becomes."""
    changed_count = sum(not layer.reason for layer in preview.layers)
    rows = (
        Field("modules" if preview.modules else "layers", f"{changed_count:,} of {len(preview.layers):,}"),
        *totals(preview).rows,
    )
    return draw_side_by_side(Fields(rows), width)


DRAWS = _OPTIONS["draws"].default
"""Number of random inputs if the field `calibrate` is empty."""
SAMPLES_HINT = f"{DRAWS} random; or a number, an .npz, a folder"


def format_samples(calibrate: str, draws: int) -> str:
    """Return the text of the field `calibrate`: a path, a number of random inputs, or '' for the default."""
    return calibrate or (str(draws) if draws != DRAWS else "")


def parse_samples(typed: str, seed: str) -> dict[str, Any]:
    """Return `calibrate`, `draws` and `seed` of a request for the texts of two fields.

    Args:
        typed: Text of the field `calibrate`.
        seed: Text of the field `seed`.

    Raises:
        Misuse: The seed is not a whole number.
    """
    typed, seed = typed.strip(), seed.strip()
    if seed and not seed.isdecimal():
        raise Misuse(f"'{seed}' is not a whole number", where="seed", hint="write 0 or more")
    fields: dict[str, Any] = {"calibrate": "", "draws": DRAWS, "seed": int(seed or 0)}
    if not typed or typed.isdecimal():
        return {**fields, "draws": max(1, int(typed or DRAWS))}
    return {**fields, "calibrate": os.path.expanduser(typed)}
