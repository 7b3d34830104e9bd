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
from explorer.engine.progress import report
from explorer.engine.runtime.onnxruntime import RuntimeSession
from explorer.facts import HistoryEntry
from explorer.facts.split.edit import Edit, EditSpec, EditStep, TypeChange
from explorer.features.rewrite.records import EditRecord
from explorer.session.parts import scripts
from explorer.session.parts.change import Change, ChangeStep, StateText, Steps, Work, Written
from explorer.session.parts.models import Models
from explorer.settings.steps.edit import step_words


def _steps(options: EditSpec, work: Work) -> Steps:
    """Edits the current state; where a step cannot be done all is as before."""
    started = time.perf_counter()
    models, steps = work.models, options.steps
    if not steps:
        raise Misuse("says nothing to do", where="edit")
    groups = [(step,) for step in steps] if options.each else [steps]
    edits: list[Edit] = []
    for at, group in enumerate(groups, 1):
        model, edit_of_group = _edited(models, group, work)
        edits.append(edit_of_group)
        last = at == len(groups)
        done, verify = edit_of_group.done, work.proof.verify
        text = StateText(
            f"edit: {done[0]}" if len(done) == 1 else f"edit: {len(done):,} steps",
            EditRecord((*step_words(group), *(() if verify else ("--no-verify",)))),
            _command(models, group, work.output if last else None),
        )
        yield ChangeStep(model, partial(_said, text), partial(_load, work) if verify else None, last=last)
    changed: dict[str, TypeChange] = {}
    for change in (change for fact in edits for change in fact.outputs):
        changed[change.name] = replace(change, before=changed.get(change.name, change).before)
    return Edit(
        steps,
        tuple(line for fact in edits for line in fact.done),
        tuple(change for change in changed.values() if change.before != change.after),
        True if work.proof.verify else None,
        output=work.output or "",
        command=_command(models, steps, work.output),
        notes=models.random_weights(),
        seconds=time.perf_counter() - started,
    )


def _said(text: StateText, written: Written) -> StateText:
    return text


def _edited(models: Models, steps: Sequence[EditStep], work: Work) -> tuple[Model, Edit]:
    """The current state after some edits, and what they did."""
    model = models.graph(models.current, work.on_progress)
    done: list[str] = []
    outputs: list[TypeChange] = []
    for step in steps:
        report(work.on_progress, work.cancel, "editing", len(done), len(steps))
        names = {value.name for value in model.graph.feeds}
        input_shapes = models.options["input_shapes"].items()
        shapes = {name: shape for name, shape in input_shapes if name in names}
        sizes = dims_of(model, models.options["dims"])
        edited = edit(model, step, partial(_aliases, models), sizes, shapes)
        model = edited.model
        done.append(edited.done)
        outputs += edited.outputs
    return model, Edit(tuple(steps), tuple(done), tuple(outputs))


def _aliases(models: Models) -> Mapping[str, str]:
    """What the nodes of layers make, by their paths and names; several layers of a name are none."""
    layers = models.graph_analysis(models.current, None, None).layers
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


def _command(models: Models, steps: Sequence[EditStep], output: str | None) -> str:
    """The command that does the same to the opened model headless; '' where no command can."""
    return scripts.headless(models, "edit", output, "_edited.onnx", *step_words(steps))


def _load(work: Work, model: Model, path: str) -> None:
    """Has onnxruntime load an edited model.

    Raises:
        BadModel: It refuses.
    """
    report(work.on_progress, work.cancel, "loading it in onnxruntime")
    try:
        RuntimeSession(model, what="the edited model")
    except BadModel as error:
        raise BadModel(error.what, hint="nothing was changed; --no-verify writes it as it is") from None


def _words(entry: HistoryEntry, config: str) -> tuple[list[str], str]:
    return [*entry.record.words], ""


CHANGE = Change("edit", EditSpec, _steps, _words)
