"""Splits torch modules of a session into stages that are modules; writes and verifies them.

The check runs a training step of each schedule with one process per stage.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from msgspec.structs import replace
from torch import nn

from explorer.base.errors import BadModel, Misuse
from explorer.engine.costs.torch.signature import bind
from explorer.engine.costs.training.step import compute_training
from explorer.engine.formats.torch_module.arguments import BoundInputs
from explorer.engine.formats.torch_module.modules import describe_tensors, walk_tensors
from explorer.engine.models.torch.module import TorchModel
from explorer.engine.progress import Cancel, OnProgress, report
from explorer.engine.split import manifest
from explorer.engine.split.costs import compute_live_bytes
from explorer.engine.split.search import CutSequence, StageSearch
from explorer.engine.split.stages import StageDraft, build_split_fact, find_shared_names, list_stage_spans
from explorer.engine.split.torch import pipeline_script, proof, stages
from explorer.engine.split.torch.sequence import (
    build_program_sequence,
    check,
    export_module,
    find_random_calls,
    list_unit_names,
)
from explorer.engine.split.torch.stages import ModuleStages, StageModule, StagePipeline
from explorer.engine.values.torch_activations import draw_inputs
from explorer.engine.values.torch_tensors import build_with_weights
from explorer.facts import TensorInfo
from explorer.facts.roofline import Machine
from explorer.facts.split.split import Split, SplitSpec, Stage
from explorer.features.split import stage_folder
from explorer.host import input_files, output_files
from explorer.host.optional_packages import format_error
from explorer.session.parts.models import Models

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_MIN_BATCHES = 4
"""Minimum number of micro-batches in the checked training step; more stages need as many as stages."""

Values = Mapping[str, torch.Tensor]
"""Tensors by value name."""


class TorchSplitter:
    """Split a module of a session into stages that are modules."""

    def __init__(self, models: Models, state_index: int, on_progress: OnProgress, cancel: Cancel) -> None:
        self._models, self._state_index = models, state_index
        self._on_progress, self._cancel = on_progress, cancel
        models.refuse_shapes()
        opened = models.open_state(state_index, on_progress)
        assert isinstance(opened, TorchModel)
        if models.options["past"] is not None:
            raise Misuse("split does not cut a decode step of a module", where="--past", hint="leave it out")
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
        """Split the module into stages; with `output`, also write and verify them."""
        inputs, program, search = self._search(spec, machines)
        fact, places = self._find_cuts(spec, inputs, search)
        if output is None:
            return fact
        parts, module = self._cut(inputs, program, places)
        return self._write_stages(fact, parts, module, inputs, output, overwrite, verify, seed)

    def split_module(
        self, spec: SplitSpec, machines: Sequence[Machine], devices: Sequence[str], seed: int
    ) -> tuple[StagePipeline, Split]:
        """Split the module into stages on devices, and compare their outputs with those of the module.

        A module that draws random numbers is not compared.
        """
        inputs, program, search = self._search(spec, machines)
        fact, places = self._find_cuts(spec, inputs, search)
        parts, module = self._cut(inputs, program, places)
        torch_devices = _choose_devices(devices, len(parts.stages))
        report(self._on_progress, self._cancel, "comparing the outputs")
        feeds, _ = draw_inputs(self._opened.loaded, inputs, seed)
        args, kwargs = inputs.pack_arguments(feeds)
        exact = None
        with self._opened.loaded.quiet(), torch.no_grad():
            if not find_random_calls(program.graph.nodes):
                input_values = dict(zip(parts.inputs, feeds, strict=True))
                values = stages.run_stages(parts, [stage.module for stage in parts.stages], input_values)
                expected = [tensor for _, tensor in walk_tensors(module(*args, **kwargs))]
                pairs = zip(parts.outputs, expected, strict=True)
                exact = all(
                    torch.allclose(values[name], t, rtol=0, atol=0, equal_nan=True) for name, t in pairs
                )
        if exact is False:
            raise BadModel("the stages give other outputs than the module", where=self._models.source)
        return StagePipeline(parts, torch_devices), replace(fact, exact=exact)

    def _find_cuts(
        self, spec: SplitSpec, inputs: BoundInputs, search: StageSearch
    ) -> tuple[Split, Sequence[int]]:
        """Return the figures of the best split, and the number of units before each cut."""
        report(self._on_progress, self._cancel, "searching cuts")
        cuts = search.find_cuts()
        facts = [_describe_stage(search, span) for span in list_stage_spans(search, cuts.places)]
        fact = build_split_fact(
            search, cuts, facts, _find_shared(search, cuts.places), with_other_counts=not spec.cuts
        )
        shared = [name for name in _find_shared(search, cuts.places) if name in search.subject.elements]
        notes = (
            *self._models.list_weight_notes(),
            *fact.notes,
            *self._list_limits(inputs),
            *_describe_shared_weights(shared),
        )
        fact = replace(fact, notes=notes)
        return fact, cuts.places

    def _cut(
        self, inputs: BoundInputs, program: Any, places: Sequence[int]
    ) -> tuple[ModuleStages, nn.Module]:
        """Return the stages, and the whole module with its weights."""
        loaded = self._opened.loaded
        check(program)
        module = build_with_weights(loaded, lambda: inputs)
        args, kwargs = inputs.build_arguments(device="cpu")
        calls = list_unit_names(program)
        report(self._on_progress, self._cancel, "cutting the module")
        with loaded.quiet():
            starts = {calls[index] for index in places}
            return stages.cut_module(module, args, kwargs, starts, self._models.source), module

    def draft(self, spec: SplitSpec, machines: Sequence[Machine]) -> StageDraft:
        """Prepare the figures of stages for moving cuts, without cutting the module."""
        _, _, search = self._search(spec, machines)
        return StageDraft(search, partial(_describe_stage, search), partial(_find_shared, search))

    def _search(self, spec: SplitSpec, machines: Sequence[Machine]) -> tuple[BoundInputs, Any, StageSearch]:
        """Return the inputs, the program exported with them, and the search for cuts."""
        options, loaded = self._models.options, self._opened.loaded
        inputs = bind(loaded, options["input_shapes"], options["dims"])
        report(self._on_progress, self._cancel, "exporting (torch.export)")
        program = export_module(loaded, inputs)
        return inputs, program, StageSearch(self._find_sequence(program, spec, machines), spec, self._cancel)

    def _find_sequence(self, program: Any, spec: SplitSpec, machines: Sequence[Machine]) -> CutSequence:
        """Return the units of the program between which cuts can lie, with the cost to balance."""
        models, state_index = self._models, self._state_index
        analysis = models.examine(state_index, self._on_progress, self._cancel).analysis
        step = (
            compute_training(self._opened.training(None), spec.optimizer) if spec.by == "training" else None
        )
        by_time = spec.by == "time" and not machines
        profile = models.profile(state_index) if by_time else models.history.entries[state_index].profile
        measures: Any = {"profile": None if machines else profile, "by_time": by_time, "training": step}
        return build_program_sequence(program, analysis.layers, machines=tuple(machines), **measures)

    def _list_limits(self, inputs: BoundInputs) -> tuple[str, ...]:
        """Return notes on the limits of stages, which are exported in evaluation mode at fixed sizes."""
        notes = [*inputs.notes, "the stages take only micro-batches of the bound sizes"]
        modules = list(self._opened.loaded.meta().modules())
        if any(isinstance(module, _NORMS) for module in modules):
            notes.append(
                "batch normalization uses its stored statistics: in training it would normalize over each"
                " micro-batch instead of the whole batch"
            )
        if any(isinstance(module, _DROPOUTS) and getattr(module, "p", 0) for module in modules):
            notes.append("dropout is off, as in evaluation")
        return tuple(notes)

    def _write_stages(
        self,
        fact: Split,
        parts: ModuleStages,
        module: nn.Module,
        inputs: BoundInputs,
        output: str,
        overwrite: bool,
        prove: bool,
        seed: int,
    ) -> Split:
        """Write all stages or none, and verify that together they compute the same as the whole module."""
        feeds, texts = draw_inputs(self._opened.loaded, inputs, seed)
        input_values = dict(zip(parts.inputs, feeds, strict=True))
        with stage_folder.write_folder(output, overwrite) as temporary:
            workdir = os.path.dirname(temporary)
            for name in (stages.SCRIPT, *(f"stage{index + 1}.pt2" for index in range(len(parts.stages)))):
                stage_folder.check_free(output, name, overwrite)
            infos, facts = self._save_stages(fact, parts, input_values, workdir)
            fact = replace(fact, stages=tuple(facts))
            with output_files.open_binary(os.path.join(workdir, stages.SCRIPT)) as file:
                file.write(input_files.read_content(pipeline_script.__file__, internal=True))
            with output_files.open_binary(temporary) as file:
                file.write(manifest.encode(self._build_manifest(fact, parts, infos)))
            if prove:
                fact = self._prove_stages(fact, parts, module, inputs, input_values, texts, workdir)
                if not _is_proved(fact):
                    raise output_files.Discard
        return replace(fact, output=output) if _is_proved(fact) else fact

    def _save_stages(
        self, split: Split, parts: ModuleStages, inputs: Values, workdir: str
    ) -> tuple[dict[str, TensorInfo], list[Stage]]:
        """Write the stage files; return the type of every value, and the stages with their file names."""
        values = dict(inputs)
        facts = []
        for number, (part, fact) in enumerate(zip(parts.stages, split.stages, strict=True), 1):
            report(self._on_progress, self._cancel, "writing the stages", number - 1, len(parts.stages))
            name = f"stage{number}.pt2"
            path = os.path.join(workdir, name)
            with self._opened.loaded.quiet():
                stages.save(part, [values[read] for read in part.reads], path, self._models.source)
                with torch.no_grad():
                    values = stages.run_stages(ModuleStages((part,), (), ()), [part.module], values)
            facts.append(replace(fact, file=name, sha256=manifest.compute_sha256(path)))
        infos = {name: describe_tensors(value, name)[0] for name, value in values.items()}
        return infos, [
            replace(fact, inputs=_select_infos(infos, part.reads), outputs=_select_infos(infos, part.makes))
            for part, fact in zip(parts.stages, facts, strict=True)
        ]

    def _prove_stages(
        self,
        fact: Split,
        parts: ModuleStages,
        module: nn.Module,
        inputs: BoundInputs,
        input_values: Values,
        texts: Sequence[str],
        workdir: str,
    ) -> Split:
        """Add the proof: outputs and training steps of the written stages against the module."""
        calls = export_module(self._opened.loaded, inputs).graph.nodes
        if find_random_calls(calls):
            raise Misuse(
                "the module draws random numbers, which differ in each run: the stages cannot be proved",
                where="--to torch",
                hint="--no-verify writes the stages without a training step",
            )
        count = max(_MIN_BATCHES, len(parts.stages))
        values = input_values.items()
        batches = [{name: _vary(value, offset) for name, value in values} for offset in range(count)]
        if any(not value.dim() for value in input_values.values()):
            raise Misuse(
                "an input without an axis cannot be cut into micro-batches",
                where="--to torch",
                hint="--no-verify writes the stages without a training step",
            )

        def call(batch: Values) -> Any:
            args, kwargs = inputs.pack_arguments([batch[name] for name in parts.inputs])
            return module(*args, **kwargs)

        files = [stage.file for stage in fact.stages]
        with self._opened.loaded.quiet():
            evidence, exact, steps = proof.prove(
                module, call, parts, workdir, files, batches, texts, self._on_progress, self._cancel
            )
        evidence = replace(evidence, before=self._models.label(self._state_index))
        return replace(fact, verification=evidence, exact=exact, outputs=evidence.outputs, steps=steps)

    def _build_manifest(
        self, split: Split, parts: ModuleStages, infos: Mapping[str, TensorInfo]
    ) -> manifest.Manifest:
        def declared(names: Sequence[str]) -> tuple[manifest.ManifestTensor, ...]:
            return manifest.describe_tensors(_select_infos(infos, names))

        return manifest.Manifest(
            model=self._models.label(self._state_index),
            by=split.by,
            inputs=declared(parts.inputs),
            outputs=declared(parts.outputs),
            stages=tuple(
                [
                    manifest.describe_stage(stage, declared(part.reads), declared(part.makes))
                    for stage, part in zip(split.stages, parts.stages, strict=True)
                ]
            ),
            cuts=manifest.describe_cuts(split),
            balance=split.balance,
            shared=tuple(_list_shared_weights(parts.stages)),
        )


def _choose_devices(devices: Sequence[str], stage_count: int) -> list[torch.device]:
    """Return the device of each stage. One device is for all stages, and none is the CPU.

    Raises:
        Misuse: There are too few or too many devices, or torch knows no such device.
    """
    names = list(devices) or ["cpu"]
    names = names * stage_count if len(names) == 1 else names
    if len(names) != stage_count:
        raise Misuse(
            f"there are {len(names):,} devices for {stage_count:,} stages",
            where="split_module(devices)",
            hint="name one device, or one for each stage",
        )
    torch_devices = []
    for name in names:
        try:
            device = torch.device(name)
            torch.empty(0, device=device)
        except Exception as error:  # each backend raises an error of its own
            raise Misuse(
                f"torch cannot use the device '{name}' ({format_error(error)})",
                where="split_module(devices)",
                hint="write 'cpu', 'cuda:0' or 'mps'",
            ) from error
        torch_devices.append(device)
    return torch_devices


def _describe_shared_weights(shared: Sequence[str]) -> list[str]:
    """Return a note on each weight that several stages share, with its gradient."""
    return [
        f"{name} is in several stages, which train it alike: {stages.SCRIPT} adds up their gradients"
        for name in shared
    ]


def _select_infos(infos: Mapping[str, TensorInfo], names: Sequence[str]) -> tuple[TensorInfo, ...]:
    return tuple([infos[name] for name in names])


def _describe_stage(search: StageSearch, span: range) -> Stage:
    """Return the figures of a stage, read from the program; its cost is not filled in."""
    subject = search.subject
    weights = {name for unit in span for name in search.units.stored[unit]}
    macs = None if subject.macs is None else int(subject.macs[span.start : span.stop].sum())
    inner = {value.name for value in search.units.values if value.born in span}
    return Stage(
        file="",
        inputs=tuple(
            [v.info for v in search.units.values if v.name not in inner and v.born < span.start <= v.dies]
        ),
        outputs=tuple([v.info for v in search.units.values if v.name in inner and v.dies >= span.stop]),
        first=search.get_path(span[0]),
        last=search.get_path(span[-1]),
        layers=len(span),
        params=sum(subject.elements.get(name, 0) for name in weights),
        macs=macs,
        weight_bytes=sum(search.sizes[name] for name in weights),
        activation_bytes=int(compute_live_bytes(search.units)[span.start : span.stop].max()),
        cost=0.0,
    )


def _find_shared(search: StageSearch, places: Sequence[int]) -> list[str]:
    spans = list_stage_spans(search, places)
    return find_shared_names({name for unit in span for name in search.units.stored[unit]} for span in spans)


def _list_shared_weights(parts: Sequence[StageModule]) -> list[manifest.ManifestWeight]:
    """Return the parameters that several stages share, with their name in each stage."""
    places: dict[str, dict[str, str]] = {}
    tensors: dict[str, nn.Parameter] = {}
    for number, part in enumerate(parts, 1):
        for name, tensor in part.module.named_parameters():
            name_in_module = part.parameters[name]
            places.setdefault(name_in_module, {})[str(number)] = name
            tensors[name_in_module] = tensor
    return [
        manifest.ManifestWeight(
            name,
            describe_tensors(tensors[name], name)[0].dtype or "",
            tuple(tensors[name].shape),
            names_by_stage,
        )
        for name, names_by_stage in places.items()
        if len(names_by_stage) > 1
    ]


def _vary(value: torch.Tensor, offset: int) -> torch.Tensor:
    """Roll the values of a tensor for another micro-batch, except integer vectors such as lengths."""
    if value.dim() < 2 and not value.is_floating_point():
        return value
    return value.roll(offset)


def _is_proved(fact: Split) -> bool:
    return fact.verification is None or fact.verification.passed
