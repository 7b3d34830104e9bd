"""Quantize dialog: asks for number formats and shows, while the user types, which layers take them."""

from __future__ import annotations

import asyncio
import glob
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, get_args

from msgspec.structs import replace
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import Input, Static

from explorer.base.errors import Cancelled, ExplorerError, Misuse
from explorer.base.options import group_of, option_of
from explorer.facts import Layer
from explorer.facts.quantize import (
    Calibrator,
    Quantization,
    QuantizedLayer,
    QuantizeForm,
    QuantizeRequest,
    QuantizeSpec,
)
from explorer.features.quantize.layer_list import QuantizedLayers
from explorer.features.quantize.quantize_words import layer_summary, totals
from explorer.report.blocks import Field, Fields
from explorer.settings.filter import is_query
from explorer.settings.quantize import BY_HAND, checked, spec_of
from explorer.tui.dialogs.dialogs import Dialog, without_options
from explorer.tui.text.drawing import side_by_side
from explorer.tui.text.lines import BLANK, Line, cut, safe, wrap
from explorer.tui.tree.sites import names_in
from explorer.tui.widgets.accumulator_field import AccumulatorField
from explorer.tui.widgets.combo import ComboField
from explorer.tui.widgets.line_view import LineList, LineView
from explorer.tui.widgets.option_field import STACKED, OptionField
from explorer.tui.widgets.text_input import text_input

AskChoice = Callable[[QuantizeSpec], Awaitable[Quantization]]

FORMATS = (
    *("int8", "int4", "fixed8.4", "fixed16.8", "mxfp8", "mxfp6", "mxfp4", "mxint8", "uint8", "int16"),
    *("float8e4m3", "float8e5m2", "float16", "bfloat16", "floatE3M2", "float32"),
)
"""Format names in the lists; the user can type further names."""
WEIGHTS = (*FORMATS, "ternary", "binary")
SAME = "as weights"
BIASES = ("auto", "float32", "float16", "bfloat16", "fixed16.8")
_SCALES = group_of(QuantizeSpec, "scales")
_BLOCKS = option_of(QuantizeSpec, "block").declared.words
_ZEROS = {"auto": None, "0": True, "any": False}
_BEFORE = "as before"
_PAUSE = 0.15
"""Delay in seconds after the last key before the choice is computed again."""
_FEW_LINES = 3
"""Maximum number of lines of an error in a dialog too small for the layer list."""
_SECOND_LABEL_WIDTH = 9
"""Width of the label of the second field in a row, in cells."""
_WRITTEN = tuple(form for form in get_args(QuantizeForm) if form != "torchao")
"""Forms that a state of the history can have."""


class QuantizeDialog(Dialog[QuantizeRequest]):
    """Ask for number formats.

    Args:
        ask_choice: Async function that asks the engine for the choice under a spec.
        layers: Layer or layer group under the tree's cursor, with all layers inside it.
        by_value: Whether the rows are values of a graph; see `names_in`.
        last: Initial content of the fields, or None for the defaults.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "apply", show=False, priority=True),
        Binding("up", "app.focus_previous", show=False),
        Binding("down", "app.focus_next", show=False),
        Binding("pageup", "choice_page(-1)", show=False),
        Binding("pagedown", "choice_page(1)", show=False),
    ]
    TITLE_TEXT = "Quantize"
    HINT = "↑↓←→ choose, or type · Enter apply · Esc"
    VERTICAL_BREAKPOINTS = [  # noqa: RUF012 (Textual declares it an instance variable)
        (0, "-fields-beside"),
        (30, STACKED),
    ]

    def __init__(
        self,
        ask_choice: AskChoice,
        layers: Sequence[Layer],
        *,
        by_value: bool = True,
        last: QuantizeRequest | None = None,
    ) -> None:
        super().__init__()
        self._ask_choice, self._chosen, self._by_value = ask_choice, layers, by_value
        self._last = last or QuantizeRequest(QuantizeSpec(form="fast"))
        self._all_choices: Quantization | None = None
        self._request: QuantizeRequest | None = None
        self._asking = self._entered = False
        self.choice: Quantization | None = None
        self._room, self._small = 2, False

    def body(self) -> ComposeResult:
        """Yield the fields, the headline, the layer list and the line about one layer."""
        spec = self._last.spec
        input_format = SAME if spec.input == spec.weight else spec.input
        zeros = next(word for word, value in _ZEROS.items() if value is spec.symmetric)
        yield ComboField("weights", WEIGHTS, spec.weight, id="weight")
        yield ComboField("inputs", (SAME, *FORMATS), input_format, id="input")
        with Horizontal(classes="form-row"):
            yield ComboField("bias", BIASES, spec.bias, id="bias")
            yield ComboField(
                "block",
                _BLOCKS,
                str(spec.block or _BLOCKS[0]),
                id="quantize-block",
                label_width=_SECOND_LABEL_WIDTH,
            )
        with Horizontal(classes="form-row"):
            for option in _SCALES:
                value = getattr(spec, option.name)
                yield OptionField(option.declared.label, option.declared.words, value, id=option.name)
            yield OptionField("zero", tuple(_ZEROS), zeros, id="symmetric", label_width=_SECOND_LABEL_WIDTH)
        kept_words = (_BEFORE,) if spec.ops or spec.sites else ()
        yield ComboField("layers", ("all", "this", "its kind", *kept_words), id="layers")
        with Horizontal(classes="form-row"):
            yield Static("calibrate", classes="form-label", markup=False)
            typed = samples_text(self._last.calibrate, self._last.draws)
            yield text_input(typed, placeholder=SAMPLES_HINT, id="calibrate")
        with Horizontal(classes="form-row"):
            yield Static("seed", classes="form-label", markup=False)
            seed = str(self._last.seed or "")
            yield text_input(seed, placeholder="0", id="quantize-seed")
            yield Static("config", classes="form-label second", markup=False)
            yield text_input(spec.config, placeholder="formats.toml", id="quantize-config")
        with Horizontal(classes="form-row"):
            percentile = f"{spec.percentile:g}"
            ranges = percentile if spec.calibrator == "percentile" else spec.calibrator
            yield ComboField("ranges by", get_args(Calibrator), ranges, id="calibrator")
            yield AccumulatorField(
                spec.accumulator, id="quantize-accumulator", label_width=_SECOND_LABEL_WIDTH
            )
        yield OptionField("written", _WRITTEN, spec.form, id="form")
        yield LineView(id="plan", focusable=False)
        yield LineView(id="choice-head", focusable=False)
        yield QuantizedLayers(id="figures")
        yield LineView(id="about", focusable=False)

    def on_mount(self) -> None:
        """Fill the fields and compute the first choice."""
        self._fit()
        if self._last.spec.ops or self._last.spec.sites:
            self.query_one("#layers", ComboField).take(_BEFORE)
        self.query_one("#weight").focus()
        self._ask()

    def on_resize(self) -> None:
        """Adapt the height of the layer list."""
        self._fit()

    def _fit(self) -> None:
        # the dialog needs two borders, 9 or 13 rows of fields, a headline and a line about one layer
        room = int(self.app.size.height * 0.94) - (17 if self.stacks_fields else 13)
        figures, plan = self.query_one(QuantizedLayers), self.query_one("#plan")
        self.query_one("#choice-head").display = room > 3
        self.query_one("#about").display = room > 2
        self._room, self._small = max(1, min(20, room - 2)), room < _FEW_LINES
        rows = len(self._all_choices.layers) if self._all_choices is not None else self._room
        figures.styles.height = min(self._room, rows)
        plan.set_class(room > 6, "roomy")
        plan.styles.max_height = 2 if room < 2 else None

    @on(Input.Changed, "#quantize-config")
    def _load_config(self) -> None:
        """Fill the fields from the config file as soon as a file of the typed name exists."""
        if (path := self._config) and os.path.isfile(path):
            try:
                self._show_spec(spec_of(path, {}))
            except ExplorerError:
                pass  # the next choice reports the error
        if self.choice is not None:
            self._ask()

    @property
    def _config(self) -> str:
        return os.path.expanduser(self.query_one("#quantize-config", Input).value.strip())

    def _show_spec(self, spec: QuantizeSpec) -> None:
        self._last = replace(self._last, spec=spec)
        layers = self.query_one("#layers", ComboField)
        if spec.ops or spec.sites:
            layers.set_words([*layers.words[:3], _BEFORE])
        words = {
            "weight": spec.weight,
            "input": SAME if spec.input == spec.weight else spec.input,
            "bias": spec.bias,
            "quantize-block": str(spec.block or _BLOCKS[0]),
            "quantize-accumulator": AccumulatorField.word_of(spec.accumulator),
            "calibrator": f"{spec.percentile:g}" if spec.calibrator == "percentile" else spec.calibrator,
            "layers": _BEFORE if spec.ops or spec.sites else layers.words[0],
        }
        for id, value in words.items():
            field = self.query_one(f"#{id}", ComboField)
            field.take(value)
            field.refresh()
        zeros = next(word for word, value in _ZEROS.items() if value is spec.symmetric)
        scales = {option.name: getattr(spec, option.name) for option in _SCALES}
        for id, value in {**scales, "symmetric": zeros, "form": spec.form}.items():
            option = self.query_one(f"#{id}", OptionField)
            option.index = option.words.index(value)
            option.refresh()

    @on(OptionField.OptionChanged)
    def _ask(self) -> None:
        self._request = None  # the displayed choice is outdated
        self._asking, self._entered = True, False
        self.run_worker(self._refresh_choice(), group="choice", exclusive=True, exit_on_error=False)

    async def _refresh_choice(self) -> None:
        await asyncio.sleep(_PAUSE if self.choice is not None else 0)
        try:
            if self._all_choices is None:
                self._say("asking the engine…", "dim")
                self._all_choices = await self._ask_choice(QuantizeSpec(ops=("*",)))
                self._name_layers(self._all_choices.layers)
            request = self.request()
            choice = self.choice = await self._ask_choice(request.spec)
        except Cancelled:
            return
        except ExplorerError as error:
            self._asking = self._entered = False
            self._say(without_options(error), "bad")
            self._show_rows(())
            return
        self._request, self._asking = request, False
        self._fit()
        if self._entered:
            self.action_apply()
            return
        self.query_one(QuantizedLayers).display = True
        self.query_one("#plan", LineView).show(lambda width: _headline(choice, width))
        self._show_rows(choice.layers)

    def _show_rows(self, rows: Sequence[QuantizedLayer]) -> None:
        figures = self.query_one(QuantizedLayers)
        figures.take(rows)
        self.query_one("#choice-head", LineView).show(lambda width: [figures.title(width)])
        self._show_layer()

    @on(LineList.RowHighlighted)
    def _show_layer(self) -> None:
        layer = self.query_one(QuantizedLayers).current
        text = "" if layer is None else layer.reason or layer_summary(layer)
        role = "warn" if layer is not None and layer.reason else "dim"
        self.query_one("#about", LineView).show(lambda width: [cut(((f" {safe(text)}", role),), width)])

    def _name_layers(self, all_layers: Sequence[QuantizedLayer]) -> None:
        chosen_names, ops = self._names_and_operators(all_layers)
        kin = sum(layer.op in ops for layer in all_layers)
        counts = zip(("all", "this", "its kind"), (len(all_layers), len(chosen_names), kin), strict=True)
        self._fit()
        field = self.query_one("#layers", ComboField)
        field.set_words([*(f"{word} {count:,}" for word, count in counts), *field.words[3:]])

    def _names_and_operators(self, all_layers: Sequence[QuantizedLayer]) -> tuple[list[str], list[str]]:
        """Return the names of the layers under the tree's cursor, and their operators."""
        names = names_in(self._chosen, [layer.name for layer in all_layers], by_value=self._by_value)
        name_set = set(names)
        return names, list(dict.fromkeys(layer.op for layer in all_layers if layer.name in name_set))

    def _say(self, text: str, role: str) -> None:
        """Show a text instead of the choice; an error is cut to the available lines."""
        plan, small = self.query_one("#plan", LineView), self._small
        self.query_one(QuantizedLayers).display = not (small and role == "bad")
        room = _FEW_LINES if small else None
        plan.styles.max_height = room

        def lines(width: int) -> Sequence[Line]:
            wrapped = wrap(((safe(text), role),), width) or [BLANK]
            if room is None or len(wrapped) <= room:
                return wrapped
            return [
                *wrapped[: room - 1],
                cut(((" ".join(_text(line) for line in wrapped[room - 1 :]), role),), width),
            ]

        plan.show(lines)

    def _value(self, id: str) -> str:
        return self.query_one(f"#{id}", OptionField).value

    def request(self) -> QuantizeRequest:
        """Return the request that the fields describe.

        Raises:
            ExplorerError: A field is invalid, or none of the chosen layers can be quantized.
        """
        weight, input_format, ranges = self._value("weight"), self._value("input"), self._value("calibrator")
        ops, sites = self._layers()
        values: dict[str, Any] = dict(
            weight=weight,
            input=weight if input_format == SAME else input_format,
            bias=self._value("bias"),
            **{option.name: self._value(option.name) for option in _SCALES},
            symmetric=_ZEROS[self._value("symmetric")],
            block=self._block(),
            accumulator=self.query_one(AccumulatorField).bits,
            form=self._value("form"),
            ops=ops,
            sites=sites,
            **_calibrator(ranges),
        )
        last_spec = self._last.spec
        for name in ("unsaturated", "bias_correction"):  # these options belong to one form only
            values[name] = getattr(last_spec, name) and last_spec.form == values["form"]
        calibrate, seed = (self.query_one(f"#{id}", Input).value for id in ("calibrate", "quantize-seed"))
        return replace(self._last, spec=self._spec(values), **samples_of(calibrate, seed))

    def _spec(self, values: dict[str, Any]) -> QuantizeSpec:
        """Return the spec of the fields. Fields that differ from the named config file override it."""
        spec, path = self._last.spec, self._config
        if not path and not spec.config:
            return replace(spec, **values)
        hands = tuple(rule for rule in spec.rules if rule.origin == BY_HAND)
        if not path:
            return replace(QuantizeSpec(), **values, rules=hands)
        file = spec_of(path, {})
        overrides = {name: value for name, value in values.items() if value != getattr(file, name)}
        merged = spec_of(path, overrides)
        return replace(merged, rules=(*hands, *merged.rules))

    def _block(self) -> int:
        typed = self._value("quantize-block")
        if typed == "none":
            return 0
        value: int = checked("block", int(typed) if typed.isdecimal() else typed, "block")
        return value

    def _layers(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return globs for operators, and globs for layer names."""
        field = self.query_one("#layers", ComboField)
        if field.typed:
            return (), _sites(field.typed)
        if field.index == 0:
            return (), ()
        if field.value == _BEFORE:
            return self._last.spec.ops, self._last.spec.sites
        names, ops = self._names_and_operators(
            self._all_choices.layers if self._all_choices is not None else ()
        )
        if not names:
            where = self._chosen[0].path if self._chosen else "no layer"
            raise Misuse("no layer here multiplies or holds weights", where=where)
        return (tuple(ops), ()) if field.index == 2 else ((), tuple(map(glob.escape, names)))

    def action_choice_page(self, step: int) -> None:
        """Scroll the layer list by one page."""
        self.query_one(QuantizedLayers).action_page(step)

    def action_apply(self) -> None:
        """Close the dialog with the request, as soon as the choice for it is computed."""
        if self._request is not None:
            self.dismiss(
                self.request()
            )  # read the fields again: samples do not affect the choice, so they may be newer
        elif self._asking:
            self._entered = True
            self._say("waiting for the choice, then it begins", "dim")
        else:
            self.app.bell()  # the displayed error explains why


def _text(line: Line) -> str:
    return "".join(part[0] for part in line)


def _sites(typed: str) -> tuple[str, ...]:
    """Split comma-separated names and globs; a regular expression or a filter stays whole."""
    if typed.startswith("re:") or is_query(typed):
        return (typed,)
    return tuple(name for part in typed.split(",") if (name := part.strip()))


def _calibrator(typed: str) -> dict[str, Any]:
    """Parse the field `ranges by`: the name of a calibrator, or a number as percentile.

    Raises:
        Misuse: The text is not one of the accepted words.
    """
    try:
        percent = float(typed)
    except ValueError:
        return {"calibrator": checked("calibrator", typed, "ranges by")}
    return {"calibrator": "percentile", "percentile": checked("percentile", percent, "ranges by")}


def _headline(choice: Quantization, width: int) -> list[Line]:
    """Summarize how many layers take a format, and how much smaller the model becomes."""
    changed_count = sum(not layer.reason for layer in choice.layers)
    rows = (
        Field("modules" if choice.modules else "layers", f"{changed_count:,} of {len(choice.layers):,}"),
        *totals(choice).rows,
    )
    return side_by_side(Fields(rows), width)


DRAWS = 4
"""Number of random inputs if the field is empty."""
SAMPLES_HINT = f"{DRAWS} random inputs; another number, an .npz, a folder"


def samples_text(calibrate: str, draws: int) -> str:
    """Return the text of the samples field; '' for the default."""
    return calibrate or (str(draws) if draws != DRAWS else "")


def samples_of(typed: str, seed: str) -> dict[str, Any]:
    """Parse the fields into `calibrate`, `draws` and `seed` of a request.

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
