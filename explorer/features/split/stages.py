"""Splits states into ONNX stages and extracts ONNX parts; writes and verifies the files."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.base.verdicts import PASSED
from explorer.engine.convert.job import get_module
from explorer.engine.costs.onnx.analyse import examine
from explorer.engine.costs.training import onnx as training_of_graphs
from explorer.engine.costs.training.step import compute_training
from explorer.engine.formats.onnx import reader, writer
from explorer.engine.formats.onnx.validate import validate
from explorer.engine.graph.model import Model, Value
from explorer.engine.models.opened_model import select_dims
from explorer.engine.progress import Cancel, OnProgress, report
from explorer.engine.proof.proof import verify
from explorer.engine.runtime.random_inputs import draw, plan_inputs
from explorer.engine.shapes import infer
from explorer.engine.shapes.declarations import declare_inferred
from explorer.engine.split import manifest, proof
from explorer.engine.split.extract import Part, extract
from explorer.engine.split.proof import SplitRuns
from explorer.engine.split.search import SplitSubject, StageSearch, build_graph_sequence
from explorer.engine.split.stage_models import join_stages
from explorer.engine.split.stages import StageDraft, create_graph_draft, get_bound_sizes, split
from explorer.facts import HistoryEntry, Layer, TensorInfo
from explorer.facts.change import ProofRequest
from explorer.facts.roofline import Machine
from explorer.facts.split.draft import SplitDraft
from explorer.facts.split.part import Extraction, PartSpec
from explorer.facts.split.run import PipelineRun
from explorer.facts.split.split import Split, SplitSpec, Stage, StageForm
from explorer.features.split import stage_folder
from explorer.features.split.part_record import PartRecord
from explorer.features.split.pipeline import run_pipeline
from explorer.host import output_files
from explorer.session.parts import scripts
from explorer.session.parts.change import Change, ChangeStep, StateText, Steps, Work
from explorer.session.parts.models import Models
from explorer.settings.option_values import write_words

if TYPE_CHECKING:
    from explorer.engine.split.torch.stages import StagePipeline
    from explorer.features.split.torch_stages import TorchSplitter

MODULE_PARTS = (".pt2", ".pt", ".pth")
"""File extensions of extracted module parts: a torch.export program, and state_dicts."""


class Splitter:
    """Split states of a session into stages, and extract parts of them."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._draft: tuple[Any, StageDraft] | None = None

    def run(
        self, folder: str, micro_batches: int | None, threads: int, on_progress: OnProgress, cancel: Cancel
    ) -> PipelineRun:
        """Run the stages in a folder as processes, with the session's sizes of open dimensions."""
        open_sizes = {size for tensor in manifest.read(folder).inputs for size in tensor.shape or ()}
        dims = {name: size for name, size in self._models.options["dims"].items() if name in open_sizes}
        return run_pipeline(
            folder,
            micro_batches=micro_batches,
            dims=dims,
            threads=threads,
            on_progress=on_progress,
            cancel=cancel,
        )

    def split(
        self,
        spec: SplitSpec,
        machines: Sequence[Machine],
        output: str | None,
        *,
        overwrite: bool,
        verify: bool,
        seed: int,
        index: int | None,
        form: StageForm,
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> Split:
        """Split a state into stages; with `output`, also write and verify them."""
        started = time.perf_counter()
        state_index = self._models.resolve_index(index)
        if output is not None:
            stage_folder.check(self._models, output, overwrite)
        if form == "torch" and not hasattr(self._models.open_state(state_index, on_progress), "loaded"):
            raise Misuse(
                "it is not a module of PyTorch",
                where="--to torch",
                hint="leave it out: the stages are ONNX models then",
            )
        if form == "torch" or (output is None and self._is_too_large(state_index, on_progress)):
            splitter = self._get_splitter(state_index, on_progress, cancel)
            fact = splitter.split(spec, machines, output, overwrite=overwrite, verify=verify, seed=seed)
            return replace(fact, seconds=time.perf_counter() - started)
        subject = self._build_subject(state_index, spec, machines, on_progress, cancel)
        fact, parts = split(subject, spec, on_progress, cancel)
        fact = replace(fact, notes=(*self._models.list_weight_notes(), *fact.notes))
        if output is not None:
            fact = self._write_stages(
                subject, fact, parts, output, overwrite, verify, seed, on_progress, cancel
            )
        return replace(fact, seconds=time.perf_counter() - started)

    def split_module(
        self,
        spec: SplitSpec,
        machines: Sequence[Machine],
        devices: Sequence[str],
        *,
        seed: int,
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> tuple[StagePipeline, Split]:
        """Split the opened module into modules on devices."""
        get_module(self._models.open_state(0, on_progress))
        started = time.perf_counter()
        splitter = self._get_splitter(0, on_progress, cancel)
        module, fact = splitter.split_module(spec, machines, devices, seed)
        return module, replace(fact, seconds=time.perf_counter() - started)

    def draft(
        self,
        spec: SplitSpec,
        machines: Sequence[Machine],
        places: Sequence[int] | None,
        *,
        index: int | None,
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> SplitDraft:
        """Return the figures of cuts at `places`, or of the best cuts if None.

        The search is kept for the next call with the same arguments.
        """
        state_index = self._models.resolve_index(index)
        options, profile = self._models.options, self._models.history.entries[state_index].profile
        sizes = dict(options["dims"]), dict(options["input_shapes"])
        key = state_index, spec, tuple(machines), sizes, profile
        if is_same_search := self._draft is not None and self._draft[0] == key:
            draft = self._draft[1]
        else:
            draft = self._build_draft(state_index, spec, machines, on_progress, cancel)
        fact = draft.compute_draft(places)
        self._draft = key, draft
        if is_same_search and places is not None:
            return fact
        is_module = not self._models.open_state(state_index, on_progress).is_graph
        rows = tuple(draft.search.subject.layers) if is_module else None
        return replace(fact, where=draft.list_cut_places(), rows=rows)

    def _build_draft(
        self,
        state_index: int,
        spec: SplitSpec,
        machines: Sequence[Machine],
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> StageDraft:
        """Return a new draft, of the traced module if the model is too large to export."""
        if self._is_too_large(state_index, on_progress):
            return self._get_splitter(state_index, on_progress, cancel).draft(spec, machines)
        subject = self._build_subject(state_index, spec, machines, on_progress, cancel)
        report(on_progress, cancel, "searching cuts")
        return create_graph_draft(subject, StageSearch(build_graph_sequence(subject), spec, cancel))

    def _is_too_large(self, state_index: int, on_progress: OnProgress) -> bool:
        """Return whether a model is too large to export; the traced module is cut instead."""
        return not self._models.is_module(state_index) and self._models.is_planned_as_traced(
            state_index, on_progress
        )

    def _get_splitter(self, state_index: int, on_progress: OnProgress, cancel: Cancel) -> TorchSplitter:
        from explorer.features.split.torch_stages import TorchSplitter  # imports torch

        return TorchSplitter(self._models, state_index, on_progress, cancel)

    def extract(
        self,
        spec: PartSpec,
        output: str,
        *,
        overwrite: bool,
        verify: bool,
        seed: int,
        index: int | None,
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> Extraction:
        """Write a part of a state as a torch.export program or a state_dict."""
        from explorer.features.split import extracted_modules  # imports torch

        return extracted_modules.extract(
            self._models,
            self._models.resolve_index(index),
            spec,
            output,
            overwrite=overwrite,
            verify=verify,
            seed=seed,
            on_progress=on_progress,
            cancel=cancel,
        )

    def steps(self, spec: PartSpec, work: Work) -> Steps:
        """Extract a part of the current state as a new state or file, and compare it with the whole model."""
        started = time.perf_counter()
        on_progress, cancel, request = work.on_progress, work.cancel, work.proof
        subject = self._build_subject(self._models.current, SplitSpec(), (), on_progress, cancel)
        part = extract(subject, spec)
        input_plan = plan_inputs(subject.model, subject.dims, subject.shapes) if request.verify else ()
        facts = self._describe(subject, part)

        def run_part(written_model: Model, path: str) -> SplitRuns:
            report(on_progress, cancel, "running the part")
            return proof.compare_part(subject.model, written_model, draw(input_plan, request.seed))

        text = self._describe_state(spec, facts, request)
        state = text if work.output is None else None
        written = yield ChangeStep(part.model, state, run_part if request.verify else None)
        if (runs := written.evidence) is not None:
            texts = tuple([plan.text() for plan in input_plan])
            facts = replace(facts, exact=runs.exact, rounded=runs.rounded, compared=runs.outputs, drawn=texts)
        return replace(facts, output=written.output, seconds=time.perf_counter() - started)

    def _describe_state(self, spec: PartSpec, facts: Extraction, request: ProofRequest) -> StateText:
        """Return the label, record and command of the state of an extracted part."""
        words = write_words(spec)
        words += [] if request.verify else ["--no-verify"]
        words += ["--seed", str(request.seed)] if request.seed else []
        label = f"extract {facts.first}" + (f" to {facts.last}" if facts.last != facts.first else "")
        command = scripts.write_command(self._models, "extract", None, "_part.onnx", *words)
        return StateText(label, PartRecord(tuple(words)), command)

    def _describe(self, subject: SplitSubject, part: Part) -> Extraction:
        types = infer(subject.model, select_dims(subject.model, subject.dims), subject.shapes).values
        totals = examine(part.model, **get_bound_sizes(part.model, types, subject.dims)).info.totals

        def infos(values: Sequence[Value]) -> tuple[TensorInfo, ...]:
            return tuple([types.get(v.name) or TensorInfo(v.name, v.dtype, v.shape) for v in values])

        rows = [part.all_units.rows[unit] for unit in part.units]
        paths = [subject.layers[row].path for row in rows if row is not None]
        return Extraction(
            inputs=infos(part.model.graph.required_inputs),
            outputs=infos(part.model.graph.outputs),
            first=paths[0] if paths else "",
            last=paths[-1] if paths else "",
            layers=len(part.units),
            layers_whole=len(part.all_units.positions),
            params=totals.params,
            macs=totals.macs,
            weight_bytes=totals.weight_bytes,
            notes=self._models.list_weight_notes(),
        )

    def _build_subject(
        self,
        state_index: int,
        spec: SplitSpec,
        machines: Sequence[Machine],
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> SplitSubject:
        """Return the graph of a state with everything that a split needs: sizes, layers, times."""
        models = self._models
        opened = models.open_state(state_index, on_progress)
        model = models.load_graph(state_index, on_progress)
        dims, shapes = models.find_sizes(state_index, model)
        examined = models.examine_graph(state_index, on_progress, cancel)
        step = None
        if spec.by == "training":
            gradients = training_of_graphs.analyze_training_step(model, dims=dims, input_shapes=shapes)
            step = compute_training(gradients, spec.optimizer)
        # use a profile that another command measured; only a split by time measures a new one
        profile = (
            models.profile(state_index) if spec.by == "time" else models.history.entries[state_index].profile
        )
        modules: Sequence[Layer] = ()
        if profile is not None and not opened.is_graph:  # the profile times torch modules, not the export
            is_used = spec.by == "time" and not machines and profile.runtime.startswith("torch")
            profile = profile if is_used else None
            modules = models.analysis(state_index, on_progress, cancel).layers if is_used else ()
        layers, order = examined.analysis.layers, lambda: examined.schedule
        return SplitSubject(model, layers, order, dims, shapes, tuple(machines), profile, modules, step)

    def _write_stages(
        self,
        subject: SplitSubject,
        fact: Split,
        parts: Sequence[Model],
        output: str,
        overwrite: bool,
        prove: bool,
        seed: int,
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> Split:
        """Write all stages or none, and verify that together they compute the same as the whole model."""
        with stage_folder.write_folder(output, overwrite) as temporary:
            workdir = os.path.dirname(temporary)
            stages = []
            for number, (stage, part) in enumerate(zip(fact.stages, parts, strict=True), 1):
                name = f"stage{number}.onnx"
                stage_folder.check_free(output, name, overwrite)
                part = declare_inferred(part) if self._models.options["shapes"] else part
                writer.write(part, os.path.join(workdir, name), on_progress=on_progress, cancel=cancel)
                stages.append(_add_digest(stage, workdir, name))
            fact = replace(fact, stages=tuple(stages))
            if prove:
                fact = self._prove_stages(subject, fact, workdir, seed, on_progress, cancel)
                if not _is_proved(fact):
                    raise output_files.Discard
            with output_files.open_binary(temporary) as file:
                file.write(manifest.encode(self._build_manifest(subject.model, fact, parts)))
        return replace(fact, output=output) if _is_proved(fact) else fact

    def _prove_stages(
        self,
        subject: SplitSubject,
        fact: Split,
        workdir: str,
        seed: int,
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> Split:
        """Compare the written stages with the whole model."""
        model = subject.model
        parts = [validate(reader.read(os.path.join(workdir, stage.file))) for stage in fact.stages]
        options: dict[str, Any] = {"dims": subject.dims, "input_shapes": subject.shapes}
        evidence = verify(
            model, join_stages(model, parts), seed=seed, on_progress=on_progress, cancel=cancel, **options
        )
        evidence = proof.exclude_random_outputs(evidence, model)
        names = replace(evidence, before=self._models.label(self._models.current), after="the stages")
        report(on_progress, cancel, "running the stages")
        feeds = draw(plan_inputs(model, subject.dims, subject.shapes), seed)
        runs = proof.compare_stages(model, parts, feeds)
        return replace(fact, verification=names, exact=runs.exact, rounded=runs.rounded, outputs=runs.outputs)

    def _build_manifest(self, model: Model, fact: Split, parts: Sequence[Model]) -> manifest.Manifest:
        return manifest.Manifest(
            model=self._models.label(self._models.current),
            by=fact.by,
            inputs=manifest.describe_values(model.graph.required_inputs),
            outputs=manifest.describe_values(model.graph.outputs),
            stages=tuple(map(manifest.describe_onnx_stage, fact.stages, parts)),
            cuts=manifest.describe_cuts(fact),
            balance=fact.balance,
        )


def _add_digest(stage: Stage, workdir: str, name: str) -> Stage:
    path = os.path.join(workdir, f"{name}.data")
    return replace(
        stage,
        file=name,
        sha256=manifest.compute_sha256(os.path.join(workdir, name)),
        data_sha256=manifest.compute_sha256(path) if os.path.exists(path) else "",
    )


def _is_proved(fact: Split) -> bool:
    return fact.verdict_kind is None or fact.verdict_kind in PASSED


def _write_words(entry: HistoryEntry, config: str) -> tuple[list[str], str]:
    """Return the options of `extract` that make the state again; see `Change.words`."""
    return [*entry.record.words], ""


CHANGE = Change(
    "extract", PartSpec, lambda spec, work: work.parts.get_part(Splitter).steps(spec, work), _write_words
)
