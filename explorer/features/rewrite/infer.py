"""Declares the inferred type and shape of every value of a session's model (`value_info`)."""

from __future__ import annotations

import time
from functools import partial

from msgspec.structs import replace

from explorer.base.checked import PathText
from explorer.base.errors import BadModel, Misuse
from explorer.engine.graph.model import Model
from explorer.engine.progress import report
from explorer.engine.runtime.onnxruntime import RuntimeSession
from explorer.engine.shapes import Inference
from explorer.engine.shapes.declarations import DeclaredTypes, declare_types, drop_declarations
from explorer.facts import HistoryEntry
from explorer.facts.change import ProofRequest
from explorer.facts.split.infer import InferenceResult, InferSpec
from explorer.features.rewrite.records import InferRecord
from explorer.session.methods.facade import Facade
from explorer.session.parts import scripts
from explorer.session.parts.change import Change, ChangeStep, StateText, Steps, Work
from explorer.session.parts.models import Cancel, Models, OnProgress
from explorer.settings.option_values import write_words


def _make_steps(options: InferSpec, work: Work) -> Steps:
    """Declare the types of the current state, which become a new state."""
    started = time.perf_counter()
    models = work.models
    original, declared = _declare(models, options, work.on_progress, work.cancel)
    fact = _describe(models, options, declared, work.output)
    text = StateText(
        f"{fact.known:,} of {len(fact.values):,} shapes declared",
        InferRecord(options.fresh, work.proof.verify),
        fact.command,
    )
    notes: list[str] = list(fact.notes)
    check = partial(_load, work, original, notes) if work.proof.verify else None
    yield ChangeStep(declared.model, text, check)
    return replace(fact, output=work.output or "", notes=tuple(notes), seconds=time.perf_counter() - started)


def _declare(
    models: Models, options: InferSpec, on_progress: OnProgress, cancel: Cancel
) -> tuple[Model, DeclaredTypes]:
    """Return the current model, and the model with declared types.

    Raises:
        Misuse: The current state is a quantized nn.Module.
    """
    if models.is_module(models.current):
        raise Misuse(
            "a quantized nn.Module declares no shapes",
            where=models.label(models.current),
            hint="explorer infer names an ONNX file",
        )
    model = models.load_graph(models.current, on_progress)
    report(on_progress, cancel, "inferring shapes")
    sizes, input_shapes = models.find_sizes(models.current, model)
    source = drop_declarations(model) if options.fresh else model
    inference = Inference(source, sizes, input_shapes)
    run_notes: tuple[str, ...] = ()
    if models.options["observe"]:
        from explorer.engine.shapes.runtime_shapes import observe_shapes  # imports onnxruntime

        types, run_notes = observe_shapes(
            source, inference.main.values, sizes, input_shapes, on_progress=on_progress, cancel=cancel
        )
        inference = Inference(source, sizes, input_shapes, observed=types)
    declared = declare_types(model, inference, sizes, input_shapes, fresh=options.fresh)
    return model, replace(declared, notes=(*declared.notes, *run_notes))


def _describe(
    models: Models, options: InferSpec, declared: DeclaredTypes, output: str | None
) -> InferenceResult:
    command = ""
    if not models.current:
        command = scripts.write_command(models, "infer", output, "_inferred.onnx", *write_words(options))
    return InferenceResult(
        declared.values,
        declared.graphs,
        declared.known_count_before,
        declared.known_count,
        command=command,
        notes=declared.notes,
    )


def _load(work: Work, original: Model, notes: list[str], model: Model, path: str) -> None:
    """Check that onnxruntime loads the model with its declarations.

    If it does not load the original either, add a note to `notes` instead.

    Raises:
        BadModel: onnxruntime loads the original and rejects the declarations.
    """
    report(work.on_progress, work.cancel, "loading it in onnxruntime")
    try:
        RuntimeSession(model, label="the model")
    except BadModel as error:
        try:
            RuntimeSession(original, label="the model")
        except BadModel:
            notes.append("onnxruntime loads neither this model nor the original, so it checked no shape")
            return
        raise BadModel(
            f"onnxruntime rejects the shapes: {error.what}",
            hint="nothing was changed; --no-verify writes them as they are",
        ) from None


def _write_words(entry: HistoryEntry, config: str) -> tuple[list[str], str]:
    """Return the options of `infer` that make the state again; see `Change.words`."""
    record = entry.record
    return [*write_words(InferSpec(record.fresh)), *(() if record.loaded else ("--no-verify",))], ""


CHANGE = Change("infer", InferSpec, _make_steps, _write_words)


def infer_choice(
    session: Facade, spec: InferSpec | None = None, *, on_progress: OnProgress = None, cancel: Cancel = None
) -> InferenceResult:
    """Predict the result of `infer` on the current model, without a new state.

    Args:
        spec: Options of the inference, or None for the defaults.
        on_progress: Callback that receives the progress.
        cancel: Callback that is polled regularly. If it returns True, the job stops.

    Raises:
        BadModel: The model cannot be converted to a graph.
        Cancelled: `cancel` returned True.
    """
    models, spec = session.parts.models, spec or InferSpec()
    started = time.perf_counter()
    fact = _describe(models, spec, _declare(models, spec, on_progress, cancel)[1], None)
    return replace(fact, seconds=time.perf_counter() - started)


def infer(
    session: Facade,
    spec: InferSpec | None = None,
    *,
    output: PathText | None = None,
    overwrite: bool = False,
    verify: bool = True,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> InferenceResult:
    """Declare the inferred type and shape of every value of the current model; the result becomes a state.

    The main graph, the bodies of If, Loop and Scan, and functions get declarations (value_info). Sizes of
    the session (`dims`, `input_shapes`) are also declared for the inputs.

    Args:
        spec: Options of the inference, or None for the defaults.
        output: Path of the file to write, or None to keep the model in the session's folder until `save`.
        overwrite: Whether to replace an existing `output`.
        verify: Whether onnxruntime must load the result, if it loads the original.
        on_progress: Callback that receives the progress.
        cancel: Callback that is polled regularly. If it returns True, the job stops and leaves no files.

    Raises:
        Misuse: A size or an input does not exist; also, `output` exists or cannot be written.
        BadModel: onnxruntime rejects the result, or the model has no graph.
        Cancelled: `cancel` returned True.
    """
    fact: InferenceResult = session.do(
        "infer",
        spec or InferSpec(),
        proof=ProofRequest(verify),
        output=output,
        overwrite=overwrite,
        on_progress=on_progress,
        cancel=cancel,
    )
    return fact
