"""Pipeline stages of a session's modules (torch): cut, written, and trained a step in processes as proof."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from msgspec.structs import replace
from torch import nn

from explorer.base.errors import Misuse
from explorer.engine.costs.torch.signature import bind
from explorer.engine.costs.training.step import training
from explorer.engine.formats.torch_module.arguments import BoundInputs
from explorer.engine.formats.torch_module.modules import described
from explorer.engine.models.torch.module import TorchModel
from explorer.engine.progress import Cancel, OnProgress, report
from explorer.engine.split import manifest
from explorer.engine.split.costs import live_bytes
from explorer.engine.split.search import CutSequence, StageSearch
from explorer.engine.split.stages import StageDraft, in_several, split_figures, stage_spans
from explorer.engine.split.torch import pipeline_script, proof, stages
from explorer.engine.split.torch.sequence import check, exported, names, program_sequence, random_calls
from explorer.engine.split.torch.stages import ModuleStages, StageModule
from explorer.engine.values.torch_activations import drawn_inputs
from explorer.engine.values.torch_tensors import materialised
from explorer.facts import TensorInfo
from explorer.facts.roofline import Machine
from explorer.facts.split.split import Split, SplitSpec, Stage
from explorer.features.split import stage_folder
from explorer.host import input_files, output_files
from explorer.session.parts.models import Models

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_BATCHES = 4
"""Micro-batches of the step that is the proof, where there are no more stages."""

Values = Mapping[str, torch.Tensor]


class TorchSplitter:
    """Cuts a module of a session into stages that are modules."""

    def __init__(self, models: Models, at: int, on_progress: OnProgress, cancel: Cancel) -> None:
        self._models, self._at = models, at
        self._on_progress, self._cancel = on_progress, cancel
        opened = models.opened(at, on_progress)
        assert isinstance(opened, TorchModel)
        if models.options["past"] is not None:
            raise Misuse("a module is cut as it runs on whole inputs", where="--past", hint="leave it out")
        self._opened = opened

    def split(
        self,
        spec: SplitSpec,
        machines: Sequence[Machine],
        output: str | None,
        *,
        overwrite: bool,
        verify: bool,
        seed: int,
    ) -> Split:
        """The stages; with `output` they are written there, and proved."""
        loaded = self._opened.loaded
        bound, program, search = self._search(spec, machines)
        report(self._on_progress, self._cancel, "searching cuts")
        cuts = search.cuts()
        made = [_stage(search, mine) for mine in stage_spans(search, cuts.places)]
        found = split_figures(search, cuts, made, _shared(search, cuts.places), others=not spec.cuts)
        shared = [name for name in _shared(search, cuts.places) if name in search.subject.elements]
        notes = *self._models.random_weights(), *found.notes, *self._notes(bound), *_tied(shared)
        found = replace(found, notes=notes)
        if output is None:
            return found
        check(program)
        module = materialised(loaded, lambda: bound)
        args, kwargs = bound.arguments(device="cpu")
        calls = names(program)
        report(self._on_progress, self._cancel, "cutting the module")
        with loaded.quiet():
            parts = stages.module_stages(
                module, args, kwargs, {calls[at] for at in cuts.places}, self._models.source
            )
        return self._written(found, parts, module, bound, output, overwrite, verify, seed)

    def draft(self, spec: SplitSpec, machines: Sequence[Machine]) -> StageDraft:
        """The stages while their cuts move; nothing of them is made."""
        _, _, search = self._search(spec, machines)
        return StageDraft(search, partial(_stage, search), partial(_shared, search))

    def _search(self, spec: SplitSpec, machines: Sequence[Machine]) -> tuple[BoundInputs, Any, StageSearch]:
        """The inputs, the program that the module is with them, and the search for its cuts."""
        options, loaded = self._models.options, self._opened.loaded
        bound = bind(loaded, options["input_shapes"], options["dims"])
        report(self._on_progress, self._cancel, "exporting (torch.export)")
        program = exported(loaded, bound)
        return bound, program, StageSearch(self._sequence(program, spec, machines), spec, self._cancel)

    def _sequence(self, program: Any, spec: SplitSpec, machines: Sequence[Machine]) -> CutSequence:
        models, at = self._models, self._at
        analysis = models.examined(at, self._on_progress, self._cancel).analysis
        step = training(self._opened.training(None), spec.optimizer) if spec.by == "training" else None
        by_time = spec.by == "time" and not machines
        profile = models.profile(at) if by_time else models.history.entries[at].profile
        known: Any = {"profile": None if machines else profile, "by_time": by_time, "training": step}
        return program_sequence(program, analysis.layers, machines=tuple(machines), **known)

    def _notes(self, bound: BoundInputs) -> tuple[str, ...]:
        """What is to be known of stages that were exported in evaluation, at fixed sizes."""
        notes = [*bound.notes, "the stages take micro-batches of the sizes that are bound, and no others"]
        modules = list(self._opened.loaded.meta().modules())
        if any(isinstance(one, _NORMS) for one in modules):
            notes.append(
                "batch normalization uses the statistics that are stored: in training it would see each"
                " micro-batch by itself, which is another batch than the whole's"
            )
        if any(isinstance(one, _DROPOUTS) and getattr(one, "p", 0) for one in modules):
            notes.append("dropout lets everything pass, as in evaluation")
        return tuple(notes)

    def _written(
        self,
        found: Split,
        parts: ModuleStages,
        module: nn.Module,
        bound: BoundInputs,
        output: str,
        overwrite: bool,
        prove: bool,
        seed: int,
    ) -> Split:
        """Writes the stages, all or none of them, and proves that they are the whole."""
        given, texts = drawn_inputs(self._opened.loaded, bound, seed)
        first = dict(zip(parts.inputs, given, strict=True))
        with stage_folder.written(output, overwrite) as temporary:
            place = os.path.dirname(temporary)
            for name in (stages.SCRIPT, *(f"stage{at + 1}.pt2" for at in range(len(parts.stages)))):
                stage_folder.check_free(output, name, overwrite)
            infos, made = self._saved(found, parts, first, place)
            found = replace(found, stages=tuple(made))
            with output_files.binary(os.path.join(place, stages.SCRIPT)) as file:
                file.write(input_files.content(pipeline_script.__file__, internal=True))
            with output_files.binary(temporary) as file:
                file.write(manifest.encoded(self._manifest(found, parts, infos)))
            if prove:
                found = self._proved(found, parts, module, bound, first, texts, place)
                if not _passed(found):
                    raise output_files.Discard
        return replace(found, output=output) if _passed(found) else found

    def _saved(
        self, found: Split, parts: ModuleStages, inputs: Values, place: str
    ) -> tuple[dict[str, TensorInfo], list[Stage]]:
        """Writes the files; tells what all values are, and the stages with their files."""
        known = dict(inputs)
        made = []
        for number, (part, fact) in enumerate(zip(parts.stages, found.stages, strict=True), 1):
            report(self._on_progress, self._cancel, "writing the stages", number - 1, len(parts.stages))
            name = f"stage{number}.pt2"
            path = os.path.join(place, name)
            with self._opened.loaded.quiet():
                stages.save(part, [known[one] for one in part.reads], path, self._models.source)
                with torch.no_grad():
                    one = ModuleStages((part,), (), ())
                    known = stages.in_turn(one, [part.module], known)
            made.append(replace(fact, file=name, sha256=manifest.sha256(path)))
        infos = {name: described(value, name)[0] for name, value in known.items()}
        return infos, [
            replace(fact, inputs=_infos(infos, part.reads), outputs=_infos(infos, part.makes))
            for part, fact in zip(parts.stages, made, strict=True)
        ]

    def _proved(
        self,
        found: Split,
        parts: ModuleStages,
        module: nn.Module,
        bound: BoundInputs,
        first: Values,
        texts: Sequence[str],
        place: str,
    ) -> Split:
        calls = exported(self._opened.loaded, bound).graph.nodes
        if random_calls(calls):
            raise Misuse(
                "the module draws random numbers, which no two runs share: nothing shows that stages are it",
                where="--to torch",
                hint="--no-verify writes the stages without a training step",
            )
        count = max(_BATCHES, len(parts.stages))
        batches = [{name: _other(value, at) for name, value in first.items()} for at in range(count)]
        if any(not value.dim() for value in first.values()):
            raise Misuse(
                "an input without an axis cannot be cut into micro-batches",
                where="--to torch",
                hint="--no-verify writes the stages without a training step",
            )

        def call(batch: Values) -> Any:
            args, kwargs = bound.call([batch[name] for name in parts.inputs])
            return module(*args, **kwargs)

        files = [one.file for one in found.stages]
        with self._opened.loaded.quiet():
            evidence, exact, steps = proof.prove(
                module, call, parts, place, files, batches, texts, self._on_progress, self._cancel
            )
        evidence = replace(evidence, before=self._models.label(self._at))
        return replace(found, verification=evidence, exact=exact, outputs=evidence.outputs, steps=steps)

    def _manifest(
        self, found: Split, parts: ModuleStages, infos: Mapping[str, TensorInfo]
    ) -> manifest.Manifest:
        def declared(names: Sequence[str]) -> tuple[manifest.ManifestTensor, ...]:
            return manifest.tensors(_infos(infos, names))

        return manifest.Manifest(
            model=self._models.label(self._at),
            by=found.by,
            inputs=declared(parts.inputs),
            outputs=declared(parts.outputs),
            stages=tuple(
                [
                    manifest.module_stage(fact, declared(part.reads), declared(part.makes))
                    for fact, part in zip(found.stages, parts.stages, strict=True)
                ]
            ),
            cuts=manifest.cuts(found),
            balance=found.balance,
            shared=tuple(_weights(parts.stages)),
        )


def _tied(shared: Sequence[str]) -> list[str]:
    """That weights are in several stages, whose gradients are one."""
    return [
        f"{name} is in several stages, which train it alike: {stages.SCRIPT} adds up their gradients"
        for name in shared
    ]


def _infos(infos: Mapping[str, TensorInfo], names: Sequence[str]) -> tuple[TensorInfo, ...]:
    return tuple([infos[name] for name in names])


def _stage(search: StageSearch, mine: range) -> Stage:
    """A stage as the program tells it, without what goes in and out by name."""
    subject = search.subject
    held = {name for unit in mine for name in search.units.stored[unit]}
    macs = None if subject.macs is None else int(subject.macs[mine.start : mine.stop].sum())
    born = {value.name for value in search.units.values if value.born in mine}
    return Stage(
        file="",
        inputs=tuple(
            [v.info for v in search.units.values if v.name not in born and v.born < mine.start <= v.dies]
        ),
        outputs=tuple([v.info for v in search.units.values if v.name in born and v.dies >= mine.stop]),
        first=search.path(mine[0]),
        last=search.path(mine[-1]),
        layers=len(mine),
        params=sum(subject.elements.get(name, 0) for name in held),
        macs=macs,
        weight_bytes=sum(search.sizes[name] for name in held),
        activation_bytes=int(live_bytes(search.units)[mine.start : mine.stop].max()),
        cost=0.0,
    )


def _shared(search: StageSearch, places: Sequence[int]) -> list[str]:
    spans = stage_spans(search, places)
    return in_several({name for unit in mine for name in search.units.stored[unit]} for mine in spans)


def _weights(parts: Sequence[StageModule]) -> list[manifest.ManifestWeight]:
    """Parameters that several stages have, with the name in each."""
    places: dict[str, dict[str, str]] = {}
    tensors: dict[str, nn.Parameter] = {}
    for number, part in enumerate(parts, 1):
        for name, tensor in part.module.named_parameters():
            whole = part.parameters[name]
            places.setdefault(whole, {})[str(number)] = name
            tensors[whole] = tensor
    return [
        manifest.ManifestWeight(
            name, described(tensors[name], name)[0].dtype or "", tuple(tensors[name].shape), own
        )
        for name, own in places.items()
        if len(own) > 1
    ]


def _other(value: torch.Tensor, at: int) -> torch.Tensor:
    """A tensor for another micro-batch: the same numbers elsewhere; lengths and the like as they are."""
    if value.dim() < 2 and not value.is_floating_point():
        return value
    return value.roll(at)


def _passed(found: Split) -> bool:
    return found.verification is None or found.verification.passed
