"""Verification and blame between two states of a session, or of two sessions. Both run on the same inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from explorer.base.errors import Misuse
from explorer.engine.graph.model import Model
from explorer.engine.models.opened_model import select_dims
from explorer.engine.proof.blame.search import blame
from explorer.engine.proof.outputs.whole_run import TorchRun
from explorer.engine.proof.proof import verify
from explorer.engine.runtime.input_files import read_input
from explorer.engine.runtime.random_inputs import read_given_inputs
from explorer.facts import Plan, Verification
from explorer.facts.blame import Blame
from explorer.session.parts.models import Dims, Models, OnProgress


class Prover:
    """Verifies and blames pairs of graphs, with the options of the session of the first graph."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def verify(
        self,
        before: Model,
        after: Model,
        *,
        plan: Plan | None,
        meanwhile: Callable[[], None] | None = None,
        state: int | None = None,
        dims: Dims | None = None,
        input: str | None = None,
        on_progress: OnProgress = None,
        **more: Any,
    ) -> Verification:
        """Verifies that two graphs compute the same.

        Args:
            before: First graph.
            after: Second graph.
            plan: Tiling between the graphs, or None.
            meanwhile: Function that `engine.proof.proof.verify` calls while the graphs run.
            state: Index of the state of the first graph, or None for the current one.
            dims: Sizes of dimensions, in addition to those of the session.
            input: Path of a file of input values, or None for random ones.
            on_progress: Callback with the progress of the proof.
            more: Further arguments of `engine.proof.proof.verify`.
        """
        session_dims = self._models.options["dims"]
        if plan is not None:  # dimensions that the plan leaves open are tried at several sizes
            session_dims = {name: size for name, size in plan.dims.items() if name not in plan.free}
        return verify(
            before,
            after,
            plan=plan,
            meanwhile=meanwhile,
            torch_run=self._find_torch_run(self._models.resolve_index(state), on_progress),
            **self._read_inputs(before, session_dims, dims, input),
            on_progress=on_progress,
            **more,
        )

    def _find_torch_run(self, state: int, on_progress: OnProgress) -> TorchRun | None:
        """Finds the module that computes the same as a state.

        Returns its runner, or None without such a module.
        """
        models = self._models
        for ancestor in reversed(models.history.line_to(state)):
            if ancestor == 0 or models.is_module(ancestor):
                return models.open_state(ancestor, on_progress).runner()
            record = models.history.entries[ancestor].record
            if record is not None and record.rounds:
                return None
        return None

    def blame(
        self,
        before: Model,
        after: Model,
        *,
        dims: Dims | None = None,
        input: str | None = None,
        **settings: Any,
    ) -> Blame:
        """Finds the first layer in which the second graph differs.

        `settings` holds further arguments of `blame`.
        """
        inputs = self._read_inputs(before, self._models.options["dims"], dims, input)
        return blame(before, after, **inputs, **settings)

    def check_input(self, input: str, on_progress: OnProgress) -> None:
        """Refuses a file of inputs on which the current state cannot run."""
        models = self._models
        model = models.load_graph(models.current, on_progress)
        read_given_inputs(model, read_input(input), models.name_input_shapes(model))

    def _read_inputs(
        self, before: Model, session_dims: Mapping[str, int], dims: Dims | None, input: str | None
    ) -> dict[str, Any]:
        """Reads the input arguments of a verification or blame: sizes, shapes, and the values of a file."""
        if input is not None and dims:
            raise Misuse("the input file sets the sizes", where="--dim", hint="leave out --dim or --input")
        return {
            "dims": select_dims(before, {**session_dims, **(dims or {})}),
            "input_shapes": self._models.name_input_shapes(before),
            "arrays": read_input(input) if input is not None else None,
        }
