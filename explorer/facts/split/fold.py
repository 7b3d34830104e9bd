"""Facts about what was folded away of a model: operators that others can do, or that do nothing."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from explorer.base.checked import Spec
from explorer.facts.verification import Verification

FoldKind = Literal["identity", "constants", "batchnorm"]

FOLDS: tuple[FoldKind, ...] = ("identity", "constants", "batchnorm")
"""In the order in which they are done: what does nothing hides constants, and constants hide weights."""


class FoldSpec(Spec, frozen=True):
    """What is to be folded.

    Attributes:
        kinds: Kinds of rewrites.
    """

    kinds: tuple[FoldKind, ...] = FOLDS


class FoldedNode(Struct, frozen=True):
    """A node that went.

    Attributes:
        name, op: Of it.
        into: Names of the nodes that do its work now; empty for what did nothing, or became a tensor.
        op_into: Their operator.
    """

    name: str
    op: str
    into: tuple[str, ...] = ()
    op_into: str = ""


class NodeLeft(Struct, frozen=True):
    """A node of a foldable kind that stays, and why."""

    name: str
    op: str
    reason: str


class FoldStep(Struct, frozen=True):
    """Rewrites of one kind: a state of the history.

    Attributes:
        kind: Which.
        what: '20 BatchNormalization folded into 20 Conv'.
        folded: What went.
        left: What could have gone by its operator, and stays.
        nodes, nodes_before: Of the main graph, of bodies and functions.
        weight_bytes, weight_bytes_before: Of its stored tensors.
        verification: That both compute the same; None where it was not asked for.
        output: The file of the state; '' where none was kept.
    """

    kind: FoldKind
    what: str
    folded: tuple[FoldedNode, ...]
    left: tuple[NodeLeft, ...]
    nodes: int
    nodes_before: int
    weight_bytes: int
    weight_bytes_before: int
    verification: Verification | None = None
    output: str = ""


class Fold(Struct, frozen=True):
    """What was folded, kind by kind.

    Attributes:
        steps: Kinds of which there was something to fold.
        left: What stays, of kinds of which nothing could be folded.
        output: The file; '' where none was written.
    """

    steps: tuple[FoldStep, ...]
    left: tuple[NodeLeft, ...] = ()
    output: str = ""
    command: str = ""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
