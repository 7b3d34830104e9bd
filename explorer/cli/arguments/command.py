"""Command: a record of a verb with its purpose, arguments, options, and the function that runs it.

Help, error messages, completion, man page and README are generated from these records. Every start of the
program creates some, so it is a plain class.
"""

from __future__ import annotations

from explorer.base.errors import Misuse
from explorer.base.exit_codes import IF_DONE
from explorer.base.record import field, record
from explorer.cli.arguments.options import OPTIONS, Option, derive_key

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

MODEL_HELP = (
    "a model's file or folder (explorer formats lists the kinds), the name of a\ntorchvision model,"
    " or FILE.py:callable or package.module:callable; the callable\nreturns an nn.Module,"
    " or an nn.Module and an example input"
)

SECOND_NAME = "`explorer-nn` starts the same program: on Windows `explorer` is the file manager."


GROUPS = {
    "look": "Look at a model",
    "compare": "Compare models",
    "change": "Change a model",
    "measure": "Measure",
    "language": "Language models",
    "tools": "Tools",
}
"""Titles of the groups of commands, in the order of help, manual and man page."""


class ParsedArgs:
    """Parsed arguments: `models`, and one attribute per option, named by `Option.key`.

    Attributes:
        models: Positional arguments.
        explicit: Attributes of the options that the user typed; the others have their defaults.
        csv, json, markdown, exact, quiet, no_cache, shapes: Values of these options; False if the command
            does not have the option.
        top: Maximum number of rows of a table, or None.
        memory: Memory limit in bytes, or None.
    """

    models: list[str]
    explicit: set[str]
    csv = json = markdown = exact = quiet = no_cache = shapes = False
    top: int | None = None
    memory: int | None = None

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    @property
    def opening(self) -> dict[str, Any]:
        """Keyword arguments for opening a `Session`."""
        from explorer.settings.parse import OPENING  # imported on demand: the help does not need it

        keywords = {keyword: getattr(self, derive_key(flag)) for keyword, (flag, _) in OPENING.items()}
        return {**keywords, "partial": True} if "partial" in self.explicit else keywords

    def refuse(self, keys: Iterable[str], reason: str, hint: str = "") -> None:
        """Reject the first option in `keys` that the user typed.

        Raises:
            Misuse: One of the options was typed.
        """
        for key in keys:
            if key in self.explicit:
                raise Misuse(reason, where=f"--{key.replace('_', '-')}", hint=hint)

    def writing(self, *, draws: int) -> dict[str, Any]:
        """Return keyword arguments for proving and writing a result.

        Args:
            draws: Number of random inputs if the user did not type `--draws`.
        """
        return {
            "overwrite": self.force,
            "verify": not self.no_verify,
            "draws": self.draws or draws,
            "seed": self.seed,
        }


@record
class Command:
    """A command of the command line.

    Args:
        name: Verb.
        summary: One-line description.
        models: Placeholders of the positional arguments in the help. A placeholder in brackets is optional,
            and a last '...' allows several.
        taken: Options of the command: flags of shared options, and its own options.
        examples: Example command lines.
        run: Function that runs the command. Its arguments are the parsed arguments and an
            `explorer.cli.output.progress.ProgressLine` (None if `instant`); it returns an
            `explorer.cli.output.answer.Answer`. None for the screen.
        usage: Typical usage without the program's name.
        manual: Description for the README (Markdown).
        required: Flags of required options.
        instant: Whether the command only reads headers, so that it needs no supervision.
        runs_anywhere: Whether the command also runs on Windows; the others require WSL there.
        subject: Noun for the positional arguments.
        words: Allowed values of the positional arguments, if they are not models.
        meaning: Description of a positional argument that is neither a model nor one of `words`.
        exits: Exit code of each outcome. Outcomes are kinds of verdict, or words for the manual.
        others: Descriptions of the positional arguments that are not models, by placeholder.
        group: Key of the command's group in `GROUPS`.
        answer: Type of the fact that `--json` prints, if the document has the fields of one fact. The other
            documents are in `explorer.report.document_types`.

    Attributes:
        options: Options by flag.
    """

    name: str
    summary: str
    models: tuple[str, ...]
    taken: Sequence[str | Option]
    examples: tuple[str, ...]
    run: Callable[[ParsedArgs, Any], Any] | None = None
    usage: str = ""
    manual: str = ""
    required: tuple[str, ...] = ()
    instant: bool = False
    runs_anywhere: bool = False
    subject: str = "model"
    words: tuple[str, ...] = ()
    meaning: str = ""
    exits: Mapping[str, int] = IF_DONE
    others: Mapping[str, str] = field(default_factory=dict)
    group: str = "tools"
    answer: Any = None
    options: dict[str, Option] = field(init=False)

    def __post_init__(self) -> None:
        taken = (OPTIONS[option] if isinstance(option, str) else option for option in self.taken)
        self.options = {option.flag: option for option in taken}

    @property
    def takes(self) -> str:
        """Description of the allowed positional arguments."""
        if self.words:
            return " or ".join((", ".join(self.words[:-1]), self.words[-1]))
        return self.meaning or MODEL_HELP

    @property
    def prog(self) -> str:
        """Full name of the command."""
        return f"explorer {self.name}" if self.name else "explorer"

    def spellings(self) -> dict[str, Option]:
        """Return the options by all their spellings."""
        return {word: option for option in self.options.values() for word in option.spellings}


def group_commands(verbs: Iterable[Command]) -> dict[str, list[Command]]:
    """Return the commands of each group by its title. Commands keep their order within a group."""
    groups: dict[str, list[Command]] = {title: [] for title in GROUPS.values()}
    for verb in verbs:
        groups[GROUPS[verb.group]].append(verb)
    return groups
