"""Facts about inferred types: the declarations of a model's values before and after an inference."""

from __future__ import annotations

from typing import Annotated, Literal

from explorer.base.checked import Spec
from explorer.base.fact import Fact
from explorer.base.options import option

DeclarationStatus = Literal["kept", "added", "completed", "corrected", "unknown"]


class InferSpec(Spec, frozen=True):
    """An inference as the user requests it.

    Attributes:
        fresh: Whether the declarations of the file are discarded before the inference.
    """

    fresh: Annotated[
        bool,
        option(
            "discard what the file declares of its values, and write only what inference finds",
            manual="discard what the file declares of its values and outputs, and write only what inference"
            " finds. An output keeps its declaration where inference finds nothing",
        ),
    ] = False


class ValueDeclaration(Fact, frozen=True):
    """The declaration of one value.

    Attributes:
        name: Name of the value.
        graph: Names of the nodes and functions that contain the value, outermost first, with '/' between
            them; '' for the main graph.
        before: Declaration in the file, such as 'float32 [batch, 10]', or '' for none.
        after: Declaration after the inference, or '' for none.
        status: 'kept' if both are equal, 'added' if the file declared nothing, 'completed' if a type or a
            size was added, 'corrected' if the file contradicts the inference. 'unknown' if the type or the
            rank is still unknown.
        open: Number of sizes that are neither a number nor a name.
    """

    name: str
    graph: str
    before: str
    after: str
    status: DeclarationStatus
    open: int = 0


class InferenceResult(Fact, frozen=True):
    """Result of an inference: the types and shapes of a model's values as its file declares them.

    Attributes:
        values: Values that nodes compute, in the main graph, bodies and functions that are called.
        graphs: Number of these graphs.
        known_before: Number of values whose type and all sizes the file declared, as numbers or names.
        known: Number of values whose type and all sizes are declared after the inference.
        output: Path of the written file, or '' if no file was written.
        command: Shell command that does the same, or ''.
        notes: Limits of the inference, as sentences.
        seconds: Time of the work.
    """

    values: tuple[ValueDeclaration, ...]
    graphs: int
    known_before: int
    known: int
    output: str = ""
    command: str = ""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
