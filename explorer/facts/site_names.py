"""Names of matmuls as text: the dotted path in a node's name, and the name with its layer."""

from __future__ import annotations


def format_site(name: str, layer: str) -> str:
    """Formats a site's name for display: `node_MatMul_1 in head`, or `/head/Gemm`, which contains `head`."""
    return f"{name} in {layer}" if layer and layer not in find_scope(name) else name


def find_scope(name: str) -> str:
    """Finds the dotted path of a node in the name that an exporter gave it.

    It is the path of the node's module, followed by the last part of the name: /a/a.1/conv/conv.2/Conv gives
    a.1.conv.2.Conv. A name without '/' is returned unchanged.
    """
    scope = last = ""
    for piece in name.strip("/").split("/"):
        if not scope or piece == scope or piece.startswith(scope + "."):
            scope = piece
        elif piece.startswith(last + "."):  # a part of the last module, named from that module on
            scope = scope.removesuffix(last) + piece
        else:
            scope = f"{scope}.{piece}"
        last = piece
    return scope
