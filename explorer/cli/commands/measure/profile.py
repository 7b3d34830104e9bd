"""`explorer profile`: how long a model runs on this machine, layer by layer."""

from __future__ import annotations

import explorer
from explorer.base.errors import Misuse
from explorer.base.exit_codes import DONE
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import MACHINE, OPENING, TABLE, Option
from explorer.cli.arguments.records import roofline_machine
from explorer.cli.output.answer import Answer, document, plain, present
from explorer.cli.output.model_answer import about
from explorer.cli.output.progress import ProgressLine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from explorer.facts import Info
    from explorer.facts.profile.comparison import ProfileComparison
    from explorer.facts.profile.profile import Profile, ProfileSeries, ProfileSpec
    from explorer.facts.roofline import Machine
    from explorer.report.blocks import Block
    from explorer.session import Session

_LIMIT = 10
"""Layers that are shown where nobody says how many."""

_OPTIONS = (
    Option(
        "--optimize",
        "level of onnxruntime's graph optimisation (default all; of more than 4,096 nodes none)",
        choices=("none", "basic", "extended", "all"),
    ),
    Option("--threads", "threads for operators (default: as the runtime likes)", "N", least=1),
    Option(
        "--batch",
        "size of the open first dimension, or several, such as 1,8,32: one profile each",
        "N,...",
        reads="sizes",
        manual="size of the open first dimension, or several, such as `1,8,32`: one profile each",
    ),
    Option("--warmup", "runs before those that are timed (default 2)", "N", "2", least=0),
    Option("--steps", "timed runs (default: until the median is sure)", "N", least=1),
    Option(
        "--repeat", "load the model anew and time it again, N times in all (default 1)", "N", "1", least=1
    ),
    Option(
        "--time-limit",
        "seconds after which no more runs are made (default 10)",
        "S",
        "10",
        least=1,
    ),
    Option("--device", "what runs it: cpu (default), cuda, or another of the runtime's", "NAME", "cpu"),
    Option(
        "--sort",
        "layers with the largest first (default time): order is as they run, limit the least time, roof\n"
        "that over the measured one",
        default="time",
        choices=("time", "order", "calls", "mac-rate", "byte-rate", "limit", "roof", "memory"),
        manual="layers with the largest first: `time`, `order` (as they run), `calls`, `mac-rate`,"
        " `byte-rate`, `limit` (least time), `roof` (least over measured), `memory`",
    ),
    Option("--limit", "how many layers (default 10; JSON and CSV: all)", "N", least=1),
)


def _run(given: ParsedArgs, progress: ProgressLine) -> Answer:
    named = given.machine or given.peak_macs or given.bandwidth
    machine = roofline_machine(given) if named else None
    if len(given.models) == 2:
        return _compared(given, machine, progress)
    several = len(given.batch or ()) > 1

    def ask(session: Session, info: Info) -> tuple[Info, Profile | ProfileSeries]:
        from explorer.facts.profile.profile import series  # not where it is refused before

        spec = _spec(given)
        found = [
            session.profile(spec, batch=batch, machine=machine, on_progress=progress)
            for batch in given.batch or (None,)
        ]
        sorted_ = [_arranged(given, one) for one in found]
        return info, series(sorted_) if several else sorted_[0]

    def blocks(info: Info, fact: Any) -> list[Block]:
        words = present("measure.profile")
        found: list[Block] = getattr(words, name)(info, fact, given.limit or _LIMIT)
        return found

    name = "profiles" if several else "profile"
    return about(given, progress, ask, document().of_fact, blocks, "batches" if several else "layers")


def _compared(given: ParsedArgs, machine: Machine | None, progress: ProgressLine) -> Answer:
    """Two models in turn; of two batches the first is that of the first model."""
    batches = given.batch or (None,)
    if len(batches) > 2:
        raise Misuse("two models have two batches at most", where="--batch")
    with explorer.Session(given.models[0], **given.opening) as session:
        fact = session.compare_profiles(
            other=given.models[1],
            spec=_spec(given),
            batches=(batches[0], batches[-1]),
            machine=machine,
            on_progress=progress,
        )
    limit = given.limit if given.json or given.csv else given.limit or _LIMIT
    return Answer(
        DONE,
        lambda: plain(_first(fact, limit)),
        lambda: present("measure.compare").comparison(fact, limit),
        "layers",
    )


def _first(fact: ProfileComparison, limit: int | None) -> ProfileComparison:
    from msgspec.structs import replace

    return replace(fact, layers=fact.layers[:limit])


def _spec(given: ParsedArgs) -> ProfileSpec:
    from explorer.facts.profile.profile import ProfileSpec

    return ProfileSpec(
        optimize=given.optimize,
        threads=given.threads,
        device=given.device,
        warmup=given.warmup,
        steps=given.steps,
        repeat=given.repeat,
        time_limit=float(given.time_limit),
        input=given.input,
        seed=given.seed,
    )


def _arranged(given: ParsedArgs, found: Profile) -> Profile:
    """A profile with its layers in the order, and as a document as many, as was asked for."""
    from msgspec.structs import replace

    from explorer.facts.profile.profile import ordered

    layers = ordered(found.layers, given.sort)
    # nobody reads thousands of layers; a program that wants few says so
    return replace(found, layers=layers[: given.limit] if given.json or given.csv else layers)


COMMAND = Command(
    "profile",
    "how long a model runs here, layer by layer, and what is no layer",
    ("MODEL", "[OTHER]"),
    (*_OPTIONS, "--input", "--seed", *MACHINE, *OPENING, *TABLE),
    (
        "explorer profile model.onnx",
        "explorer profile model.onnx --batch 1,8,32 --threads 4",
        "explorer profile model.onnx --machine npu --sort roof --json",
        "explorer profile model.onnx model_tiled.onnx    (in turn, layer by layer)",
    ),
    _run,
    usage="profile MODEL [OTHER]",
    manual="how long an ONNX graph runs in onnxruntime on this machine: each layer's time with its spread,"
    " what is no layer, MACs and bytes a second, how sure it is, and whether the machine was loaded;"
    " of two models the layers side by side, timed in turn, and which differences are more than noise",
)
