"""Facts about passes of users: what a pass declares, and the result of its application."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from explorer.base.checked import PathText, Spec
from explorer.base.fact import Fact
from explorer.base.options import option
from explorer.facts.verification import Verification


class PassSpec(Spec, frozen=True):
    """A pass as the user requests it.

    Attributes:
        name: Name of the pass.
        passes: Path of a Python file with passes, or None for the passes of installed packages.
        options: Options of the pass as text, by name.
    """

    name: str = ""
    passes: Annotated[
        PathText | None,
        option(
            "a Python file with passes of your own (needs --trust)",
            metavar="FILE",
            label="file",
            placeholder="a Python file; empty: an installed package",
        ),
    ] = None
    options: Annotated[
        Mapping[str, str],
        option(
            "an option of the pass",
            metavar="NAME=VALUE",
            flag="--option",
            reader="assignments",
            label="options",
            placeholder="bits=4, per=channel",
            write=lambda pair: f"{pair[0]}={pair[1]}",
        ),
    ] = {}


class PassOption(Fact, frozen=True):
    """An option that a pass declares.

    Attributes:
        name: Name on the command line.
        type: Type of its value.
        initial: Default value as text.
        help: Purpose, or ''.
        choices: Allowed values; empty for any.
    """

    name: str
    type: str
    initial: str
    help: str = ""
    choices: tuple[str, ...] = ()


class UserPass(Fact, frozen=True):
    """A pass as it declares itself.

    Attributes:
        name: Name of the pass.
        summary: Purpose in one line.
        options: Its options.
        home: File and line, or name of the package.
        problem: Reason why the pass of a package cannot be used, or ''.
    """

    name: str
    summary: str
    options: tuple[PassOption, ...] = ()
    home: str = ""
    problem: str = ""


class AppliedPass(Fact, frozen=True):
    """Result of a pass.

    Attributes:
        name: Name of the pass.
        summary: Purpose of the pass in one line.
        options: Typed options, by name.
        nodes: Number of nodes of the main graph after the pass.
        nodes_before: Number of nodes of the main graph before the pass.
        operators: Change of the number of nodes by operator, in the main graph; unchanged operators are
            missing.
        verification: Proof that both models compute the same outputs, or None if none was requested.
        blame: If the models differ: the first layer that differs, in one sentence; otherwise ''.
        output: Path of the written file, or '' if no file was kept.
        command: Shell command that does the same, or ''.
        notes: Remarks, as sentences.
        seconds: Time of the work.
    """

    name: str
    summary: str
    options: Mapping[str, str]
    nodes: int
    nodes_before: int
    operators: Mapping[str, int]
    verification: Verification | None = None
    blame: str = ""
    output: str = ""
    command: str = ""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
