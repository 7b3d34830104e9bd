"""Facts about edits of a graph: single steps, and what became of the model by them."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from explorer.base.checked import Spec, Words

EditKind = Literal["rename", "set", "delete", "replace_op"]


class EditStep(Spec, frozen=True):
    """One step of an edit.

    Attributes:
        kind: 'rename' a node or a value, 'set' an attribute of a node, 'delete' a node, or 'replace_op', the
            operator of a node or of all nodes that have it.
        name: Of what. A node is meant by its name, by a value that it makes, or by its layer. 'node:' or
            'value:' before it says which of the two is renamed, and a function's or a body's own path with
            '::' where it is: 'relu1.then_branch::y'.
        to: The new name, the value as text ('2,2'; '' takes the attribute away), or the new operator.
        attribute: That is set.
    """

    kind: EditKind
    name: Words
    to: str = ""
    attribute: str = ""


class EditSpec(Spec, frozen=True):
    """What is to be edited.

    Attributes:
        steps: In their order.
        each: Every step makes a state of its own; otherwise all of them make one.
    """

    steps: tuple[EditStep, ...]
    each: bool = True


class TypeChange(Struct, frozen=True):
    """An output of the model that has another type since: 'float32 1x64x56x56'."""

    name: Words
    before: str
    after: str


class Edit(Struct, frozen=True):
    """What became of a model.

    Attributes:
        steps: In the order in which they were applied.
        done: What each did, in words.
        outputs: Outputs of the model whose type or sizes are others since.
        loaded: Whether onnxruntime loaded the result; None where it was not asked.
        output: The file; '' where it stays in the session.
        command: Does the same headless.
    """

    steps: tuple[EditStep, ...]
    done: tuple[str, ...]
    outputs: tuple[TypeChange, ...] = ()
    loaded: bool | None = None
    output: str = ""
    command: str = ""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
