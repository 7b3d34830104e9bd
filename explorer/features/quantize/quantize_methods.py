"""Quantization of a session's models: number formats for some layers, and the state that they make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from explorer.base.checked import Count, Natural, PathText
from explorer.base.errors import Misuse
from explorer.facts.change import ProofRequest
from explorer.facts.quantize import QuantizeRequest
from explorer.features.quantize.quantize import Quantizer
from explorer.features.tiling.tiling import Tiler
from explorer.session.methods.facade import Facade
from explorer.session.parts.change import changing
from explorer.session.parts.models import Cancel, OnProgress

if TYPE_CHECKING:
    from torch import nn

    from explorer.facts.quantize import Quantization, QuantizeSpec
    from explorer.facts.settings import QuantizeSettings
    from explorer.features.quantize.module_quantizer import ModuleQuantizer


_NO_STATE = "a module of torchao's tensors is no state, and no file: they are stored as a pickle"


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
    """What `quantize` would do to the current model, without doing it: formats, bits, BitOPs and bytes.

    Args:
        spec: Formats, layers, how they are written.
        state: Another state of the history; None for the current one.
        as_graph: See `quantize`.
        calibrate: See `quantize`. The samples are read and held against the inputs; the model does not run.
        draws: See `quantize`.
        seed: See `quantize`.
        on_progress: Told where the job stands.

    Raises:
        Misuse: A format is not known, a pattern means no layer, no layer takes a format, or the samples do
            not fit.
    """
    request = QuantizeRequest(spec, calibrate or "", draws, seed, as_graph)
    with changing(session.parts.models, state):
        if not as_graph and _as_module(session, spec, None, on_progress):
            return _modules(session).choice(_of_modules(request))
        return session.parts.of(Quantizer).choice(request, on_progress)


def _as_module(session: Facade, spec: QuantizeSpec, output: PathText | None, on_progress: OnProgress) -> bool:
    """Whether the current model is quantized by its modules: the forms are ways to write ONNX."""
    opened = session.parts.models.opened(session.parts.models.current, on_progress)
    if spec.form == "torchao" and not hasattr(opened, "loaded"):
        problem = "torchao is for layers of an nn.Module"
        raise Misuse(problem, where="--form", hint="leave it out for a file of operators")
    if spec.form not in ("auto", "fast", "torchao") or not hasattr(opened, "loaded"):
        return False
    return _modules(session).takes(output)


def _of_modules(request: QuantizeRequest) -> QuantizeRequest:
    """The request as modules can answer it: forms are ways to write a file for onnxruntime.

    Raises:
        Misuse: It asks for what only such a file has.
    """
    spec = request.spec
    options = (("--unsaturated", spec.unsaturated), ("--bias-correction", spec.bias_correction))
    for option, is_set in options:
        if is_set:
            problem = "this is for a file that onnxruntime runs, not for a module"
            raise Misuse(problem, where=option, hint="leave it out, or name a FILE that ends in .onnx")
    return replace(request, spec=replace(spec, form="auto")) if spec.form == "fast" else request


def quantize_settings(
    session: Facade, spec: QuantizeSpec, *, on_progress: OnProgress = None
) -> QuantizeSettings:
    """What `spec` asks of every layer of the current model, and who said so.

    Raises:
        Misuse: See `quantize_choice`.
    """
    if _as_module(session, spec, None, on_progress):
        return _modules(session).settings(_of_modules(QuantizeRequest(spec)).spec)
    return session.parts.of(Quantizer).settings(spec, on_progress)


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
    """Quantizes the current model; the result becomes the current one, and every other state stays.

    An nn.Module is quantized by its modules, to one of them (see `quantize_module`), unless the form,
    `output` or `as_graph` asks for ONNX.

    Args:
        spec: Formats, layers, how they are written.
        state: Another state of the history, of which a branch is made; None for the current one.
        onnx: The ONNX export of an nn.Module, and not its modules.
        output: Where to write it; None keeps it in the session until `save`.
        overwrite: Whether an existing `output` may be replaced.
        calibrate: An .npy or .npz file, or a folder of such, with inputs; None draws random ones. Ranges
            are chosen on them, and errors are measured.
        draws: How many random inputs.
        seed: Of the first.
        report: Measure errors of weights, layers and outputs, which runs both models.
        as_graph: An nn.Module is quantized as the graph that it is exported to, as `quantize_trial` does.
        on_progress: Told where the job stands.
        cancel: Asked now and then; True stops the job and leaves nothing behind.

    Raises:
        Misuse: See `quantize_choice`; or the samples do not fit, or `output` cannot be written or exists.
        BadModel: A weight holds NaN, or the model does not run.
        Cancelled: `cancel` said so.
    """
    options = {"output": output, "overwrite": overwrite, "on_progress": on_progress, "cancel": cancel}
    request = QuantizeRequest(spec, calibrate or "", draws, seed, as_graph)
    return _quantized(session, request, state, report, options)


def _quantized(
    session: Facade, request: QuantizeRequest, state: int | None, measured: bool, options: Mapping[str, Any]
) -> Quantization:
    with changing(session.parts.models, state):
        modules = not request.as_graph
        if request.spec.form == "torchao" and _as_module(session, request.spec, None, options["on_progress"]):
            raise Misuse(_NO_STATE, where="--form", hint="Session.quantize_module gives the module")
        if modules and _as_module(session, request.spec, options["output"], options["on_progress"]):
            module_request = _of_modules(request)
            return _modules(session).quantized_state(module_request, measured=measured, **options)
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
    """An nn.Module like the opened one whose layers round to number formats; that stays as it is.

    Weights and biases are stored rounded, in float32; inputs are rounded where they come in, by standard
    operators of PyTorch. Layers keep their names, so that a state_dict fits both. The operator of a layer
    is its type: 'Linear', 'Conv2d', 'LSTM'.

    Args:
        spec: Formats and layers; `form` is 'auto', or 'torchao' for weights that are tensors of torchao's
            where it has the layer and the format (the extra `torchao`): no file of those is written.
        output: Where to write it: .pt2, or TorchScript by another ending; None writes nothing.
        overwrite: Whether an existing `output` may be replaced.
        dynamic: Axes that a .pt2 file leaves open: {'x': {0: 'batch'}}.
        calibrate: See `quantize`.
        draws: See `quantize`.
        seed: See `quantize`.
        report: See `quantize`.
        on_progress: Told where the job stands.
        cancel: Asked now and then; True stops the job and leaves nothing behind.

    Raises:
        Misuse: The model is no nn.Module, or was quantized or tiled as ONNX already; and see `quantize`.
        BadModel: A weight holds NaN, or the module cannot be run or written.
        Cancelled: `cancel` said so.
    """
    session.parts.of(Tiler).check_module(on_progress)
    request = _of_modules(QuantizeRequest(spec, calibrate or "", draws, seed))
    return _modules(session).quantize(
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
    """What `quantize` would lose at the outputs, and save, without making a state.

    The errors of single layers are left out. Of many trials on the same samples the original is run in
    the first one alone.

    Args:
        spec: See `quantize`.
        calibrate: See `quantize`.
        draws: See `quantize`.
        seed: See `quantize`.
        on_progress: Told where the job stands.
        cancel: Asked now and then; True stops the job.

    Raises:
        Misuse: See `quantize`.
        BadModel: See `quantize`.
        Cancelled: See `quantize`.
    """
    request = QuantizeRequest(spec, calibrate or "", draws, seed)
    return session.parts.of(Quantizer).trial(request, on_progress, cancel)


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
    """Makes the current, quantized state anew with another choice for one layer: a branch beside it.

    Args:
        layer: Its name, as `Quantization.layers` and a blame have it.
        weight: Another number format; None leaves it as it was asked for.
        input: Likewise.
        bias: Likewise.
        on: False leaves the layer as it was before any quantization.
        report: See `quantize`.
        on_progress: Told where the job stands.
        cancel: As for `quantize`.

    Raises:
        Misuse: The current state is no quantization, or has no such layer; and see `quantize`.
        BadModel: See `quantize`.
        Cancelled: See `quantize`.
    """
    values = {"weight": weight, "input": input, "bias": bias, "on": on}
    options = {"output": None, "overwrite": False, "on_progress": on_progress, "cancel": cancel}
    request, before = session.parts.of(Quantizer).asked_again(layer, values)
    return _quantized(session, request, before, report, options)


def _modules(session: Facade) -> ModuleQuantizer:
    from explorer.features.quantize.module_quantizer import ModuleQuantizer  # torch

    return session.parts.of(ModuleQuantizer)
