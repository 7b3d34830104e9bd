"""Quantization of a session's models: the choice, the calibration, and the file that becomes a state."""

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

from explorer.base.errors import BadModel, Misuse, nearest
from explorer.engine import shapes
from explorer.engine.fold.fold import fold
from explorer.engine.formats.onnx import reader, writer
from explorer.engine.formats.onnx.validate import validate
from explorer.engine.graph.model import FileSpan, Model
from explorer.engine.graph.repeated_nodes import node_sequence
from explorer.engine.progress import report
from explorer.engine.quantize import calibration
from explorer.engine.quantize.answer import answer
from explorer.engine.quantize.choice import LayerChoice, choose
from explorer.engine.quantize.errors import agree, run_errors
from explorer.engine.quantize.grids import Grids, range_uses, sound
from explorer.engine.quantize.integers.bias_correction import corrected, read_axes
from explorer.engine.quantize.integers.chains import chained
from explorer.engine.quantize.integers.channel_means import ChannelMeans
from explorer.engine.quantize.layers import Sizes, find_layers, in_reach
from explorer.engine.quantize.original import OriginalRuns
from explorer.engine.quantize.quantize import kept_names, quantized
from explorer.engine.quantize.settings import in_force
from explorer.engine.quantize.speed import stock_runtime
from explorer.engine.quantize.speed.fast_forms import resolved
from explorer.engine.quantize.write.opset import least_opset, raised
from explorer.engine.runtime.onnxruntime import RuntimeSession
from explorer.engine.runtime.samples import Samples, random_samples, read_samples
from explorer.engine.tiling.products import find_products
from explorer.engine.values.agreement import Agreement
from explorer.facts import Analysis, History, HistoryEntry, TensorInfo
from explorer.facts.quantize import Quantization, QuantizedLayer, QuantizeRequest, QuantizeSpec
from explorer.facts.settings import QuantizeSettings
from explorer.facts.tiling import scope_of
from explorer.features.quantize.quantization_record import QuantizationRecord
from explorer.host import input_files, scratch
from explorer.host.processor import instructions, saturates_bytes
from explorer.session.parts import scripts
from explorer.session.parts.change import Change, ChangeStep, StateText, Steps, Work, Written
from explorer.session.parts.models import Cancel, Models, OnProgress
from explorer.settings.filter import is_query
from explorer.settings.quantize import BY_HAND, for_layer
from explorer.settings.quantize import as_toml as formats_as_toml

_LEFT = ("float32", "")
"""Formats of parts that a quantization does not touch."""
_SATURATES = (
    "this processor has no VNNI: where onnxruntime optimizes a file it adds two products of bytes in 16 bits,"
    " which saturate; the errors told are without that, as with session.x64quantprecision = 1"
)
_LOSS = 10.0
"""Decibels that a calibrator may lose against minmax before a note says so."""
_SAME = 80.0
"""SNR in dB below which folding changed more than rounding: float32 has about 120."""
_IN_MEMORY = 48 << 20
"""Bytes of new weights up to which a trial runs without a file."""


class ModelChoices(Struct, frozen=True):
    """A specification applied to a model.

    Attributes:
        model: The model, in an operator set that can express the choices.
        shapes: Shapes of the values of its main graph.
        choices: The choice for each layer.
    """

    model: Model
    shapes: Mapping[str, TensorInfo]
    choices: tuple[LayerChoice, ...]


class Quantizer:
    """Quantizes states: the choice alone, a trial, or a new state."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._original: tuple[object, OriginalRuns] | None = None
        self._reached: tuple[tuple[Model, bool], Model] | None = None
        self._folds = False

    def _graph(self, on_progress: OnProgress) -> Model:
        """The current model with its layers in reach; for form `chain` with batch norms folded."""
        model = self._models.graph(self._models.current, on_progress)
        last = self._reached
        if last is None or last[0][0] is not model or last[0][1] is not self._folds:
            reached = in_reach(model)
            last = (model, self._folds), fold(reached, "batchnorm")[0] if self._folds else reached
            self._reached = last
        return last[1]

    def _analysis(self, sizes: Mapping[str, int]) -> Analysis:
        """The figures of the layers, at these sizes of inputs."""
        model, own = self._graph(None), self._models.graph(self._models.current)
        return self._models.analysis_at(self._models.current, sizes, None if model is own else model)

    def choice(self, request: QuantizeRequest, on_progress: OnProgress) -> Quantization:
        """What `quantize` would do to the current state; the model does not run."""
        request, notes = self._resolved(request, on_progress)
        plan = self._chosen(request.spec, on_progress)
        if request.calibrate:
            self._samples(plan.model, request).check()
        grids = Grids({})
        plan = replace(plan, choices=sound(plan.choices, grids))
        return replace(self._answer(plan, grids, {}, request, None, weights=False), notes=notes)

    def _resolved(
        self, request: QuantizeRequest, on_progress: OnProgress
    ) -> tuple[QuantizeRequest, tuple[str, ...]]:
        """The request with form `fast` replaced by the form it stands for, and notes on why."""
        self._folds = request.spec.form == "chain"
        if request.spec.form != "fast":
            return request, ()
        model = self._graph(on_progress)
        plain = replace(request.spec, form="auto")
        operators = [choice.layer.op for choice in self._of(model, plain).choices if not choice.reason]
        fast = resolved(request.spec, operators, instructions(), onnxruntime.__version__)
        self._folds = fast.spec.form == "chain"
        return replace(request, spec=fast.spec), fast.notes

    def settings(self, spec: QuantizeSpec, on_progress: OnProgress) -> QuantizeSettings:
        """What `spec` asks of every layer of the current model."""
        model = self._graph(on_progress)
        spec = self._resolved(QuantizeRequest(spec), on_progress)[0].spec
        return in_force(spec, sound(self._of(model, spec, sized=True).choices, Grids({}), ("weight",)))

    def steps(self, request: QuantizeRequest, work: Work) -> Steps:
        """Steps of the change: calibrates, quantizes, and measures what the written model loses."""
        started = time.perf_counter()
        on_progress, cancel, measured = work.on_progress, work.cancel, work.proof.verify
        request, notes = self._resolved(request, on_progress)
        models, spec = self._models, request.spec
        plan = self._chosen(spec, on_progress)
        samples = self._samples(plan.model, request)
        notes += self._folding(next(iter(samples)))
        ranges, uses = {}, range_uses(plan.choices)
        axes = read_axes([choice.layer for choice in plan.choices]) if spec.bias_correction else {}
        means = ChannelMeans(axes) if axes else None
        if uses:
            tell = partial(report, on_progress, cancel, "calibrating")
            ranges = calibration.ranges(
                plan.model, uses, samples, spec.calibrator, spec.percentile, tell, means
            )
        grids = Grids(ranges)
        plan = _sound(plan, grids, means)
        rounded = quantized(plan.model, plan.choices, grids, self._declared(plan))

        errors: dict[str, Any] = {}
        in_runtime: dict[str, Any] = {}
        by_layer: dict[str, str] = {}

        def look(written: Model, _: str) -> None:
            in_runtime["kernels"], kernels = stock_runtime.kernels(written, plan.choices)
            by_layer.update(kernels)
            if not measured:
                return
            tell = partial(report, on_progress, cancel, "comparing")
            layers, outputs = run_errors(plan.model, written, plan.choices, grids.of, samples, tell)
            errors.update(layers=layers, outputs=outputs)
            check = partial(report, on_progress, cancel, "timing", 0, 1)
            times = stock_runtime.run_times(plan.model, written, next(iter(samples)), check)
            in_runtime["untimed" if isinstance(times, str) else "times"] = times

        def fact(written: Written) -> Quantization:
            weighed = measured or bool(spec.accumulator)
            fact = self._answer(plan, grids, errors, request, work.output, weights=weighed)
            lost = self._lost_by_calibrator(request, errors.get("outputs") or {}, on_progress, cancel)
            return replace(
                fact,
                layers=tuple(replace(row, kernel=by_layer.get(row.name, "")) for row in fact.layers),
                output=written.path,
                calibration=samples.text if uses or measured else "",
                seconds=time.perf_counter() - started,
                notes=(*models.random_weights(), *notes, *_saturation(plan.choices), *lost),
                **in_runtime,
            )

        facts: list[Quantization] = []

        def text(written: Written) -> StateText:
            facts.append(fact(written))
            return state_text(request, facts[0])

        yield ChangeStep(rounded, text, look)
        return facts[0]

    def _lost_by_calibrator(
        self,
        request: QuantizeRequest,
        outputs: Mapping[str, Any],
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> tuple[str, ...]:
        """A note where another calibrator than minmax costs an output `_LOSS` dB or more beside minmax."""
        spec = request.spec
        if spec.calibrator == "minmax" or not outputs:
            return ()
        usual = self.trial(replace(request, spec=replace(spec, calibrator="minmax")), on_progress, cancel)
        for usual_output in usual.outputs:
            mine = outputs[usual_output.name].snr_db if usual_output.name in outputs else None
            if mine is not None and usual_output.snr_db is not None and usual_output.snr_db - mine >= _LOSS:
                return (
                    f"calibrator {spec.calibrator} gives {mine:.1f} dB at '{usual_output.name}',"
                    f" minmax {usual_output.snr_db:.1f} dB on the same samples",
                )
        return ()

    def trial(self, request: QuantizeRequest, on_progress: OnProgress, cancel: Cancel) -> Quantization:
        """What `quantize` would lose at the outputs; the original model runs only in the first trial."""
        started = time.perf_counter()
        request, notes = self._resolved(request, on_progress)
        spec = request.spec
        plan = self._chosen(spec, on_progress)
        original = self._run_once(request, on_progress, cancel)
        step = partial(report, on_progress, cancel, "calibrating")
        uses = range_uses(plan.choices)
        ranges = original.ranges(plan.model, uses, spec.calibrator, spec.percentile, step)
        grids = Grids(ranges)
        plan = _sound(plan, grids, original.means if spec.bias_correction else None)
        rounded = quantized(plan.model, plan.choices, grids, self._declared(plan))
        step = partial(report, on_progress, cancel, "comparing")
        tensors = rounded.graph.initializers.values()
        if sum(tensor.nbytes for tensor in tensors if not isinstance(tensor.payload, FileSpan)) <= _IN_MEMORY:
            # the runtime maps the other weights where the original has them
            there = replace(rounded, path=self._graph(None).path)
            outputs = original.agreement(there, step)
        else:
            with scratch.folder() as folder:
                path = os.path.join(folder, "trial.onnx")
                writer.write(rounded, path, cancel=cancel)
                outputs = original.agreement(validate(reader.read(path)), step)
        answered = self._answer(plan, grids, {"outputs": outputs}, request, None, weights=False)
        seconds = time.perf_counter() - started
        return replace(answered, calibration=original.samples.text, seconds=seconds, notes=notes)

    def _run_once(self, request: QuantizeRequest, on_progress: OnProgress, cancel: Cancel) -> OriginalRuns:
        """The original's values on the samples of a request; kept for further trials on them."""
        models, spec = self._models, request.spec
        fine = spec.calibrator != "minmax"
        key = models.current, _stamp(request.calibrate), request.draws, request.seed, fine, self._folds
        if self._original is None or self._original[0] != key:
            model = self._graph(on_progress)
            step = partial(report, on_progress, cancel, "calibrating")
            self._original = key, OriginalRuns(model, self._samples(model, request), fine=fine, step=step)
        return self._original[1]

    def _folding(self, feeds: Mapping[str, Any]) -> tuple[str, ...]:
        """A note on normalizations that were folded into weights; checks that this only rounds.

        Raises:
            BadModel: An output changed by more than rounding.
        """
        original, folded = in_reach(self._models.graph(self._models.current)), self._graph(None)
        many = _normalizations(original) - _normalizations(folded)
        if not many:
            return ()
        nodes = f"{many:,} BatchNormalization node{'s' * (many > 1)}"
        runs = [RuntimeSession(model, what="the model").run(feeds) for model in (original, folded)]
        agreements = {name: Agreement() for name in runs[0]}
        agree(agreements, *runs)
        if any(
            agreement.snr_db is not None and agreement.snr_db < _SAME for agreement in agreements.values()
        ):
            problem = f"{nodes} cannot be folded into weights without other numbers"
            raise BadModel(problem, where=self._models.source, hint="pass --form qdq, which folds nothing")
        return (f"{nodes} folded into weights first, as `explorer fold` does",)

    def _declared(self, chosen: ModelChoices) -> Mapping[str, TensorInfo]:
        """Shapes of the model's values, without the sizes that the session binds to open dimensions."""
        options = self._models.options
        bound = options["dims"] or options["input_shapes"]
        return shapes.infer(chosen.model).values if bound else chosen.shapes

    def asked_again(self, layer: str, values: Mapping[str, Any]) -> tuple[QuantizeRequest, int]:
        """The current state's request with another choice for one layer, and the state it was made of."""
        models = self._models
        history = models.history
        entry = history.entries[history.current]
        record = entry.record
        if not isinstance(record, QuantizationRecord) or entry.parent is None:
            raise Misuse("the current model was not quantized here", hint="quantize it first")
        names = [row.name for row in record.quantization.layers]
        if entry.path is None and layer not in names:
            # a blame of a module names layers as its export does
            scopes = accumulate(scope_of(layer).split("."), "{}.{}".format)
            layer = max({*scopes} & {*names}, key=len, default=layer)
        if layer not in names:
            raise Misuse(f"no layer is called '{layer}'", hint=nearest(layer, names))
        exported = entry.path is not None and hasattr(models.opened(entry.parent), "loaded")
        spec = for_layer(record.quantize.spec, layer, **values)
        return replace(record.quantize, spec=spec, as_graph=exported), entry.parent

    def command(self, request: QuantizeRequest, output: str | None) -> str:
        """The command that does the same headless; '' where no command can."""
        words = scripts.quantize_words(request)
        if words is None:
            return ""
        return scripts.headless(self._models, "quantize", output, "_quantized.onnx", *words)

    def _answer(
        self,
        plan: ModelChoices,
        grids: Grids,
        errors: Mapping[str, Any],
        request: QuantizeRequest,
        output: str | None,
        *,
        weights: bool,
    ) -> Quantization:
        analysis = self._analysis(self._samples(plan.model, request).sizes(plan.model))
        weight_bytes = analysis.info.totals.weight_bytes
        bits = request.spec.accumulator
        fact = answer(
            plan.choices,
            grids.of,
            analysis.layers,
            weight_bytes,
            **errors,
            weights=weights,
            accumulator_bits=bits,
            unchanged=kept_names(plan.model, plan.choices),
        )
        if self._folds:  # the original's bytes, with its normalizations
            original_bytes = self._models.analysis_at(self._models.current, {}).info.totals.weight_bytes
            both = replace(fact.totals.weight_bytes, before=original_bytes)
            fact = replace(fact, totals=replace(fact.totals, weight_bytes=both))
        return replace(fact, command=self.command(request, output))

    def _samples(self, model: Model, request: QuantizeRequest) -> Samples:
        dims, given = self._models.sizes(self._models.current, model)
        if request.calibrate:
            return read_samples(model, request.calibrate, dims, given)
        return random_samples(model, request.draws, request.seed, dims, given)

    def _chosen(self, spec: QuantizeSpec, on_progress: OnProgress) -> ModelChoices:
        """The choices of all layers, for the model in an operator set that can express them."""
        model = self._graph(on_progress)
        chosen = self._of(model, spec)
        needed = least_opset(chosen.choices)
        return chosen if needed <= model.opset else self._of(raised(model, needed), spec)

    def _of(self, model: Model, spec: QuantizeSpec, *, sized: bool = False) -> ModelChoices:
        models = self._models
        dims, input_shapes = models.sizes(models.current, model)
        types = shapes.infer(model, dims, input_shapes).values
        sizes: dict[str, Sizes] = {}
        if sized or any(rule.shape for rule in spec.rules) or any(map(is_query, spec.sites)):
            products = find_products(model, dims, input_shapes, models.rules, apart=())
            sizes = {site.name: (site.M, site.K, site.N) for site in products.sites}
        layers = find_layers(model, types, sizes)
        choices = choose(layers, spec, lambda: self._analysis({}).layers)
        return ModelChoices(model, types, chained(model, choices, types))


def _normalizations(model: Model) -> int:
    return sum(node.op == "BatchNormalization" for node in node_sequence(model.graph.nodes))


def _sound(chosen: ModelChoices, grids: Grids, means: ChannelMeans | None) -> ModelChoices:
    """The choices, without layers whose weights hold NaN; `means` corrects their biases."""
    choices = sound(chosen.choices, grids)
    return replace(chosen, choices=choices if means is None else corrected(choices, grids, means))


def _saturation(choices: Sequence[LayerChoice]) -> tuple[str, ...]:
    """A note where a stock onnxruntime saturates int8 weights on this processor."""
    open_ones = [c for c in choices if not c.reason and not c.unsaturated]
    taken = [(c.weight, c.input) for c in open_ones if c.weight is not None and c.input]
    bytes_ = [w for w, x in taken if w.element_type == "int8" and x.element_type in ("int8", "uint8")]
    return (_SATURATES,) if bytes_ and saturates_bytes() else ()


def _stamp(path: str) -> tuple[tuple[str, int, int], ...]:
    """Name, time and size of each file of samples, which change when the samples do."""
    names = [path]
    if os.path.isdir(path):
        names = [os.path.join(path, name) for name in input_files.names(path)]
    stats = [(name, os.stat(name)) for name in sorted(names) if os.path.exists(name)]
    return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)


def state_text(request: QuantizeRequest, fact: Quantization, **more: Any) -> StateText:
    """Label, record and command of a quantized state; `more` are further fields of the record."""
    return StateText(
        f"quantize {_label(request.spec)}", QuantizationRecord(request, fact, **more), fact.command
    )


def _label(spec: QuantizeSpec) -> str:
    """Label of a state: 'int8', 'weight int4, input int8', 'int8, 2 layers by hand'."""
    parts = [(part, getattr(spec, part)) for part in ("weight", "input")]
    named = ", ".join(f"{part} {fmt}" for part, fmt in parts if fmt != "float32") or "some layers"
    hands = sum(rule.origin == BY_HAND for rule in spec.rules)
    more = f", {hands:,} layer{'s' * (hands > 1)} by hand" if hands else ""
    return (spec.weight if spec.weight == spec.input else named) + more


def formats_at(history: History, at: int) -> dict[str, QuantizedLayer]:
    """Quantized layers of a state by name, from all quantizations on the way to it."""
    layers: dict[str, QuantizedLayer] = {}
    for place in history.line_to(at):
        record = history.entries[place].record
        for layer in record.quantization.layers if isinstance(record, QuantizationRecord) else ():
            if not layer.reason:
                layers[layer.name] = _over(layers.get(layer.name), layer)
    return layers


def _over(before: QuantizedLayer | None, layer: QuantizedLayer) -> QuantizedLayer:
    """A layer that was quantized twice: parts that the second one leaves keep their first format."""
    if before is None:
        return layer
    if layer.weight in _LEFT:
        layer = replace(layer, weight=before.weight, granularity=before.granularity)
    return replace(layer, input=before.input) if layer.input in _LEFT else layer


def _steps(request: QuantizeRequest, work: Work) -> Steps:
    return work.parts.of(Quantizer).steps(request, work)


def _words(entry: HistoryEntry, config: str) -> tuple[list[str], str]:
    request: QuantizeRequest = entry.record.quantize
    if request.calibrate:  # the script may run in another folder
        request = replace(request, calibrate=os.path.abspath(request.calibrate))
    words = None
    if not request.spec.config:
        words = scripts.quantize_words(request, modules=entry.path is None)
    if words is not None and sum(map(len, words)) <= scripts.MOST_CHARACTERS:
        return [*words, "--no-report"], ""
    named = ["--config", config, *scripts.calibration_words(request), "--no-report"]
    return named, formats_as_toml(request.spec)


def _again(entry: HistoryEntry, before: Any, analysis: Analysis) -> Any:
    from explorer.engine.convert.module_to_quantized import quantized_again  # torch

    return quantized_again(before, entry.record.quantize.spec, entry.record.ranges or {}, analysis)


def _reads(request: QuantizeRequest) -> tuple[str | None, ...]:
    return request.calibrate, request.spec.config


CHANGE = Change("quantize", QuantizeRequest, _steps, _words, _reads, _again)
