"""Session methods that split a model into stages, run stages, and extract parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from explorer.base.checked import Count, Natural, PathText
from explorer.facts.change import ProofRequest
from explorer.features.split.stages import MODULE_PARTS, Splitter
from explorer.session.methods.facade import Facade
from explorer.session.parts.models import Cancel, OnProgress

if TYPE_CHECKING:
    from explorer.engine.split.torch.stages import StagePipeline
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
    """Split a model into the stages of a pipeline.

    The largest stage is as small as possible; among such splits, the fewest bytes cross the cuts. The result
    is exact for the node order of the file.

    Args:
        spec: Number of stages, the cost to balance, and the layers where cuts are permitted.
        machines: Machines for which times are predicted: one for all stages, or one for each stage (see
            `explorer.settings.machines`).
        output: Folder for the stages and stages.json, or None to write nothing.
        overwrite: Whether to replace stages in the folder.
        verify: Whether to verify the stages before they are kept. If the check fails, the files are deleted
            and `Split.output` is empty.
        seed: Seed of the random inputs of the check.
        index: Index of the state in the history, or None for the current state.
        form: File format of the stages. 'torch' cuts a module with `torch.distributed.pipelining` into .pt2
            files, adds a script for torchrun, and checks a training step of each schedule.
        on_progress: Callback that receives the progress.
        cancel: Callback that is polled regularly. If it returns True, the job stops and leaves no files.

    Raises:
        Misuse: The stages are not possible, a size is unknown, or the folder cannot be written.
        BadModel: onnxruntime cannot run the model or a stage.
        Cancelled: `cancel` returned True.
    """
    return session.parts.get_part(Splitter).split(
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


def split_module(
    session: Facade,
    spec: SplitSpec,
    *,
    devices: Sequence[str] = (),
    machines: Sequence[Machine] = (),
    seed: Natural = 0,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> tuple[StagePipeline, Split]:
    """Split the opened nn.Module into stages that are modules, each on its device.

    The stages have weights of their own. On the CPU, their outputs are those of the module bit for bit.

    Args:
        spec: Settings as for `split`.
        devices: Device of each stage, such as 'cuda:0', or one device for all stages. Empty for the CPU.
        machines: Machines as for `split`.
        seed: Seed of the random inputs with which the outputs are compared.
        on_progress: Callback that receives the progress.
        cancel: Callback that is polled regularly; the work stops when it returns True.

    Returns:
        A module that runs all stages (its list `stages` has the modules), and the figures of the split.

    Raises:
        Misuse: The model is not an nn.Module, the stages are not possible, or there is no such device.
        BadModel: torch cannot cut the module, or the stages give other outputs.
        Cancelled: `cancel` returned True.
    """
    return session.parts.get_part(Splitter).split_module(
        spec, machines, devices, seed=seed, on_progress=on_progress, cancel=cancel
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
    """Return the figures of the stages while the user moves cuts; nothing is written.

    Args:
        spec: Settings as for `split`. The search for the last `spec` is kept, so that calls with other cuts
            are fast.
        places: Number of operators before each cut, in the order of the file. None for the best cuts.
        machines: Machines as for `split`.
        index: Index of the state in the history, or None for the current state.
        on_progress: Callback that receives the progress.
        cancel: Callback that is polled regularly; the work stops when it returns True.

    Returns:
        Figures of the stages. If `places` is None or `spec` is new, also all places where a cut is possible.

    Raises:
        Misuse: The stages are not possible, or a size is unknown.
        Cancelled: `cancel` returned True.
    """
    return session.parts.get_part(Splitter).draft(
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
    """Run the stages that `split` wrote, one process per stage, with the session's sizes of open dimensions.

    Args:
        folder: Folder with the stages and stages.json.
        micro_batches: Number of random micro-batches. None runs 16 to 512, as many as fit in one second.
        threads: Number of operator threads in each stage.
        on_progress: Callback that receives the number of completed micro-batches.
        cancel: Callback that is polled many times per second. If it returns True, all processes end.

    Raises:
        Misuse: There is no such folder, a number is out of range, or a size is unknown.
        BadModel: A stage cannot run, or its file is missing or changed; the message names it.
        EngineDied: The process of a stage ended. The remaining processes are stopped.
        Cancelled: `cancel` returned True.
    """
    return session.parts.get_part(Splitter).run(folder, micro_batches, threads, on_progress, cancel)


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
    """Extract a part of a model as a model that runs alone.

    The inputs of the part are the tensors that it reads in the whole model.

    Args:
        spec: Layers of the part: a selection, or all layers between two ends.
        output: File to write. For an nn.Module also a program (.pt2, without sample inputs) or a state_dict
            (.pt, .pth). None adds the part to the history as an ONNX model and makes it current.
        overwrite: Whether to replace an existing file.
        verify: Whether to run the part on values from the whole model and compare the results. If they
            differ, the file is deleted and `Extraction.output` is empty.
        seed: Seed of the random inputs of the whole model.
        index: Index of the state in the history, or None for the current state.
        on_progress: Callback that receives the progress.
        cancel: Callback that is polled regularly. If it returns True, the job stops and leaves no files.

    Raises:
        Misuse: A layer does not exist, no layers are between the two ends, or the file cannot be written.
        BadModel: onnxruntime cannot run the model or the part.
        Cancelled: `cancel` returned True.
    """
    if output is not None and output.lower().endswith(MODULE_PARTS):
        return session.parts.get_part(Splitter).extract(
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
