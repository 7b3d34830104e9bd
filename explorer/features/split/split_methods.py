"""Splits: a session's models in parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from explorer.base.checked import Count, Natural, PathText
from explorer.facts.change import ProofRequest
from explorer.features.split.stages import MODULE_PARTS, Splitter
from explorer.session.methods.facade import Facade
from explorer.session.parts.models import Cancel, OnProgress

if TYPE_CHECKING:
    from explorer.facts.roofline import Machine
    from explorer.facts.split.draft import SplitDraft
    from explorer.facts.split.part import Extraction, PartSpec
    from explorer.facts.split.run import PipelineRun
    from explorer.facts.split.split import Split, SplitSpec, StageForm


def split(
    session: Facade,
    spec: SplitSpec,
    *,
    machines: Sequence[Machine] = (),
    output: PathText | None = None,
    overwrite: bool = False,
    verify: bool = True,
    seed: Natural = 0,
    index: int | None = None,
    form: StageForm = "onnx",
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Split:
    """Cuts a model into stages of a pipeline: the largest as small as can be, then the fewest bytes over
    the cuts; exact for the order of the file.

    Args:
        spec: How many, what is balanced, where it may be cut.
        machines: One for all stages or one for each, for their times (see `explorer.settings.machines`).
        output: A folder for the stages and stages.json; None writes nothing.
        overwrite: Whether stages in it may be replaced.
        verify: Prove the stages before they get their names. What fails is not kept: then `Split.output`
            is empty.
        seed: Of the random inputs on which they run.
        index: Which model of the history; None is the current one.
        form: What the stages are; of a module 'torch' cuts it by `torch.distributed.pipelining` into .pt2
            files, writes a script for torchrun beside them, and trains a step of each schedule as proof.
        on_progress: Told where the job stands.
        cancel: Asked now and then; True stops the job and leaves nothing behind.

    Raises:
        Misuse: There are no such stages, a size is not known, or the folder cannot be written.
        BadModel: onnxruntime cannot run the model or a stage.
        Cancelled: `cancel` said so.
    """
    return session.parts.of(Splitter).split(
        spec,
        machines,
        output,
        overwrite=overwrite,
        verify=verify,
        seed=seed,
        index=index,
        form=form,
        on_progress=on_progress,
        cancel=cancel,
    )


def split_draft(
    session: Facade,
    spec: SplitSpec,
    places: Sequence[int] | None = None,
    *,
    machines: Sequence[Machine] = (),
    index: int | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> SplitDraft:
    """The stages of a model while its cuts move: as `split` tells them, and nothing is written.

    Args:
        spec: As for `split`. What was found out for it is kept, so that other cuts are told at once.
        places: Number of units before each cut; None for the cuts that `spec` leads to.
        machines: As for `split`.
        index: Which model of the history; None is the current one.
        on_progress: Told where the job stands.
        cancel: Asked now and then.

    Returns:
        The stages; where `places` were not given or `spec` is another than last, also where cuts may lie.

    Raises:
        Misuse: There are no such stages, or a size is not known.
        Cancelled: `cancel` said so.
    """
    return session.parts.of(Splitter).draft(
        spec, machines, places, index=index, on_progress=on_progress, cancel=cancel
    )


def run_stages(
    session: Facade,
    folder: PathText,
    *,
    micro_batches: Count | None = None,
    threads: Count = 1,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> PipelineRun:
    """Runs the stages that `split` wrote, a process each, at the session's sizes of open dimensions.

    Args:
        folder: With stages.json.
        micro_batches: How many random ones go through; None: as many as a second takes, from 16 to 512.
        threads: Of each stage's operators.
        on_progress: Told how many came out.
        cancel: Asked many times a second; True stops, and no process is left.

    Raises:
        Misuse: There is no such folder, a number is out of range, or a size is not known.
        BadModel: A stage's file is missing or changed, or a stage cannot run; which is said.
        EngineDied: A stage's process ended; the others are stopped.
        Cancelled: `cancel` said so.
    """
    return session.parts.of(Splitter).run(folder, micro_batches, threads, on_progress, cancel)


def extract(
    session: Facade,
    spec: PartSpec,
    output: PathText | None = None,
    *,
    overwrite: bool = False,
    verify: bool = True,
    seed: Natural = 0,
    index: int | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Extraction:
    """Writes a part of a model as an ONNX model that runs alone, with inputs as in the whole.

    Args:
        spec: Layers, or from some to others.
        output: The file; of an nn.Module also a program (.pt2, without sample inputs) or a state_dict
            (.pt, .pth). None makes a state of the part, as ONNX, which becomes the current one.
        overwrite: Whether it may be replaced.
        verify: Run the part on the whole's own values, and compare, before it gets its name. What differs
            is not kept: then `Extraction.output` is empty.
        seed: Of the whole's random inputs.
        index: Which model of the history; None is the current one.
        on_progress: Told where the job stands.
        cancel: Asked now and then; True stops the job and leaves nothing behind.

    Raises:
        Misuse: There is no such layer, nothing lies between two, or the file cannot be written.
        BadModel: onnxruntime cannot run the model or the part.
        Cancelled: `cancel` said so.
    """
    if output is not None and output.lower().endswith(MODULE_PARTS):
        return session.parts.of(Splitter).extract(
            spec,
            output,
            overwrite=overwrite,
            verify=verify,
            seed=seed,
            index=index,
            on_progress=on_progress,
            cancel=cancel,
        )
    fact: Extraction = session.do(
        "extract",
        spec,
        state=index,
        proof=ProofRequest(verify, seed=seed),
        output=output,
        overwrite=overwrite,
        on_progress=on_progress,
        cancel=cancel,
    )
    return fact
