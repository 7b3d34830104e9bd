"""Quantizes the layers of an nn.Module in PyTorch, without an ONNX file.

The result is a new nn.Module for the caller, or a new state of the history.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from explorer.engine.convert.module_to_quantized import (
    ModuleChoice,
    QuantizedModule,
    check_samples,
    choose_for_module,
    choose_on_shapes,
    quantize_module,
)
from explorer.engine.convert.module_twin import has_layers, require_layers
from explorer.engine.models.torch.module import TorchModel
from explorer.engine.quantize.errors import describe_calibrator_loss
from explorer.engine.quantize.settings import find_settings
from explorer.facts import Analysis, HistoryEntry
from explorer.facts.conversion import ConversionOptions
from explorer.facts.quantize import Quantization, QuantizeRequest, QuantizeSpec
from explorer.facts.settings import QuantizeSettings
from explorer.features.quantize.quantize import build_state_text
from explorer.session.headers import MODULE_ENDINGS
from explorer.session.parts import scripts
from explorer.session.parts.models import Cancel, Models, OnProgress
from explorer.session.parts.module_job import build_module_job
from explorer.settings.option_values import write_words

if TYPE_CHECKING:
    from torch import nn

_AS_ONNX = "quantize it as ONNX, to a file that ends in .onnx"


class ModuleQuantizer:
    """Create quantized modules from the current state."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def quantize(
        self,
        request: QuantizeRequest,
        *,
        output: str | None,
        overwrite: bool,
        measured: bool,
        dynamic: Mapping[str, Mapping[int, str]] | None,
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> tuple[nn.Module, Quantization]:
        """Return the quantized module and the record of the quantization."""
        options: dict[str, Any] = {"overwrite": overwrite, "measured": measured, "cancel": cancel}
        command = self.command(request, output, dynamic or {}) if output is not None else ""
        result = self._quantize_module(request, output, dynamic, on_progress, from_object=True, **options)
        return result.module, replace(result.fact, command=command)

    def quantize_state(
        self, request: QuantizeRequest, output: str | None, on_progress: OnProgress, **options: Any
    ) -> Quantization:
        """Quantize the current state as a module, with options as for `quantize`; add it to the history."""
        result, models = self._quantize_module(request, output, None, on_progress, **options), self._models
        fact = replace(result.fact, command=self.command(request, output, {}))
        text = build_state_text(request, fact, ranges=result.ranges)
        entry = HistoryEntry(
            text.label, None, text.command, saved=output or "", change="quantize", record=text.record
        )
        models.append(entry, result.opened)
        return fact

    def _quantize_module(
        self,
        request: QuantizeRequest,
        output: str | None,
        dynamic: Mapping[str, Mapping[int, str]] | None,
        on_progress: OnProgress,
        *,
        from_object: bool = False,
        overwrite: bool,
        measured: bool,
        cancel: Cancel,
    ) -> QuantizedModule:
        """Quantize the current state.

        With `from_object`, the result does not share tensors with the module that the user passed.
        """
        job = build_module_job(
            self._models,
            target=output or "",
            verify=False,
            dynamic=dynamic,
            on_progress=on_progress,
            cancel=cancel,
        )
        options: dict[str, Any] = {"output": output, "overwrite": overwrite, "measured": measured}
        module = self._models.module if from_object and not self._models.current else None
        subject = self._get_opened(), self._analyze()
        result = quantize_module(subject[0], module, request, job, subject[1], **options)
        notes = (*result.fact.notes, *self._models.list_weight_notes())
        spec, outputs = request.spec, result.fact.outputs
        if spec.calibrator != "minmax" and outputs:
            usual_request = replace(request, spec=replace(spec, calibrator="minmax"))
            usual = quantize_module(subject[0], None, usual_request, job, subject[1]).fact.outputs
            snr = {output.name: output.snr_db for output in outputs}
            notes += describe_calibrator_loss(spec.calibrator, snr, usual)
        return replace(result, fact=replace(result.fact, notes=notes))

    def choice(self, request: QuantizeRequest) -> Quantization:
        """Predict the result of `quantize_state` without quantizing."""
        analysis, spec = self._analyze(), request.spec
        if request.calibrate:
            check_samples(self._get_opened(), request)
        fact = self._choose_layers(spec).answer(analysis.info.totals.weight_bytes, spec)
        return replace(fact, command=self.command(request, None, {}))

    def settings(self, spec: QuantizeSpec) -> QuantizeSettings:
        """Return the settings of every layer of the current state under `spec`."""
        settings = find_settings(spec, self._choose_layers(spec).choices)
        return replace(settings, layers=tuple(replace(layer, form="module") for layer in settings.layers))

    def _choose_layers(self, spec: QuantizeSpec) -> ModuleChoice:
        subject = self._get_opened(), spec, self._analyze()
        return choose_on_shapes(*subject) or choose_for_module(*subject)

    def quantizes_modules(self, output: str | None) -> bool:
        """Return whether the current state, a PyTorch model, is quantized as a module instead of an ONNX
        graph.

        Raises:
            Misuse: `output` is a module file, but the state is not an nn.Module.
        """
        if output is not None and not output.lower().endswith(MODULE_ENDINGS):
            return False
        opened = self._get_opened()
        # without layers, `require_layers` raises
        return has_layers(opened) or (output is not None and not require_layers(opened, _AS_ONNX))

    def command(
        self, request: QuantizeRequest, output: str | None, dynamic: Mapping[str, Mapping[int, str]]
    ) -> str:
        """Return the shell command that quantizes the opened module, or '' if no command can."""
        words = scripts.write_quantize_words(request, modules=True)
        if self._models.current or words is None:
            return ""
        words += write_words(ConversionOptions(dynamic=dynamic))
        return scripts.write_command(self._models, "quantize", output, "_quantized.pt2", *words)

    def _get_opened(self) -> TorchModel:
        opened = self._models.open_state(self._models.current)
        assert isinstance(opened, TorchModel)
        return opened

    def _analyze(self) -> Analysis:
        return self._models.examine(self._models.current).analysis
