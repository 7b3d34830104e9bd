"""Conversion of an nn.Module to a torch.export program."""

from __future__ import annotations

import torch

from explorer.base.errors import BadModel
from explorer.engine.convert import axes, comparison
from explorer.engine.convert.job import ConversionJob, ConversionResult
from explorer.engine.costs.torch.signature import bind
from explorer.engine.formats.torch_module.loaded_module import LoadedModule
from explorer.host.optional_packages import format_error


def convert(job: ConversionJob) -> ConversionResult:
    """Writes a .pt2 file.

    Raises:
        BadModel: torch.export cannot write this model.
        Misuse: The input shapes are unknown, or an axis does not exist.
        Cancelled: The user canceled (`job.cancel`).
    """
    job.report_progress("settling the inputs")
    loaded: LoadedModule = job.opened.loaded
    bound_inputs = bind(loaded, job.input_shapes, job.dims)
    open_axes = axes.resolve(
        loaded, bound_inputs, job.options.dynamic, [info.name for info in bound_inputs.inputs]
    )
    job.report_progress("making the weights")
    model = loaded.materialize()
    job.report_progress("exporting (torch.export)")
    args, kwargs = open_axes.export_inputs.build_arguments(device="cpu")
    try:
        with loaded.quiet(), torch.no_grad(), torch.random.fork_rng(devices=[]):
            program = torch.export.export(
                model,
                tuple(args),
                kwargs,
                dynamic_shapes=axes.build_dynamic_shapes(loaded, open_axes),
                strict=False,
            )
    except Exception as error:
        raise BadModel(
            f"torch.export cannot write it ({format_error(error)})", where=loaded.source
        ) from error
    with loaded.quiet():
        job.write(program, lambda: torch.export.save(program, job.path))
    depth = comparison.estimate_module_depth(model)
    return ConversionResult(
        how="torch.export",
        inputs=axes.describe_inputs(open_axes),
        outputs=axes.describe_outputs(loaded, open_axes),
        verification=comparison.prove_written(
            job, loaded, open_axes.export_inputs, open_axes.other_inputs, "torch.export", depth
        ),
        notes=(*loaded.notes, *bound_inputs.notes, *axes.list_notes(open_axes)),
    )
