"""`explorer cache`: shows or clears the stored analyses of models."""

from __future__ import annotations

from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import PRINTING, Option
from explorer.cli.output.answer import Answer, build_plain_document, load_presenter
from explorer.cli.output.progress import ProgressLine


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    # imported on demand: the help imports this module, and msgspec with the facts takes 30 ms
    from explorer.session.cache.analysis_cache import cache_usage, clear_cache

    fact = clear_cache() if args.clear else cache_usage()
    return Answer(lambda: build_plain_document(fact), lambda: load_presenter("shell.cache").cache(fact))


COMMAND = Command(
    "cache",
    "show where results are cached, and how large the cache is",
    (),
    (Option("--clear", "delete the kept analyses"), *PRINTING),
    ("explorer cache", "explorer cache --clear"),
    _run,
    usage="cache",
    manual="the folder, number and bytes of the kept analyses; `--clear` deletes them",
    group="tools",
)
