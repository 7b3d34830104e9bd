"""`make_model`: writes a small model that a line of text describes."""

from __future__ import annotations

import os

import onnx

from explorer.base.errors import Misuse
from explorer.base.version import __version__
from explorer.engine.convert import check_name
from explorer.engine.convert.job import describe_tensors
from explorer.engine.convert.onnx_file import declare_in_file
from explorer.engine.costs.onnx.analyse import examine
from explorer.engine.formats.onnx import reader
from explorer.engine.formats.onnx.validate import validate
from explorer.engine.make.models import create_model
from explorer.facts.split.make import MadeModel
from explorer.host import output_files


def make_model(
    text: str,
    output: str,
    *,
    name: str | None = None,
    seed: int = 0,
    batch: int | str = 1,
    stored: bool = True,
    overwrite: bool = False,
    shapes: bool = False,
) -> MadeModel:
    """Write a small ONNX model that a line of text describes; the same line gives the same bytes.

    Args:
        text: Description such as 'linear:128x128x128:bias' (see `explorer.engine.make.models.EXAMPLES`).
        output: Path of the file to write.
        name: Name of the graph, or None for the kind of model.
        seed: Seed of the weights.
        batch: Number of rows of an mlp, or of images of a convolution. A name leaves the batch open.
        stored: Whether the weights are in the file. Otherwise they are inputs.
        overwrite: Whether to replace an existing file.
        shapes: Whether the file declares the type and shape of every value.

    Raises:
        Misuse: The text cannot be parsed, or the file cannot be written.
    """
    check_name(output, "onnx")
    output_files.check_target(output, overwrite=overwrite, models=[], weights=())
    if isinstance(batch, int) and batch < 1:
        raise Misuse(f"a batch cannot be {batch}", where="--batch")
    net = create_model(text, name=name, seed=seed, batch=batch, store_weights=stored)
    proto = net.build_model(f"explorer {__version__}")
    onnx.checker.check_model(proto, full_check=True)
    with output_files.write_atomically(output, overwrite=overwrite) as temporary:
        with output_files.open_binary(temporary) as file:
            file.write(proto.SerializeToString(deterministic=True))
        if shapes:
            declare_in_file(temporary)
    model = validate(reader.read(output))
    totals = examine(model).info.totals
    return MadeModel(
        text=text,
        name=net.name,
        seed=seed,
        stored=stored,
        inputs=describe_tensors(model.graph.required_inputs),
        outputs=describe_tensors(model.graph.outputs),
        layers=totals.nodes,
        params=totals.params,
        macs=totals.macs,
        file_bytes=os.path.getsize(output),
        output=output,
    )
