"""Tiling plan: chooses the sites to tile and their tiles before any node is written.

A plan lists the sites with their sizes, grids, edges and forms. Counts and utilization follow from these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

from msgspec.structs import replace

from explorer.base.errors import Misuse, suggest_name
from explorer.engine.costs.layer_tree import sum_if_all_known
from explorer.engine.costs.onnx.scopes import find_module_path
from explorer.engine.tiling.emit.dynamic_forms import MIN_OPSET
from explorer.engine.tiling.kinds.exclusions import NOT_MATRIX
from explorer.engine.tiling.rules import SiteChoice, check_tile, choose_settings, make_name_matcher
from explorer.engine.tiling.sites import Site
from explorer.facts import Form, Plan, SitePlan, SkippedSite, TileSpec

LAB_TILES = 256
"""Largest number of products of a site for which `auto` uses the 'lab' form (nested functions).

Sites with more products get the 'scan' form, if the operator set has Scan.
"""

MAX_LAB_PRODUCTS = 512
"""Largest number of products of all 'lab' sites together.

If there are more, `auto` uses the 'scan' form for these sites, too. A runtime takes 0.3 ms to load each
product that is a function call: 0.8 s for the 2,600 products of MobileNetV2.
"""

MAX_UNROLLED = 1 << 20
"""Largest number of products that are written one by one. A larger file would consist mostly of names."""


def make_plan(
    sites: Sequence[Site],
    skipped: Sequence[SkippedSite],
    spec: TileSpec,
    *,
    opset: int,
    macs_total: int | None = None,
    dims: Mapping[str, int] | None = None,
    free: Sequence[str] = (),
    decomposed: Mapping[str, str] | None = None,
) -> tuple[Plan, list[Site]]:
    """Makes the plan for the selected sites.

    Args:
        sites: All tileable sites of the model.
        skipped: Products that cannot be tiled.
        spec: Specification of the user.
        opset: Version of the default operator set. The Scan form needs at least 9.
        macs_total: MACs of the whole model, or None if unknown. Determines the share that runs on tiles.
        dims: Sizes of symbolic dimensions to which the figures apply.
        free: Names of the dimensions in `dims` that stay open.
        decomposed: Path of the module of each decomposed node, or '', by the node's name.

    Returns:
        The plan, and its sites in the same order.

    Raises:
        Misuse: A setting is impossible, a glob matches no site, or no site is left.
    """
    tile = check_tile(spec.tile)
    _check_spec(spec, opset)
    chosen_sites, plans, all_skipped = _plan_selected_sites(sites, skipped, spec, opset, decomposed or {})
    if not chosen_sites:
        raise _build_empty_selection_error(all_skipped[len(skipped) :])
    plan = Plan(
        tile=tile,
        edges=spec.edges,
        form=spec.form,
        sites=tuple(plans),
        products=sum_if_all_known(p.products_total for p in plans),
        macs=sum_if_all_known(p.macs_total for p in plans),
        macs_total=macs_total,
        skipped=tuple(all_skipped),
        dims=dict(dims or {}),
        decomposed=tuple(
            name for name in decomposed or () if any(s.name.startswith(f"{name}/") for s in chosen_sites)
        ),
        free=tuple(free) if any(site.dynamic for site in chosen_sites) else (),
        accumulator_bits=spec.accumulator,
        overflows=tuple(p.name for p in plans if p.sums is not None and p.sums.bits > spec.accumulator),
    )
    return plan, chosen_sites


def _check_spec(spec: TileSpec, opset: int) -> None:
    """Rejects unknown forms or edges, and forms that the operator set cannot express."""
    if spec.form not in get_args(Form):
        raise Misuse(
            f"there is no form '{spec.form}'", where="--form", hint=suggest_name(spec.form, get_args(Form))
        )
    if spec.edges not in ("ragged", "padded"):
        raise Misuse(f"'{spec.edges}' is not a kind of edges", where="--edges", hint="write ragged or padded")
    if spec.form == "scan" and opset < 9:
        raise Misuse(f"opset {opset} has no Scan", where="--form scan", hint="use lab, unrolled or batched")


def _plan_selected_sites(
    sites: Sequence[Site],
    skipped: Sequence[SkippedSite],
    spec: TileSpec,
    opset: int,
    decomposed: Mapping[str, str],
) -> tuple[list[Site], list[SitePlan], list[SkippedSite]]:
    """Returns the tiled sites, the plan of each, and all skipped products."""
    chosen_sites: list[Site] = []
    plans: list[SitePlan] = []
    lab_products: dict[int, int] = {}
    all_skipped = list(skipped)
    layers = {id(site): _find_layer(site, decomposed) for site in sites}
    for site in _select_sites(sites, skipped, spec, layers):
        choice = choose_settings(spec, site.name, site.node.op, (site.M, site.K, site.N))
        origin = choice.origins.get("on") or "the specification"
        reason = _explain_unsupported_sizes(site, choice, opset) if choice.on else f"switched off by {origin}"
        if reason:
            macs = _count_pass_macs(site)
            all_skipped.append(SkippedSite(site.name, site.node.op, reason, macs, switched_off=not choice.on))
            continue
        chosen_sites.append(site)
        plans.append(_plan_site(site, choice, opset, spec.accumulator, layers[id(site)]))
        if choice.form == "auto" and plans[-1].form == "lab":
            lab_products[len(plans) - 1] = plans[-1].products
    if sum(lab_products.values()) > MAX_LAB_PRODUCTS and opset >= 9:
        plans = [replace(p, form="scan") if index in lab_products else p for index, p in enumerate(plans)]
    return chosen_sites, plans, all_skipped


def _build_empty_selection_error(refused: Sequence[SkippedSite]) -> Misuse:
    """Builds the error for a selection without a tileable site."""
    if refused and not refused[-1].switched_off:
        return Misuse(f"no matmul can be tiled ({refused[-1].reason})")
    return Misuse("every matmul is switched off", hint="switch one on in the rules")


def _count_pass_macs(site: Site) -> int | None:
    """Returns the MACs of one pass, or None if data decides how often the site runs."""
    return None if site.runs.calls is None else site.runs.macs or site.runs.calls * _count_useful_macs(site)


def _count_useful_macs(site: Site) -> int:
    """Returns the MACs of one run, without the zeros of packed groups."""
    return site.macs if site.macs is not None else site.batch * site.M * site.K * site.N


def _explain_unsupported_sizes(site: Site, choice: SiteChoice, opset: int) -> str:
    """Returns the reason why the opset or the chosen form cannot write the site, or '' if it can."""
    if not site.dynamic:
        is_padded = choice.edges == "padded" or choice.form == "batched"
        has_partial_tiles = any(
            size % tile_size for size, tile_size in zip((site.M, site.K, site.N), choice.tile, strict=True)
        )
        if opset < MIN_OPSET and "int" in site.dtype and is_padded and has_partial_tiles:
            return f"opset {opset} cannot pad integers: use partial edges, in a form other than batched"
        return ""
    sizes_text = f"{' and '.join(site.dynamic)} {'is' if len(site.dynamic) == 1 else 'are'} open"
    hint = f"bind {'it' if len(site.dynamic) == 1 else 'them'} with --dim"
    if opset < MIN_OPSET:
        return f"opset {opset} cannot pad to a size that is known only during a run, and {sizes_text}: {hint}"
    if choice.form not in ("auto", "scan"):
        return f"{sizes_text}, which only form scan can write: {hint}"
    return ""


def _find_layer(site: Site, decomposed: Mapping[str, str]) -> str:
    """Returns the path of the module that a site, or the decomposed node around it, comes from, or ''."""
    decomposed_name = next((name for name in decomposed if site.name.startswith(f"{name}/")), "")
    return decomposed[decomposed_name] if decomposed_name else find_module_path(site.node)


def _plan_site(site: Site, choice: SiteChoice, opset: int, accumulator: int, layer: str) -> SitePlan:
    """Returns the plan of a site; `accumulator` is the width of the hardware's sums in bits, or 0."""
    tm, tk, tn = tile = check_tile(choice.tile)
    grid = -(-site.M // tm), -(-site.K // tk), -(-site.N // tn)
    products = site.batch * grid[0] * grid[1] * grid[2]
    form: str = "scan" if site.dynamic else choice.form
    if form == "auto":
        form = "lab" if products <= LAB_TILES or opset < 9 else "scan"
    if form in ("lab", "unrolled") and products > MAX_UNROLLED:
        message = f"'{site.name}' would become {products:,} nodes"
        raise Misuse(message, where=f"--form {form}", hint="use scan")
    rows = _list_call_rows(site)
    return SitePlan(
        name=site.name,
        op=site.node.op,
        M=site.M,
        K=site.K,
        N=site.N,
        grid=grid,
        products=products,
        utilisation=_count_useful_macs(site) / (products * tm * tk * tn),
        form=form,
        # a batched product, or one of open sizes, needs blocks of one shape: pad the edges
        edges="padded" if form == "batched" or site.dynamic else choice.edges,
        output=site.output,
        weight=site.weight.name if site.weight is not None else "",
        bias=site.has_bias,
        tile=tile,
        batch=site.batch,
        dtype=site.dtype,
        accumulator=site.accumulator,
        dynamic=site.dynamic,
        place=site.place,
        calls=None if rows is None else site.runs.calls,
        rows=rows or (),
        at_most=rows is not None and site.runs.at_most,
        macs=_count_useful_macs(site),
        in_floats=site.float_reason,
        right=site.code_dtype or site.other_right_dtype,
        layer=layer,
        sums=site.find_accumulator() if accumulator and site.find_accumulator is not None else None,
    )


def _list_call_rows(site: Site) -> tuple[tuple[int, int], ...] | None:
    """Returns (runs, rows) for each number of rows of a call, if calls differ in their rows.

    Returns () if all calls have the same sizes, and None if they differ in other sizes than rows.
    """
    run_counts, macs_per_run = site.runs.run_macs, _count_useful_macs(site)
    if len(run_counts) < 2:
        return ()
    if site.dynamic != ("M",) or any(macs * site.M % macs_per_run for _, macs in run_counts):
        return None
    return tuple((runs, macs * site.M // macs_per_run) for runs, macs in run_counts)


def _select_sites(
    sites: Sequence[Site], skipped: Sequence[SkippedSite], spec: TileSpec, layers: Mapping[int, str]
) -> list[Site]:
    """Returns the sites that `spec` selects by name, output, glob or layer, in the order of the model.

    Args:
        sites: All tileable sites of the model.
        skipped: Products that cannot be tiled.
        spec: Specification of the user.
        layers: Path of each site's module, by the id of the site.

    Raises:
        Misuse: There is no site, or a glob matches none.
    """
    origin = dict(spec.origins).get("sites", "")
    where = origin if ":" in origin else "--site"
    if not spec.sites:
        if not sites:
            if not skipped:
                raise Misuse("the model holds no matmul", hint="there is nothing to tile")
            products = [s for s in skipped if s.op not in NOT_MATRIX] or list(skipped)
            reasons = "; ".join(dict.fromkeys(s.reason for s in products))
            raise Misuse(f"no matmul can be tiled ({reasons})")
        return list(sites)
    selected_ids: set[int] = set()
    for glob in spec.sites:
        matches = make_name_matcher(glob, where)
        matching_sites = [s for s in sites if s.name == glob or s.output == glob]
        matching_sites = matching_sites or [s for s in sites if matches(s.name)]
        matching_sites = matching_sites or [
            s for s in sites if matches(layers[id(s)]) or layers[id(s)].startswith(f"{glob}.")
        ]
        if not matching_sites:
            skipped_site = next((s for s in skipped if s.name == glob or matches(s.name)), None)
            if skipped_site is not None:
                message = f"'{skipped_site.name}' ({skipped_site.op}) cannot be tiled: {skipped_site.reason}"
                raise Misuse(message, where=where)
            hint = suggest_name(glob, [s.name for s in sites], listing="explorer plan MODEL")
            raise Misuse(f"no site is called '{glob}'", where=where, hint=hint)
        selected_ids.update(map(id, matching_sites))
    return [s for s in sites if id(s) in selected_ids]
