"""Quantization of an nn.Module's layers: choice of formats, calibration, measurement, and writing a file."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import nn

from explorer.base.errors import BadModel, ExplorerError, Misuse
from explorer.engine.convert import comparison
from explorer.engine.convert.job import ConversionJob
from explorer.engine.convert.module_twin import choose_writer, make_twin, require_layers, write_twin
from explorer.engine.costs.torch.signature import bind
from explorer.engine.formats.torch_module.arguments import BoundInputs
from explorer.engine.formats.torch_module.loaded_module import LoadedModule
from explorer.engine.formats.torch_module.meta_copy import copy_sharing_values
from explorer.engine.formats.torch_module.modules import format_dtype, walk_tensors
from explorer.engine.formats.torch_module.stored_form import read_own_forms
from explorer.engine.graph.model import Graph, Model, Value
from explorer.engine.models.torch.module import TorchModel
from explorer.engine.progress import report
from explorer.engine.quantize.answer import build_answer
from explorer.engine.quantize.calibration import Range
from explorer.engine.quantize.choice import LayerChoice, choose
from explorer.engine.quantize.grids import Grids, exclude_nonfinite, list_range_uses
from explorer.engine.quantize.torch.layers import ModuleLayer, list_module_layers
from explorer.engine.quantize.torch.modules import (
    Run,
    calibrate_ranges,
    quantize_copy,
    record_layer_runs,
    run_errors,
)
from explorer.engine.quantize.torch.on_shapes import (
    build_shape_grid,
    list_layers_on_shapes,
    merge_expert_rows,
)
from explorer.engine.quantize.torch.torchao import choose_weight_storage
from explorer.engine.runtime.samples import Feeds, Samples, read_samples
from explorer.engine.runtime.torch_arrays import convert_to_array, convert_to_tensor
from explorer.engine.tiling.torch.replace import copy_module
from explorer.facts import Analysis, Layer, TensorInfo
from explorer.facts.quantize import Quantization, QuantizeRequest, QuantizeSpec
from explorer.host import output_files
from explorer.host.optional_packages import format_error, require, silence

_PICKLED = "torchao's tensors lie in a file as a pickle, which runs code when it is opened"


class QuantizedModule(Struct, frozen=True):
    """A quantized module and its figures.

    Attributes:
        module: Quantized copy of the module.
        opened: Quantized copy as an opened model.
        fact: Figures of the quantization.
        ranges: Ranges of the layers' inputs, by value name, for `repeat_quantization`.
    """

    module: nn.Module
    opened: TorchModel
    fact: Quantization
    ranges: Mapping[str, Range]


class ModuleChoice(Struct, frozen=True):
    """Number formats that a specification chooses for the layers of a module.

    Attributes:
        module: The module.
        layers: Layers of the module.
        choices: Choice for each layer, in the same order.
        rows: Layer rows of the analysis, with outputs named after the layers.
        dtype: Type of the module's weights (the first type by name) if only their shapes are known, else ''.
        surplus: Bytes by which the plain tensor of a parameter is larger than its stored form (a tensor
            subclass, or a quantized weight of a file), by parameter name.
    """

    module: nn.Module
    layers: Sequence[ModuleLayer]
    choices: Sequence[LayerChoice]
    rows: Sequence[Layer]
    dtype: str = ""
    surplus: Mapping[str, int] = {}

    def answer(self, weight_bytes: int, spec: QuantizeSpec) -> Quantization:
        """Returns the figures of the choice (formats, bits, BitOPs and bytes), without calibration."""
        plain_bytes = weight_bytes + sum(self.surplus.values())
        if self.dtype:
            bits = 8 * getattr(torch, self.dtype).itemsize
            quantization = build_answer(
                self.choices, build_shape_grid, self.rows, plain_bytes, weights=False, float_bits=bits
            )
            quantization = self.replace_bytes_before(quantization)
            note = (
                f"This is only the choice, computed from shapes. The weights are {self.dtype}, and"
                " their values were not read."
                " Only float32 weights can be written."
            )
            return replace(quantization, modules=True, by_shapes=True, notes=(note,))
        grids, bits = Grids({}), spec.accumulator
        choices = exclude_nonfinite(self.choices, grids)
        quantization = build_answer(
            choices, grids.find_operand_grid, self.rows, plain_bytes, weights=False, accumulator_bits=bits
        )
        return _add_module_figures(self.replace_bytes_before(quantization), spec, choices, grids)

    def replace_bytes_before(self, quantization: Quantization) -> Quantization:
        """Returns the figures with the bytes before quantization as stored, instead of as plain tensors."""
        totals = quantization.totals
        before = totals.weight_bytes.before
        stored_bytes = None if before is None else before - sum(self.surplus.values())
        rows = tuple(
            replace(row, weight_bytes_before=row.weight_bytes_before - self._sum_surplus(layer))
            for row, layer in zip(quantization.layers, self.layers, strict=True)
        )
        weight_bytes = replace(totals.weight_bytes, before=stored_bytes)
        return replace(quantization, layers=rows, totals=replace(totals, weight_bytes=weight_bytes))

    def _sum_surplus(self, layer: ModuleLayer) -> int:
        """Returns the surplus of a layer's weights. A weight that two operands read counts once."""
        prefix = f"{layer.path}." if layer.path else ""
        names = {
            prefix + layer.parameters[operand.input_index]
            for operand in layer.layer.list_operands("weight")
            if operand.tensor is not None and operand.input_index in layer.parameters
        }
        return sum(self.surplus.get(name, 0) for name in names)


def choose_on_shapes(opened: TorchModel, spec: QuantizeSpec, analysis: Analysis) -> ModuleChoice | None:
    """Chooses formats from shapes alone for a module whose weights are of other types than float32.

    Reads no weight.

    Returns:
        The choice, or None if a parameter with two or more axes is float32, or no such parameter exists.

    Raises:
        Misuse: The model is not an nn.Module with layers, or no layer takes a format.
    """
    loaded = _get_module(opened, spec)
    dtypes = _list_weight_types(loaded)
    if not dtypes or "float32" in dtypes:
        return None
    layers = list_layers_on_shapes(loaded.meta(), analysis.layers)
    rows = _name_rows_by_path(merge_expert_rows(analysis.layers, [layer.path for layer in layers]))
    choices = choose([layer.layer for layer in layers], spec, lambda: rows)
    return ModuleChoice(
        module=loaded.meta(),
        layers=layers,
        choices=choices,
        rows=rows,
        dtype=dtypes[0],
        surplus=_find_surplus(loaded.meta()),
    )


def choose_for_module(opened: TorchModel, spec: QuantizeSpec, analysis: Analysis) -> ModuleChoice:
    """Chooses a format for every layer of a module, and runs the module once on random inputs.

    Raises:
        Misuse: The model is not an nn.Module with layers, its weights are not float32, or no layer takes a
            format.
        BadModel: The module cannot be run.
    """
    loaded = _require_float32(opened, spec)
    bound_inputs = bind(loaded, opened.options.input_shapes, opened.options.dims)
    samples = _read_samples(loaded, bound_inputs, QuantizeRequest(spec, draws=1))
    with silence():
        return _choose_on_samples(loaded, samples, partial(_run, bound_inputs, loaded.source), spec, analysis)


def _choose_on_samples(
    loaded: LoadedModule, samples: Samples, run: Run, spec: QuantizeSpec, analysis: Analysis
) -> ModuleChoice:
    module = loaded.materialize()
    layers = list_module_layers(module, record_layer_runs(module, run, samples))
    rows = _name_rows_by_path(analysis.layers)
    choices = choose([layer.layer for layer in layers], spec, lambda: rows)
    return ModuleChoice(module, layers, choices, rows, surplus=_find_surplus(loaded.meta()))


def _find_surplus(module: nn.Module) -> Mapping[str, int]:
    """Returns by how many bytes the plain tensor of a parameter is larger than its stored form, by name."""
    forms = {p: form for part in module.modules() for p, form in read_own_forms(part).items()}
    return {
        name: parameter.nbytes - forms[parameter].nbytes
        for name, parameter in module.named_parameters()
        if parameter in forms and parameter.nbytes != forms[parameter].nbytes
    }


def repeat_quantization(
    opened: TorchModel, spec: QuantizeSpec, ranges: Mapping[str, Range], analysis: Analysis
) -> TorchModel:
    """Repeats a quantization with known ranges, so that it gives the same numbers.

    Raises:
        Misuse: See `choose_for_module`; or a range is missing.
    """
    choice = choose_for_module(opened, spec, analysis)
    uses = list_range_uses(choice.choices)
    if missing := [use.value for use in uses if use.value not in ranges]:
        raise Misuse(f"'{missing[0]}' was not calibrated", where=opened.source, hint="quantize it again")
    quantized = copy_sharing_values(choice.module)
    with silence():
        grids = Grids({use: ranges[use.value] for use in uses})
        quantize_copy(
            quantized, choice.layers, exclude_nonfinite(choice.choices, grids), grids.find_operand_grid
        )
    return opened.copy_with(make_twin(opened.loaded, quantized))


def quantize_module(
    opened: TorchModel,
    module: nn.Module | None,
    request: QuantizeRequest,
    job: ConversionJob,
    analysis: Analysis,
    *,
    output: str | None = None,
    overwrite: bool = False,
    measured: bool = True,
) -> QuantizedModule:
    """Quantizes the layers of a module: weights are stored rounded, and inputs are rounded at run time.

    Args:
        opened: Source model.
        module: Object that `opened` was opened from, to give the result its own tensors; None to share
            tensors.
        request: Formats, layers, and samples for calibration.
        job: Inputs, open axes of the file, and progress callback; its `path` is ignored.
        analysis: Analysis of the model, for MACs and bytes.
        output: File to write: .pt2, or TorchScript for any other ending. None writes no file.
        overwrite: Whether an existing file may be replaced.
        measured: Whether to measure the errors of weights, layers and outputs.

    Raises:
        Misuse: See `choose_for_module`; or the samples do not fit, or `output` cannot be written.
        BadModel: The module cannot be run or written.
        Cancelled: The user canceled (`job.cancel`).
    """
    started = time.perf_counter()
    spec = request.spec
    loaded = _check_request(opened, spec, job, output, overwrite)
    job.report_progress("choosing the inputs")
    bound_inputs = bind(loaded, job.input_shapes, job.dims)
    samples = _read_samples(loaded, bound_inputs, request)
    run = partial(_run, bound_inputs, loaded.source)
    with silence():
        choice = _choose_on_samples(loaded, samples, run, spec, analysis)
        original = choice.module
        step = partial(report, job.on_progress, job.cancel, "calibrating")
        calibrated = calibrate_ranges(original, choice.layers, choice.choices, spec, samples, run, step)
        grids = Grids(calibrated)
        choices = exclude_nonfinite(choice.choices, grids)
        quantized = copy_sharing_values(original) if module is None else copy_module(module, share=False)
        quantize_copy(
            quantized, choice.layers, choices, grids.find_operand_grid, torchao=spec.form == "torchao"
        )
        twin = make_twin(loaded, quantized)
        measurements: dict[str, Any] = {"weights": measured or bool(spec.accumulator)}
        if measured:
            step = partial(report, job.on_progress, job.cancel, "comparing")
            errors = run_errors(
                original,
                twin.materialize(),
                choice.layers,
                choices,
                grids.find_operand_grid,
                samples,
                run,
                step,
            )
            measurements |= zip(("layers", "outputs"), errors, strict=True)
    if output is not None:
        with output_files.write_atomically(output, overwrite=overwrite) as temporary:
            write_twin(twin, opened.format, replace(job, path=temporary, target=output))
    plain_bytes = analysis.info.totals.weight_bytes + sum(choice.surplus.values())
    bits = spec.accumulator
    fact = build_answer(
        choices, grids.find_operand_grid, choice.rows, plain_bytes, accumulator_bits=bits, **measurements
    )
    fact = choice.replace_bytes_before(fact)
    calibration = samples.text if measured or list_range_uses(choice.choices) else ""
    fact = _add_module_figures(fact, spec, choices, grids)
    fact = replace(fact, output=output or "", calibration=calibration, seconds=time.perf_counter() - started)
    range_by_value = {use.value: limits for use, limits in calibrated.items()}
    return QuantizedModule(quantized, opened.copy_with(twin), fact, range_by_value)


def _add_module_figures(
    fact: Quantization, spec: QuantizeSpec, choices: Sequence[LayerChoice], grids: Grids
) -> Quantization:
    """Marks the figures as those of a module. With `--form torchao`, adds the torchao type of each weight."""
    fact = replace(fact, modules=True)
    if spec.form != "torchao":
        return fact

    def choose_stored_type(choice: LayerChoice) -> str:
        weights = (
            choice.layer.list_operands("weight") if not choice.reason and choice.weight is not None else ()
        )
        return next(
            (
                choose_weight_storage(choice, weight, grids.find_operand_grid(choice, weight))
                for weight in weights
            ),
            "",
        )

    pairs = zip(fact.layers, choices, strict=True)
    return replace(
        fact, layers=tuple(replace(layer, held=choose_stored_type(choice)) for layer, choice in pairs)
    )


def _get_module(opened: TorchModel, spec: QuantizeSpec) -> LoadedModule:
    if spec.form not in ("auto", "torchao"):
        raise Misuse(f"{spec.form} is a way to write ONNX", where="--form", hint="leave it out for a module")
    return require_layers(opened, "quantize it as ONNX, to a file that ends in .onnx")


def _list_weight_types(loaded: LoadedModule) -> list[str]:
    """Returns the types of all parameters with two or more axes, sorted by name."""
    return sorted({format_dtype(p.dtype) for p in loaded.meta().parameters() if p.dim() > 1})


def _require_float32(opened: TorchModel, spec: QuantizeSpec) -> LoadedModule:
    """Returns the module, or raises an error if its weights are not float32."""
    loaded = _get_module(opened, spec)
    dtypes = _list_weight_types(loaded)
    if dtypes and "float32" not in dtypes:  # reading all weights is slow, so check first
        message = f"its weights are {' and '.join(dtypes)}, but only float32 weights can be quantized"
        hint = "without -o, explorer quantize prints the bytes and BitOPs of the choice"
        raise Misuse(message, where=opened.source, hint=hint)
    return loaded


def _check_request(
    opened: TorchModel, spec: QuantizeSpec, job: ConversionJob, output: str | None, overwrite: bool
) -> LoadedModule:
    """Returns the module after all checks that are possible before it runs.

    Raises:
        Misuse: The weights are not float32, the form is not for modules, or `output` cannot be written.
    """
    loaded = _require_float32(opened, spec)
    if spec.form == "torchao":
        if output is not None:
            hint = "leave --form out: the same numbers, in float32"
            raise Misuse(_PICKLED, where="--form", hint=hint, code="drop_option")
        require("torchao.quantization", "--form torchao")
    if output is not None:
        files = getattr(opened, "files", ())
        output_files.check_target(output, overwrite=overwrite, models=[opened.source, *files], weights=files)
        choose_writer(output, job.options)
    return loaded


def _name_rows_by_path(rows: Sequence[Layer]) -> tuple[Layer, ...]:
    """Names the output of each leaf row after its layer, because a choice refers to outputs by that name."""
    return tuple(
        row if row.group else replace(row, outputs=(TensorInfo(row.path, None, None),)) for row in rows
    )


def check_samples(opened: TorchModel, request: QuantizeRequest) -> None:
    """Checks the samples of a request against the inputs of a module, without running the module.

    Raises:
        Misuse: The samples cannot be read, do not fit, or contain NaN or Inf.
    """
    loaded = _get_module(opened, request.spec)
    _read_samples(loaded, bind(loaded, opened.options.input_shapes, opened.options.dims), request).check()


def _read_samples(loaded: LoadedModule, bound_inputs: BoundInputs, request: QuantizeRequest) -> Samples:
    """Returns the samples for the module: from the user's files, or drawn as for a proof."""
    if request.calibrate:
        inputs = tuple(Value(info.name, info.dtype, info.shape) for info in bound_inputs.inputs)
        return read_samples(Model(Graph("", (), inputs, (), {}), {}, 0), request.calibrate)
    seeds = range(request.seed, request.seed + request.draws)
    seeds_text = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    return Samples(
        f"random inputs, {seeds_text}",
        len(seeds),
        lambda: (comparison.draw_inputs(loaded, bound_inputs, seed) for seed in seeds),
    )


def _run(bound_inputs: BoundInputs, source: str, module: nn.Module, feeds: Feeds) -> list[Any]:
    """Runs a module on a sample.

    Raises:
        BadModel: The module fails.
    """
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    args, kwargs = bound_inputs.pack_arguments(
        [convert_to_tensor(feeds[info.name]).to(device) for info in bound_inputs.inputs]
    )
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return [convert_to_array(tensor) for _, tensor in walk_tensors(module(*args, **kwargs))]
    except ExplorerError:
        raise
    except Exception as error:
        raise BadModel(f"the model failed: {format_error(error)}", where=source) from error
