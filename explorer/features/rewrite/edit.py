"""Edits a session's models: each step makes a state, which onnxruntime has to load."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from explorer.base.errors import BadModel, Misuse
from explorer.engine.edit.edit import edit
from explorer.engine.graph.model import Model
from explorer.engine.models.opened_model import dims_of
from explorer.engine.progress import Cancel, OnProgress, report
from explorer.engine.runtime.onnxruntime import RuntimeSession
from explorer.facts import HistoryEntry
from explorer.facts.split.edit import Edit, EditStep, TypeChange
from explorer.session.parts import scripts
from explorer.session.parts.models import Models
from explorer.session.parts.transaction import ChangeStep, Written, do
from explorer.settings.steps.edit import step_words


class Editor:
    """Makes edited states."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def edit(
        self,
        steps: Sequence[EditStep],
        output: str | None,
        *,
        overwrite: bool,
        verify: bool,
        each: bool,
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> Edit:
        """Edits the current state; where a step cannot be done all is as before."""
        started = time.perf_counter()
        models = self._models
        if not steps:
            raise Misuse("says nothing to do", where="edit")
        if output is not None:
            models.check_onnx(output, overwrite)
        groups = [[step] for step in steps] if each else [list(steps)]
        edited: list[Edit] = []
        do(
            models,
            [partial(self._step, group, output, verify, edited, on_progress, cancel) for group in groups],
            output=output,
            overwrite=overwrite,
            on_progress=on_progress,
            cancel=cancel,
        )
        changed: dict[str, TypeChange] = {}
        for change in (change for one in edited for change in one.outputs):
            changed[change.name] = replace(change, before=changed.get(change.name, change).before)
        return Edit(
            tuple(steps),
            tuple(line for one in edited for line in one.done),
            tuple(change for change in changed.values() if change.before != change.after),
            True if verify else None,
            output=output or "",
            command=self.command(steps, output),
            notes=models.random_weights(),
            seconds=time.perf_counter() - started,
        )

    def _step(
        self,
        steps: Sequence[EditStep],
        output: str | None,
        verify: bool,
        edited: list[Edit],
        on_progress: OnProgress,
        cancel: Cancel,
        target: str,
    ) -> ChangeStep:
        """The state of some edits; what they did is appended to `edited`."""
        models = self._models
        model = models.graph(models.current, on_progress)
        done: list[str] = []
        outputs: list[TypeChange] = []
        for step in steps:
            report(on_progress, cancel, "editing", len(done), len(steps))
            names = {value.name for value in model.graph.feeds}
            input_shapes = models.options["input_shapes"].items()
            shapes = {name: shape for name, shape in input_shapes if name in names}
            made = edit(model, step, self._aliases, dims_of(model, models.options["dims"]), shapes)
            model = made.model
            done.append(made.done)
            outputs += made.outputs
        saved = target if target == output else ""
        edited.append(Edit(tuple(steps), tuple(done), tuple(outputs)))

        def entry(written: Written) -> HistoryEntry:
            return HistoryEntry(
                label=f"edit: {done[0]}" if len(done) == 1 else f"edit: {len(done):,} steps",
                path=written.path,
                command=self.command(steps, saved or None),
                saved=saved,
                words=("edit", *step_words(steps), *(() if verify else ("--no-verify",))),
            )

        def load(written: Model) -> None:
            report(on_progress, cancel, "loading it in onnxruntime")
            _load(written)

        return ChangeStep(model, entry, load if verify else None)

    def _aliases(self) -> Mapping[str, str]:
        """What the nodes of layers make, by their paths and names; several layers of a name are none."""
        layers = self._models.graph_analysis(self._models.current, None, None).layers
        found: dict[str, str] = {}
        several: set[str] = set()
        sure: dict[str, str] = {}
        for layer in layers:
            if layer.group or not layer.outputs or not layer.outputs[0].name:
                continue
            value = layer.outputs[0].name
            if found.setdefault(layer.name, value) != value:
                several.add(layer.name)
            # as the tree has it, where a leaf's own path is what its node is called
            inside = layer.name if layer.parent is None else f"{layers[layer.parent].path}.{layer.name}"
            sure |= {inside: value, layer.path: value}
        return {name: value for name, value in found.items() if name not in several} | sure

    def command(self, steps: Sequence[EditStep], output: str | None) -> str:
        """The command that does the same to the opened model headless; '' where no command can."""
        return scripts.headless(self._models, "edit", output, "_edited.onnx", *step_words(steps))


def _load(model: Model) -> None:
    """Has onnxruntime load a model.

    Raises:
        BadModel: It refuses.
    """
    try:
        RuntimeSession(model, what="the edited model")
    except BadModel as error:
        raise BadModel(error.what, hint="nothing was changed; --no-verify writes it as it is") from None
