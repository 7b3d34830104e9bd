"""`explorer tile`: tiles matmuls, verifies the result and writes it."""

from __future__ import annotations

import explorer
from explorer.base.errors import Misuse
from explorer.base.exit_codes import IF_PROVED
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.declared import list_options
from explorer.cli.arguments.options import OPENING, PROVED, TABLE, Option
from explorer.cli.arguments.quantize_options import FIRST
from explorer.cli.arguments.records import read_quantize, read_tile_spec
from explorer.cli.output.answer import Answer, document, load_presenter, name_tool
from explorer.cli.output.model_answer import compute_changes, describe_fixed_sizes, suggest_no_verify
from explorer.cli.output.progress import ProgressLine
from explorer.facts.conversion import ConversionOptions
from explorer.settings.parse import write_opening_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from explorer.facts import TileResult, TileSpec
    from explorer.facts.quantize import Quantization
    from explorer.session import Session


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:

    if args.to == "torch":
        return _tile_module(args, progress)
    if args.dynamic:
        raise Misuse("an ONNX file keeps its own open sizes", where="--dynamic", hint="add --to torch")
    spec, formats = read_tile_spec(args), read_quantize(args)
    source, change, warning = args.models[0], None, ""
    quantization: Quantization | None = None
    with explorer.Session(source, **args.opening) as session:
        info = session.open(on_progress=progress)
        model, fixed_sizes = info.model, describe_fixed_sizes(info, args)
        digest = session.sha256() if args.json else None
        if args.output is not None:
            session.check_output(args.output, overwrite=args.force)
        if args.input is not None:
            session.check_input(args.input, on_progress=progress)
        if formats is not None:
            quantized = session.quantize(
                formats, as_graph=True, calibrate=args.calibrate, report=False, on_progress=progress
            )
            from msgspec.structs import replace  # imported late: help imports this file; msgspec takes 30 ms

            quantization = replace(quantized, output="")  # the session deletes its temporary file
        unmatched = _warn_unmatched_rules(session, spec)
        if args.output is None:
            result = explorer.TileResult(
                session.plan(spec, on_progress=progress), "", None, 0.0, session.command(spec)
            )
        else:
            with suggest_no_verify(args, "tiles the model"):
                result = session.tile(
                    spec,
                    output=args.output,
                    **args.writing(draws=1),
                    input=args.input,
                    on_progress=progress,
                )
            if result.output and not args.json and not args.no_verify:
                change, warning = compute_changes(session, progress)
    return Answer(
        lambda: document().tile(result, model, name_tool(), digest, quantization),
        lambda: load_presenter("tile_words", __package__).tile(
            *(result, source, change, write_opening_words(args.opening), quantization),
            module_parameters=info.totals.params if quantization is None else None,
        ),
        "plan.sites",
        warning="; ".join(filter(None, (fixed_sizes, unmatched, warning))),
        outcome=_format_outcome(result),
    )


def _warn_unmatched_rules(session: Session, spec: TileSpec) -> str:
    """Return a warning about rules that match no matmul, such as a mistyped name, or ''."""
    unused_rules = session.settings(spec).unused if spec.rules else ()
    if not unused_rules:
        return ""
    first = unused_rules[0]
    more_text = f", and {len(unused_rules) - 1:,} more" if len(unused_rules) > 1 else ""
    suggestion = f"; did you mean '{first.near}'?" if first.near else ""
    return f"{first.origin}{more_text} matches no matmul: {first.says}{suggestion}"


def _tile_module(args: ParsedArgs, progress: ProgressLine) -> Answer:
    """Answer `--to torch`: tile the layers of an nn.Module instead of the nodes of a graph."""
    if read_quantize(args) is not None:
        raise Misuse("modules are not quantized", where="--quantize", hint="leave out --to torch")
    if args.input is not None:
        raise Misuse("modules are proved on random inputs", where="--input", hint="leave out --to torch")
    spec, source = read_tile_spec(args), args.models[0]
    with explorer.Session(source, **args.opening) as session:
        model = session.open(on_progress=progress).model
        if args.output is None:
            plan = session.plan_module(spec, on_progress=progress)
            result = explorer.TileResult(
                plan, "", None, 0.0, session.module_command(spec, None, args.dynamic)
            )
        else:
            _, result = session.tile_module(
                spec,
                output=args.output,
                dynamic=args.dynamic,
                **args.writing(draws=3),
                on_progress=progress,
            )
    return Answer(
        lambda: document().tile(result, model, name_tool(), None),
        lambda: load_presenter("tile_words", __package__).tile(
            result, source, None, write_opening_words(args.opening)
        ),
        "plan.sites",
        outcome=_format_outcome(result),
    )


def _format_outcome(result: TileResult) -> str:
    return "done" if result.verification is None else result.verification.verdict_kind


COMMAND = Command(
    "tile",
    "split matmuls into hardware tiles, prove the result, write it",
    ("MODEL",),
    (
        Option(
            "--output",
            "file to write the tiled model to; without it only the plan is printed",
            "FILE",
            short="-o",
        ),
        *list_options(explorer.TileSpec, without=("accumulator",)),
        Option(
            "--to",
            "what to make: an ONNX file (default), or a PyTorch module whose layers are tiled",
            default="onnx",
            choices=("onnx", "torch"),
            manual="kind of result: an ONNX file (default), or an nn.Module with tiled layers, as `.pt2` or"
            " TorchScript",
        ),
        *list_options(ConversionOptions, "dynamic"),
        *FIRST,
        *list_options(explorer.TileSpec, "accumulator"),
        *PROVED,
        "--shapes",
        "--input",
        *OPENING,
        *TABLE,
    ),
    (
        "explorer tile alexnet                                          (only the plan)",
        "explorer tile alexnet -o alexnet_tiled.onnx",
        "explorer tile model.onnx -o tiled.onnx --tile 32x64x32 --edges padded",
        "explorer tile model.onnx -o tiled.onnx --site '*classifier*' --form lab",
        "explorer tile model.onnx -o tiled.onnx --config npu.toml",
        "explorer tile model.onnx -o tiled.onnx --mapping mapping.toml   (the tiles of a mapping)",
        "explorer tile model.onnx -o tiled8.onnx --quantize int8         (integer tiles, proved exact)",
        "explorer tile resnet18 --to torch -o tiled.pt2 --dynamic x:0=batch",
    ),
    _run,
    exits=IF_PROVED,
    usage="tile MODEL -o FILE",
    manual="tiles the matmuls, proves that the outputs stay the same, and writes the result; without `-o`"
    " prints only the plan",
    group="change",
)
