"""Matmuls of a plan by layer: the engine names matmuls (sites), the tree has layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.facts.tiling import scope_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from explorer.facts import Layer, SitePlan


def sites_of(layers: Sequence[Layer], sites: Sequence[SitePlan], *, by_value: bool = True) -> list[SitePlan]:
    """The sites that lie in `layers` (leaves or groups).

    A site of an ONNX model is known by the value that it makes. One of an nn.Module, whose tensors have
    no names of their own (`by_value` is False), is known by the scope that the exporter wrote into its
    node's name: /classifier/classifier.1/Gemm is classifier.1.
    """
    leaves = [layer for layer in layers if by_value and not layer.group]
    output_names = {tensor.name for layer in leaves for tensor in layer.outputs if tensor.name}
    paths = [layer.path for layer in layers if layer.path]
    sites_found = []
    for site in sites:
        scope = scope_of(site.name)
        if site.output in output_names or any(
            scope == p or scope.startswith(p + ".") or site.name == p or within(site, p) for p in paths
        ):
            sites_found.append(site)
    return sites_found


def names_in(layers: Sequence[Layer], names: Iterable[str], *, by_value: bool = True) -> list[str]:
    """Those of an engine's names of layers that mean some of `layers`, as in `sites_of`."""
    names_known = {layer.path for layer in layers if layer.path}
    names_known |= {
        output.name for layer in layers if by_value and not layer.group for output in layer.outputs
    }

    def meant(name: str) -> bool:
        parts = scope_of(name).split(".")
        scopes = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
        return name in names_known or any(scope in names_known for scope in scopes if scope)

    return [name for name in names if meant(name)]


def within(site: SitePlan, node: str) -> bool:
    """Whether a site is a part of a node: of an LSTM that is taken apart, of a loop that holds it."""
    return site.name.startswith((f"{node}/", f"{node}."))


def operands_of(layers: Sequence[Layer]) -> Mapping[str, Mapping[str, str]]:
    """What goes into layers as operands 'A' and 'B', by what comes out of them; a tiled site is one layer."""
    whole = [layer for layer in layers if layer.group and layer.tiled]
    leaves = [layer for layer in layers if not layer.group and layer.inputs]
    return {
        output.name: dict(zip("AB", [operand.name for operand in layer.inputs], strict=False))
        for layer in (*leaves, *whole)
        for output in layer.outputs
        if output.name
    }
