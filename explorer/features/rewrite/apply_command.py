"""`explorer apply` and `explorer passes`: applies a pass of the user's own with proof, and lists passes."""

from __future__ import annotations

from msgspec import Struct

import explorer
from explorer.base.exit_codes import IF_PROVED
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.declared import list_options, record_of
from explorer.cli.arguments.options import OPENING, PROVED, TABLE
from explorer.cli.output.answer import Answer, build_plain_document, load_presenter
from explorer.cli.output.model_answer import suggest_no_verify
from explorer.cli.output.progress import ProgressLine
from explorer.facts.user_pass import AppliedPass, PassSpec, UserPass


class PassList(Struct, frozen=True):
    """Passes of a file and of the installed packages."""

    passes: tuple[UserPass, ...]


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    spec = record_of(args, PassSpec, name=args.models[1])
    with explorer.Session(args.models[0], **args.opening) as session:
        with suggest_no_verify(args, "applies the pass"):
            fact = session.apply_pass(
                spec, output=args.output, **args.writing(draws=1), input=args.input, on_progress=progress
            )
    proof = fact.verification
    return Answer(
        lambda: build_plain_document(fact),
        lambda: load_presenter("apply_words", __package__).applied(args.models[0], fact),
        csv=lambda: [{"operator": op, "change": change} for op, change in fact.operators.items()],
        outcome="done" if proof is None else proof.verdict_kind,
    )


def _run_list(args: ParsedArgs, _: ProgressLine) -> Answer:
    from explorer.engine.edit.user_passes import list_passes  # imported late: help imports this file

    fact = PassList(list_passes(args.passes, trust=args.trust))
    return Answer(
        lambda: build_plain_document(fact),
        lambda: load_presenter("apply_words", __package__).list_passes(fact.passes),
        "passes",
    )


APPLY = Command(
    "apply",
    "apply a pass of your own to a model, with proof",
    ("MODEL", "PASS"),
    ("--output", *list_options(PassSpec), *PROVED, "--shapes", "--input", *OPENING, *TABLE),
    (
        "explorer apply model.onnx tanh-gelu -o tanh.onnx --passes my_passes.py --trust",
        "explorer apply model.onnx tanh-gelu -o tanh.onnx --passes my_passes.py --trust --option only=gelu1",
        "explorer apply model.onnx my-pass -o out.onnx           (a pass of an installed package)",
    ),
    _run,
    exits=IF_PROVED,
    usage="apply MODEL PASS -o FILE",
    manual="applies a pass, a Python function from an ONNX model to an ONNX model, and proves that the"
    " outputs stay the same. If they differ, it writes no file and names the first layer that differs"
    " (`explorer help passes`)",
    others={"PASS": "the declared name of a pass (explorer passes lists them)"},
    required=("--output",),
    group="change",
    answer=AppliedPass,
)

PASSES = Command(
    "passes",
    "list the passes of your own with their options",
    (),
    (*list_options(PassSpec, "passes"), "--trust", *TABLE),
    ("explorer passes --passes my_passes.py --trust", "explorer passes"),
    _run_list,
    usage="passes [--passes FILE --trust]",
    manual="lists the passes of a file and of the installed packages, with their options",
    group="change",
    answer=PassList,
)
