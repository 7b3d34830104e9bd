"""`explorer decode`: compares a decode step with the prefill pass, and the KV cache with the weights."""

from __future__ import annotations

from explorer.base.errors import Misuse
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import OPENING, TABLE
from explorer.cli.output.answer import Answer
from explorer.cli.output.model_answer import open_and_answer
from explorer.cli.output.progress import ProgressLine

_OPENING = tuple(flag for flag in OPENING if flag not in ("--decode", "--observe"))


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    tokens = args.past
    vars(args).update(past=None, observe=False)  # the session opens the model for its full pass
    if tokens is not None and tokens < 1:
        raise Misuse("a decode step needs at least one token in the cache", where="--past")
    return open_and_answer(
        args,
        progress,
        lambda session, info: (info, session.decode(tokens, on_progress=progress)),
        build="decode",
        presenter="decode_words",
        rows="layers",
        package=__package__,
    )


COMMAND = Command(
    "decode",
    "print the cost of one decode step beside the full pass",
    ("MODEL",),
    (*_OPENING, *TABLE),
    ("explorer decode model.onnx --past 1024", "explorer decode package.module:gpt --trust --csv"),
    _run,
    usage="decode MODEL --past 1024",
    manual="one decode step of a language model beside the prompt's pass (prefill), for each layer; the"
    " bytes of the key-value cache for each token, and the number of tokens from which it is larger than"
    " the weights",
    group="language",
)
