"""Edits of a session's model by hand: each step makes a state, which onnxruntime has to load."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from explorer.base.checked import PathText
from explorer.base.errors import BadModel, Misuse
from explorer.engine.edit.edit import edit as apply_edit
from explorer.engine.graph.model import Model
from explorer.engine.models.opened_model import dims_of
from explorer.engine.progress import report
from explorer.engine.runtime.onnxruntime import RuntimeSession
from explorer.facts import HistoryEntry
from explorer.facts.change import ProofRequest
from explorer.facts.split.edit import Edit, EditSpec, EditStep, TypeChange
from explorer.features.rewrite.records import EditRecord
from explorer.session.methods.facade import Facade
from explorer.session.parts import scripts
from explorer.session.parts.change import Change, ChangeStep, StateText, Steps, Work
from explorer.session.parts.models import Cancel, Models, OnProgress
from explorer.settings.steps.edit import step_words


def _steps(options: EditSpec, work: Work) -> Steps:
    """Edit the current state; a step that fails leaves the session unchanged."""
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
        yield ChangeStep(model, text, partial(_load, work) if verify else None, last=last)
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


def _edited(models: Models, steps: Sequence[EditStep], work: Work) -> tuple[Model, Edit]:
    """The current model after some edits, and the record of the edits."""
    model = models.graph(models.current, work.on_progress)
    done: list[str] = []
    outputs: list[TypeChange] = []
    for step in steps:
        report(work.on_progress, work.cancel, "editing", len(done), len(steps))
        names = {value.name for value in model.graph.feeds}
        input_shapes = models.options["input_shapes"].items()
        shapes = {name: shape for name, shape in input_shapes if name in names}
        sizes = dims_of(model, models.options["dims"])
        edited = apply_edit(model, step, partial(_aliases, models), sizes, shapes)
        model = edited.model
        done.append(edited.done)
        outputs += edited.outputs
    return model, Edit(tuple(steps), tuple(done), tuple(outputs))


def _aliases(models: Models) -> Mapping[str, str]:
    """Output of each layer's node, by the layer's path and name; names of several layers are left out."""
    layers = models.graph_analysis(models.current, None, None).layers
    value_by_name: dict[str, str] = {}
    ambiguous: set[str] = set()
    value_by_path: dict[str, str] = {}
    for layer in layers:
        if layer.group or not layer.outputs or not layer.outputs[0].name:
            continue
        value = layer.outputs[0].name
        if value_by_name.setdefault(layer.name, value) != value:
            ambiguous.add(layer.name)
        # the tree shows a leaf below its parent, while its path may be the name of its node
        tree_path = layer.name if layer.parent is None else f"{layers[layer.parent].path}.{layer.name}"
        value_by_path |= {tree_path: value, layer.path: value}
    return {name: value for name, value in value_by_name.items() if name not in ambiguous} | value_by_path


def _command(models: Models, steps: Sequence[EditStep], output: str | None) -> str:
    """The command line that makes the same edits; '' where there is none."""
    return scripts.headless(models, "edit", output, "_edited.onnx", *step_words(steps))


def _load(work: Work, model: Model, path: str) -> None:
    """Let onnxruntime load an edited model.

    Raises:
        BadModel: onnxruntime refuses the model.
    """
    report(work.on_progress, work.cancel, "loading it in onnxruntime")
    try:
        RuntimeSession(model, what="the edited model")
    except BadModel as error:
        raise BadModel(error.what, hint="nothing was changed; --no-verify writes it as it is") from None


def _words(entry: HistoryEntry, config: str) -> tuple[list[str], str]:
    return [*entry.record.words], ""


CHANGE = Change("edit", EditSpec, _steps, _words)


def edit(
    session: Facade,
    steps: EditSpec | Sequence[EditStep],
    *,
    output: PathText | None = None,
    overwrite: bool = False,
    verify: bool = True,
    each: bool = True,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Edit:
    """Edits the current model's graph; the result becomes the current one.

    Each step is checked against what the steps before it made, sizes are inferred anew, and what a file
    declares of its values is made true.

    Args:
        steps: Each an `explorer.facts.split.edit.EditStep`, in their order; or the record that holds them.
        output: Where to write the last state; None keeps it in the session until `save`.
        overwrite: Whether an existing `output` may be replaced.
        verify: Have onnxruntime load each state: one that it refuses is not made.
        each: Every step makes a state of its own, which `undo` goes back through; otherwise all of them
            make one.
        on_progress: Told where the job stands.
        cancel: Asked now and then; True stops the job and leaves nothing behind.

    Raises:
        Misuse: A step names what is not there, or several things, or cannot be done; or `output` cannot
            be written or exists. Then no step was taken.
        BadModel: onnxruntime refuses the result, or the model has no graph.
        Cancelled: `cancel` said so.
    """
    options = steps if isinstance(steps, EditSpec) else EditSpec(tuple(steps), each)
    fact: Edit = session.do(
        "edit",
        options,
        proof=ProofRequest(verify),
        output=output,
        overwrite=overwrite,
        on_progress=on_progress,
        cancel=cancel,
    )
    return fact
