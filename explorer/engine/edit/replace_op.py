"""Replaces an operator by another one with the same inputs, in one node or in all nodes with the operator.

Attributes that both operators have stay. The others are removed, and the description lists them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from explorer.base.errors import Misuse, suggest_name
from explorer.engine.edit.names import Aliases, FoundNode, NoSuchNode, find_node, find_nodes
from explorer.engine.edit.schemas import Signature, add_domain, find_required_signature
from explorer.engine.edit.scopes import GraphScope, list_scopes, replace_body, replace_nodes
from explorer.engine.graph.model import Model, Node
from explorer.engine.shapes import Inference
from explorer.engine.shapes.subgraphs import list_subgraphs
from explorer.facts import TensorInfo
from explorer.facts.split.edit import EditStep

FLAG = "--replace-op"

_ONNX_TYPES = {"float32": "float", "float64": "double"}
"""Names of element types in schemas that differ from numpy's."""


def replace_operator(model: Model, step: EditStep, aliases: Aliases) -> tuple[Model, str]:
    """Replaces the operator of one node, or of all nodes with it; returns the new model and a description.

    Raises:
        Misuse: There is no such node or operator, or the new operator does not accept the inputs.
    """
    targets = _find_nodes(model, step.name, aliases)
    domain, _, op = step.to.rpartition("::")
    domain = "" if domain == "ai.onnx" else domain
    if (domain, op) == (targets[0].node.domain, targets[0].node.op):
        raise Misuse(f"'{step.name}' is {_add_article(op)} already", where=FLAG)
    model = _import_domain(model, {target.scope.root for target in targets}, domain, op)
    lost_attributes: dict[str, None] = {}
    types = {view.path: view.shapes for view in list_subgraphs(model, Inference(model))}
    # innermost bodies first, so that an outer body contains the changed inner ones
    for scope in sorted(
        {target.scope.path: target.scope for target in targets}.values(), key=lambda p: -len(p.node_path)
    ):
        indices = [target.index for target in targets if target.scope.path == scope.path]
        current_scope = next(candidate for candidate in list_scopes(model) if candidate.path == scope.path)
        operator = find_required_signature(model, domain, op, current_scope.opsets, FLAG)
        nodes = [*current_scope.body.nodes]
        for index in indices:
            nodes[index], dropped = _replace_node(
                nodes[index], current_scope, domain, op, operator, types.get(scope.path, {})
            )
            lost_attributes |= dict.fromkeys(dropped)
        model = replace_body(model, current_scope, replace_nodes(current_scope.body, nodes))
    name = targets[0].text if len(targets) == 1 else f"{len(targets):,} nodes"
    description = f"{targets[0].node.op} -> {step.to}: {name}"
    return model, description + (f"; without {', '.join(lost_attributes)}" if lost_attributes else "")


def _import_domain(model: Model, roots: Iterable[tuple[str, str, str] | None], domain: str, op: str) -> Model:
    """Adds the opset of one of the runtime's domains to the model and functions that need it."""
    if any(key[:2] == (domain, op) for key in model.functions):
        return model
    functions = dict(model.functions)
    for root in roots:
        if root is not None and (opsets := add_domain(functions[root].opsets, domain, op)):
            functions[root] = replace(functions[root], opsets=opsets, record=None, values=())
    return replace(model, opsets=add_domain(model.opsets, domain, op), functions=functions)


def _find_nodes(model: Model, name: str, aliases: Aliases) -> list[FoundNode]:
    """Returns the nodes that a name selects: all nodes with an operator, or one node."""
    all_nodes = [
        FoundNode(scope, index) for scope in list_scopes(model) for index in range(len(scope.body.nodes))
    ]
    operator_name = name.removeprefix("op:")
    by_op = [node_ref for node_ref in all_nodes if _name_operator(node_ref.node) == operator_name]
    by_name = [] if operator_name != name and by_op else find_nodes(model, name)
    if by_op and by_name:
        raise Misuse(
            f"'{name}' is an operator and a node",
            where=FLAG,
            hint=f"write 'op:{name}', or '{next(iter(by_name[0].node.outputs))}' for the node",
        )
    if by_op:
        return by_op
    try:
        return [find_node(model, name, FLAG, aliases)]
    except NoSuchNode as error:
        hint = suggest_name(name, {_name_operator(node_ref.node) for node_ref in all_nodes}) or error.hint
        raise Misuse(f"no node or operator is called '{name}'", where=FLAG, hint=hint) from None


def _name_operator(node: Node) -> str:
    return f"{node.domain}::{node.op}" if node.domain else node.op


def _replace_node(
    node: Node, scope: GraphScope, domain: str, op: str, operator: Signature, types: Mapping[str, TensorInfo]
) -> tuple[Node, list[str]]:
    """Returns the node with the new operator, and the names of the removed attributes."""
    minimum, maximum = operator.inputs
    count, output_count = len(node.inputs), len(node.outputs)
    if not minimum <= count <= maximum:
        accepted = f"{minimum}" if minimum == maximum else f"{minimum} to {maximum}"
        raise Misuse(
            f"{operator.name} takes {accepted} inputs, and '{node.label}'{scope.text} has {count}", where=FLAG
        )
    if output_count > operator.outputs:
        raise Misuse(
            f"{operator.name} has at most {operator.outputs} outputs, and '{node.label}'{scope.text} has"
            f" {output_count}",
            where=FLAG,
        )
    _check_types(node, scope, operator, [types.get(name) for name in node.inputs])
    attributes = {name: value for name, value in node.attributes.items() if name in operator.attributes}
    missing = [
        name for name, (_, required) in operator.attributes.items() if required and name not in attributes
    ]
    if missing:
        raise Misuse(
            f"{operator.name} needs {' and '.join(missing)}, which '{node.label}'{scope.text} does not have",
            where=FLAG,
        )
    replacement = Node(
        op, node.inputs, node.outputs, node.name, domain, attributes=attributes, metadata=node.metadata
    )
    return replacement, [name for name in node.attributes if name not in attributes]


def _check_types(
    node: Node, scope: GraphScope, operator: Signature, inputs: Sequence[TensorInfo | None]
) -> None:
    """Rejects inputs whose dtype the new operator does not accept."""
    for index, (name, info) in enumerate(zip(node.inputs, inputs, strict=True)):
        allowed = operator.types[min(index, len(operator.types) - 1)] if operator.types else frozenset()
        if info is None or info.dtype is None or not allowed:
            continue
        onnx_type = _ONNX_TYPES.get(info.dtype, info.dtype)
        if f"tensor({onnx_type})" not in allowed:
            raise Misuse(
                f"{operator.name} takes no {info.dtype}, the type of '{name}' of '{node.label}'{scope.text}",
                where=FLAG,
                hint=f"it takes {_format_types(allowed)}",
            )


def _format_types(allowed: Iterable[str]) -> str:
    names = sorted(type_name.removeprefix("tensor(").removesuffix(")") for type_name in allowed)
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")


def _add_article(op: str) -> str:
    return f"{'an' if op[:1] in 'AEIOU' else 'a'} {op}"
