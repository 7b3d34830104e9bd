"""Relates the matmuls of a plan (sites) to the layers of the tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.facts.site_names import find_scope

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from explorer.facts import Layer, SitePlan


def select_sites(
    layers: Sequence[Layer], sites: Sequence[SitePlan], *, is_graph: bool = True
) -> list[SitePlan]:
    """Select the sites that belong to `layers`, which may be leaves or groups.

    A site of a graph belongs to the layer that makes its output tensor. The tensors of an nn.Module have no
    names, so pass False for `is_graph`: the plan then names the layer, or the exporter wrote the
    scope into the name of the node: `/classifier/classifier.1/Gemm` belongs to `classifier.1`.
    """
    leaves = [layer for layer in layers if is_graph and not layer.group]
    output_names = {tensor.name for layer in leaves for tensor in layer.outputs if tensor.name}
    paths = [layer.path for layer in layers if layer.path]
    selected_sites = []
    for site in sites:
        scopes = [find_scope(site.name), *([site.layer] if site.layer else [])]
        if site.output in output_names or any(
            site.name == p or is_part_of(site, p) or any(s == p or s.startswith(p + ".") for s in scopes)
            for p in paths
        ):
            selected_sites.append(site)
    return selected_sites


def select_names(layers: Sequence[Layer], names: Iterable[str], *, is_graph: bool = True) -> list[str]:
    """Select the names of nodes and tensors that belong to one of `layers`, matched as in `select_sites`."""
    known_names = {layer.path for layer in layers if layer.path}
    known_names |= {
        output.name for layer in layers if is_graph and not layer.group for output in layer.outputs
    }

    def is_in_layers(name: str) -> bool:
        parts = find_scope(name).split(".")
        scopes = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
        return name in known_names or any(scope in known_names for scope in scopes if scope)

    return [name for name in names if is_in_layers(name)]


def is_part_of(site: SitePlan, node: str) -> bool:
    """Whether a site is part of a node, such as a decomposed LSTM or a loop."""
    return site.name.startswith((f"{node}/", f"{node}."))


def list_operands(layers: Sequence[Layer]) -> Mapping[str, Mapping[str, str]]:
    """Map the name of each output tensor to the first two inputs of its layer, by 'A' and 'B'.

    A tiled site is a group, and counts as one layer.
    """
    tiled_groups = [layer for layer in layers if layer.group and layer.tiled]
    leaves = [layer for layer in layers if not layer.group and layer.inputs]
    return {
        output.name: dict(zip("AB", [operand.name for operand in layer.inputs], strict=False))
        for layer in (*leaves, *tiled_groups)
        for output in layer.outputs
        if output.name
    }
