"""Tiles the layers of an nn.Module in PyTorch, without an ONNX file.

The tiled module is a new object for the caller. It is not part of the history, and the original stays the
current model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from explorer.base.errors import ExplorerError, Misuse
from explorer.engine.convert.job import ConversionJob
from explorer.engine.convert.module_to_tiled import plan_module, to_torch
from explorer.engine.tiling.layers import resolve_site_filters
from explorer.facts import Plan, TileResult, TileSpec
from explorer.session.parts.models import Models, OnProgress
from explorer.session.parts.module_job import build_module_job

if TYPE_CHECKING:
    from torch import nn


class ModuleTiler:
    """Create a tiled copy of the opened module."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def plan(self, spec: TileSpec, on_progress: OnProgress) -> Plan:
        """Return the plan that `tile` would follow."""
        _refuse_mapping(spec)
        job = build_module_job(self._models, verify=False, on_progress=on_progress)
        return self._add_macs(self._plan(self._resolve_filters(spec, job), job))

    def _plan(self, spec: TileSpec, job: ConversionJob) -> Plan:
        return plan_module(job.opened, spec, job, self._count_macs())

    def _resolve_filters(self, spec: TileSpec, job: ConversionJob) -> TileSpec:
        """Replace the filters in `spec` by the names of the matching layers."""
        return resolve_site_filters(
            spec, lambda: self._plan(TileSpec(), job).sites, lambda: self._models.examine(0).analysis
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
        **job_options: Any,
    ) -> tuple[nn.Module, TileResult]:
        """Return the tiled module and its result.

        Raises an ExplorerError if the proof fails and `output` is None.
        """
        if draws < 1:
            raise Misuse(f"{draws} draws prove nothing", where="--draws", hint="give 1 or more")
        _refuse_mapping(spec)
        job = build_module_job(
            self._models, target=output or "", draws=draws, on_progress=on_progress, **job_options
        )
        module, result = to_torch(
            job.opened,
            None if self._models.current else self._models.module,
            self._resolve_filters(spec, job),
            job,
            output=output,
            overwrite=overwrite,
            macs_total=self._count_macs(),
        )
        proof = result.verification
        if output is None and proof is not None and not proof.passed:
            raise ExplorerError(
                f"the tiled module is not the same: {proof.verdict}", where=self._models.source
            )
        return module, replace(result, plan=self._add_macs(result.plan), command=command)

    def _add_macs(self, plan: Plan) -> Plan:
        """Add the MACs of each skipped layer to the plan, where the analysis knows them."""
        if not self._models.from_torch:
            return plan
        macs_by_path = {layer.path: layer.macs for layer in self._models.examine(0).analysis.layers}
        skipped = (replace(s, macs=macs_by_path.get(s.name)) if s.macs is None else s for s in plan.skipped)
        return replace(plan, skipped=tuple(skipped))

    def _count_macs(self) -> int | None:
        """Return the MACs of the opened model, or None if the count of any layer is unknown."""
        if not self._models.from_torch:
            return None
        totals = self._models.examine(0).analysis.info.totals
        return totals.macs if totals.coverage == 1 else None


def _refuse_mapping(spec: TileSpec) -> None:
    if spec.mapping:
        raise Misuse(
            "a mapping names the matmuls of the ONNX graph, not the layers of a module",
            where="--mapping",
            hint="leave out --to torch, or --mapping",
        )
