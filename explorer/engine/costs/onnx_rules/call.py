"""What a rule is given, and the rules that many operators share.

A rule gets the shapes around a node (`Call`) and answers with a `formulas.Cost`. It may ask for a shape that
is not known: then the node's cost is unknown, and the reason names the shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from explorer.engine.operators import formulas
from explorer.engine.operators.formulas import ELEMENTWISE, FREE, Cost
from explorer.facts import Dim, Shape, TensorInfo

__all__ = [
    "MS",
    "Call",
    "Key",
    "MissingShape",
    "Rule",
    "Rules",
    "each",
    "each_input",
    "free",
    "grown",
    "moves",
    "named",
    "per_head",
    "without",
]

MS = "com.microsoft"
"""Domain of onnxruntime's own operators, which its optimizer writes into files."""


class MissingShape(Exception):
    """A shape that a rule needs is not known; the message says which."""


class Call(Struct, frozen=True):
    """One node with everything its cost may depend on.

    Attributes:
        op: Operator type.
        domain: Its domain; '' is ONNX's own.
        attributes: Decoded; those that the node leaves out are missing.
        inputs: By position; None where an optional input is left out.
        outputs: By position, those left out skipped.
        contents: Values whose contents are known and small (arrays), by name.
        opset: Version of the domain's operator set; 0 if it is not known.
    """

    op: str
    domain: str
    attributes: Mapping[str, Any]
    inputs: tuple[TensorInfo | None, ...]
    outputs: tuple[TensorInfo | None, ...]
    contents: Mapping[str, Any] = field(default_factory=dict)
    opset: int = 0

    def has(self, index: int) -> bool:
        """Whether the input at `index` is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def shape(self, index: int) -> Shape:
        """Shape of the input at `index`.

        Raises:
            MissingShape: It is not known, or there is no such input.
        """
        return _known(self.inputs[index] if index < len(self.inputs) else None, f"input {index}")

    def output(self, index: int = 0) -> Shape:
        """Shape of the output at `index`.

        Raises:
            MissingShape: It is not known.
        """
        return _known(self.outputs[index] if index < len(self.outputs) else None, "its output")

    def content(self, index: int) -> Any:
        """What the input at `index` holds, as an array; None if that is not known before a run.

        Our rules that ask stand in `rules.READERS`: the costs of all others are kept by shape. A rule of the
        user's may always ask.
        """
        info = self.inputs[index] if index < len(self.inputs) else None
        return None if info is None else self.contents.get(info.name)

    def number(self, index: int) -> int | None:
        """The one integer that the input at `index` holds; None if it is not known."""
        content = self.content(index)
        return None if content is None or content.size != 1 else int(content.reshape(-1)[0])


def _known(info: TensorInfo | None, what: str) -> Shape:
    if info is None or info.shape is None:
        raise MissingShape(f"the shape of {what} is not known")
    return info.shape


Rule = Callable[[Call], Cost]
Key = tuple[str, str]
Rules = Mapping[Key, Rule]


def free(_: Call) -> Cost:
    """Moves or describes data."""
    return FREE


def moves(why: str) -> Rule:
    """No arithmetic, said in the operator's own words."""
    cost = replace(FREE, formula=f"0 ({why})")
    return lambda _: cost


def each(per_element: int = 1, detail: str = "") -> Rule:
    """`per_element` operations on each element of the first output."""

    def rule(call: Call) -> Cost:
        what = f"{call.op} ({detail})" if detail else call.op
        info = call.outputs[0] if call.outputs else None
        return formulas.elementwise(what, None if info is None else info.shape, per_element)

    return rule


def named(key: str, *more: str) -> Rule:
    """As many operations on each output element as `macs.ELEMENTWISE` says, and `more` before them."""
    count, detail = ELEMENTWISE[key]
    return each(count + len(more), ", ".join((*more, detail)))


def each_input(per_element: int = 1, detail: str = "", index: int = 0) -> Rule:
    """`per_element` operations on each element of one input: reductions."""

    def rule(call: Call) -> Cost:
        what = f"{call.op} ({detail})" if detail else f"{call.op}, each input element"
        return formulas.elementwise(what, call.shape(index), per_element)

    return rule


def without(reason: str, *, products: bool = True) -> Rule:
    """No rule can be given from shapes; `products` says whether products may be summed at all."""
    cost = formulas.unknown(reason)
    cost = cost if products else replace(cost, macs=0)
    return lambda _: cost


def per_head(width: Dim, heads: int) -> Dim:
    """Width of one head."""
    return width // heads if isinstance(width, int) and heads else None


def grown(length: Dim, past: Dim) -> Dim:
    """Positions of key and value: the new ones behind those of the cache; `past+4` if one is a name."""
    if past == 0:
        return length
    if isinstance(length, int) and isinstance(past, int):
        return length + past
    # only models with open dimensions come here
    from explorer.engine.symbolic.dimensions import add, display

    total = add(past, length)
    return display(total) if isinstance(total, str) else total
