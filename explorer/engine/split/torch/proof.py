"""Proves that torch stages compute the same outputs and gradients as the original module, called the whole.

The outputs are compared after running the stages one after another. The gradients are compared after one
training step of each schedule, which the folder's script runs in processes. The whole runs the same
micro-batches in order, and its gradients are averaged over them.

Everything runs in evaluation mode. Dropout then returns its input, and batch normalization uses its stored
statistics; in training mode its statistics would depend on how the batch is divided.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from explorer.base.units import many_text
from explorer.engine.formats.torch_module.modules import walk_tensors
from explorer.engine.progress import Cancel, OnProgress, report
from explorer.engine.proof.outputs import run
from explorer.engine.proof.verdict import Grounds, decide_verdict
from explorer.engine.runtime.torch_arrays import convert_to_array
from explorer.engine.split.torch import pipeline_script, processes
from explorer.engine.split.torch.stages import ModuleStages, run_stages
from explorer.facts import OutputEvidence, Verification
from explorer.facts.split.split import StepProof
from explorer.host import input_files, scratch

_REFERENCE = "none: the allowed rounding error follows from the depth of the model"
SCHEDULES: tuple[Literal["gpipe", "1f1b"], ...] = ("gpipe", "1f1b")

Tensors = Mapping[str, torch.Tensor]
Call = Callable[[Tensors], Any]


class WholeStep(NamedTuple):
    """Results of a training step of the original module.

    Attributes:
        outputs: Outputs of each micro-batch.
        gradients: Mean gradients over the micro-batches, by parameter name.
    """

    outputs: list[list[torch.Tensor]]
    gradients: dict[str, torch.Tensor]


def run_whole_step(module: nn.Module, call: Call, batches: Sequence[Tensors]) -> WholeStep:
    """Runs the original module forward and backward on each micro-batch, without changing a parameter."""
    weights = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    outputs: list[list[torch.Tensor]] = []
    gradient_sums: dict[str, torch.Tensor] = {}
    for batch in batches:
        batch_outputs = [tensor for _, tensor in walk_tensors(call(batch))]
        outputs.append([tensor.detach() for tensor in batch_outputs])
        loss = pipeline_script.loss(tuple(batch_outputs), torch.zeros(1))
        gradients = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
        for name, gradient in zip(weights, gradients, strict=True):
            if gradient is not None:
                gradient_sums[name] = gradient_sums[name] + gradient if name in gradient_sums else gradient
    return WholeStep(outputs, {name: total / len(batches) for name, total in gradient_sums.items()})


def prove(
    module: nn.Module,
    call: Call,
    parts: ModuleStages,
    folder: str,
    files: Sequence[str],
    batches: Sequence[Tensors],
    texts: Sequence[str],
    on_progress: OnProgress,
    cancel: Cancel,
) -> tuple[Verification, bool, tuple[StepProof, ...]]:
    """Compares the written stages with the module.

    Args:
        module: The original module, in evaluation mode.
        call: Runs the module on inputs by name.
        parts: The stages, with the names of their inputs, outputs and parameters.
        folder: Folder with the stages, their manifest and script.
        files: File names of the stages.
        batches: Inputs of each micro-batch, by name.
        texts: Descriptions of the micro-batches.
        on_progress: Receives the phases.
        cancel: Returns whether to stop; polled many times a second.

    Returns:
        The evidence; whether the stages reproduced the outputs bit for bit; and the proof of each schedule's
        training step. If a stage's weight differs from the original, no training step runs, and this tuple is
        empty.

    Raises:
        BadModel: A stage cannot run.
        EngineDied: The process of a stage ended.
        Cancelled: `cancel` returned True.
    """
    started = time.perf_counter()
    report(on_progress, cancel, "running the whole")
    with _use_one_thread():
        whole = run_whole_step(module, call, batches)
        modules = [_load_module(os.path.join(folder, file)) for file in files]
        rows = _run_stages(parts, modules, batches)
    depth = _estimate_depth(module)
    outputs = _compare(parts.outputs, whole.outputs, rows, depth)
    mismatch = _describe_differing_weight(module, modules)
    del modules
    steps: list[StepProof] = []
    if not mismatch:  # a differing weight fails the proof, even if the outputs hardly differ
        report(on_progress, cancel, "training a step in processes")
        inputs = {name: torch.cat([batch[name] for batch in batches]) for name in parts.inputs}
        with scratch.create_folder() as workdir:
            results = processes.run_steps(folder, files, workdir, SCHEDULES, inputs, len(batches), cancel)
        steps = [_prove_step(parts, schedule, results[schedule], whole, depth) for schedule in SCHEDULES]
    evidence = Verification(
        **_build_verdict(outputs, steps, len(batches), mismatch),
        before="",
        after="the stages",
        seeds=(),
        inputs=tuple(texts),
        sites=(),
        outputs=outputs,
        seconds=time.perf_counter() - started,
    )
    return evidence, all(output.equal for output in outputs), tuple(steps)


def _load_module(path: str) -> Any:
    with input_files.open_binary(path) as file:
        return torch.export.load(file).module()


@contextlib.contextmanager
def _use_one_thread() -> Iterator[None]:
    """Runs torch with one thread inside the block, so that two runs add in the same order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _estimate_depth(module: nn.Module) -> int:
    """Estimates the number of roundings of an output: the modules plus the largest size of each weight."""
    return sum(max(parameter.shape, default=1) for parameter in module.parameters()) + sum(
        1 for _ in module.modules()
    )


def _run_stages(
    parts: ModuleStages, modules: Sequence[nn.Module], batches: Sequence[Tensors]
) -> list[list[torch.Tensor]]:
    """Runs the stages one after another; returns the outputs of each micro-batch."""
    values_by_batch = (run_stages(parts, modules, batch) for batch in batches)
    return [[values[name].detach() for name in parts.outputs] for values in values_by_batch]


def _describe_differing_weight(whole: nn.Module, modules: Sequence[nn.Module]) -> str:
    """Describes the first stored tensor of a stage that differs from the original, or returns ''."""
    whole_tensors = {**dict(whole.named_parameters(remove_duplicate=False)), **dict(whole.named_buffers())}
    for number, module in enumerate(modules, 1):
        for name, value in (*module.named_parameters(), *module.named_buffers()):
            if name in whole_tensors and not run.is_identical(
                convert_to_array(whole_tensors[name]), convert_to_array(value)
            ):
                return f"'{name}' of stage {number} differs from that of the whole module"
    return ""


def _build_verdict(
    outputs: Sequence[OutputEvidence], steps: Sequence[StepProof], batches: int, mismatch: str
) -> dict[str, Any]:
    """Returns the fields of the verdict. `mismatch` is the reason why the stages cannot be equal, or ''."""
    if mismatch:
        return {"passed": False, "verdict_kind": "different", "verdict": f"different: {mismatch}"}
    all_evidence = (*outputs, *(evidence for step in steps for evidence in (*step.outputs, *step.gradients)))
    verdict = decide_verdict(Grounds(model_outputs=all_evidence, draws=batches))
    if not verdict["passed"]:
        return verdict
    parts = [
        "weights equal those of the whole module bit for bit",
        f"{many_text(len(outputs), 'output')} of the stages in a row {_describe_closeness(outputs)}",
    ]
    for step in steps:
        gradients_text = f"{many_text(len(step.gradients), 'gradient')} {_describe_closeness(step.gradients)}"
        parts.append(
            f"{step.schedule} in processes: outputs {_describe_closeness(step.outputs)}, {gradients_text}"
        )
    return {**verdict, "verdict": f"equal on evidence: {'; '.join(parts)}; over {batches:,} micro-batches"}


def _describe_closeness(evidence: Sequence[OutputEvidence]) -> str:
    if all(output.equal for output in evidence):
        return "bit for bit the same"
    equal_count = sum(output.equal for output in evidence)
    largest = max(output.relative_rms or 0.0 for output in evidence)
    return f"within rounding ({equal_count:,} bit for bit, RMS difference at most {largest:.1e} of the RMS)"


def _prove_step(
    parts: ModuleStages,
    schedule: Literal["gpipe", "1f1b"],
    results: Sequence[Mapping[str, Any]],
    whole: WholeStep,
    depth: int,
) -> StepProof:
    """Compares a schedule's outputs and gradients in a training step with those of the original module."""
    gradients, count = _get_gradients(parts, results), len(whole.outputs)
    names = list(whole.gradients)
    zeros = {name: torch.zeros_like(gradient) for name, gradient in whole.gradients.items()}
    last_outputs = [output.chunk(count) for output in results[-1]["outputs"]]
    rows = [
        [chunks[index].reshape(expected.shape) for chunks, expected in zip(last_outputs, row, strict=True)]
        for index, row in enumerate(whole.outputs)
    ]
    all_gradients = [{**zeros, **gradients}[name] for name in names]
    return StepProof(
        schedule=schedule,
        micro_batches=count,
        outputs=_compare(parts.outputs, whole.outputs, rows, depth),
        gradients=_compare(names, [list(whole.gradients.values())], [all_gradients], depth),
    )


def _get_gradients(parts: ModuleStages, results: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
    """Returns the gradients by their names in the original module.

    Each copy of a shared weight has the full gradient, so the first copy's is used.
    """
    gradients_by_name: dict[str, list[torch.Tensor]] = defaultdict(list)
    for stage, result in zip(parts.stages, results, strict=True):
        for name, gradient in result["gradients"].items():
            gradients_by_name[stage.parameters.get(name, name)].append(gradient)
    return {name: copies[0] for name, copies in gradients_by_name.items()}


def _compare(
    names: Sequence[str],
    before: Sequence[Sequence[torch.Tensor]],
    after: Sequence[Sequence[torch.Tensor]],
    depth: int,
) -> tuple[OutputEvidence, ...]:
    def convert_outputs(rows: Sequence[Sequence[torch.Tensor]]) -> run.ModelOutputs:
        return run.ModelOutputs(
            tuple(names), tuple([tuple([convert_to_array(tensor) for tensor in row]) for row in rows])
        )

    return run.compare(convert_outputs(before), convert_outputs(after), (), run.Noise(_REFERENCE, depth))
