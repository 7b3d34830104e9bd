"""Applies edit steps to a graph one after another, and infers shapes again after each step.

Declarations in the file describe the original model. If a step changes types, contradicted declarations are
removed, and outputs get their new types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import BadModel, Misuse
from explorer.engine.edit.attributes import set_attribute
from explorer.engine.edit.delete import delete, describe_type
from explorer.engine.edit.names import Aliases
from explorer.engine.edit.rename import rename, rename_weights
from explorer.engine.edit.replace_op import replace_operator
from explorer.engine.edit.scopes import list_scopes, replace_body
from explorer.engine.formats.onnx.validate import validate
from explorer.engine.graph.model import Graph, Model, Value
from explorer.engine.shapes import Inference, InputShapes, infer
from explorer.engine.shapes.subgraphs import list_subgraphs
from explorer.facts import TensorInfo
from explorer.facts.split.edit import EditStep, TypeChange


class EditedModel(Struct, frozen=True):
    """A model after one step.

    Attributes:
        model: Edited model.
        done: Description of the change.
        outputs: Outputs whose type or shape changed.
    """

    model: Model
    done: str
    outputs: tuple[TypeChange, ...] = ()


def edit(
    model: Model,
    step: EditStep,
    aliases: Aliases,
    sizes: Mapping[str, int] | None = None,
    input_shapes: InputShapes | None = None,
) -> EditedModel:
    """Applies one step to a model.

    Args:
        model: Model before the step.
        step: Step to apply.
        aliases: See `names.Aliases`.
        sizes: Sizes of symbolic dimensions, needed for some checks.
        input_shapes: Shapes of the inputs, which override the model's shapes.

    Raises:
        Misuse: A name does not exist, the step is impossible, or a node would not accept its inputs.
    """
    if step.kind == "rename":
        edited, description = rename(model, step, aliases)
        return EditedModel(_check_names(edited), description)
    if step.kind == "rename_weights":
        edited, description = rename_weights(model, step)
        return EditedModel(_check_names(edited), description)
    if step.kind == "delete":
        edited, description = delete(model, step, aliases, sizes, input_shapes)
    elif step.kind == "set":
        edited, description = set_attribute(model, step, aliases)
    else:
        edited, description = replace_operator(model, step, aliases)
    return _correct_types(model, _check_names(edited), description)


def _check_names(model: Model) -> Model:
    """Checks that every name has exactly one definition, and returns the model."""
    try:
        return validate(model)
    except BadModel as error:
        raise Misuse(f"the edited model is invalid: {error.what}", where=model.path) from None


def _correct_types(original_model: Model, edited_model: Model, description: str) -> EditedModel:
    """Returns the edited model with corrected declarations.

    Raises:
        Misuse: A node that accepted its inputs before the edit no longer does.
    """
    bare = _drop_declarations(edited_model)
    inference, original = Inference(bare), infer(original_model)
    shapes = inference.main
    if problems := [problem for problem in shapes.impossible if problem not in original.impossible]:
        raise Misuse(" cannot run: ".join(problems[0]), hint="nothing was changed")
    graph = edited_model.graph
    values = tuple([value for value in graph.values if _is_consistent(value, shapes.values)])
    outputs = _correct(graph.outputs, shapes.values)
    changed = []
    for before_value, after_value in zip(graph.outputs, outputs, strict=True):
        if before_value is not after_value:
            texts = [
                describe_type(TensorInfo(value.name, value.dtype, value.shape))
                for value in (before_value, after_value)
            ]
            changed.append(TypeChange(before_value.name, *texts))
    edited = _correct_bodies(edited_model, bare, inference)
    edited = replace(edited, graph=replace(edited.graph, values=values, outputs=outputs))
    return EditedModel(edited, description, tuple(changed))


def _correct_bodies(model: Model, bare: Model, inference: Inference) -> Model:
    """Returns the model with corrected declarations in the bodies of branches and loops."""
    paths = [scope.path for scope in list_scopes(model) if scope.node_path and isinstance(scope.body, Graph)]
    if not paths:
        return model
    types_by_path = {view.path: view.shapes for view in list_subgraphs(bare, inference)}
    for path in paths:
        # searched in the current model, because a replaced inner body changes the outer ones
        scope = next(candidate for candidate in list_scopes(model) if candidate.path == path)
        body, types = scope.body, types_by_path.get(path)
        if types is None or not isinstance(body, Graph):
            continue
        values = tuple([value for value in body.values if _is_consistent(value, types)])
        ends = {name: _correct(getattr(body, name), types) for name in ("inputs", "outputs")}
        edited = replace(body, values=values, **ends)
        if edited != body:
            model = replace_body(model, scope, edited)
    return model


def _drop_declarations(model: Model) -> Model:
    """Returns the model without the declared types of intermediate values and outputs."""
    outputs = tuple([Value(value.name, None, None, value.record) for value in model.graph.outputs])
    return replace(model, graph=replace(model.graph, values=(), outputs=outputs))


def _correct(values: Sequence[Value], types: Mapping[str, TensorInfo]) -> tuple[Value, ...]:
    """Returns the declarations, corrected if they contradict the inferred types."""
    return tuple([value if _is_consistent(value, types) else _declare_anew(value, types) for value in values])


def _is_consistent(value: Value, types: Mapping[str, TensorInfo]) -> bool:
    """Whether a declaration agrees with the inferred type."""
    info = types.get(value.name)
    if info is None or value.dtype is None:
        return True
    if info.dtype is not None and info.dtype != value.dtype:
        return False
    if info.shape is None or value.shape is None:
        return True
    return len(info.shape) == len(value.shape) and all(
        a == b or not (isinstance(a, int) and isinstance(b, int))
        for a, b in zip(info.shape, value.shape, strict=True)
    )


def _declare_anew(value: Value, types: Mapping[str, TensorInfo]) -> Value:
    """Returns a declaration of the inferred type; a size that is an expression is declared as unknown."""
    info = types[value.name]
    shape = info.shape
    if shape is not None:
        sizes = (d if isinstance(d, int) or (d is not None and d.isidentifier()) else None for d in shape)
        shape = tuple(sizes)
    return Value(value.name, info.dtype or value.dtype, shape)
