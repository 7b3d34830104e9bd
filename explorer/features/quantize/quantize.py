"""Quantizes ONNX states of a session: choose formats, calibrate ranges, write the model, measure the error.

The number format of a tensor together with its scale is called a grid. A spec gives rules for layers; a
choice is the result for one layer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import onnxruntime
from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import BadModel, Misuse, suggest_name
from explorer.engine import shapes
from explorer.engine.fold.fold import fold
from explorer.engine.formats.onnx import reader, writer
from explorer.engine.formats.onnx.validate import validate
from explorer.engine.graph.model import FileSpan, Model
from explorer.engine.graph.repeated_nodes import list_stored_nodes
from explorer.engine.progress import report
from explorer.engine.quantize import calibration
from explorer.engine.quantize.answer import build_answer
from explorer.engine.quantize.choice import LayerChoice, choose
from explorer.engine.quantize.errors import add_outputs, describe_calibrator_loss, run_errors
from explorer.engine.quantize.grids import Grids, exclude_nonfinite, list_range_uses
from explorer.engine.quantize.integers.bias_correction import correct_biases, find_channel_axes
from explorer.engine.quantize.integers.chains import link_chains
from explorer.engine.quantize.integers.channel_means import ChannelMeans
from explorer.engine.quantize.layers import Sizes, find_layers, inline_layers
from explorer.engine.quantize.original import OriginalRuns
from explorer.engine.quantize.quantize import collect_kept_names, quantize_model
from explorer.engine.quantize.settings import find_settings
from explorer.engine.quantize.speed import stock_runtime
from explorer.engine.quantize.speed.fast_forms import resolve_fast_form
from explorer.engine.quantize.write.opset import find_lowest_opset, raise_opset
from explorer.engine.runtime.onnxruntime import RuntimeSession
from explorer.engine.runtime.samples import Samples, random_samples, read_samples
from explorer.engine.tiling.products import find_products
from explorer.engine.values.agreement import Agreement
from explorer.facts import Analysis, History, HistoryEntry, TensorInfo
from explorer.facts.quantize import Quantization, QuantizedLayer, QuantizeRequest, QuantizeSpec
from explorer.facts.settings import QuantizeSettings
from explorer.facts.site_names import find_scope
from explorer.features.quantize.quantization_record import QuantizationRecord
from explorer.host import input_files, scratch
from explorer.host.processor import find_instruction_set, saturates_bytes
from explorer.session.parts import scripts
from explorer.session.parts.change import Change, ChangeStep, StateText, Steps, Work, Written
from explorer.session.parts.models import Cancel, Models, OnProgress
from explorer.settings.filter import is_query
from explorer.settings.quantize import BY_HAND, add_layer_choice
from explorer.settings.quantize import write_toml as formats_as_toml

_UNCHANGED_FORMATS = ("float32", "")
"""Format names of a layer part (weight, input) that a quantization leaves unchanged."""
_SATURATES = (
    "this processor has no VNNI: when onnxruntime optimizes a file, it adds two products of bytes in 16 bits,"
    " and the sum can saturate; the errors above are without that, as with session.x64quantprecision = 1"
)
"""Note on results that differ between processors."""
_MIN_FOLD_SNR = 80.0
"""Minimum SNR in dB after folding. Rounding alone, in float32, gives about 120 dB."""
_MAX_BYTES_IN_MEMORY = 48 << 20
"""Maximum size in bytes of the new weights for a trial in memory, without a file."""


class ModelChoices(Struct, frozen=True):
    """The result of applying a spec to a model.

    Attributes:
        model: Model to which the spec was applied.
        shapes: Types and shapes of the values of the main graph, by value name.
        choices: Choice for each layer.
    """

    model: Model
    shapes: Mapping[str, TensorInfo]
    choices: tuple[LayerChoice, ...]


class Quantizer:
    """Quantize states: predict the choice, run a trial, or create a new state."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._original_runs: tuple[object, OriginalRuns] | None = None
        # result of `_load_graph`, after the state's model and `_folds` that led to it
        self._last_graph: tuple[tuple[Model, bool], Model] | None = None
        self._folds = False  # whether batch normalizations are folded into weights first

    def _load_graph(self, on_progress: OnProgress) -> Model:
        """Return the current model with the functions that contain layers inlined.

        For form `chain`, batch normalizations are also folded into the weights.
        """
        model = self._models.load_graph(self._models.current, on_progress)
        last = self._last_graph
        if last is None or last[0][0] is not model or last[0][1] is not self._folds:
            inlined = inline_layers(model)
            last = (model, self._folds), fold(inlined, "batchnorm")[0] if self._folds else inlined
            self._last_graph = last
        return last[1]

    def _analyze(self, sizes: Mapping[str, int]) -> Analysis:
        """Analyze the graph to quantize, with `sizes` for its open dimensions."""
        model, state_graph = self._load_graph(None), self._models.load_graph(self._models.current)
        return self._models.analyze_graph_at(
            self._models.current, sizes, None if model is state_graph else model
        )

    def choice(self, request: QuantizeRequest, on_progress: OnProgress) -> Quantization:
        """Predict what `quantize` does to the current state, without running the model."""
        request, notes = self._resolve_form(request, on_progress)
        plan = self._choose_layers(request.spec, on_progress)
        if request.calibrate:
            self._read_samples(plan.model, request).check()
        grids = Grids({})
        plan = replace(plan, choices=exclude_nonfinite(plan.choices, grids))
        return replace(self._answer(plan, grids, {}, request, None, measures_weights=False), notes=notes)

    def _resolve_form(
        self, request: QuantizeRequest, on_progress: OnProgress
    ) -> tuple[QuantizeRequest, tuple[str, ...]]:
        """Replace form `fast` by the form that runs fastest here; return notes with the reasons.

        Also sets `_folds` for the form.
        """
        self._folds = request.spec.form == "chain"
        if request.spec.form != "fast":
            return request, ()
        model = self._load_graph(on_progress)
        auto_request = replace(request.spec, form="auto")
        operators = [
            choice.layer.op for choice in self._apply_spec(model, auto_request).choices if not choice.reason
        ]
        fast = resolve_fast_form(request.spec, operators, find_instruction_set(), onnxruntime.__version__)
        self._folds = fast.spec.form == "chain"
        return replace(request, spec=fast.spec), fast.notes

    def settings(self, spec: QuantizeSpec, on_progress: OnProgress) -> QuantizeSettings:
        """Return the settings that `spec` gives every layer of the current model."""
        model = self._load_graph(on_progress)
        spec = self._resolve_form(QuantizeRequest(spec), on_progress)[0].spec
        return find_settings(
            spec,
            exclude_nonfinite(
                self._apply_spec(model, spec, needs_sizes=True).choices, Grids({}), ("weight",)
            ),
        )

    def steps(self, request: QuantizeRequest, work: Work) -> Steps:
        """Calibrate, quantize, and measure the error of the written model, as steps of a change."""
        started = time.perf_counter()
        on_progress, cancel, measured = work.on_progress, work.cancel, work.proof.verify
        request, notes = self._resolve_form(request, on_progress)
        models, spec = self._models, request.spec
        plan = self._choose_layers(spec, on_progress)
        samples = self._read_samples(plan.model, request)
        notes += self._check_folding(next(iter(samples)))
        ranges, uses = {}, list_range_uses(plan.choices)
        axes = find_channel_axes([choice.layer for choice in plan.choices]) if spec.bias_correction else {}
        channel_means = ChannelMeans(axes) if axes else None
        if uses:
            report_progress = partial(report, on_progress, cancel, "calibrating")
            ranges = calibration.calibrate_ranges(
                plan.model, uses, samples, spec.calibrator, spec.percentile, report_progress, channel_means
            )
        grids = Grids(ranges)
        plan = _finish_choices(plan, grids, channel_means)
        rounded = quantize_model(plan.model, plan.choices, grids, self._find_shapes(plan))

        errors: dict[str, Any] = {}
        in_runtime: dict[str, Any] = {}  # fields of the result about onnxruntime
        by_layer: dict[str, str] = {}  # kernel of each layer

        def measure(written_model: Model, _: str) -> None:
            in_runtime["kernels"], kernels = stock_runtime.find_kernels(written_model, plan.choices)
            by_layer.update(kernels)
            if not measured:
                return
            report_progress = partial(report, on_progress, cancel, "comparing")
            layers, outputs = run_errors(
                plan.model, written_model, plan.choices, grids.find_operand_grid, samples, report_progress
            )
            errors.update(layers=layers, outputs=outputs)
            check = partial(report, on_progress, cancel, "timing", 0, 1)
            times = stock_runtime.run_times(plan.model, written_model, next(iter(samples)), check)
            in_runtime["untimed" if isinstance(times, str) else "times"] = times  # a text is a reason

        def build_fact(written_file: Written) -> Quantization:
            measures_weights = measured or bool(spec.accumulator)
            fact = self._answer(plan, grids, errors, request, work.output, measures_weights=measures_weights)
            lost = self._note_calibrator_loss(request, errors.get("outputs") or {}, on_progress, cancel)
            return replace(
                fact,
                layers=tuple(replace(row, kernel=by_layer.get(row.name, "")) for row in fact.layers),
                output=written_file.path,
                calibration=samples.text if uses or measured else "",
                seconds=time.perf_counter() - started,
                notes=(
                    *fact.notes,
                    *models.list_weight_notes(),
                    *notes,
                    *_warn_saturation(plan.choices),
                    *lost,
                ),
                **in_runtime,
            )

        facts: list[Quantization] = []

        def build_text(written_file: Written) -> StateText:
            facts.append(build_fact(written_file))
            return build_state_text(request, facts[0])

        yield ChangeStep(rounded, build_text, measure)
        return facts[0]

    def _note_calibrator_loss(
        self, request: QuantizeRequest, outputs: Mapping[str, Any], on_progress: OnProgress, cancel: Cancel
    ) -> tuple[str, ...]:
        """Return a note if the calibrator loses much at an output, relative to minmax."""
        spec = request.spec
        if spec.calibrator == "minmax" or not outputs:
            return ()
        minmax_trial = self.trial(
            replace(request, spec=replace(spec, calibrator="minmax")), on_progress, cancel
        )
        snr = {name: output.snr_db for name, output in outputs.items()}
        return describe_calibrator_loss(spec.calibrator, snr, minmax_trial.outputs)

    def trial(self, request: QuantizeRequest, on_progress: OnProgress, cancel: Cancel) -> Quantization:
        """Measure the error of `quantize` at the outputs, without creating a state.

        The original model runs only in the first of several trials on the same samples.
        """
        started = time.perf_counter()
        request, notes = self._resolve_form(request, on_progress)
        spec = request.spec
        plan = self._choose_layers(spec, on_progress)
        original = self._run_once(request, on_progress, cancel)
        step = partial(report, on_progress, cancel, "calibrating")
        uses = list_range_uses(plan.choices)
        ranges = original.calibrate_ranges(plan.model, uses, spec.calibrator, spec.percentile, step)
        grids = Grids(ranges)
        plan = _finish_choices(plan, grids, original.means if spec.bias_correction else None)
        rounded = quantize_model(plan.model, plan.choices, grids, self._find_shapes(plan))
        step = partial(report, on_progress, cancel, "comparing")
        tensors = rounded.graph.initializers.values()
        if (
            sum(tensor.nbytes for tensor in tensors if not isinstance(tensor.payload, FileSpan))
            <= _MAX_BYTES_IN_MEMORY
        ):
            # unchanged weights stay in the original's file; the runtime maps them from there
            located = replace(rounded, path=self._load_graph(None).path)
            outputs = original.measure_agreement(located, step)
        else:
            with scratch.create_folder() as folder:
                path = os.path.join(folder, "trial.onnx")
                writer.write(rounded, path, cancel=cancel)
                outputs = original.measure_agreement(validate(reader.read(path)), step)
        fact = self._answer(plan, grids, {"outputs": outputs}, request, None, measures_weights=False)
        seconds = time.perf_counter() - started
        return replace(fact, calibration=original.samples.text, seconds=seconds, notes=notes)

    def _run_once(self, request: QuantizeRequest, on_progress: OnProgress, cancel: Cancel) -> OriginalRuns:
        """Run the original model on the samples of a request; keep the values for further trials."""
        models, spec = self._models, request.spec
        needs_histograms = spec.calibrator != "minmax"
        key = (
            models.current,
            _stamp_files(request.calibrate),
            request.draws,
            request.seed,
            needs_histograms,
            self._folds,
        )
        if self._original_runs is None or self._original_runs[0] != key:
            model = self._load_graph(on_progress)
            step = partial(report, on_progress, cancel, "calibrating")
            self._original_runs = (
                key,
                OriginalRuns(
                    model, self._read_samples(model, request), has_histograms=needs_histograms, step=step
                ),
            )
        return self._original_runs[1]

    def _check_folding(self, feeds: Mapping[str, Any]) -> tuple[str, ...]:
        """Check that folding normalizations into weights only rounds; return a note on the folded nodes.

        Args:
            feeds: Values of the inputs by name.

        Raises:
            BadModel: An output changed by more than rounding.
        """
        original = inline_layers(self._models.load_graph(self._models.current))
        folded = self._load_graph(None)
        folded_count = _count_normalizations(original) - _count_normalizations(folded)
        if not folded_count:
            return ()
        nodes = f"{folded_count:,} BatchNormalization node{'s' * (folded_count > 1)}"
        runs = [RuntimeSession(model, label="the model").run(feeds) for model in (original, folded)]
        agreements = {name: Agreement() for name in runs[0]}
        add_outputs(agreements, *runs)
        if any(
            agreement.snr_db is not None and agreement.snr_db < _MIN_FOLD_SNR
            for agreement in agreements.values()
        ):
            problem = f"{nodes} cannot be folded into weights without a change of the outputs"
            raise BadModel(problem, where=self._models.source, hint="pass --form qdq, which folds nothing")
        return (f"{nodes} folded into weights first, as `explorer fold` does",)

    def _find_shapes(self, plan: ModelChoices) -> Mapping[str, TensorInfo]:
        """Return the value shapes without the sizes that the session binds to open dimensions."""
        options = self._models.options
        has_sizes = options["dims"] or options["input_shapes"]
        return shapes.infer(plan.model).values if has_sizes else plan.shapes

    def change_layer(self, layer: str, values: Mapping[str, Any]) -> tuple[QuantizeRequest, int]:
        """Change the choice for one layer in the request that made the current state.

        Returns the new request and the index of the state to quantize.

        Raises:
            Misuse: The current state was not made by `quantize`, or it has no layer `layer`.
        """
        models = self._models
        history = models.history
        entry = history.entries[history.current]
        record = entry.record
        if not isinstance(record, QuantizationRecord) or entry.parent is None:
            raise Misuse("the current model was not quantized here", hint="quantize it first")
        names = [row.name for row in record.quantization.layers]
        if entry.path is None and layer not in names:
            # `blame` names the layers of a module by their path in the exported graph
            scopes = accumulate(find_scope(layer).split("."), "{}.{}".format)
            layer = max({*scopes} & {*names}, key=len, default=layer)
        if layer not in names:
            raise Misuse(f"no layer is called '{layer}'", hint=suggest_name(layer, names))
        exported = entry.path is not None and hasattr(models.open_state(entry.parent), "loaded")
        spec = add_layer_choice(record.quantize.spec, layer, **values)
        return replace(record.quantize, spec=spec, as_graph=exported), entry.parent

    def command(self, request: QuantizeRequest, output: str | None) -> str:
        """Return the shell command that makes the same quantization, or '' if no command can."""
        words = scripts.write_quantize_words(request)
        if words is None:
            return ""
        return scripts.write_command(self._models, "quantize", output, "_quantized.onnx", *words)

    def _answer(
        self,
        plan: ModelChoices,
        grids: Grids,
        errors: Mapping[str, Any],
        request: QuantizeRequest,
        output: str | None,
        *,
        measures_weights: bool,
    ) -> Quantization:
        analysis = self._analyze(self._read_samples(plan.model, request).sizes(plan.model))
        weight_bytes = analysis.info.totals.weight_bytes
        bits = request.spec.accumulator
        fact = build_answer(
            plan.choices,
            grids.find_operand_grid,
            analysis.layers,
            weight_bytes,
            **errors,
            weights=measures_weights,
            accumulator_bits=bits,
            unchanged=collect_kept_names(plan.model, plan.choices),
        )
        if self._folds:  # count the bytes of the original, before folding
            original_bytes = self._models.analyze_graph_at(self._models.current, {}).info.totals.weight_bytes
            byte_change = replace(fact.totals.weight_bytes, before=original_bytes)
            fact = replace(fact, totals=replace(fact.totals, weight_bytes=byte_change))
        return replace(fact, command=self.command(request, output))

    def _read_samples(self, model: Model, request: QuantizeRequest) -> Samples:
        dims, input_shapes = self._models.find_sizes(self._models.current, model)
        if request.calibrate:
            return read_samples(model, request.calibrate, dims, input_shapes)
        return random_samples(model, request.draws, request.seed, dims, input_shapes)

    def _choose_layers(self, spec: QuantizeSpec, on_progress: OnProgress) -> ModelChoices:
        """Apply `spec` to the current model, converted to an operator set that can express the choices."""
        model = self._load_graph(on_progress)
        plan = self._apply_spec(model, spec)
        needed = find_lowest_opset(plan.choices)
        return plan if needed <= model.opset else self._apply_spec(raise_opset(model, needed), spec)

    def _apply_spec(self, model: Model, spec: QuantizeSpec, *, needs_sizes: bool = False) -> ModelChoices:
        models = self._models
        dims, input_shapes = models.find_sizes(models.current, model)
        types = shapes.infer(model, dims, input_shapes).values
        sizes: dict[str, Sizes] = {}
        if needs_sizes or any(rule.shape for rule in spec.rules) or any(map(is_query, spec.sites)):
            products = find_products(model, dims, input_shapes, models.rules, decomposable=())
            sizes = {site.name: (site.M, site.K, site.N) for site in products.sites}
        layers = find_layers(model, types, sizes)
        choices = choose(layers, spec, lambda: self._analyze({}).layers)
        return ModelChoices(model, types, link_chains(model, choices, types))


def _count_normalizations(model: Model) -> int:
    return sum(node.op == "BatchNormalization" for node in list_stored_nodes(model.graph.nodes))


def _finish_choices(plan: ModelChoices, grids: Grids, channel_means: ChannelMeans | None) -> ModelChoices:
    """Remove the formats of layers whose weight or bias contains NaN or infinity.

    Also corrects biases by `channel_means`, unless it is None.
    """
    choices = exclude_nonfinite(plan.choices, grids)
    return replace(
        plan, choices=choices if channel_means is None else correct_biases(choices, grids, channel_means)
    )


def _warn_saturation(choices: Sequence[LayerChoice]) -> tuple[str, ...]:
    """Return a warning if onnxruntime saturates int8 weights on this processor."""
    quantized = [c for c in choices if not c.reason and not c.unsaturated]
    integer_pairs = [(c.weight, c.input) for c in quantized if c.weight is not None and c.input]
    int8_weights = [
        w for w, x in integer_pairs if w.element_type == "int8" and x.element_type in ("int8", "uint8")
    ]
    return (_SATURATES,) if int8_weights and saturates_bytes() else ()


def _stamp_files(path: str) -> tuple[tuple[str, int, int], ...]:
    """Return name, modification time and size of each sample file, as a key that changes with the samples."""
    names = [path]
    if os.path.isdir(path):
        names = [os.path.join(path, name) for name in input_files.list_names(path)]
    stats = [(name, os.stat(name)) for name in sorted(names) if os.path.exists(name)]
    return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)


def build_state_text(request: QuantizeRequest, fact: Quantization, **more: Any) -> StateText:
    """Return label, record and command of a quantized state; `more` has further fields of the record."""
    return StateText(
        f"quantize {_format_label(request.spec)}", QuantizationRecord(request, fact, **more), fact.command
    )


def _format_label(spec: QuantizeSpec) -> str:
    """Return the label of a state: 'int8', 'weight int4, input int8', 'int8, 2 layers by hand'."""
    parts = [(part, getattr(spec, part)) for part in ("weight", "input")]
    parts_text = ", ".join(f"{part} {fmt}" for part, fmt in parts if fmt != "float32") or "some layers"
    manual_count = sum(rule.origin == BY_HAND for rule in spec.rules)
    hand_text = f", {manual_count:,} layer{'s' * (manual_count > 1)} by hand" if manual_count else ""
    return (spec.weight if spec.weight == spec.input else parts_text) + hand_text


def find_quantized_layers(history: History, state_index: int) -> dict[str, QuantizedLayer]:
    """Return the quantized layers of a state by name, from all quantizations that led to it."""
    layers: dict[str, QuantizedLayer] = {}
    for index in history.line_to(state_index):
        record = history.entries[index].record
        for layer in record.quantization.layers if isinstance(record, QuantizationRecord) else ():
            if not layer.reason:
                layers[layer.name] = _merge_formats(layers.get(layer.name), layer)
    return layers


def _merge_formats(earlier: QuantizedLayer | None, layer: QuantizedLayer) -> QuantizedLayer:
    """Merge two quantizations of a layer: parts that the second leaves unchanged keep the first format."""
    if earlier is None:
        return layer
    if layer.weight in _UNCHANGED_FORMATS:
        layer = replace(layer, weight=earlier.weight, granularity=earlier.granularity)
    return replace(layer, input=earlier.input) if layer.input in _UNCHANGED_FORMATS else layer


def _write_words(entry: HistoryEntry, config: str) -> tuple[list[str], str]:
    """Return the options of `quantize` that make the state again; see `Change.words`."""
    request: QuantizeRequest = entry.record.quantize
    if request.calibrate:  # the script may run in another folder
        request = replace(request, calibrate=os.path.abspath(request.calibrate))
    words = None
    if not request.spec.config:
        words = scripts.write_quantize_words(request, modules=entry.path is None)
    if words is not None and sum(map(len, words)) <= scripts.MAX_SITE_CHARACTERS:
        return [*words, "--no-report"], ""
    options = ["--config", config, *scripts.write_calibration_words(request), "--no-report"]
    return options, formats_as_toml(request.spec)


def _requantize(entry: HistoryEntry, original: Any, analysis: Analysis) -> Any:
    from explorer.engine.convert.module_to_quantized import repeat_quantization  # imports torch

    return repeat_quantization(original, entry.record.quantize.spec, entry.record.ranges or {}, analysis)


def _list_read_files(request: QuantizeRequest) -> tuple[str | None, ...]:
    return request.calibrate, request.spec.config


CHANGE = Change(
    "quantize",
    QuantizeRequest,
    lambda request, work: work.parts.get_part(Quantizer).steps(request, work),
    _write_words,
    _list_read_files,
    _requantize,
)
