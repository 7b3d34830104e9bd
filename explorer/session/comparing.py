"""Any two states of a session held against each other: what changed, are they equal, where do they part."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from explorer.facts import Diff, Plan, TileSpec, Verification
from explorer.session.planning import Planning
from explorer.session.states import Cancel, Dims, OnProgress

if TYPE_CHECKING:
    from explorer.engine.graph.model import Model
    from explorer.facts.blame import Blame
    from explorer.facts.verification import Tolerance

__all__ = ["Comparing", "without_origins"]


class Comparing(Planning):
    """The methods of `explorer.session.Session` that hold two models against each other."""

    def verify(
        self,
        before: int = 0,
        after: int | None = None,
        *,
        draws: int = 1,
        seed: int = 0,
        dims: Dims | None = None,
        input: str | None = None,
        tolerance: Tolerance | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Verification:
        """Evidence that two models of the history compute the same.

        Args:
            before: The original.
            after: The other model; None is the current one.
            draws: Random inputs to run both on.
            seed: Of the first draw.
            dims: Sizes of open dimensions, or several of each, in place of those of the session.
            input: An .npy or .npz file with the inputs, in place of random ones.
            tolerance: By how much the outputs may differ: then only they are compared.
            on_progress: Told where the proof stands.
            cancel: Asked now and then; True stops.

        Raises:
            Misuse: A size or the input does not fit the model.
            BadModel: onnxruntime cannot run one of them.
            Cancelled: `cancel` said so.
        """
        a, b = self._at(before), self._at(after)
        evidence = self._verify(
            self._model(a, on_progress),
            self._model(b, on_progress),
            self._plan_between(a, b),
            draws,
            seed,
            on_progress,
            cancel,
            dims,
            input,
            tolerance,
        )
        return replace(evidence, before=self._label(a), after=self._label(b))

    def blame(
        self,
        before: int = 0,
        after: int | None = None,
        *,
        spec: TileSpec | None = None,
        draws: int = 3,
        seed: int = 0,
        dims: Dims | None = None,
        input: str | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Blame:
        """The first layer in which one model of the history departs from another, and how the error grows.

        Args:
            before: The original.
            after: The other model; None is the current one.
            spec: In place of both: the current model, and what `tile` makes of it, which is looked at only.
            draws: Random inputs to run both on.
            seed: Of the first draw.
            dims: Sizes of open dimensions, or several of each, in place of those of the session.
            input: An .npy or .npz file with the inputs, in place of random ones.
            on_progress: Told where the job stands.
            cancel: Asked now and then; True stops.

        Raises:
            Misuse: A size or the input does not fit the model.
            BadModel: onnxruntime cannot run one of them.
            Cancelled: `cancel` said so.
        """
        with contextlib.ExitStack() as stack:
            if spec is None:
                a, b = self._at(before), self._at(after)
                first, second = self._model(a, on_progress), self._model(b, on_progress)
                labels = self._label(a), self._label(b)
            else:
                first, second = stack.enter_context(self._tried(spec, on_progress, cancel))
                labels = self._label(self._history.current), f"tile {'x'.join(map(str, spec.tile))}"
            fact = self._blame(first, second, draws, seed, on_progress, cancel, dims, input)
        return replace(fact, before=labels[0], after=labels[1])

    @contextlib.contextmanager
    def _tried(
        self, spec: TileSpec, on_progress: OnProgress, cancel: Cancel
    ) -> Iterator[tuple[Model, Model]]:
        """The current model as the plan sees it, and what tiling makes of it, in a file that goes again."""
        import tempfile

        from explorer.engine.formats.onnx import reader, writer
        from explorer.engine.formats.onnx.validate import validate
        from explorer.engine.tiling import tile as transform

        plan, found, sites = self._plan(spec, on_progress)
        tiled = transform.tile(found.bound, without_origins(plan), sites)
        with tempfile.TemporaryDirectory(prefix="tried-", dir=self.workdir) as folder:
            path = os.path.join(folder, "tiled.onnx")
            writer.write(tiled, path, on_progress=on_progress, cancel=cancel)
            yield found.whole, validate(reader.read(path))

    def diff(
        self,
        before: int = 0,
        after: int | None = None,
        *,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Diff:
        """What changed between two models of the history, as ONNX graphs."""
        from explorer.engine.diff import diff

        a, b = self._at(before), self._at(after)
        changes = diff(
            self._model(a, on_progress),
            self._model(b, on_progress),
            before_analysis=self._comparable_analysis(a, b, on_progress, cancel),
            after_analysis=self._comparable_analysis(b, a, on_progress, cancel),
            on_progress=on_progress,
            cancel=cancel,
        )
        return replace(changes, before=self._label(a), after=self._label(b))


def without_origins(plan: Plan) -> Plan:
    """The plan as a tiled file keeps it: two files that ask for the same make the same file."""
    skipped = [
        replace(skip, reason="switched off") if skip.reason.startswith("switched off by ") else skip
        for skip in plan.skipped
    ]
    return replace(plan, skipped=tuple(skipped))
