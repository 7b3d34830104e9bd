"""Tiling or quantizing the layers of an nn.Module in PyTorch, and torchinfo's table: what ends in no ONNX
file.

The results stand beside the history, whose states are files: the original stays the current model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from explorer.base.errors import ExplorerError, Misuse
from explorer.engine.convert.job import ConversionJob, ConversionOptions
from explorer.engine.convert.module_to_quantized import to_quantized
from explorer.engine.convert.module_to_tiled import plan_module, to_torch
from explorer.engine.costs.compare import torchinfo
from explorer.engine.models.torch.module import TorchModel
from explorer.engine.tiling.layers import with_sites_found
from explorer.facts import Plan, TileResult, TileSpec
from explorer.facts.comparison import TorchinfoTable
from explorer.facts.quantize import Quantization, QuantizeRequest
from explorer.session.parts.models import Cancel, Models, OnProgress

if TYPE_CHECKING:
    from torch import nn


class ModuleMaker:
    """Makes tiled and quantized modules of the opened one."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def plan(self, spec: TileSpec, on_progress: OnProgress) -> Plan:
        """What `tile` would do."""
        job = self._job(verify=False, on_progress=on_progress)
        return self._with_macs(self._planned(self._naming(spec, job), job))

    def _planned(self, spec: TileSpec, job: ConversionJob) -> Plan:
        return plan_module(self._models.opened(0, job.on_progress), spec, job, self._macs())

    def _naming(self, spec: TileSpec, job: ConversionJob) -> TileSpec:
        """`spec` with the layers by name that it asks for by a filter."""
        return with_sites_found(
            spec,
            lambda: self._planned(TileSpec(), job).sites,
            lambda: self._models.examined(0).analysis,
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
            self._models.opened(0, on_progress),
            self._models.module,
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
        command: str,
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> tuple[nn.Module, Quantization]:
        """The quantized module, and what became of it."""
        job = self._job(
            target=output or "", verify=False, dynamic=dynamic, on_progress=on_progress, cancel=cancel
        )
        opened = self._models.opened(0, on_progress)
        analysis = self._models.examined(0).analysis
        how: dict[str, Any] = {"output": output, "overwrite": overwrite, "measured": measured}
        module, fact = to_quantized(opened, self._models.module, request, job, analysis, **how)
        return module, replace(fact, command=command)

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
        if self._models.current:
            raise Misuse(
                "the current model was made as ONNX: it is no module",
                where=self._models.source,
                hint="explorer.to_torch(path) loads the file; or go back to the original",
            )
        return ConversionJob(
            opened=self._models.opened(0, on_progress),
            source=self._models.source,
            dims=self._models.options["dims"],
            input_shapes=self._models.options["input_shapes"],
            asked=ConversionOptions(dynamic={name: dict(axes) for name, axes in (dynamic or {}).items()}),
            target=target,
            trust=bool(self._models.options["trust"]),
            on_progress=on_progress,
            **how,
        )

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
