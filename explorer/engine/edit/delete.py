"""Deletes a node if nothing reads it, or if one of its inputs can replace its output.

An input can replace the output if both have the same dtype and shape, and if no other input has them, or no
other input with them depends on the inputs of the graph. The input of Identity and Dropout always can. Stored
tensors that only the deleted node read are deleted with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.engine.edit.names import Aliases, FoundNode, find_node
from explorer.engine.edit.rename import rename_values
from explorer.engine.edit.scopes import Body, GraphScope, list_output_names, replace_body, replace_nodes
from explorer.engine.graph.interpreter import list_reads
from explorer.engine.graph.model import Graph, Model, Node
from explorer.engine.shapes import Inference, InputShapes
from explorer.engine.shapes.subgraphs import list_subgraphs
from explorer.facts import TensorInfo
from explorer.facts.split.edit import EditStep

FLAG = "--delete"

_PASSING = frozenset({"Identity", "Dropout"})
"""Operators whose first output equals their first input in inference."""

_POSSIBLE = (
    "a node can be deleted only if nothing reads it, or if its output has the type and shape of one input"
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
        model: Model to edit.
        step: Step that names the node.
        aliases: See `names.Aliases`.
        sizes: Sizes of symbolic dimensions.
        input_shapes: Shapes of the inputs, which override the model's shapes.

    Raises:
        Misuse: There is no such node, or its output is read and no input can replace it.
    """
    target = find_node(model, step.name, FLAG, aliases)
    scope, node = target.scope, target.node
    body = scope.body
    remaining = [*body.nodes[: target.index], *body.nodes[target.index + 1 :]]
    read_names = {name for node in remaining for name in list_reads(node)} | set(list_output_names(body))
    used_outputs = [name for name in node.outputs if name and name in read_names]
    edited = _drop_unused(body, remaining, node)
    if not used_outputs:
        return replace_body(model, scope, edited), f"{node.op} {target.text}: nothing read it"
    replacement = _find_replacement_input(model, target, used_outputs, sizes, input_shapes)
    edited = _rewire(edited, target, used_outputs[0], replacement)
    return replace_body(
        model, scope, edited
    ), f"{node.op} {target.text}: its readers now read '{replacement}' instead of '{used_outputs[0]}'"


def _find_replacement_input(
    model: Model,
    target: FoundNode,
    used_outputs: Sequence[str],
    sizes: Mapping[str, int] | None,
    input_shapes: InputShapes | None,
) -> str:
    """Returns the input that can replace the only output that is read.

    Raises:
        Misuse: Several outputs are read, or no single input can replace the output.
    """
    node = target.node
    if len(used_outputs) > 1:
        message = f"{node.op} {target.text} cannot be deleted: {len(used_outputs)} outputs of it are read"
        raise Misuse(message, where=FLAG, hint=_POSSIBLE)
    inputs = [name for name in dict.fromkeys(node.inputs) if name]
    if node.op in _PASSING and not node.domain and used_outputs[0] == node.outputs[0] and inputs:
        return inputs[0]
    types = _collect_visible_types(model, target.scope, sizes, input_shapes)
    output_type = types.get(used_outputs[0])
    candidates = [name for name in inputs if _is_same_type(types.get(name), output_type)]
    if len(candidates) > 1:
        live = _find_live_values(target.scope.body)
        candidates = [name for name in candidates if name in live] or candidates
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        reason = f"{' and '.join(map(repr, candidates))} both have the type and shape of its output"
    else:
        inputs_text = ", ".join(f"'{name}' {describe_type(types.get(name))}" for name in inputs) or "nothing"
        reason = f"it makes {describe_type(output_type)} of {inputs_text}"
    raise Misuse(f"{node.op} {target.text} cannot be deleted: {reason}", where=FLAG, hint=_POSSIBLE)


def _is_same_type(first: TensorInfo | None, second: TensorInfo | None) -> bool:
    """Whether two values have the same known type and shape."""
    if first is None or second is None or first.dtype is None or first.shape is None or None in first.shape:
        return False
    return (first.dtype, first.shape) == (second.dtype, second.shape)


def describe_type(info: TensorInfo | None) -> str:
    """Returns the text of a type and shape, such as 'float32 1x64x56x56'."""
    if info is None or info.dtype is None:
        return "(type not known)"
    if info.shape is None:
        return f"{info.dtype} (shape not known)"
    return f"{info.dtype} {'x'.join('?' if d is None else str(d) for d in info.shape) or 'scalar'}"


def _collect_visible_types(
    model: Model, scope: GraphScope, sizes: Mapping[str, int] | None, input_shapes: InputShapes | None
) -> Mapping[str, TensorInfo]:
    """Returns the types of the values visible in a scope, valid for every run of the scope."""
    inference = Inference(model, sizes, input_shapes)
    if not scope.path:
        return inference.main.values
    for view in list_subgraphs(model, inference):
        if view.path == scope.path:
            return view.shapes
    return {}


def _find_live_values(body: Body) -> set[str]:
    """Returns the values of a body that depend on its inputs."""
    live = {value.name for value in body.required_inputs} if isinstance(body, Graph) else set(body.inputs)
    for node in body.nodes:
        if not live.isdisjoint(list_reads(node)):
            live.update(name for name in node.outputs if name)
    return live


def _rewire(body: Body, target: FoundNode, output: str, replacement: str) -> Body:
    """Makes the nodes of a body read `replacement` instead of `output`.

    If `output` is an output of the body, it keeps its name, and `replacement` is renamed instead.

    Raises:
        Misuse: Neither name may change.
    """
    if output not in list_output_names(body):
        return rename_values(body, {output: replacement}, FLAG)
    if replacement in list_output_names(body) or all(replacement not in node.outputs for node in body.nodes):
        raise Misuse(
            f"{target.node.op} {target.text} cannot be deleted: it computes the output '{output}' from"
            f" '{replacement}', and both names must stay",
            where=FLAG,
        )
    if isinstance(body, Graph):
        body = replace(body, values=tuple([value for value in body.values if value.name != replacement]))
    return rename_values(body, {replacement: output}, FLAG)


def _drop_unused(body: Body, nodes: Sequence[Node], deleted: Node) -> Body:
    """Returns a body with these nodes, without the stored tensors that only the deleted node read."""
    edited = replace_nodes(body, nodes)
    if not isinstance(edited, Graph):
        return edited
    read_names = {name for node in nodes for name in list_reads(node)} | set(list_output_names(edited))
    read_names |= {value.name for value in edited.inputs}
    unused = {name for name in list_reads(deleted) if name in edited.initializers and name not in read_names}
    initializers = {name: tensor for name, tensor in edited.initializers.items() if name not in unused}
    removed = unused | set(deleted.outputs)
    values = tuple([value for value in edited.values if value.name not in removed])
    return replace(edited, initializers=initializers, values=values)
