"""`explorer settings`: lists how each matmul would be tiled or quantized, and the source of each setting."""

from __future__ import annotations

import explorer
from explorer.base.features import load
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.declared import list_options
from explorer.cli.arguments.options import OPENING, TABLE, Option
from explorer.cli.arguments.quantize_options import FORMATS
from explorer.cli.arguments.records import read_quantize_spec, read_tile_spec
from explorer.cli.output.answer import Answer
from explorer.cli.output.model_answer import open_and_answer
from explorer.cli.output.progress import ProgressLine


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    if args.formats:
        formats = read_quantize_spec(args)
        return open_and_answer(
            args,
            progress,
            lambda session, info: (info, session.quantize_settings(formats, on_progress=progress)),
            build="quantize_settings",
            presenter=load("words", "quantize_settings"),
            rows="layers",
        )
    args.refuse(sorted(option.key for option in _FORMAT_OPTIONS), "does not apply to tiles", "add --formats")
    spec = read_tile_spec(args)
    return open_and_answer(
        args,
        progress,
        lambda session, info: (info, session.settings(spec, on_progress=progress)),
        build="settings",
        presenter="tile_words",
        rows="sites",
        package=__package__,
    )


_TILE_OPTIONS = list_options(explorer.TileSpec, "config", "tile", "sites", "edges", "form", "grouped")

_FORMAT_OPTIONS = tuple(
    option for option in FORMATS if option.flag not in {tile_option.flag for tile_option in _TILE_OPTIONS}
)

COMMAND = Command(
    "settings",
    "show the tile or number format of each matmul, and where it is set",
    ("MODEL",),
    (
        *_TILE_OPTIONS,
        Option("--formats", "print the number formats of each layer instead of its tiling"),
        *_FORMAT_OPTIONS,
        *OPENING,
        *TABLE,
    ),
    (
        "explorer settings model.onnx --config npu.toml",
        "explorer settings model.onnx --config npu.toml --edges padded --json",
        "explorer settings model.onnx --config npu.toml --formats --to weight=int4",
    ),
    _run,
    usage="settings MODEL --config FILE",
    manual="the tiling of each matmul (with `--formats` its number formats), and where each value was set:"
    " the default, a line of the file, or the command line",
    group="change",
)
