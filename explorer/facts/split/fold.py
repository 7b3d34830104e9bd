"""Facts about folding: operators that a fold removes, because they do nothing or others do their work."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from explorer.base.checked import Spec
from explorer.base.fact import Fact, TableFact
from explorer.base.options import option
from explorer.base.units import join_values
from explorer.facts.verification import Verification

FoldKind = Literal["identity", "constants", "batchnorm"]

FOLDS: tuple[FoldKind, ...] = ("identity", "constants", "batchnorm")
"""Kinds of rewrites in the order in which they run. Removing no-ops exposes constants, and folding constants
exposes weights.
"""


class FoldSpec(Spec, frozen=True):
    """A fold as the user requests it.

    Attributes:
        kinds: Kinds of rewrites to apply.
    """

    kinds: Annotated[
        tuple[FoldKind, ...],
        option(
            "kinds of rewrites: identity (and Dropout), constants, batchnorm (default: all)",
            metavar="KIND,...",
            flag="--only",
            joined=True,
            write=join_values,
            usual="",
        ),
    ] = FOLDS


class FoldedNode(Fact, frozen=True):
    """A node that a fold removed.

    Attributes:
        name: Name of the removed node.
        op: Operator of the removed node.
        into: Names of the nodes that do its work now. Empty if the node did nothing or became a stored
            tensor.
        op_into: Operator of the nodes `into`.
    """

    name: str
    op: str
    into: tuple[str, ...] = ()
    op_into: str = ""


class NodeLeft(Fact, frozen=True):
    """A node of a foldable kind that was not folded, with the reason."""

    name: str
    op: str
    reason: str


class FoldStep(Fact, frozen=True):
    """All rewrites of one kind. They make one state of the history.

    Attributes:
        kind: Kind of the rewrites.
        what: Summary of the rewrites: '20 BatchNormalization folded into 20 Conv'.
        folded: Nodes that were removed.
        left: Nodes that have a foldable operator but were kept.
        nodes: Number of nodes after the step, in the main graph, bodies and functions.
        nodes_before: Number of nodes before the step, in the main graph, bodies and functions.
        weight_bytes: Bytes of the stored tensors after the step.
        weight_bytes_before: Bytes of the stored tensors before the step.
        verification: Proof that both models compute the same outputs, or None if none was requested.
        output: Path of the file of the state, or '' if no file was kept.
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


class Fold(TableFact, frozen=True):
    """Result of a fold, kind by kind.

    Attributes:
        steps: Kinds that had something to fold.
        left: Nodes that were kept, of the kinds that folded nothing.
        output: Path of the written file, or '' if no file was written.
    """

    ROWS: ClassVar[str] = "steps"

    steps: tuple[FoldStep, ...]
    left: tuple[NodeLeft, ...] = ()
    output: str = ""
    command: str = ""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
