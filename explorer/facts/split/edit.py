"""Facts about edits of a graph: the steps of an edit, and the model after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from explorer.base.checked import Spec, Words
from explorer.base.fact import Fact
from explorer.base.options import Declaration

EditKind = Literal["rename", "set", "delete", "replace_op", "rename_weights"]

EDITS: Mapping[EditKind, Declaration] = {
    "rename": Declaration("give a node or a value another name", metavar="OLD=NEW"),
    "set": Declaration("set an attribute of a node", metavar="NODE.ATTRIBUTE=VALUE"),
    "delete": Declaration(
        "delete a node that nothing reads, or whose input can replace its output", metavar="NODE"
    ),
    "replace_op": Declaration(
        "give all nodes of an operator, or one node, another operator with the same inputs",
        metavar="OLD=NEW",
    ),
    "rename_weights": Declaration(
        "give all stored tensors names with a number from 0, such as 'learned_%d'", metavar="PATTERN"
    ),
}
"""Option of each kind of step. The command line collects the steps in typed order."""


class EditStep(Spec, frozen=True):
    """One step of an edit.

    Attributes:
        kind: Action of the step. 'rename' renames a node or a value, 'set' sets an attribute of a node,
            'delete' deletes a node, and 'replace_op' replaces the operator of one node or of all nodes that
            have it. 'rename_weights' numbers the names of all stored tensors.
        name: Name of the node or value that the step edits. A node can be given by its name, by a value that
            it produces, or by its layer. A prefix 'node:' or 'value:' tells `rename` which of the two to
            rename. In a function or body, its path and '::' precede the name: 'relu1.then_branch::y'.
            For 'rename_weights' it is the pattern of the names, such as 'learned_%d'.
        to: New name, new value of the attribute as text ('2,2'; '' removes the attribute), or new operator.
        attribute: Name of the attribute that 'set' sets.
    """

    kind: EditKind
    name: Words
    to: str = ""
    attribute: str = ""


class EditSpec(Spec, frozen=True):
    """An edit as the user requests it.

    Attributes:
        steps: Steps in the order in which they are applied.
        each: Whether every step makes a state of its own. Otherwise all steps make one state.
    """

    steps: tuple[EditStep, ...]
    each: bool = True


class TypeChange(Fact, frozen=True):
    """A model output with another type or shape after the edit, each as text: 'float32 1x64x56x56'."""

    name: Words
    before: str
    after: str


class Edit(Fact, frozen=True):
    """Result of an edit.

    Attributes:
        steps: Steps in the order in which they were applied.
        done: Effect of each step, in words.
        outputs: Outputs of the model whose type or shape changed.
        loaded: Whether onnxruntime loaded the result, or None if it was not tried.
        output: Path of the file, or '' if the result stays in the session.
        command: Command that makes the same edit on the command line.
    """

    steps: tuple[EditStep, ...]
    done: tuple[str, ...]
    outputs: tuple[TypeChange, ...] = ()
    loaded: bool | None = None
    output: str = ""
    command: str = ""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
