"""Collects evidence that each tiled torch layer computes the same as the original layer.

The original module runs once. After each of its layers, the tiled layer gets the same input, and a dense
random input of the same shape. A dense input is needed because after a ReLU half of the products are zero,
which hides faults. Only the activations of one layer are in memory at a time. Torch's dispatcher reports
every product, which is compared with the tile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from explorer.engine.compat.torch import DispatchMode, copy_with_tensors
from explorer.engine.proof.compare import LIMIT, OutputComparison, get_unit_roundoff
from explorer.engine.proof.sites.reference import Reference
from explorer.engine.proof.sites.rounding import count_additions, describe_fault, find_largest_ratio
from explorer.engine.runtime.torch_arrays import convert_to_array
from explorer.engine.tiling.torch.replace import TILED_CLASSES, count_rows
from explorer.facts import Plan, SiteEvidence, SitePlan

_PRODUCTS = frozenset({"mm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "convolution", "einsum"})
"""Torch operators that compute matrix products without tiles."""


def compare_sites(
    original: nn.Module,
    tiled: nn.Module,
    plan: Plan,
    run: Callable[[nn.Module], None],
    seed: int,
    check_cancel: Callable[[], None],
) -> tuple[SiteEvidence, ...]:
    """Compares the tiled layer of every site of a plan with the original layer.

    Args:
        original: Original module with its weights. It has hooks during the run.
        tiled: Tiled module.
        plan: Tiling plan.
        run: Function that runs a module on one draw of inputs.
        seed: Seed of the dense inputs.
        check_cancel: Callback before each site, which raises to stop.

    Returns:
        The evidence of each site, in the plan's order.
    """
    layers, tiled_layers = (dict(m.named_modules(remove_duplicate=False)) for m in (original, tiled))
    pending = {(site.name, site.M): site for site in plan.sites}
    evidence: dict[tuple[str, int], SiteEvidence] = {}

    def make_hook(name: str) -> Any:
        def examine_output(
            layer: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Tensor
        ) -> None:
            site = pending.pop((name, count_rows(layer, output)), None)
            if site is not None:
                check_cancel()
                x = args[0] if args else next(iter(kwargs.values()))
                evidence[name, site.M] = _examine(site, layer, tiled_layers[name], x, output, seed)

        return examine_output

    handles = [
        layers[name].register_forward_hook(make_hook(name), with_kwargs=True)
        for name in dict.fromkeys(site.name for site in plan.sites)
    ]
    try:
        run(original)
    finally:
        for handle in handles:
            handle.remove()
    for key, site in pending.items():
        no_comparison = OutputComparison(get_unit_roundoff(site.dtype))
        evidence[key] = _build_evidence(
            site, no_comparison, None, LIMIT, "", "it did not run with these inputs"
        )
    return tuple(evidence[site.name, site.M] for site in plan.sites)


class _Products(DispatchMode):
    """Counts the tile products that torch runs, and records a product that the plan does not have."""

    def __init__(self, site: SitePlan) -> None:
        super().__init__()
        self.site = site
        self.count = self.volume = 0
        self.problem = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name == "bmm":
            (batch, rows, depth), columns = args[0].shape, args[1].shape[2]
            self.count += batch
            self.volume += batch * rows * depth * columns
            sizes = rows, depth, columns
            fits_tile = all(size <= limit for size, limit in zip(sizes, self.site.tile, strict=True))
            if not fits_tile or (self.site.edges == "padded" and sizes != self.site.tile):
                self.problem = f"a product of {'x'.join(map(str, sizes))}"
        elif name in _PRODUCTS:
            self.problem = f"a product by {name}"
        return func(*args, **(kwargs or {}))

    def describe_fault(self) -> str:
        """Describes a difference between the products and the plan; '' without one."""
        site = self.site
        planned_macs = (
            site.products * math.prod(site.tile) if site.edges == "padded" else site.M * site.K * site.N
        )
        if self.problem:
            return f"{self.problem} where tiles are {'x'.join(map(str, site.tile))}"
        if (self.count, self.volume) != (site.products, planned_macs):
            planned = f"planned {site.products:,} of {planned_macs:,}"
            return f"{self.count:,} products of {self.volume:,} MACs, {planned}"
        return ""


def _examine(site: SitePlan, layer: Any, tiled_layer: Any, x: Tensor, y: Tensor, seed: int) -> SiteEvidence:
    """Compares one layer on its actual input and on a dense random input."""
    has_same_weights = torch.equal(layer.weight, tiled_layer.weight)
    has_same_weights &= (
        layer.bias is tiled_layer.bias if layer.bias is None else torch.equal(layer.bias, tiled_layer.bias)
    )
    products = _Products(site)
    dense = _draw_dense(x, seed)
    with torch.no_grad():
        with products:
            tiled_output = tiled_layer(x)
        outputs = [tiled_output, tiled_layer(dense)]
        references = _run_references(layer, (x, dense))
    structure = "" if has_same_weights else "its weight is not the original's"
    structure = structure or products.describe_fault()
    comparison = OutputComparison(get_unit_roundoff(site.dtype))
    if tiled_output.shape != y.shape or tiled_output.dtype != y.dtype:
        shape = list(tiled_output.shape)
        reason = f"it gives {tiled_output.dtype} {shape}, the original {y.dtype} {list(y.shape)}"
        return _build_evidence(site, comparison, None, LIMIT, structure, reason)
    comparison.add(convert_to_array(y), convert_to_array(tiled_output), references[0].exact)
    roundoff = get_unit_roundoff(site.dtype)
    smallest = torch.finfo(y.dtype).smallest_normal * roundoff
    arrays = [convert_to_array(output) for output in outputs]
    ratio, limit = find_largest_ratio(arrays, references, roundoff, count_additions(site), smallest)
    reason = describe_fault(comparison, ratio, limit)
    return _build_evidence(site, comparison, ratio, limit, structure, reason)


def _build_evidence(
    site: SitePlan,
    comparison: OutputComparison,
    ratio: float | None,
    limit: float,
    structure: str,
    reason: str,
) -> SiteEvidence:
    """Builds the evidence of a site.

    Args:
        site: Plan of the site.
        comparison: Comparison with the original's output.
        ratio: Largest error ratio (see `find_largest_ratio`), or None if no numbers were compared.
        limit: Limit of the ratio.
        structure: Fault of the weights or of the tile products, or ''.
        reason: Fault of the numbers, or ''.
    """
    products = 0 if structure or ratio is None else site.products
    return SiteEvidence(
        name=site.name,
        M=site.M,
        K=site.K,
        N=site.N,
        tiles=products,
        structure=structure,
        bound_ratio=ratio,
        limit=limit,
        rows=2 * site.M if ratio is not None else 0,  # the actual and the dense input
        **comparison.list_evidence_fields(),
        passed=not structure and not reason,
        reason=structure or reason,
        differs=bool(reason),
        products=products,
    )


def _run_references(layer: Any, inputs: Sequence[Tensor]) -> list[Reference]:
    """Computes the expected output for each input in float64 with the forward method of torch's layer."""
    base_class: Any = next(base for base in TILED_CLASSES if isinstance(layer, base))
    bias = None if layer.bias is None else layer.bias.double()
    if bias is not None and base_class is not nn.Linear:
        bias = bias.reshape(-1, *(1,) * len(layer.kernel_size))
    weight = layer.weight.double()
    float64_layer = copy_with_tensors(layer, {"weight": weight, "bias": None})
    products = [base_class.forward(float64_layer, x.double()) for x in inputs]
    magnitudes = weight.abs() if weight is layer.weight else weight.abs_()
    float64_layer = copy_with_tensors(layer, {"weight": magnitudes, "bias": None})
    bounds = [base_class.forward(float64_layer, x.double().abs()) for x in inputs]
    bias_term = torch.zeros((), dtype=torch.float64) if bias is None else bias
    return [
        Reference(convert_to_array(p + bias_term), convert_to_array(b + bias_term.abs()), convert_to_array(p))
        for p, b in zip(products, bounds, strict=True)
    ]


def _draw_dense(x: Tensor, seed: int) -> Tensor:
    """Draws random values of both signs with the magnitude of the activation, and none near zero."""
    generator = torch.Generator().manual_seed(seed + 2)
    finite = x.double().abs()
    scale = float(finite[finite.isfinite()].max()) if finite.isfinite().any() else 1.0
    values = 0.5 + 0.5 * torch.rand(x.shape, generator=generator, dtype=torch.float64)
    signs = torch.randint(0, 2, x.shape, generator=generator) * 2 - 1
    return (values * signs * (scale or 1.0)).to(device=x.device, dtype=x.dtype)
