"""`explorer profile`: measures how long a model runs on this machine, layer by layer."""

from __future__ import annotations

import os
from contextlib import ExitStack

import explorer
from explorer.base.errors import Misuse
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.declared import list_options, record_of
from explorer.cli.arguments.options import MACHINE, OPENING, TABLE, Option
from explorer.cli.arguments.records import read_machine
from explorer.cli.output.answer import Answer, build_plain_document, document, load_presenter, name_tool
from explorer.cli.output.model_answer import open_and_answer
from explorer.cli.output.progress import ProgressLine
from explorer.facts.profile.profile import ProfileSpec, ProfileViewSpec
from explorer.host.output_files import check_target

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from explorer.facts import Info, Layer
    from explorer.facts.profile.profile import Profile, ProfileSeries
    from explorer.facts.roofline import Machine
    from explorer.report.blocks import Block
    from explorer.session import Session

_DEFAULT_TOP = 10
"""Number of layers in the table without `--top`."""

_OPTIONS = (
    *list_options(ProfileSpec, "optimize", "threads"),
    Option(
        "--batch",
        "size of the open first dimension, or several sizes, such as 1,8,32, for one profile each",
        "N,...",
        parser="sizes",
        manual="size of the open first dimension, or several sizes, such as `1,8,32`, for one profile each",
    ),
    *list_options(ProfileSpec, "warmup", "steps", "repeat", "time_limit", "device"),
    *list_options(ProfileViewSpec),
    *list_options(ProfileSpec, "train", "optimizer"),
    Option(
        "--trace",
        "write a Chrome trace of three recorded runs, which Perfetto opens, with groups, layers and\n"
        "kernels, and one lane for each thread",
        "FILE.json",
    ),
    Option("--tensorboard", "write times as scalars and a histogram into a folder for TensorBoard", "FOLDER"),
)
_TRACED_RUNS = 3
"""Number of recorded runs in a trace."""
_ENDINGS = (".csv", ".json", ".folded")
"""File extensions of `--output`."""


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    machine = read_machine(args)
    if len(args.models) == 2:
        for option in ("output", "trace", "tensorboard"):
            if getattr(args, option):
                raise Misuse(
                    "a file has the profile of one model",
                    where=f"--{option}",
                    hint="--json prints both profiles",
                )
        return _compare(args, machine, progress)
    has_batches = len(args.batch or ()) > 1
    rows = "batches" if has_batches else "layers"
    paths = _check_files(args)

    def ask(session: Session, info: Info) -> tuple[Info, Profile | ProfileSeries]:
        from msgspec.structs import replace

        from explorer.facts.profile.profile import (
            combine_profiles,
            sort_times,
        )  # imported late: msgspec records load slowly

        spec = _build_spec(args)
        profiles = [
            session.profile(spec, batch=batch, machine=machine, on_progress=progress)
            for batch in args.batch or (None,)
        ]
        sorted_profiles = [
            replace(profile, layers=sort_times(profile.layers, args.sort), recording=())
            for profile in profiles
        ]
        fact = combine_profiles(sorted_profiles) if has_batches else sorted_profiles[0]
        if paths:
            table_source = document().build_document(info, fact, name_tool(), session.sha256()), rows
            # in place, because `blocks` lists the written paths
            paths[:] = _write(args, profiles, session.analysis().layers, table_source)
        return info, fact

    def blocks(info: Info, fact: Any) -> list[Block]:
        words = load_presenter("profile_words", __package__)
        profiles: list[Block] = getattr(words, name)(info, fact, args.top or _DEFAULT_TOP)
        return [
            *profiles,
            *(line for path in paths for line in load_presenter("figures").report_written(path)),
        ]

    name = "profiles" if has_batches else "profile"
    return open_and_answer(args, progress, ask, build=document().build_document, presenter=blocks, rows=rows)


def _check_files(args: ParsedArgs) -> list[str]:
    """Return the files to write, after checking them before the model is timed.

    Raises:
        Misuse: A file exists, is also an input, has an extension of another format, or is named twice.
        MissingExtra: The package that writes TensorBoard files is not installed.
    """
    input_paths = [path for path in (args.input, args.weights_file, args.rules) if path]
    files = [path for path in (args.output, args.trace) if path]
    for path, endings in ((args.output, _ENDINGS), (args.trace, (".json",))):
        if path and not path.lower().endswith(endings):
            raise Misuse(
                "the file name's ending selects the format", where=path, hint=f"use {' or '.join(endings)}"
            )
        if path:
            where = args.tensorboard or ""
            check_target(
                path,
                overwrite=args.force,
                models=args.models,
                weights=(),
                inputs=input_paths,
                new_folder=where,
            )
    if len(files) == 2 and os.path.realpath(files[0]) == os.path.realpath(files[1]):
        raise Misuse("two outputs have the same file name", where=files[0], hint="change one of the names")
    if args.tensorboard:
        from explorer.features.profile.profile_files import check_tensorboard  # help imports this file

        check_tensorboard(args.tensorboard)
        files.append(args.tensorboard)
    return files


def _write(
    args: ParsedArgs,
    profiles: Sequence[Profile],
    rows: Sequence[Layer],
    table_source: tuple[dict[str, Any], str],
) -> list[str]:
    """Write all files or none; return their paths."""
    # imported here because help imports this file
    from explorer.features.profile.profile_files import (
        build_chrome_trace,
        list_flame_stacks,
        write_tensorboard_events,
    )
    from explorer.report import table_file

    model, texts = os.path.basename(args.models[0]), dict[str, str]()
    if args.output and args.output.lower().endswith(".folded"):
        texts[args.output] = "".join(list_flame_stacks(profiles, rows, model))
    elif args.output:
        texts[args.output] = table_file.format_document(*table_source, args.output)
    if args.trace:
        texts[args.trace] = build_chrome_trace(profiles, rows, model)
    with ExitStack() as stack:
        folder = args.tensorboard
        event_files = [stack.enter_context(write_tensorboard_events(profiles, folder))] if folder else []
        for path, text in texts.items():
            stack.enter_context(table_file.write_text_file(text, path, args.force))
    return [*event_files, *texts]


def _compare(args: ParsedArgs, machine: Machine | None, progress: ProgressLine) -> Answer:
    """Time two models in turn. With two batches, the first one is for the first model."""
    batches = args.batch or (None,)
    if len(batches) > 2:
        raise Misuse("two models take at most two batch sizes", where="--batch")
    with explorer.Session(args.models[0], **args.opening) as session:
        fact = session.compare_profiles(
            other=args.models[1],
            spec=_build_spec(args),
            batches=(batches[0], batches[-1]),
            machine=machine,
            on_progress=progress,
        )
    return Answer(
        lambda: build_plain_document(fact),
        lambda: load_presenter("profile_comparison_words", __package__).comparison(
            fact, args.top or _DEFAULT_TOP
        ),
        "layers",
    )


def _build_spec(args: ParsedArgs) -> ProfileSpec:
    return record_of(args, ProfileSpec, record=_TRACED_RUNS if args.trace else 0)


COMMAND = Command(
    "profile",
    "measure how long a model takes on this machine, layer by layer",
    ("MODEL", "[OTHER]"),
    (*_OPTIONS, "--output", "--force", "--input", "--seed", *MACHINE, *OPENING, *TABLE),
    (
        "explorer profile model.onnx",
        "explorer profile model.onnx --batch 1,8,32 --threads 4",
        "explorer profile model.onnx --trace run.json -o stacks.folded",
        "explorer profile model.onnx --machine npu --sort roof --json",
        "explorer profile resnet18 --batch 5 --train",
        "explorer profile model.onnx model_tiled.onnx    (in turn, layer by layer)",
    ),
    _run,
    usage="profile MODEL [OTHER]",
    manual="the run time of a model on this machine, in onnxruntime or torch: the time of each layer with"
    " its spread, operators with their memory, overhead, MACs and bytes per second, the confidence, and"
    " whether the machine was loaded; for two models, timed in turn, the layers side by side and the"
    " differences above noise",
    group="measure",
)
