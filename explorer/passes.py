"""Passes of your own: the decorator for a file of `explorer apply MODEL PASS --passes FILE --trust`.

    from typing import Annotated
    import onnx
    from explorer.passes import graph_pass

    @graph_pass("tanh-gelu", "replaces Gelu by its tanh form")
    def tanh_gelu(model: onnx.ModelProto, *, only: Annotated[str, "name of a node"] = "") -> onnx.ModelProto:
        for node in model.graph.node:
            if node.op_type == "Gelu" and only in ("", node.name):
                node.attribute.append(onnx.helper.make_attribute("approximate", "tanh"))
        return model

A pass is a function from an `onnx.ModelProto` to an `onnx.ModelProto`, which may be the same object. Its
keyword arguments are its options: each needs a default, and has the type bool, int, float, str or a Literal
of texts. The text in `Annotated` is the help. If the function has a second argument, it gets the rows of the
layer table.

A package offers a pass as an entry point of the group `explorer.passes` with the name of the pass.

This module is stable: the names in `__all__` keep their meaning.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from explorer.engine.edit.user_passes import declare

__all__ = ["graph_pass"]

Pass = TypeVar("Pass", bound=Callable[..., Any])


def graph_pass(name: str, summary: str = "") -> Callable[[Pass], Pass]:
    """Return a decorator that declares a function as a pass.

    The function itself stays as it is, so that tests can call it.

    Args:
        name: Name of the pass: small letters, digits and '-'.
        summary: Purpose of the pass in one line.

    Raises:
        Misuse: The name is not valid or taken, or the arguments of the function are not valid.
    """

    def add(function: Pass) -> Pass:
        declare(function, name, summary)
        return function

    return add
