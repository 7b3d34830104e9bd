"""Tiling or quantizing the layers of an nn.Module in PyTorch, and torchinfo's table: what ends in no ONNX
file.

What is handed out as an nn.Module stands beside the history: the original stays the current model. A
quantized module can be a state, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from explorer.base.errors import ExplorerError, Misuse
from explorer.engine.convert.job import ConversionJob, ConversionOptions
from explorer.engine.convert.module_to_quantized import (
    ModuleChoice,
    QuantizedModule,
    check_samples,
    choice_on_shapes,
    module_choice,
    to_quantized,
)
from explorer.engine.convert.module_to_tiled import plan_module, to_torch
from explorer.engine.convert.module_twin import has_layers, replaceable
from explorer.engine.costs.compare import torchinfo
from explorer.engine.models.torch.module import TorchModel
from explorer.engine.quantize.settings import in_force
from explorer.engine.tiling.layers import with_sites_found
from explorer.facts import Analysis, Plan, TileResult, TileSpec
from explorer.facts.comparison import TorchinfoTable
from explorer.facts.quantize import Quantization, QuantizeRequest, QuantizeSpec
from explorer.facts.settings import QuantizeSettings
from explorer.session.parts import scripts
from explorer.session.parts.models import Cancel, Models, OnProgress
from explorer.session.parts.quantize import quantized_state
from explorer.settings.parse import dynamic_words

if TYPE_CHECKING:
    from torch import nn

MODULE_ENDINGS = (".pt2", ".pt", ".pth", ".ts", ".torchscript")
"""Of files that hold an nn.Module."""
_AS_ONNX = "quantize it as ONNX, to a file that ends in .onnx"


class ModuleMaker:
    """Makes tiled and quantized modules of the opened one."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def plan(self, spec: TileSpec, on_progress: OnProgress) -> Plan:
        """What `tile` would do."""
        job = self._job(verify=False, on_progress=on_progress)
        return self._with_macs(self._planned(self._naming(spec, job), job))

    def _planned(self, spec: TileSpec, job: ConversionJob) -> Plan:
        return plan_module(job.opened, spec, job, self._macs())

    def _naming(self, spec: TileSpec, job: ConversionJob) -> TileSpec:
        """`spec` with the layers by name that it asks for by a filter."""
        return with_sites_found(
            spec, lambda: self._planned(TileSpec(), job).sites, lambda: self._models.examined(0).analysis
        )

    def tile(
        self,
        spec: TileSpec,
        *,
        output: str | None,
        overwrite: bool,
        draws: int,
        command: str,
        on_progress: OnProgress,
        **how: Any,
    ) -> tuple[nn.Module, TileResult]:
        """The tiled module, and what became of it; raises where nothing was written and the proof failed."""
        if draws < 1:
            raise Misuse(f"{draws} draws prove nothing", where="--draws", hint="give 1 or more")
        job = self._job(target=output or "", draws=draws, on_progress=on_progress, **how)
        module, result = to_torch(
            job.opened,
            None if self._models.current else self._models.module,
            self._naming(spec, job),
            job,
            output=output,
            overwrite=overwrite,
            macs_total=self._macs(),
        )
        evidence = result.verification
        if output is None and evidence is not None and not evidence.passed:
            said = f"the tiled module is not the same: {evidence.verdict}"
            raise ExplorerError(said, where=self._models.source)
        return module, replace(result, plan=self._with_macs(result.plan), command=command)

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
        """The quantized module, and what became of it."""
        how: dict[str, Any] = {"overwrite": overwrite, "measured": measured, "cancel": cancel}
        command = self.command(request, output, dynamic or {}) if output is not None else ""
        made = self._quantized(request, output, dynamic, on_progress, own=True, **how)
        return made.module, replace(made.fact, command=command)

    def quantized_state(
        self, request: QuantizeRequest, output: str | None, on_progress: OnProgress, **how: Any
    ) -> Quantization:
        """Quantizes the current state as a module, which becomes the current one; `how` as for `quantize`."""
        made, models = self._quantized(request, output, None, on_progress, **how), self._models
        fact = replace(made.fact, command=self.command(request, output, {}))
        models.append(quantized_state(request, fact, None, output, ranges=made.ranges), made.opened)
        return fact

    def _quantized(
        self,
        request: QuantizeRequest,
        output: str | None,
        dynamic: Mapping[str, Mapping[int, str]] | None,
        on_progress: OnProgress,
        *,
        own: bool = False,
        overwrite: bool,
        measured: bool,
        cancel: Cancel,
    ) -> QuantizedModule:
        job = self._job(
            target=output or "", verify=False, dynamic=dynamic, on_progress=on_progress, cancel=cancel
        )
        how: dict[str, Any] = {"output": output, "overwrite": overwrite, "measured": measured}
        module = self._models.module if own and not self._models.current else None
        made = to_quantized(self._opened(), module, request, job, self._analysis(), **how)
        return replace(made, fact=replace(made.fact, notes=self._models.random_weights()))

    def choice(self, request: QuantizeRequest) -> Quantization:
        """What `quantized_state` would do to the current state."""
        analysis, spec = self._analysis(), request.spec
        if request.calibrate:
            check_samples(self._opened(), request)
        fact = self._choice(spec).answer(analysis.info.totals.weight_bytes, spec)
        return replace(fact, command=self.command(request, None, {}))

    def settings(self, spec: QuantizeSpec) -> QuantizeSettings:
        """What `spec` asks of every layer of the current state."""
        found = in_force(spec, self._choice(spec).choices)
        return replace(found, layers=tuple(replace(layer, form="module") for layer in found.layers))

    def _choice(self, spec: QuantizeSpec) -> ModuleChoice:
        asked = self._opened(), spec, self._analysis()
        return choice_on_shapes(*asked) or module_choice(*asked)

    def takes(self, output: str | None) -> bool:
        """Whether a quantization of the current state, which is of PyTorch's, is one of its modules.

        Raises:
            Misuse: `output` is a file of modules, and the state is none.
        """
        if output is not None and not output.lower().endswith(MODULE_ENDINGS):
            return False
        opened = self._opened()
        return has_layers(opened) or (output is not None and not replaceable(opened, _AS_ONNX))

    def command(
        self, request: QuantizeRequest, output: str | None, dynamic: Mapping[str, Mapping[int, str]]
    ) -> str:
        """The command that quantizes the opened module headless; '' where no command can."""
        words = scripts.quantize_words(request, modules=True)
        if self._models.current or words is None:
            return ""
        words += dynamic_words(dynamic)
        return scripts.headless(self._models, "quantize", output, "_quantized.pt2", *words)

    def torchinfo(self) -> TorchinfoTable:
        """Torchinfo's own table of the opened model, and where its numbers are not ours and why."""
        options, opened = self._models.options, self._models.opened()
        assert isinstance(opened, TorchModel)
        shapes, dims = options["input_shapes"], options["dims"]
        analysis = self._models.examined(0).analysis
        return torchinfo.table(opened.loaded, analysis, input_shapes=shapes, dims=dims)

    def _job(
        self,
        *,
        target: str = "",
        dynamic: Mapping[str, Mapping[int, str]] | None = None,
        on_progress: OnProgress,
        **how: Any,
    ) -> ConversionJob:
        if self._models.current and not self._models.is_module(self._models.current):
            raise Misuse(
                "the current model was made as ONNX: it is no module",
                where=self._models.source,
                hint="explorer.to_torch(path) loads the file; or go back to the original",
            )
        return ConversionJob(
            opened=self._models.opened(self._models.current, on_progress),
            source=self._models.source,
            dims=self._models.options["dims"],
            input_shapes=self._models.options["input_shapes"],
            asked=ConversionOptions(dynamic={name: dict(axes) for name, axes in (dynamic or {}).items()}),
            target=target,
            trust=bool(self._models.options["trust"]),
            on_progress=on_progress,
            **how,
        )

    def _opened(self) -> TorchModel:
        found = self._models.opened(self._models.current)
        assert isinstance(found, TorchModel)
        return found

    def _analysis(self) -> Analysis:
        return self._models.examined(self._models.current).analysis

    def _with_macs(self, plan: Plan) -> Plan:
        """A plan that says of what it leaves how much that is, as far as the analysis knows."""
        if not self._models.from_torch:
            return plan
        known = {layer.path: layer.macs for layer in self._models.examined(0).analysis.layers}
        left = (replace(s, macs=known.get(s.name)) if s.macs is None else s for s in plan.skipped)
        return replace(plan, skipped=tuple(left))

    def _macs(self) -> int | None:
        """MACs of the opened model, as far as they are known without doubt."""
        if not self._models.from_torch:
            return None
        totals = self._models.examined(0).analysis.info.totals
        return totals.macs if totals.coverage == 1 else None
