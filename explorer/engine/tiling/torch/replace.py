"""Layer replacement: copies an nn.Module with tiled layers, and makes the plan that describes the copy.

A replaced layer gets another class, a tile and edges. Its parameters, buffers and hooks stay, and so do
references to it. Only torch's fused transformer operator is switched off. Tied weights stay tied, because the
copy stores each tensor once, like the original.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from msgspec import Struct
from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import parametrize

from explorer.base.errors import Misuse, suggest_name
from explorer.engine.formats.torch_module import meta_copy
from explorer.engine.tiling.rules import SiteChoice, check_tile, choose_settings
from explorer.engine.tiling.torch.modules import TiledConv1d, TiledConv2d, TiledConv3d, TiledLinear
from explorer.engine.tiling.torch.products import choose_accumulator
from explorer.facts import Plan, SitePlan, SkippedSite, TileSpec
from explorer.host.optional_packages import format_error

Calls = Mapping[str, Sequence[int]]
"""Number of rows of the product in each call of a layer, by layer name."""

TILED_CLASSES: Mapping[type[nn.Module], type[nn.Module]] = {
    nn.Linear: TiledLinear,
    nn.Conv1d: TiledConv1d,
    nn.Conv2d: TiledConv2d,
    nn.Conv3d: TiledConv3d,
}
"""Tiled class of each layer class."""

_UNTILED_CLASSES: Mapping[type[nn.Module], str] = {
    nn.MultiheadAttention: "it reads the weights of its projections itself",
    nn.RNNBase: "its steps are a single operator of torch, which cannot be split",
    nn.RNNCellBase: "its step is a single operator of torch, which cannot be split",
    nn.ConvTranspose1d: "transposed convolutions have no tiled layer",
    nn.ConvTranspose2d: "transposed convolutions have no tiled layer",
    nn.ConvTranspose3d: "transposed convolutions have no tiled layer",
    nn.Bilinear: "it multiplies three operands, and tiles are of two",
}
"""Reason why a layer class that multiplies matrices has no tiled class."""


class _Site(Struct, frozen=True):
    """A layer that can be tiled; `layer_class` is the key of `TILED_CLASSES` that it is an instance of."""

    name: str
    module: nn.Module
    layer_class: type[nn.Module]


def tile_module(
    module: nn.Module, spec: TileSpec, calls: Calls, *, share: bool = False, macs_total: int | None = None
) -> tuple[nn.Module, Plan]:
    """Copies a module and makes its layers multiply by tiles; `module` is not changed.

    Args:
        module: Module to copy.
        spec: Tile size, layers and edges.
        calls: Rows of each call of each layer, as returned by `record_rows_of_calls`.
        share: Whether the copy shares the tensors. Otherwise it has its own, on the same devices.
        macs_total: MACs of the whole module, for the share that runs on tiles.

    Returns:
        The copy, and the plan with a site for every layer and every number of rows that it runs with.

    Raises:
        Misuse: The tile size is impossible, a form is given, a glob matches nothing, no layer can be tiled,
            or the module cannot be copied.
    """
    tile = check_tile(spec.tile)
    if spec.form != "auto":
        raise Misuse("forms are ways to write ONNX", where="--form", hint="leave it out with --to torch")
    sites, skipped = _find_layers(module, calls)
    chosen_sites = _select_sites(sites, skipped, spec)
    plans: list[SitePlan] = []
    choices: dict[str, tuple[type[nn.Module], SiteChoice]] = {}
    for site in chosen_sites:
        # a layer has one tile for all calls: the first call decides
        rows, (depth, columns), op = calls[site.name], get_sizes(site.module), site.layer_class.__name__
        choice = choose_settings(spec, site.name, op, (rows[0], depth, columns))
        if choice.on:
            plans += _plan_site(site, choice, rows)
            choices[site.name] = site.layer_class, choice
            continue
        origin = next((o for o in choice.origins.values() if o), "")
        reason = f"switched off{f' by {origin}' if origin else ''}"
        macs = sum(rows) * depth * columns
        skipped.append(SkippedSite(site.name, op, reason, macs, switched_off=True))
    if not plans:
        raise Misuse("no layer is left to tile", hint="; ".join(dict.fromkeys(s.reason for s in skipped)))
    tiled_copy = copy_module(module, share)
    layers = dict(tiled_copy.named_modules(remove_duplicate=False))
    for name, (layer_class, choice) in choices.items():
        layer: Any = layers[name]
        layer.__class__, layer.tile, layer.edges = TILED_CLASSES[layer_class], choice.tile, choice.edges
    _disable_fused_operators(tiled_copy)
    plan = Plan(
        tile=tile,
        edges=spec.edges,
        form="module",
        sites=tuple(plans),
        products=sum(p.products_total or 0 for p in plans),
        macs=sum(p.macs_total or 0 for p in plans),
        macs_total=macs_total,
        skipped=tuple(skipped),
    )
    return tiled_copy, plan


def record_rows_of_calls(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, list[int]]:
    """Runs a module, preferably on the meta device, and records the rows of each layer's calls.

    Raises:
        Exception: The module raises it.
    """
    calls: dict[str, list[int]] = {}

    def record_call(name: str, layer: nn.Module, _: Any, output: Any) -> None:
        calls.setdefault(name, []).append(count_rows(layer, output))

    with ExitStack() as stack, torch.no_grad():
        for name, layer in module.named_modules():
            if any(isinstance(layer, layer_class) for layer_class in TILED_CLASSES):
                stack.callback(layer.register_forward_hook(partial(record_call, name)).remove)
        module(*args, **kwargs)
    return calls


def get_sizes(layer: Any) -> tuple[int, int]:
    """Returns K and N of a layer's product."""
    return math.prod(layer.weight.shape[1:]), layer.weight.shape[0]


def count_rows(layer: Any, output: torch.Tensor) -> int:
    """Returns the number of rows of the product that computes a layer's output."""
    rows: int = output.numel() // max(layer.weight.shape[0], 1)
    return rows


def _find_layers(module: nn.Module, calls: Calls) -> tuple[list[_Site], list[SkippedSite]]:
    """Returns the layers that can be tiled, and those that multiply but cannot be tiled."""
    sites: list[_Site] = []
    skipped: list[SkippedSite] = []
    excluded_prefixes: tuple[str, ...] = ()
    for name, layer in module.named_modules():
        if excluded_prefixes and name.startswith(excluded_prefixes):
            continue
        layer_class = next(
            (base for base in (*TILED_CLASSES, *_UNTILED_CLASSES) if isinstance(layer, base)), None
        )
        if layer_class is None:
            continue
        reason = _UNTILED_CLASSES.get(layer_class) or _explain_unfit(layer, layer_class, calls.get(name, ()))
        if layer_class in _UNTILED_CLASSES:
            excluded_prefixes = (*excluded_prefixes, f"{name}.")
        if reason:
            macs = _count_site_macs(layer, layer_class, calls.get(name))
            skipped.append(SkippedSite(name, type(layer).__name__, reason, macs))
        else:
            sites.append(_Site(name, layer, layer_class))
    return sites, skipped


def _count_site_macs(layer: Any, layer_class: type[nn.Module], rows: Sequence[int] | None) -> int | None:
    """Returns the MACs of all calls of a layer, or None if they are unknown."""
    if layer_class not in TILED_CLASSES or rows is None or isinstance(layer.weight, UninitializedParameter):
        return None
    depth, columns = get_sizes(layer)
    return sum(rows) * depth * columns


def _explain_unfit(layer: Any, layer_class: type[nn.Module], rows: Sequence[int]) -> str:
    """Returns the reason why a layer cannot be tiled, or '' if it can."""
    if parametrize.is_parametrized(layer):
        return "its weight is made by a parametrization"
    if type(layer).forward is not layer_class.forward:
        return f"the class {type(layer).__name__} has its own forward()"
    if isinstance(layer.weight, UninitializedParameter):
        return "its shape is not known before it has run"
    if layer_class is not nn.Linear and layer.groups > 1:
        return "grouped: left for the vector unit"
    if not layer.weight.is_floating_point() or layer.weight.layout != torch.strided:
        return f"its weight is {str(layer.weight.dtype).removeprefix('torch.')}"
    if not sum(rows):
        return "it does not run with these inputs"
    return ""


def _select_sites(sites: Sequence[_Site], skipped: Sequence[SkippedSite], spec: TileSpec) -> list[_Site]:
    """Returns the layers that match a glob of `spec`, or all layers if it has none.

    Raises:
        Misuse: There is no layer to tile, or a glob matches none.
    """
    if not sites:
        reasons = "; ".join(dict.fromkeys(s.reason for s in skipped))
        raise Misuse(f"no layer can be tiled ({reasons})" if reasons else "the module has no matmul")
    if not spec.sites:
        return list(sites)
    for glob in spec.sites:
        if not any(fnmatchcase(site.name, glob) for site in sites):
            skipped_site = next((s for s in skipped if fnmatchcase(s.name, glob)), None)
            if skipped_site is not None:
                message = f"'{skipped_site.name}' ({skipped_site.op}) cannot be tiled: {skipped_site.reason}"
                raise Misuse(message, where="--site")
            hint = suggest_name(glob, [site.name for site in sites], listing="explorer layers MODEL")
            raise Misuse(f"no layer is called '{glob}'", where="--site", hint=hint)
    return [site for site in sites if any(fnmatchcase(site.name, glob) for glob in spec.sites)]


def _plan_site(site: _Site, choice: SiteChoice, rows: Sequence[int]) -> list[SitePlan]:
    """Returns the plans of a site, one for each number of rows."""
    layer: Any = site.module
    depth, columns = get_sizes(layer)
    tm, tk, tn = check_tile(choice.tile)
    plans = []
    for count in dict.fromkeys(r for r in rows if r):
        grid = -(-count // tm), -(-depth // tk), -(-columns // tn)
        products = math.prod(grid)
        plans.append(
            SitePlan(
                name=site.name,
                op=site.layer_class.__name__,
                M=count,
                K=depth,
                N=columns,
                grid=grid,
                products=products,
                utilisation=count * depth * columns / (products * tm * tk * tn),
                form="module",
                edges=choice.edges,
                output="",
                weight=f"{site.name}.weight" if site.name else "weight",
                bias=layer.bias is not None,
                tile=(tm, tk, tn),
                dtype=str(layer.weight.dtype).removeprefix("torch."),
                accumulator=str(choose_accumulator(layer.weight.dtype)).removeprefix("torch."),
                calls=rows.count(count),
            )
        )
    return plans


def copy_module(module: nn.Module, share: bool) -> nn.Module:
    """Copies a module. The copy shares the tensors or has its own.

    Raises:
        Misuse: The module cannot be copied.
    """
    if share:
        return meta_copy.copy_sharing_values(module)
    try:
        return meta_copy.copy_module(module)
    except Exception as error:
        raise Misuse(
            f"the module cannot be copied ({format_error(error)})", where=type(module).__name__
        ) from error


def _disable_fused_operators(module: nn.Module) -> None:
    """Disables torch's fused transformer operator.

    The operator reads the weights of inner layers without calling the layers.
    """
    for layer in module.modules():
        if any(isinstance(inner, tuple(TILED_CLASSES.values())) for inner in layer.modules()):
            if isinstance(layer, nn.TransformerEncoderLayer):
                layer.activation_relu_or_gelu = 0
            elif isinstance(layer, nn.TransformerEncoder):
                layer.use_nested_tensor = False
