"""`explorer schema`: prints the JSON Schema of a verb's answer, or lists the verbs that have one."""

from __future__ import annotations

from explorer.base.errors import Misuse, suggest_only_near
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.output.answer import Answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


def _run(args: ParsedArgs, progress: object) -> Answer:
    # imported on demand: the help imports this module, and msgspec with the facts takes 30 ms
    from explorer.report.document_types import DOCUMENTS

    if not args.models:
        return Answer(pieces=lambda: _list(tuple(DOCUMENTS)))
    verb = args.models[0]
    if verb not in DOCUMENTS:
        hint = suggest_only_near(verb, DOCUMENTS) or "explorer schema lists the verbs with --json"
        raise Misuse(f"'{verb}' is not a verb with --json", where="explorer schema", hint=hint)
    return Answer(pieces=lambda: _write_schema(verb))


def _write_schema(verb: str) -> Iterator[str]:
    from explorer.report import json_text  # imported on demand, like the types of the documents
    from explorer.report.document_schema import build_schema

    return json_text.encode_document(build_schema(verb))


def _list(verbs: tuple[str, ...]) -> Iterator[str]:
    from explorer.cli.commands import VERBS  # imported on demand: it imports this module

    width = max(map(len, verbs))
    yield "explorer schema VERB prints the JSON Schema of the answer to explorer VERB --json:\n\n"
    for verb in (verb for verb in VERBS if verb in verbs):
        yield f"  {verb:<{width}}  {VERBS[verb].summary}\n"


COMMAND = Command(
    "schema",
    "print the JSON Schema of a verb's --json answer, or list the verbs",
    ("[VERB]",),
    ("--version", "--help"),
    ("explorer schema", "explorer schema info", "explorer schema quantize"),
    _run,
    usage="schema VERB",
    manual="prints the JSON Schema (2020-12) of a verb's `--json` answer; without a verb it lists the verbs"
    " that have one",
    subject="verb",
    meaning="a verb with the option --json, such as info",
    group="tools",
)
