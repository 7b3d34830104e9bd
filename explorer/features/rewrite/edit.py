"""Edits the graph of a session's model by hand. Each step makes a state that onnxruntime must load."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from explorer.base.checked import PathText
from explorer.base.errors import BadModel, Misuse
from explorer.engine.edit.edit import edit as apply_edit
from explorer.engine.graph.model import Model
from explorer.engine.models.opened_model import select_dims
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
from explorer.settings.steps.edit import write_step_words


def _make_steps(options: EditSpec, work: Work) -> Steps:
    """Edit the current state. If a step fails, the session stays unchanged."""
    started = time.perf_counter()
    models, steps = work.models, options.steps
    if not steps:
        raise Misuse("no edit is named", where="edit")
    groups = [(step,) for step in steps] if options.each else [steps]
    edits: list[Edit] = []
    for number, group in enumerate(groups, 1):
        model, edit_of_group = _apply_edits(models, group, work)
        edits.append(edit_of_group)
        is_last = number == len(groups)
        done_lines, verify = edit_of_group.done, work.proof.verify
        text = StateText(
            f"edit: {done_lines[0]}" if len(done_lines) == 1 else f"edit: {len(done_lines):,} steps",
            EditRecord((*write_step_words(group), *(() if verify else ("--no-verify",)))),
            _build_command(models, group, work.output if is_last else None),
        )
        yield ChangeStep(model, text, partial(_load, work) if verify else None, is_last=is_last)
    changed: dict[str, TypeChange] = {}
    for change in (change for fact in edits for change in fact.outputs):
        changed[change.name] = replace(change, before=changed.get(change.name, change).before)
    return Edit(
        steps,
        tuple(line for fact in edits for line in fact.done),
        tuple(change for change in changed.values() if change.before != change.after),
        loaded=True if work.proof.verify else None,
        output=work.output or "",
        command=_build_command(models, steps, work.output),
        notes=models.list_weight_notes(),
        seconds=time.perf_counter() - started,
    )


def _apply_edits(models: Models, steps: Sequence[EditStep], work: Work) -> tuple[Model, Edit]:
    """Return the current model after some edits, and the record of the edits."""
    model = models.load_graph(models.current, work.on_progress)
    completed: list[str] = []
    outputs: list[TypeChange] = []
    for step in steps:
        report(work.on_progress, work.cancel, "editing", len(completed), len(steps))
        names = {value.name for value in model.graph.required_inputs}
        shapes = {name: shape for name, shape in models.name_input_shapes(model).items() if name in names}
        sizes = select_dims(model, models.options["dims"])
        edited = apply_edit(model, step, partial(_map_aliases, models), sizes, shapes)
        model = edited.model
        completed.append(edited.done)
        outputs += edited.outputs
    return model, Edit(tuple(steps), tuple(completed), tuple(outputs))


def _map_aliases(models: Models) -> Mapping[str, str]:
    """Return the output of each layer's node, by path and by name of the layer.

    Names that several layers share are left out.
    """
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
        # `layer.path` may be the node's name, which differs from the layer's place in the tree
        tree_path = layer.name if layer.parent is None else f"{layers[layer.parent].path}.{layer.name}"
        value_by_path |= {tree_path: value, layer.path: value}
    return {name: value for name, value in value_by_name.items() if name not in ambiguous} | value_by_path


def _build_command(models: Models, steps: Sequence[EditStep], output: str | None) -> str:
    """Return the shell command that makes the same edits, or '' if no command can."""
    return scripts.write_command(models, "edit", output, "_edited.onnx", *write_step_words(steps))


def _load(work: Work, model: Model, path: str) -> None:
    """Check that onnxruntime loads an edited model.

    Raises:
        BadModel: onnxruntime rejects the model.
    """
    report(work.on_progress, work.cancel, "loading it in onnxruntime")
    try:
        RuntimeSession(model, label="the edited model")
    except BadModel as error:
        raise BadModel(error.what, hint="nothing was changed; --no-verify writes it as it is") from None


def _write_words(entry: HistoryEntry, config: str) -> tuple[list[str], str]:
    """Return the options of `edit` that make the state again; see `Change.words`."""
    return [*entry.record.words], ""


CHANGE = Change("edit", EditSpec, _make_steps, _write_words)


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
    """Edit the graph of the current model; the result becomes the current state.

    Each step is checked against the result of the previous steps. Then sizes are inferred again, and declared
    types and shapes are corrected.

    Args:
        steps: Steps in order, each an `explorer.facts.split.edit.EditStep`, or a spec that contains them.
        output: Path of the file for the last state, or None to keep it in the session until `save`.
        overwrite: Whether to replace an existing `output`.
        verify: Whether onnxruntime must load each state. A state that it rejects is not added.
        each: Whether every step makes its own state, so that `undo` can go back step by step. False makes one
            state.
        on_progress: Callback that receives the progress.
        cancel: Callback that is polled regularly. If it returns True, the job stops and leaves no files.

    Raises:
        Misuse: A step is impossible, or its name is missing or ambiguous; also, `output` exists or
            cannot be written. In these cases no step is applied.
        BadModel: onnxruntime rejects the result, or the model has no graph.
        Cancelled: `cancel` returned True.
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
