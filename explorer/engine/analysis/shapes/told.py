"""What inference found as facts: where a shape comes from, what it is at most, and what contradicts it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from explorer.engine.analysis.shapes import dimensions as dims
from explorer.engine.analysis.shapes.rules import Type
from explorer.engine.analysis.shapes.table import Table
from explorer.engine.graph import Graph, Node
from explorer.facts import Dim, Shape, TensorInfo

__all__ = ["entered", "shown_shape", "told"]


def told(
    graph: Graph,
    table: Table,
    declared: Mapping[str, Type],
    observed: Mapping[str, Type],
    limits: Mapping[str, Dim],
    *,
    trusted: bool,
) -> dict[str, TensorInfo]:
    """What is known as facts: origins, bounds in place of what depends on data, conflicts."""
    said = table.said
    made = {name for node in graph.nodes for name in node.outputs}
    doubtful = _behind(graph.nodes, table.doubtful) if table.doubtful else frozenset()
    symbols = {n for v in graph.inputs for n in dims.names(entered(v.shape) or ())} if declared else set()
    values: dict[str, TensorInfo] = {}
    texts: dict[Shape, tuple[Shape, bool]] = {}
    plain = not (said or declared or observed or doubtful or table.misfits)
    for name, (dtype, shape) in table.types.items():
        if name not in made:
            values[name] = TensorInfo(name, dtype, shown_shape(shape), "declared")
            continue
        if plain and shape in texts:
            shown, bound = texts[shape]
            values[name] = TensorInfo(name, dtype, shown, "bound" if bound else "inferred")
            continue
        origin = said.get(name, "inferred") if said else "inferred"
        conflict = ""
        if declared and name in declared and origin == "inferred" and trusted:
            conflict = _conflict(declared[name][1], shape, symbols, "the file declares")
        if observed and name in observed and not conflict:
            conflict = _conflict(observed[name][1], shape, symbols, "a run gave")
        if name in table.misfits:
            conflict = table.misfits[name]
        if shape is not None:
            known = texts.get(shape)
            if known is None:
                known = texts[shape] = _finished(shape, limits)
            shape = known[0]
            if known[1] or name in doubtful:
                origin = "bound"
        elif name in doubtful:
            origin = "bound"
        values[name] = TensorInfo(name, dtype, shape, origin, conflict)
    return values


def entered(shape: Shape | None) -> Shape | None:
    """A shape from a file or a fact with its names in canonical form."""
    if shape is None:
        return None
    for one in shape:
        if isinstance(one, str):
            return tuple(dims.canonical(d) if isinstance(d, str) else d for d in shape)
    return shape


def shown_shape(shape: Shape | None) -> Shape | None:
    """A shape with its names as people write them."""
    if shape is None:
        return None
    for one in shape:
        if isinstance(one, str):
            return tuple(dims.display(d) if isinstance(d, str) else d for d in shape)
    return shape


def _finished(shape: Shape, limits: Mapping[str, Dim]) -> tuple[Shape, bool]:
    """The shape to show, and whether it is a bound."""
    bound = False
    result: list[Dim] = []
    for one in shape:
        if isinstance(one, str) and "'#" in one:
            bound = True
            one = dims.upper(one, limits)
        result.append(dims.display(one) if isinstance(one, str) else one)
    return tuple(result), bound


def _behind(nodes: Sequence[Node], names: frozenset[str]) -> frozenset[str]:
    """All values that are made from those in `names`."""
    found = set(names)
    for node in nodes:
        if not found.isdisjoint(node.inputs):
            found.update(name for name in node.outputs if name)
    return frozenset(found)


def _conflict(said: Shape | None, shape: Shape | None, symbols: set[str], words: str) -> str:
    """What somebody else says of a shape, if that contradicts what was inferred."""
    if said is None or shape is None or said == shape:
        return ""
    fits = len(said) == len(shape) and not any(
        _apart(a, b, symbols) for a, b in zip(said, shape, strict=True)
    )
    return "" if fits else f"{words} {list(shown_shape(said) or ())}"


def _apart(a: Dim, b: Dim, symbols: set[str]) -> bool:
    """Whether two dimensions cannot be the same."""
    if a == b or a is None or b is None:
        return False
    if isinstance(a, int) and isinstance(b, int):
        return True
    if any(isinstance(d, str) and ("'#" in d or not dims.names((d,)) <= symbols) for d in (a, b)):
        # exporters make up names for the sizes of outputs
        return False
    if isinstance(a, int) or isinstance(b, int):
        return False
    try:
        return not dims.equal(dims.expression(a), dims.expression(b))
    except dims.Undecided:
        return False
