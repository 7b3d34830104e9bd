"""Applies a user's own pass to a session's model. The result becomes a state, with a proof."""

from __future__ import annotations

import os
import time
from collections import Counter
from functools import partial
from typing import Any

from msgspec.structs import replace

from explorer.base.checked import Count, Natural, PathText
from explorer.base.errors import Misuse
from explorer.engine.edit.user_passes import find_pass, has_command, read_options, run_pass
from explorer.engine.graph.model import Model
from explorer.engine.progress import report
from explorer.facts import HistoryEntry, Layer, Verification
from explorer.facts.change import ProofRequest
from explorer.facts.user_pass import AppliedPass, PassSpec
from explorer.features.rewrite.records import PassRecord
from explorer.host import scratch
from explorer.session.methods.facade import Facade
from explorer.session.parts import scripts
from explorer.session.parts.change import Change, ChangeStep, StateText, Steps, Work
from explorer.session.parts.models import Cancel, OnProgress
from explorer.session.parts.proofs import Prover
from explorer.settings.option_values import write_words


def _make_steps(options: PassSpec, work: Work) -> Steps:
    """Apply the pass to the current state; if outputs differ, the result names the first different layer."""
    started = time.perf_counter()
    models = work.models
    declared = find_pass(options.name, options.passes, trust=bool(models.options["trust"]))
    values = read_options(declared, options.options)
    if models.is_module(models.current):
        raise Misuse(
            "a pass changes a graph, not a quantized nn.Module",
            where=models.label(models.current),
            hint="apply it to the original, and quantize the result",
        )
    if work.proof.input is not None:
        work.parts.get_part(Prover).check_input(work.proof.input, work.on_progress)
    model = models.load_graph(models.current, work.on_progress)
    layers: tuple[Layer, ...] = ()
    if declared.takes_layers:
        layers = models.graph_analysis(models.current, work.on_progress, work.cancel).layers
    words = _list_words(options)
    command = ""
    if words and not models.current:
        command = scripts.write_command(models, "apply", work.output, f"_{options.name}.onnx", *words)
    blame_verdicts: list[str] = []
    with scratch.create_folder() as folder:
        report(work.on_progress, work.cancel, f"applying {options.name}")
        changed, is_changed = run_pass(declared, model, layers, values, folder)
        text = StateText(f"pass {options.name}", PassRecord(options.name, words), command)
        check = partial(_verify_and_blame, work, model, blame_verdicts) if work.proof.verify else None
        result = yield ChangeStep(changed, text, check)
    before, after = (Counter(node.op for node in graph.nodes) for graph in (model.graph, changed.graph))
    operators = {op: after[op] - before[op] for op in sorted({*before, *after}) if after[op] != before[op]}
    return AppliedPass(
        options.name,
        declared.about.summary,
        options.options,
        len(changed.graph.nodes),
        len(model.graph.nodes),
        operators,
        result.proof,
        " ".join(blame_verdicts),
        result.output if work.output is not None else "",
        command,
        (*models.list_weight_notes(), *(() if is_changed else ("the pass changed nothing",))),
        time.perf_counter() - started,
    )


def _verify_and_blame(
    work: Work, before: Model, blame_verdicts: list[str], after: Model, path: str
) -> Verification:
    """Verify the result. If it differs, add the verdict with the first layer that differs to the list."""
    prover = work.parts.get_part(Prover)
    common: dict[str, Any] = {
        "input": work.proof.input,
        "draws": work.proof.draws,
        "seed": work.proof.seed,
        "on_progress": work.on_progress,
        "cancel": work.cancel,
    }
    verification = prover.verify(before, after, plan=None, **common)
    if verification.verdict_kind == "different":
        blame_verdicts.append(prover.blame(before, after, **common).verdict)
    return verification


def _list_words(options: PassSpec) -> tuple[str, ...]:
    """Return the arguments of `explorer apply`, or none for a pass that a notebook declared."""
    if not has_command(options.name, options.passes):
        return ()
    path = None if options.passes is None else os.path.abspath(options.passes)
    words = write_words(replace(options, passes=path))
    return (options.name, *words, *(() if path is None else ("--trust",)))


def _write_words(entry: HistoryEntry, config: str) -> tuple[list[str], str]:
    """Return the options of `apply` that make the state again; see `Change.words`."""
    if not entry.record.words:
        raise Misuse(
            f"no command applies the pass '{entry.record.name}', which a program declared",
            where="script",
            hint="put it into a file and name the file with --passes",
        )
    return [*entry.record.words, *scripts.write_proof_words(entry.verification)], ""


CHANGE = Change("apply", PassSpec, _make_steps, _write_words, lambda options: (options.passes,))


def apply_pass(
    session: Facade,
    spec: PassSpec,
    *,
    output: PathText | None = None,
    overwrite: bool = False,
    verify: bool = True,
    draws: Count = 1,
    seed: Natural = 0,
    input: PathText | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> AppliedPass:
    """Apply a pass of your own to the current model; the result becomes a state, with a proof.

    `explorer.passes` explains how a pass is declared. A file with passes runs only in a session with `trust`.

    Args:
        spec: Name of the pass, its file and its options. Without a file, the pass is one of an installed
            package, or one that this program declared.
        output: Path of the file to write, or None to keep the model in the session's folder until `save`.
        overwrite: Whether to replace an existing `output`.
        verify: Whether to verify the result before it is kept. If the models differ, no file and no state is
            kept, and `AppliedPass.blame` names the first layer that differs.
        draws: Number of random inputs for the proof.
        seed: Seed of the first random input.
        input: Path of an .npy or .npz file with inputs for the proof, or None for random inputs.
        on_progress: Callback that receives the progress.
        cancel: Callback that is polled regularly. If it returns True, the job stops and leaves no files.

    Raises:
        Misuse: The pass does not exist, several plug-ins have its name, it fails or returns an invalid graph,
            or an option is invalid; also, `output` exists or cannot be written.
        BadModel: onnxruntime cannot run one of the models.
        Cancelled: `cancel` returned True.
    """
    fact: AppliedPass = session.do(
        "apply",
        spec,
        proof=ProofRequest(verify, draws, seed, input),
        output=output,
        overwrite=overwrite,
        on_progress=on_progress,
        cancel=cancel,
    )
    return fact
