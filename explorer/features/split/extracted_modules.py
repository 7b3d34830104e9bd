"""Extracts a part of an nn.Module to a torch file, then reads the file back and runs it as a check."""

from __future__ import annotations

import time

import torch
from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.engine.convert.job import ConversionJob, get_module
from explorer.engine.costs.torch.signature import bind
from explorer.engine.formats.torch_module.modules import describe_tensors
from explorer.engine.progress import Cancel, OnProgress, report
from explorer.engine.split.module_part import (
    ExtractedModule,
    extract_module_part,
    is_identical,
    read_back,
    save,
)
from explorer.facts import Layer, TensorInfo
from explorer.facts.split.part import Extraction, PartSpec
from explorer.host import output_files
from explorer.session.parts.models import Models


def extract(
    models: Models,
    state_index: int,
    spec: PartSpec,
    output: str,
    *,
    overwrite: bool,
    verify: bool,
    seed: int,
    on_progress: OnProgress,
    cancel: Cancel,
) -> Extraction:
    """Write a part of a state that is an nn.Module.

    With `verify`, a part whose values differ from those of the whole module is not written.
    """
    started = time.perf_counter()
    models.refuse_shapes()
    models.check_output_path(output, overwrite)
    opened = models.open_state(state_index, on_progress)
    if not hasattr(opened, "loaded"):
        raise Misuse(
            "a part of a graph is an ONNX file", where=output, hint="give it a name that ends in .onnx"
        )
    loaded = get_module(opened)
    options = models.options
    report(on_progress, cancel, "exporting (torch.export)")
    inputs = bind(loaded, options["input_shapes"], options["dims"])
    layers = models.examine(state_index, on_progress, cancel).analysis.layers
    part = extract_module_part(loaded, inputs, layers, spec, seed)
    fact = _describe(part, layers, models)
    with output_files.write_atomically(output, overwrite=overwrite) as temporary:
        report(on_progress, cancel, "writing")
        ConversionJob(target=output, path=temporary).write(part.module, lambda: save(part, temporary))
        if verify:
            report(on_progress, cancel, "running the part")
            fact = replace(fact, exact=_compare_values(part, read_back(part, temporary)))
            if fact.exact is False:
                raise output_files.Discard
    path = output if fact.exact is not False else ""
    return replace(fact, output=path, seconds=time.perf_counter() - started)


def _compare_values(part: ExtractedModule, values: tuple[torch.Tensor, ...]) -> bool | None:
    """Return whether the part gives exactly the values of the whole module.

    Outputs that depend on random numbers are skipped; if all outputs do, return None.
    """
    if not part.is_reproduced or len(values) != len(part.output_values):
        return False
    pairs = zip(part.output_names, values, part.output_values, strict=True)
    matches = [
        is_identical(value, expected) for name, value, expected in pairs if name not in part.random_outputs
    ]
    return all(matches) if matches else None


def _describe(part: ExtractedModule, layers: tuple[Layer, ...], models: Models) -> Extraction:
    rows = [layers[row] for row in part.rows]
    leaves = [layers[row] for row in dict.fromkeys(part.rows) if not layers[row].group]
    macs = [row.macs for row in leaves]
    parameters = dict(part.module.named_parameters())
    notes = [*models.list_weight_notes()]
    if part.random_outputs:
        notes.append(f"not compared, because it depends on random numbers: {', '.join(part.random_outputs)}")
    if part.has_attention:
        notes.append(
            "compared without torch's inference-only attention kernels, which an exported program lacks"
        )
    return Extraction(
        inputs=_describe_values(part.input_names, part.input_values),
        outputs=_describe_values(part.output_names, part.output_values),
        first=rows[0].path if rows else "",
        last=rows[-1].path if rows else "",
        layers=part.call_counts[0],
        layers_whole=part.call_counts[1],
        params=sum(parameter.numel() for parameter in parameters.values()),
        macs=None if None in macs else sum(count or 0 for count in macs),
        weight_bytes=sum(parameter.nbytes for parameter in parameters.values()),
        runtime="torch",
        notes=tuple(notes),
    )


def _describe_values(names: tuple[str, ...], values: tuple[torch.Tensor, ...]) -> tuple[TensorInfo, ...]:
    return tuple(
        [info for name, value in zip(names, values, strict=True) for info in describe_tensors(value, name)]
    )
