"""Session methods that quantize a model, or predict the result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from explorer.base.checked import Count, Natural, PathText
from explorer.base.errors import Misuse
from explorer.facts.change import ProofRequest
from explorer.facts.quantize import QuantizeRequest
from explorer.features.quantize.quantize import Quantizer
from explorer.session.methods.facade import Facade
from explorer.session.parts.change import make_current
from explorer.session.parts.models import Cancel, OnProgress
from explorer.session.parts.module_job import check_module

if TYPE_CHECKING:
    from torch import nn

    from explorer.facts.quantize import Quantization, QuantizeSpec
    from explorer.facts.settings import QuantizeSettings
    from explorer.features.quantize.module_quantizer import ModuleQuantizer


_NO_STATE = "a module of torchao's tensors is neither a state nor a file: they are stored as a pickle"


def quantize_choice(
    session: Facade,
    spec: QuantizeSpec,
    *,
    state: int | None = None,
    as_graph: bool = False,
    calibrate: PathText | None = None,
    draws: Count = 4,
    seed: Natural = 0,
    on_progress: OnProgress = None,
) -> Quantization:
    """Predict what `quantize` does to a model: formats, bits, BitOPs and bytes.

    Args:
        spec: Number formats, layers and form.
        state: Index of a state in the history, or None for the current state.
        as_graph: See `quantize`.
        calibrate: See `quantize`. The samples are checked against the model's inputs; the model does not run.
        draws: See `quantize`.
        seed: See `quantize`.
        on_progress: Callback that receives the progress.

    Raises:
        Misuse: A format is unknown, a pattern matches no layer, no layer takes a format, or the samples do
            not fit.
    """
    request = QuantizeRequest(spec, calibrate or "", draws, seed, as_graph)
    with make_current(session.parts.models, state):
        if not as_graph and _quantizes_as_module(session, spec, None, on_progress):
            return _get_quantizer(session).choice(_adapt_request(request))
        return session.parts.get_part(Quantizer).choice(request, on_progress)


def _quantizes_as_module(
    session: Facade, spec: QuantizeSpec, output: PathText | None, on_progress: OnProgress
) -> bool:
    """Return whether `quantize` works on the current model as a module; most forms need ONNX.

    Raises:
        Misuse: The form is 'torchao', and the model is not an nn.Module.
    """
    opened = session.parts.models.open_state(session.parts.models.current, on_progress)
    if spec.form == "torchao" and not hasattr(opened, "loaded"):
        problem = "torchao is for layers of an nn.Module"
        raise Misuse(problem, where="--form", hint="leave it out for a file of operators")
    if spec.form not in ("auto", "fast", "torchao") or not hasattr(opened, "loaded"):
        return False
    return _get_quantizer(session).quantizes_modules(output)


def _adapt_request(request: QuantizeRequest) -> QuantizeRequest:
    """Adapt a request to modules, for which the form 'fast' is the same as 'auto'.

    Raises:
        Misuse: The request has an option that only an ONNX file supports.
    """
    spec = request.spec
    options = (("--unsaturated", spec.unsaturated), ("--bias-correction", spec.bias_correction))
    for option, is_set in options:
        if is_set:
            problem = "this option needs an ONNX file as output"
            raise Misuse(problem, where=option, hint="leave it out, or name a FILE that ends in .onnx")
    return replace(request, spec=replace(spec, form="auto")) if spec.form == "fast" else request


def quantize_settings(
    session: Facade, spec: QuantizeSpec, *, on_progress: OnProgress = None
) -> QuantizeSettings:
    """Return the settings that `spec` gives every layer of the current model, and the source of each value.

    Raises:
        Misuse: See `quantize_choice`.
    """
    if _quantizes_as_module(session, spec, None, on_progress):
        return _get_quantizer(session).settings(_adapt_request(QuantizeRequest(spec)).spec)
    return session.parts.get_part(Quantizer).settings(spec, on_progress)


def quantize(
    session: Facade,
    spec: QuantizeSpec,
    *,
    state: int | None = None,
    onnx: bool = False,
    output: PathText | None = None,
    overwrite: bool = False,
    calibrate: PathText | None = None,
    draws: Count = 4,
    seed: Natural = 0,
    report: bool = True,
    as_graph: bool = False,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Quantization:
    """Quantize a model; the result becomes the current state, and all other states stay.

    An nn.Module becomes a quantized nn.Module (see `quantize_module`), unless the form, `output` or
    `as_graph` asks for ONNX.

    Args:
        spec: Number formats, layers and form.
        state: Index of the state to quantize, which starts a branch of the history. None for the current
            state.
        onnx: Ignored; use `as_graph` for the ONNX export of an nn.Module.
        output: Path of the file to write, or None to keep the model in the session until `save`.
        overwrite: Whether to replace an existing `output`.
        calibrate: Path of an .npy or .npz file with inputs, or of a folder with such files. None draws random
            inputs. They set the ranges, and errors are measured on them.
        draws: Number of random inputs.
        seed: Seed of the first random input.
        report: Whether to measure errors of weights, layers and outputs, which runs both models.
        as_graph: Whether to quantize the ONNX export of an nn.Module, as `quantize_trial` does.
        on_progress: Callback that receives the progress.
        cancel: Callback that is polled regularly. If it returns True, the job stops and leaves no files.

    Raises:
        Misuse: See `quantize_choice`; or the samples do not fit, or `output` cannot be written or exists.
        BadModel: A weight contains NaN, or the model does not run.
        Cancelled: `cancel` returned True.
    """
    options = {"output": output, "overwrite": overwrite, "on_progress": on_progress, "cancel": cancel}
    request = QuantizeRequest(spec, calibrate or "", draws, seed, as_graph)
    return _quantize_state(session, request, state, report, options)


def _quantize_state(
    session: Facade, request: QuantizeRequest, state: int | None, measured: bool, options: Mapping[str, Any]
) -> Quantization:
    """Quantize a state as an nn.Module if possible, otherwise as a graph; `options` is for both."""
    with make_current(session.parts.models, state):
        allows_module = not request.as_graph
        if request.spec.form == "torchao" and _quantizes_as_module(
            session, request.spec, None, options["on_progress"]
        ):
            raise Misuse(_NO_STATE, where="--form", hint="Session.quantize_module gives the module")
        if allows_module and _quantizes_as_module(
            session, request.spec, options["output"], options["on_progress"]
        ):
            module_request = _adapt_request(request)
            return _get_quantizer(session).quantize_state(module_request, measured=measured, **options)
        fact: Quantization = session.do("quantize", request, proof=ProofRequest(measured), **options)
        return fact


def quantize_module(
    session: Facade,
    spec: QuantizeSpec,
    *,
    output: PathText | None = None,
    overwrite: bool = False,
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
    calibrate: PathText | None = None,
    draws: Count = 4,
    seed: Natural = 0,
    report: bool = True,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> tuple[nn.Module, Quantization]:
    """Return a copy of the opened nn.Module whose layers round to number formats.

    Weights and biases are rounded once and stored as float32. Inputs are rounded at each call by standard
    operators of PyTorch. Layers keep their names, so that a state_dict fits both modules. The operator of a
    layer, as in `spec.ops`, is its type: 'Linear', 'Conv2d', 'LSTM'.

    Args:
        spec: Number formats and layers. Its `form` is 'auto', or 'torchao' for weight tensors of torchao, if
            torchao has the layer and the format (needs the extra `torchao`; cannot be written to a file).
        output: Path of the file to write: .pt2, or another extension for TorchScript. None writes no file.
        overwrite: Whether to replace an existing `output`.
        dynamic: Axes that stay open in a .pt2 file: {'x': {0: 'batch'}}.
        calibrate: See `quantize`.
        draws: See `quantize`.
        seed: See `quantize`.
        report: See `quantize`.
        on_progress: Callback that receives the progress.
        cancel: Callback that is polled regularly. If it returns True, the job stops and leaves no files.

    Raises:
        Misuse: The model is not an nn.Module, or is already quantized or tiled as ONNX; see also `quantize`.
        BadModel: A weight contains NaN, or the module cannot be run or written.
        Cancelled: `cancel` returned True.
    """
    check_module(session.parts.models, on_progress)
    request = _adapt_request(QuantizeRequest(spec, calibrate or "", draws, seed))
    return _get_quantizer(session).quantize(
        request,
        output=output,
        overwrite=overwrite,
        measured=report,
        dynamic=dynamic,
        on_progress=on_progress,
        cancel=cancel,
    )


def quantize_trial(
    session: Facade,
    spec: QuantizeSpec,
    *,
    calibrate: PathText | None = None,
    draws: Count = 4,
    seed: Natural = 0,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Quantization:
    """Measure the error of `quantize` at the outputs, and the size reduction, without creating a state.

    Errors of single layers are not measured. The original model runs only in the first of several trials on
    the same samples.

    Args:
        spec: See `quantize`.
        calibrate: See `quantize`.
        draws: See `quantize`.
        seed: See `quantize`.
        on_progress: Callback that receives the progress.
        cancel: Callback that is polled regularly; the work stops when it returns True.

    Raises:
        Misuse: See `quantize`.
        BadModel: See `quantize`.
        Cancelled: See `quantize`.
    """
    request = QuantizeRequest(spec, calibrate or "", draws, seed)
    return session.parts.get_part(Quantizer).trial(request, on_progress, cancel)


def requantize(
    session: Facade,
    layer: str,
    *,
    weight: str | None = None,
    input: PathText | None = None,
    bias: str | None = None,
    on: bool | None = None,
    report: bool = True,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Quantization:
    """Repeat the quantization of the current state with another choice for one layer, as a new branch.

    Args:
        layer: Name of the layer in `Quantization.layers` or in a blame.
        weight: New number format of the weight, or None to keep it.
        input: New number format of the input, or None to keep it.
        bias: New number format of the bias, or None to keep it.
        on: False leaves the layer unquantized, True quantizes it, None keeps the choice.
        report: See `quantize`.
        on_progress: Callback that receives the progress.
        cancel: See `quantize`.

    Raises:
        Misuse: The current state is not quantized, or has no such layer; see also `quantize`.
        BadModel: See `quantize`.
        Cancelled: See `quantize`.
    """
    values = {"weight": weight, "input": input, "bias": bias, "on": on}
    options = {"output": None, "overwrite": False, "on_progress": on_progress, "cancel": cancel}
    request, parent_state = session.parts.get_part(Quantizer).change_layer(layer, values)
    return _quantize_state(session, request, parent_state, report, options)


def _get_quantizer(session: Facade) -> ModuleQuantizer:
    from explorer.features.quantize.module_quantizer import ModuleQuantizer  # imports torch

    return session.parts.get_part(ModuleQuantizer)
