"""Splits a session's models: what of a state is known goes to the engine, and the stages into a folder."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.engine.costs.onnx.analyse import examine
from explorer.engine.costs.training import onnx as training_of_graphs
from explorer.engine.costs.training.step import training
from explorer.engine.formats.onnx import reader, writer
from explorer.engine.formats.onnx.validate import validate
from explorer.engine.graph.model import Model, Value
from explorer.engine.models.opened import dims_of
from explorer.engine.progress import Cancel, OnProgress, report
from explorer.engine.proof.proof import verify
from explorer.engine.runtime.random_inputs import draw, plan_inputs
from explorer.engine.shapes import infer
from explorer.engine.split import manifest, proof
from explorer.engine.split.extract import Part, extract
from explorer.engine.split.search import SplitSubject
from explorer.engine.split.split import bound, split
from explorer.engine.split.stage_models import joined
from explorer.facts import TensorInfo
from explorer.facts.roofline import Machine
from explorer.facts.split.part import Extraction, PartSpec
from explorer.facts.split.split import Split, SplitSpec, Stage
from explorer.host import confinement, output_files
from explorer.session.parts.models import Models


class Splitter:
    """Cuts models of a session into stages."""

    def __init__(self, models: Models) -> None:
        self._models = models

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
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> Split:
        """The stages of a state; with `output` they are written there, and proved."""
        started = time.perf_counter()
        at = self._models.at(index)
        if output is not None:
            self._check_folder(output, overwrite)
        subject = self._subject(at, spec, machines, on_progress, cancel)
        found, parts = split(subject, spec, on_progress, cancel)
        found = replace(found, notes=(*self._models.random_weights(), *found.notes))
        if output is not None:
            found = self._written(subject, found, parts, output, overwrite, verify, seed, on_progress, cancel)
        return replace(found, seconds=time.perf_counter() - started)

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
        """Writes a part of a state as a model of its own, which computes what it did in the whole."""
        started = time.perf_counter()
        at = self._models.at(index)
        self._models.check_target(output, overwrite)
        subject = self._subject(at, SplitSpec(), (), on_progress, cancel)
        part = extract(subject, spec)
        found = self._told(subject, part)
        size = None
        with output_files.atomic_write(output, overwrite=overwrite) as temporary:
            writer.write(part.model, temporary, on_progress=on_progress, cancel=cancel)
            if verify:
                report(on_progress, cancel, "running the part")
                drawn = plan_inputs(subject.model, subject.dims, subject.shapes)
                written = validate(reader.read(temporary))
                exact, compared = proof.part_runs(subject.model, written, draw(drawn, seed))
                texts = tuple([one.text() for one in drawn])
                found = replace(found, exact=exact, compared=compared, drawn=texts)
                if not (exact and all(one.passed for one in compared)):
                    raise output_files.Discard
            size = os.path.getsize(temporary)
        kept = output if size is not None else ""
        return replace(found, output=kept, seconds=time.perf_counter() - started)

    def _told(self, subject: SplitSubject, part: Part) -> Extraction:
        types = infer(subject.model, dims_of(subject.model, subject.dims), subject.shapes).values
        totals = examine(part.model, **bound(part.model, types, subject.dims)).info.totals

        def infos(values: Sequence[Value]) -> tuple[TensorInfo, ...]:
            return tuple([types.get(v.name) or TensorInfo(v.name, v.dtype, v.shape) for v in values])

        rows = [part.whole.rows[unit] for unit in part.units]
        paths = [subject.layers[row].path for row in rows if row is not None]
        return Extraction(
            inputs=infos(part.model.graph.feeds),
            outputs=infos(part.model.graph.outputs),
            first=paths[0] if paths else "",
            last=paths[-1] if paths else "",
            layers=len(part.units),
            layers_whole=len(part.whole.positions),
            params=totals.params,
            macs=totals.macs,
            weight_bytes=totals.weight_bytes,
            notes=self._models.random_weights(),
        )

    def _subject(
        self, at: int, spec: SplitSpec, machines: Sequence[Machine], on_progress: OnProgress, cancel: Cancel
    ) -> SplitSubject:
        models = self._models
        opened = models.opened(at, on_progress)
        model = models.graph(at, on_progress)
        dims, shapes = self._sizes(model)
        analysis = models.graph_analysis(at, on_progress, cancel)
        step = None
        if spec.by == "training":
            gradients = training_of_graphs.step(model, dims=dims, input_shapes=shapes)
            step = training(gradients, spec.optimizer)
        profile = models.history.entries[at].profile if opened.is_graph else None
        return SplitSubject(model, analysis.layers, dims, shapes, tuple(machines), profile, step)

    def _sizes(self, model: Model) -> tuple[dict[str, int], dict[str, tuple[str | None, tuple[int, ...]]]]:
        options = self._models.options
        names = {value.name for value in model.graph.feeds}
        shapes = {name: one for name, one in options["input_shapes"].items() if name in names}
        return dims_of(model, options["dims"]), shapes

    def _check_folder(self, folder: str, overwrite: bool) -> None:
        """Refuses a folder before any work is done."""
        confinement.check(folder)
        if os.path.lexists(folder) and not os.path.isdir(folder):
            raise Misuse("is no folder", where=folder, hint="name a folder; the stages go into it")
        parent = os.path.dirname(os.path.abspath(folder))
        if not os.path.isdir(parent):
            raise Misuse("there is no such folder", where=parent, hint="create it first")
        target = os.path.join(folder, manifest.NAME)
        if os.path.isdir(folder):
            self._models.check_target(target, overwrite)

    def _written(
        self,
        subject: SplitSubject,
        found: Split,
        parts: Sequence[Model],
        folder: str,
        overwrite: bool,
        prove: bool,
        seed: int,
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> Split:
        """Writes the stages, all or none of them, and proves that they are the whole."""
        made = not os.path.isdir(folder)
        if made:
            os.mkdir(folder)
        try:
            with output_files.atomic_write(
                os.path.join(folder, manifest.NAME), overwrite=overwrite
            ) as temporary:
                place = os.path.dirname(temporary)
                stages = []
                for number, (stage, part) in enumerate(zip(found.stages, parts, strict=True), 1):
                    name = f"stage{number}.onnx"
                    if not overwrite and os.path.lexists(os.path.join(folder, name)):
                        raise Misuse(
                            "the file exists",
                            where=os.path.join(folder, name),
                            hint="choose another folder, or say --force",
                        )
                    writer.write(part, os.path.join(place, name), on_progress=on_progress, cancel=cancel)
                    stages.append(_with_digest(stage, place, name))
                found = replace(found, stages=tuple(stages))
                if prove:
                    found = self._proved(subject, found, place, seed, on_progress, cancel)
                    if not _passed(found):
                        raise output_files.Discard
                with open(temporary, "wb") as file:
                    file.write(manifest.encoded(self._manifest(subject.model, found, parts)))
        except BaseException:
            if made:
                os.rmdir(folder)
            raise
        if not _passed(found) and prove:
            if made:
                os.rmdir(folder)
            return found
        return replace(found, output=folder)

    def _proved(
        self,
        subject: SplitSubject,
        found: Split,
        place: str,
        seed: int,
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> Split:
        """The stages as they were written, against the whole."""
        whole = subject.model
        parts = [validate(reader.read(os.path.join(place, one.file))) for one in found.stages]
        options: dict[str, Any] = {"dims": subject.dims, "input_shapes": subject.shapes}
        evidence = verify(
            whole, joined(whole, parts), seed=seed, on_progress=on_progress, cancel=cancel, **options
        )
        names = replace(evidence, before=self._models.label(self._models.current), after="the stages")
        report(on_progress, cancel, "running the stages")
        feeds = draw(plan_inputs(whole, subject.dims, subject.shapes), seed)
        exact, outputs = proof.runs(whole, parts, feeds)
        return replace(found, verification=names, exact=exact, outputs=outputs)

    def _manifest(self, model: Model, found: Split, parts: Sequence[Model]) -> manifest.Manifest:
        return manifest.Manifest(
            model=self._models.label(self._models.current),
            by=found.by,
            inputs=manifest.declared(model.graph.feeds),
            outputs=manifest.declared(model.graph.outputs),
            stages=tuple([manifest.stage(*pair) for pair in zip(found.stages, parts, strict=True)]),
            cuts=tuple(
                [manifest.ManifestCut(one.bytes, tuple([t.name for t in one.tensors])) for one in found.cuts]
            ),
            balance=found.balance,
        )


def _with_digest(stage: Stage, place: str, name: str) -> Stage:
    data = os.path.join(place, f"{name}.data")
    return replace(
        stage,
        file=name,
        sha256=manifest.sha256(os.path.join(place, name)),
        data_sha256=manifest.sha256(data) if os.path.exists(data) else "",
    )


def _passed(found: Split) -> bool:
    return found.verification is None or (
        found.verification.passed and bool(found.exact) and all(one.passed for one in found.outputs)
    )
