"""Deletion of a node: allowed if nothing reads it, or if one of its inputs can replace its output.

An input can replace the output if both have the same type and shape, and if it is the only such input or the
only one that depends on the model's inputs. Identity and Dropout pass their input on by definition. Stored
tensors that only this node read are deleted with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.engine.edit.names import Aliases, FoundNode, find_node
from explorer.engine.edit.rename import renamed
from explorer.engine.edit.scopes import Body, GraphScope, put, results, with_nodes
from explorer.engine.graph.interpreter import reads
from explorer.engine.graph.model import Graph, Model, Node
from explorer.engine.shapes import Inference, InputShapes
from explorer.engine.shapes.subgraphs import places as views
from explorer.facts import TensorInfo
from explorer.facts.split.edit import EditStep

FLAG = "--delete"

_PASSING = frozenset({"Identity", "Dropout"})
"""Operators whose first output equals their first input in inference."""

_POSSIBLE = (
    "only what nothing reads can be deleted, or a node whose output has the type and shape of one input"
)


def delete(
    model: Model,
    step: EditStep,
    aliases: Aliases,
    sizes: Mapping[str, int] | None = None,
    input_shapes: InputShapes | None = None,
) -> tuple[Model, str]:
    """Deletes a node; returns the new model and a description of the change.

    Args:
        model: The model.
        step: Names the node.
        aliases: See `names.Aliases`.
        sizes: Sizes of open dimensions.
        input_shapes: Shapes of the inputs, which override those of the model.

    Raises:
        Misuse: There is no such node, or its output is read and no input can replace it.
    """
    target = find_node(model, step.name, FLAG, aliases)
    place, node = target.place, target.node
    body = place.body
    rest = [*body.nodes[: target.at], *body.nodes[target.at + 1 :]]
    read = {name for node in rest for name in reads(node)} | set(results(body))
    used = [name for name in node.outputs if name and name in read]
    edited = _without_idle(body, rest, node)
    if not used:
        return put(model, place, edited), f"{node.op} {target.text}: nothing read it"
    stand_in = _replacement_input(model, target, used, sizes, input_shapes)
    edited = _rewire(edited, target, used[0], stand_in)
    return put(model, place, edited), f"{node.op} {target.text}: '{stand_in}' passes where '{used[0]}' was"


def _replacement_input(
    model: Model,
    target: FoundNode,
    used: Sequence[str],
    sizes: Mapping[str, int] | None,
    input_shapes: InputShapes | None,
) -> str:
    """The input that can replace the one output that is read."""
    node = target.node
    if len(used) > 1:
        raise Misuse(
            f"{node.op} {target.text} cannot be deleted: {len(used)} outputs of it are read",
            where=FLAG,
            hint=_POSSIBLE,
        )
    inputs = [name for name in dict.fromkeys(node.inputs) if name]
    if node.op in _PASSING and not node.domain and used[0] == node.outputs[0] and inputs:
        return inputs[0]
    types = _visible_types(model, target.place, sizes, input_shapes)
    output_type = types.get(used[0])
    alike = [name for name in inputs if _is_same_type(types.get(name), output_type)]
    if len(alike) > 1:
        live = _live_values(target.place.body)
        alike = [name for name in alike if name in live] or alike
    if len(alike) == 1:
        return alike[0]
    if alike:
        why = f"{' and '.join(map(repr, alike))} both have the type and shape of its output"
    else:
        inputs_text = ", ".join(f"'{name}' {type_text(types.get(name))}" for name in inputs) or "nothing"
        why = f"it makes {type_text(output_type)} of {inputs_text}"
    raise Misuse(f"{node.op} {target.text} cannot be deleted: {why}", where=FLAG, hint=_POSSIBLE)


def _is_same_type(first: TensorInfo | None, second: TensorInfo | None) -> bool:
    """Whether two values have the same known type and shape."""
    if first is None or second is None or first.dtype is None or first.shape is None or None in first.shape:
        return False
    return (first.dtype, first.shape) == (second.dtype, second.shape)


def type_text(info: TensorInfo | None) -> str:
    """A type in words: 'float32 1x64x56x56'."""
    if info is None or info.dtype is None:
        return "(type not known)"
    if info.shape is None:
        return f"{info.dtype} (shape not known)"
    return f"{info.dtype} {'x'.join('?' if d is None else str(d) for d in info.shape) or 'scalar'}"


def _visible_types(
    model: Model, place: GraphScope, sizes: Mapping[str, int] | None, input_shapes: InputShapes | None
) -> Mapping[str, TensorInfo]:
    """Types of the values that are visible in a scope, valid for every pass through it."""
    inference = Inference(model, sizes, input_shapes)
    if not place.path:
        return inference.main.values
    for view in views(model, inference):
        if view.path == place.path:
            return view.shapes
    return {}


def _live_values(body: Body) -> set[str]:
    """The values of a body that depend on its inputs."""
    live = {value.name for value in body.feeds} if isinstance(body, Graph) else set(body.inputs)
    for node in body.nodes:
        if not live.isdisjoint(reads(node)):
            live.update(name for name in node.outputs if name)
    return live


def _rewire(body: Body, target: FoundNode, output: str, stand_in: str) -> Body:
    """A body whose nodes read `stand_in` instead of `output`.

    If `output` is an output of the body, it keeps its name, and `stand_in` is renamed instead.
    """
    if output not in results(body):
        return renamed(body, {output: stand_in}, FLAG)
    if stand_in in results(body) or all(stand_in not in node.outputs for node in body.nodes):
        raise Misuse(
            f"{target.node.op} {target.text} cannot be deleted: it makes the output '{output}' of"
            f" '{stand_in}', which has to keep its name, too",
            where=FLAG,
        )
    if isinstance(body, Graph):
        body = replace(body, values=tuple([value for value in body.values if value.name != stand_in]))
    return renamed(body, {stand_in: output}, FLAG)


def _without_idle(body: Body, nodes: Sequence[Node], deleted: Node) -> Body:
    """A body of these nodes, without the stored tensors that only the deleted node read."""
    edited = with_nodes(body, nodes)
    if not isinstance(edited, Graph):
        return edited
    read = {name for node in nodes for name in reads(node)} | set(results(edited))
    read |= {value.name for value in edited.inputs}
    idle = {name for name in reads(deleted) if name in edited.initializers and name not in read}
    initializers = {name: tensor for name, tensor in edited.initializers.items() if name not in idle}
    away = idle | set(deleted.outputs)
    values = tuple([value for value in edited.values if value.name not in away])
    return replace(edited, initializers=initializers, values=values)
