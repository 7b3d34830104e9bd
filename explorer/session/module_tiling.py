"""The tilings of a session that end in PyTorch: an nn.Module with tiled layers, not an ONNX file.

They stand beside the history, whose states are files: the original stays the current model.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from explorer.base.errors import ExplorerError, Misuse
from explorer.facts import Plan, TileResult, TileSpec
from explorer.session import scripts
from explorer.session.looking import Looking
from explorer.session.states import Cancel, OnProgress
from explorer.settings.parse import dynamic_words, opening_words, path_word

if TYPE_CHECKING:
    from torch import nn

    from explorer.engine.convert.job import ConversionJob

__all__ = ["ModuleTiling"]


class ModuleTiling(Looking):
    """The methods of `explorer.session.Session` that make tiled modules."""

    def plan_module(self, spec: TileSpec, *, on_progress: OnProgress = None) -> Plan:
        """What `tile_module` would do, without doing it.

        Raises:
            Misuse: As `tile_module` says.
        """
        self._module_of(on_progress)
        from explorer.engine.convert.module_to_tiled import plan_module

        job = self._module_job("", {}, False, 1, 0, on_progress, None)
        return self._with_macs(plan_module(self._open(on_progress), spec, job, self._macs()))

    def tile_module(
        self,
        spec: TileSpec,
        *,
        output: str | None = None,
        overwrite: bool = False,
        dynamic: Mapping[str, Mapping[int, str]] | None = None,
        verify: bool = True,
        draws: int = 3,
        seed: int = 0,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> tuple[nn.Module, TileResult]:
        """An nn.Module like the opened one whose layers multiply by tiles; the opened one stays as it is.

        Layers keep their names, parameters, hooks and devices, so a state_dict fits both. Where the session
        was opened with an object the result has tensors of its own.

        Args:
            spec: Tile size, layers, edges; `form` has to be 'auto'.
            output: Where to write it: .pt2, or TorchScript by another ending; None writes nothing.
            overwrite: Whether an existing `output` may be replaced.
            dynamic: Axes that a .pt2 file leaves open: {'x': {0: 'batch'}}.
            verify: Prove the result; a file that fails is not kept, and `TileResult.output` is empty.
            draws: Random inputs for the proof.
            seed: Of the first draw.
            on_progress: Told where the job stands.
            cancel: ConversionOptions now and then; True stops the job and leaves nothing behind.

        Raises:
            Misuse: The model is no nn.Module, or was tiled as ONNX already; nothing can be tiled; or `output`
                cannot be written.
            BadModel: The module cannot be run or written.
            ExplorerError: Nothing was to be written, and the proof speaks against the result.
            Cancelled: `cancel` said so.
        """
        self._module_of(on_progress)
        from explorer.engine.convert.module_to_tiled import to_torch

        if draws < 1:
            raise Misuse(f"{draws} draws prove nothing", where="--draws", hint="give 1 or more")
        job = self._module_job(output or "", dynamic or {}, verify, draws, seed, on_progress, cancel)
        module, result = to_torch(
            self._open(on_progress),
            self._module,
            spec,
            job,
            output=output,
            overwrite=overwrite,
            macs_total=self._macs(),
        )
        evidence = result.verification
        if output is None and evidence is not None and not evidence.passed:
            raise ExplorerError(f"the tiled module is not the same: {evidence.verdict}", where=self.source)
        result = replace(result, plan=self._with_macs(result.plan))
        return module, replace(result, command=self.module_command(spec, output, dynamic))

    def module_command(
        self,
        spec: TileSpec,
        output: str | None = None,
        dynamic: Mapping[str, Mapping[int, str]] | None = None,
    ) -> str:
        """The command that does headless what `tile_module` does; '' where no command can."""
        words = scripts.tiling_words(replace(spec, form="auto"))
        if self._module is not None or words is None:
            return ""
        target = ["-o", path_word(output)] if output else []
        command = ["explorer", "tile", path_word(self.source), "--to", "torch", *target, *words]
        return shlex.join([*command, *dynamic_words(dynamic or {}), *opening_words(self._options)])

    def _module_of(self, on_progress: OnProgress) -> None:
        """Whether there is a module to tile, and torch to do it.

        Raises:
            Misuse, MissingExtra: There is not.
        """
        from explorer.engine.tiling.torch import module_of

        if not self._history.current:
            module_of(self._open(on_progress))

    def _module_job(
        self,
        target: str,
        dynamic: Mapping[str, Mapping[int, str]],
        verify: bool,
        draws: int,
        seed: int,
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> ConversionJob:
        from explorer.engine.convert.job import ConversionJob, ConversionOptions

        if self._history.current:
            raise Misuse(
                "the current model was tiled as ONNX: it is no module",
                where=self.source,
                hint="explorer.to_torch(path) loads the file; or go back to the original",
            )
        return ConversionJob(
            opened=self._open(on_progress),
            source=self.source,
            dims=self._options["dims"],
            input_shapes=self._options["input_shapes"],
            asked=ConversionOptions(dynamic={name: dict(axes) for name, axes in dynamic.items()}),
            path="",
            target=target,
            trust=bool(self._options["trust"]),
            verify=verify,
            draws=draws,
            seed=seed,
            on_progress=on_progress,
            cancel=cancel,
        )

    def _with_macs(self, plan: Plan) -> Plan:
        """A plan that says of what it leaves how much that is, as far as the analysis knows."""
        if not hasattr(self._open(None), "loaded"):
            return plan
        known = {layer.path: layer.macs for layer in self.analysis(0).layers}
        left = (replace(s, macs=known.get(s.name)) if s.macs is None else s for s in plan.skipped)
        return replace(plan, skipped=tuple(left))

    def _macs(self) -> int | None:
        """MACs of the opened model, as far as they are known without doubt."""
        if not hasattr(self._open(None), "loaded"):
            return None
        totals = self.analysis(0).info.totals
        return totals.macs if totals.coverage == 1 else None
