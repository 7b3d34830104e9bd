"""`make_model`: writes the small model that a line of text describes."""

from __future__ import annotations

import os

import onnx

from explorer.base.errors import Misuse
from explorer.base.version import __version__
from explorer.engine.convert import check_name
from explorer.engine.convert.job import tensor_infos
from explorer.engine.costs.onnx.analyse import examine
from explorer.engine.formats.onnx import reader
from explorer.engine.formats.onnx.validate import validate
from explorer.engine.make.models import graph_of_text
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
) -> MadeModel:
    """Writes the small ONNX model that a line of text describes; the same line makes the same bytes.

    Args:
        text: Such as 'linear:128x128x128:bias' (see `explorer.engine.make.models.EXAMPLES`).
        output: The file.
        name: Of the graph; None: its kind.
        seed: Of the weights.
        batch: Rows of an mlp, images of a convolution; a name leaves it open.
        stored: Whether weights are in the file; else they are inputs.
        overwrite: Whether the file may be replaced.

    Raises:
        Misuse: The text cannot be read, or the file cannot be written.
    """
    check_name(output, "onnx")
    output_files.check_target(output, overwrite=overwrite, models=[], weights=())
    if isinstance(batch, int) and batch < 1:
        raise Misuse(f"a batch cannot be {batch}", where="--batch")
    net = graph_of_text(text, name=name, seed=seed, batch=batch, store_weights=stored)
    proto = net.model(f"explorer {__version__}")
    onnx.checker.check_model(proto, full_check=True)
    with output_files.atomic_write(output, overwrite=overwrite) as temporary:
        with output_files.binary(temporary) as file:
            file.write(proto.SerializeToString(deterministic=True))
    model = validate(reader.read(output))
    totals = examine(model).info.totals
    return MadeModel(
        text=text,
        name=net.name,
        seed=seed,
        stored=stored,
        inputs=tensor_infos(model.graph.feeds),
        outputs=tensor_infos(model.graph.outputs),
        layers=totals.nodes,
        params=totals.params,
        macs=totals.macs,
        file_bytes=os.path.getsize(output),
        output=output,
    )
