"""Command: a verb as a record of what it is for, what it takes, how it is typed, what runs.

Help, complaints, completion, man page and README derive from it. Every start of the program makes one of
these, so it is a plain class.
"""

from __future__ import annotations

from explorer.base.errors import Misuse
from explorer.base.exit_codes import IF_DONE
from explorer.base.record import field, record
from explorer.cli.arguments.options import OPTIONS, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

MODEL_HELP = (
    "a model's file or folder (explorer formats lists the kinds), the name of a\ntorchvision model, or"
    " package.module:callable that returns an nn.Module"
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
"""Groups of verbs and their titles, in the order of help, manual and man page."""


class ParsedArgs:
    """What was typed: `models`, and every option of the command by its long name, '-' as '_'.

    `explicit` are the names of those that were really typed and are no default.
    """

    models: list[str]
    explicit: set[str]
    csv = json = markdown = quiet = no_cache = False
    memory: int | None = None

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    @property
    def opening(self) -> dict[str, Any]:
        """What a `Session` is opened with."""
        return {
            "weights": self.weights,
            "weights_file": self.weights_file,
            "dims": self.dim,
            "input_shapes": self.input_shape,
            "trust": self.trust,
            "rules": self.rules,
            "observe": self.observe,
            "past": self.past,
        }

    def refuse(self, keys: Iterable[str], reason: str, hint: str = "") -> None:
        """Refuses the first of some options, by their keys, that was typed.

        Raises:
            Misuse: One was.
        """
        for key in keys:
            if key in self.explicit:
                raise Misuse(reason, where=f"--{key.replace('_', '-')}", hint=hint)

    def writing(self, *, draws: int) -> dict[str, Any]:
        """How a result is proved and written; `draws` where they were not typed."""
        return {
            "overwrite": self.force,
            "verify": not self.no_verify,
            "draws": self.draws or draws,
            "seed": self.seed,
        }


@record
class Command:
    """One command.

    Args:
        name: The word that is typed.
        summary: What it is for, in a line.
        models: What stands for each in the help; a last '...' means one or more of the kind before it,
            and one in brackets may be left out.
        taken: The options that it takes: flags of the shared ones, and its own.
        examples: Lines to show.
        run: Does it: gets what was typed, and an `explorer.cli.output.progress.ProgressLine` to be told
            where the work stands; returns an `explorer.cli.output.answer.Answer`. None for the screen.
        usage: How it is typed most often, without the program's name.
        manual: What it is for, in the README's words (Markdown).
        needs: Options without which it cannot answer.
        instant: It looks at headers at most: nothing of a model's runs and nothing is written, so nothing
            has to be kept in check around it.
        anywhere: It runs on Windows too; the others need WSL there.
        subject: What `models` are.
        words: All that they may be, if they are no models.
        meaning: What one is, in words, if it is neither.
        exits: How it can end, and the exit code of each: kinds of verdict, or words for the manual.
        others: Of those in `models` that are no model beside one that is: what each is.
        group: The key of its group in `GROUPS`.

    Attributes:
        options: Those that it takes, by flag.
    """

    name: str
    summary: str
    models: tuple[str, ...]
    taken: Sequence[str | Option]
    examples: tuple[str, ...]
    run: Callable[[ParsedArgs, Any], Any] | None = None
    usage: str = ""
    manual: str = ""
    needs: tuple[str, ...] = ()
    instant: bool = False
    anywhere: bool = False
    subject: str = "model"
    words: tuple[str, ...] = ()
    meaning: str = ""
    exits: Mapping[str, int] = IF_DONE
    others: Mapping[str, str] = field(default_factory=dict)
    group: str = "tools"
    options: dict[str, Option] = field(init=False)

    def __post_init__(self) -> None:
        taken = (OPTIONS[option] if isinstance(option, str) else option for option in self.taken)
        self.options = {option.flag: option for option in taken}

    @property
    def takes(self) -> str:
        """What may stand for each of `models`."""
        if self.words:
            return " or ".join((", ".join(self.words[:-1]), self.words[-1]))
        return self.meaning or MODEL_HELP

    @property
    def prog(self) -> str:
        """How it is called in full."""
        return f"explorer {self.name}" if self.name else "explorer"

    def spellings(self) -> dict[str, Option]:
        """Its options by every word that means one."""
        return {word: option for option in self.options.values() for word in option.spellings}


def grouped(verbs: Iterable[Command]) -> dict[str, list[Command]]:
    """The verbs of each group, by the group's title; verbs keep their order within a group."""
    groups: dict[str, list[Command]] = {title: [] for title in GROUPS.values()}
    for verb in verbs:
        groups[GROUPS[verb.group]].append(verb)
    return groups
