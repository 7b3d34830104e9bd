"""Tiles ONNX states of a session: plan, cost, and a tiled file that is verified before it is kept.

A product is a matrix product of the model. A site is a product that can be tiled. Nodes such as attention are
first decomposed to expose their products.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.engine.costs.memory.liveness import AnalysisResult
from explorer.engine.formats.onnx import reader, writer
from explorer.engine.formats.onnx.validate import validate
from explorer.engine.graph.model import Model
from explorer.engine.proof.sites.recovery import merge_earlier_plans, recover_plan
from explorer.engine.tiling.cost import compute_plan_cost
from explorer.engine.tiling.cost.formulas import add_formulas
from explorer.engine.tiling.layers import resolve_site_filters
from explorer.engine.tiling.module_products import trace_products
from explorer.engine.tiling.plan import make_plan
from explorer.engine.tiling.products import Products, find_products, has_groups
from explorer.engine.tiling.rules import make_packing
from explorer.engine.tiling.settings import list_effective_settings
from explorer.engine.tiling.sites import Site
from explorer.engine.tiling.tile import tile
from explorer.facts import History, HistoryEntry, Plan, TileResult, TileSpec, Verification
from explorer.facts.conversion import ConversionOptions
from explorer.facts.cost import Hardware, PlanCost
from explorer.facts.mapping import build_products_spec
from explorer.facts.settings import Settings
from explorer.features.tiling.records import TilingRecord
from explorer.session.parts import scripts
from explorer.session.parts.change import Change, ChangeStep, StateText, Steps, Work
from explorer.session.parts.export import write_text
from explorer.session.parts.history import list_between
from explorer.session.parts.models import Cancel, Models, OnProgress
from explorer.session.parts.proofs import Prover
from explorer.settings import tiling as tiling_settings
from explorer.settings.mapping_file import MappingFile, read_mapping
from explorer.settings.memories import find_machine_of_mapping, find_memories
from explorer.settings.option_values import COMMAND_LINE, write_words
from explorer.settings.parse import write_opening_words, write_path_word
from explorer.settings.site_mappings import build_mapping_from_file, check_sites, list_tile_rules


class Tiler:
    """Plan tilings of the models of a session, and create the tiled state."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def plan(
        self,
        spec: TileSpec,
        on_progress: OnProgress,
        *,
        state_index: int | None = None,
        decomposed: tuple[str, ...] | None = None,
        will_write: bool = False,
    ) -> tuple[Plan, Products, list[Site]]:
        """Return the plan for a state, the products of the state, and the sites that the plan selected.

        `decomposed` names the nodes to decompose; None decomposes all that can be. `will_write` tells that a
        graph will be built from the plan.
        """
        state_index = self._models.current if state_index is None else state_index
        requested = spec
        mapping_file, spec = _apply_mapping(requested)
        packing_spec = spec if mapping_file is None else _read_packing(mapping_file)
        products = self._find_products(state_index, on_progress, packing_spec, decomposed, will_write)
        plan, sites = _plan_products(products, self._resolve_site_filters(spec, products, state_index))
        if mapping_file is not None:
            check_sites(mapping_file, plan.sites)
        if plan.decomposed != products.decomposed and decomposed is None:
            # nodes without a chosen site are not decomposed
            return self.plan(
                requested,
                on_progress,
                state_index=state_index,
                decomposed=plan.decomposed,
                will_write=will_write,
            )
        return plan, products, sites

    def tiling(self, state_index: int) -> Plan | None:
        """Return the plan by which a state was tiled, or None."""
        model, plan = (
            self._models.load_graph(state_index),
            getattr(self._models.history.entries[state_index].record, "plan", None),
        )
        return recover_plan(model) if plan is None else merge_earlier_plans(plan, model)

    def cost(
        self,
        spec: TileSpec,
        hardware: Hardware | None,
        order: str,
        formulas: bool | None,
        on_progress: OnProgress,
    ) -> PlanCost:
        """Count the cost of a tiling of the current model on a machine."""
        plan = self.plan(spec, on_progress)[0]
        if spec.mapping:
            return _count_cost(plan, read_mapping(spec.mapping), hardware, order, formulas)
        cost = compute_plan_cost(plan, hardware, order=order)
        return add_formulas(cost) if formulas or (formulas is None and len(cost.sites) == 1) else cost

    def settings(self, spec: TileSpec, on_progress: OnProgress) -> Settings:
        """Return the settings of `spec` for every site of the current model."""
        spec = _apply_mapping(spec)[1]
        # the products depend on the spec only if groups are packed into its tiles
        products = self._find_products(self._models.current, on_progress, spec, None)
        all_sites = _plan_products(products, TileSpec())[0].sites
        site_names = self._resolve_site_filters(spec, products, self._models.current).sites
        chosen_sites = _plan_products(products, TileSpec(sites=site_names, origins=spec.origins))[0].sites
        return list_effective_settings(spec, all_sites, chosen_sites)

    def steps(self, spec: TileSpec, work: Work) -> Steps:
        """Tile the current model; a result whose proof fails is discarded."""
        started = time.perf_counter()
        command = self.command(spec, work.output)
        plan, products, sites = self.plan(spec, work.on_progress, will_write=True)
        tiled = tile(products.bound_model, _drop_origins(plan), sites)
        analyses: list[AnalysisResult] = []

        def verify_tiling(written_model: Model, path: str) -> Verification:
            return work.parts.get_part(Prover).verify(
                products.undecomposed_model,
                written_model,
                plan=plan,
                meanwhile=partial(self._analyze_during_proof, written_model, path, work.cancel, analyses),
                input=work.proof.input,
                draws=work.proof.draws,
                seed=work.proof.seed,
                on_progress=work.on_progress,
                cancel=work.cancel,
            )

        outcome = yield ChangeStep(
            tiled,
            StateText(spec.label, TilingRecord(_apply_mapping(spec)[1], plan), command),
            verify_tiling if work.proof.verify else None,
            lambda: analyses[0] if analyses else None,
        )
        return TileResult(plan, outcome.output, outcome.proof, time.perf_counter() - started, command)

    def _analyze_during_proof(
        self, tiled: Model, target: str, cancel: Cancel, analyses: list[AnalysisResult]
    ) -> None:
        """Analyze the tiled model while its proof waits for the runtime."""
        if not self._models.options["observe"]:  # `observe` needs a run of the model
            analyses.append(self._models.analyze_at_path(tiled, target, cancel))

    @contextlib.contextmanager
    def tile_temporarily(
        self, spec: TileSpec, on_progress: OnProgress, cancel: Cancel
    ) -> Iterator[tuple[Model, Model]]:
        """Context manager that yields the current model, and the tiled model in a temporary file."""
        plan, products, sites = self.plan(spec, on_progress, will_write=True)
        tiled = tile(products.bound_model, _drop_origins(plan), sites)
        with tempfile.TemporaryDirectory(prefix="tried-", dir=self._models.workdir) as folder:
            path = os.path.join(folder, "tiled.onnx")
            writer.write(tiled, path, on_progress=on_progress, cancel=cancel)
            yield products.undecomposed_model, validate(reader.read(path))

    def command(self, spec: TileSpec, output: str | None) -> str:
        """Return the shell command that makes the same tiling, or '' if no command can."""
        words = scripts.write_tiling_words(spec)
        if words is None:
            return ""
        history, quantize_words = self._models.history, list[str]()
        first = getattr(history.entries[history.current].record, "quantize", None)
        if first is not None:
            follows_original = history.parent(history.current) == 0
            formats = scripts.write_quantize_option(first) if follows_original else None
            if formats is None:
                return ""
            quantize_words = formats
        return scripts.write_command(self._models, "tile", output, "_tiled.onnx", *quantize_words, *words)

    def module_command(
        self, spec: TileSpec, output: str | None, dynamic: Mapping[str, Mapping[int, str]] | None
    ) -> str:
        """Return the shell command that does the same as `tile_module`, or '' if no command can."""
        words = scripts.write_tiling_words(replace(spec, form="auto"))
        if self._models.module is not None or self._models.current or words is None:
            return ""
        target = ["-o", write_path_word(output)] if output else []
        head = ["explorer", "tile", write_path_word(self._models.source), "--to", "torch", *target, *words]
        return shlex.join(
            [
                *head,
                *write_words(ConversionOptions(dynamic=dynamic or {})),
                *write_opening_words(self._models.options),
            ]
        )

    def keep_choices(self, path: str, overwrite: bool, on_progress: OnProgress) -> str:
        """Write the tilings up to the current state as a file for `--config`."""
        history = self._models.history
        entries = [history.entries[index] for index in history.line_to(history.current)]
        records = [entry.record for entry in entries if isinstance(entry.record, TilingRecord)]
        plans = [record.plan for record in records if record.plan]
        if not plans:
            raise Misuse("nothing was tiled yet", where=path, hint="tile at least one layer first")
        packed = any(record.spec is not None and record.spec.grouped == "pack" for record in records)
        default_spec = TileSpec(grouped="pack" if packed else "leave")
        site_names = [site.name for site in self.plan(default_spec, on_progress, state_index=0)[0].sites]
        spec = replace(tiling_settings.write_rules(plans, site_names), grouped=default_spec.grouped)
        comments = [f"What was tiled of {self._models.source}, and how: explorer tile MODEL --config THIS"]
        write_text(self._models, path, tiling_settings.write_toml(spec, comments), overwrite)
        return path

    def _resolve_site_filters(self, spec: TileSpec, products: Products, state_index: int) -> TileSpec:
        """Replace the filters in `spec` by the names of the matching sites."""
        return resolve_site_filters(
            spec,
            lambda: _plan_products(products, TileSpec())[0].sites,
            lambda: self._models.examine(state_index).analysis,
        )

    def _find_products(
        self,
        state_index: int,
        on_progress: OnProgress,
        spec: TileSpec,
        decomposed: tuple[str, ...] | None,
        will_write: bool = False,
    ) -> Products:
        """Return the matrix products of a state, with packed groups if `spec` packs them."""
        if self._models.is_module(state_index):
            raise Misuse(
                "a quantized nn.Module multiplies rounded floats and cannot be tiled",
                where=self._models.label(state_index),
                hint="for integer tiles, quantize the original as ONNX (--form qdq), then tile the result",
            )
        packed = spec.grouped == "pack"
        cached = self._models.products.get(state_index, {})
        traced = self._models.is_planned_as_traced(state_index, on_progress)
        if traced and will_write:
            self._models.check_no_step(state_index, on_progress)
            traced = False
        if packed and not traced:
            packed = has_groups(self._models.load_graph(state_index, on_progress))
        key: Any = (spec.tile, spec.rules, decomposed) if packed else decomposed
        key = ("traced", key) if traced else key
        if key not in cached:
            grouped: dict[str, Any] = {"grouped": "pack", "pack": make_packing(spec)} if packed else {}
            # keep only the latest packing, because each packing has shapes and an analysis
            cached = {key: products for key, products in cached.items() if key is None}
            rules = self._models.rules
            if traced:
                analysis = self._models.examine(state_index, on_progress).analysis
                cached[key] = trace_products(analysis, rules, **grouped)
            else:
                model = self._models.load_graph(state_index, on_progress)
                dims, shapes = self._models.find_sizes(state_index, model)
                cached[key] = find_products(model, dims, shapes, rules, decomposable=decomposed, **grouped)
            self._models.products[state_index] = cached
        return cached[key]


def _apply_mapping(spec: TileSpec) -> tuple[MappingFile | None, TileSpec]:
    """Return the mapping file of `spec`, and `spec` with its tiles as rules instead of the file.

    Raises:
        Misuse: The file cannot be read, lacks the level, or the user also typed a tile.
    """
    if not spec.mapping:
        if spec.level != TileSpec().level:
            raise Misuse("a level needs a mapping", where="--level", hint="add --mapping FILE")
        return None, spec
    if dict(spec.origins).get("tile") == COMMAND_LINE:
        raise Misuse("the mapping file has the tiles", where="--tile", hint="leave out --tile or --mapping")
    mapping_file = read_mapping(spec.mapping)
    rules = *list_tile_rules(mapping_file, spec.level), *spec.rules
    grouped = "pack" if mapping_file.grouped == "pack" else spec.grouped
    return mapping_file, replace(spec, mapping="", level=TileSpec().level, rules=rules, grouped=grouped)


def _read_packing(mapping_file: MappingFile) -> TileSpec:
    """Return the settings by which the matmuls of a mapping file were found: how it handles groups."""
    unit = next(iter(mapping_file.sites.values())).levels[-1].tile
    return build_products_spec(mapping_file.grouped, unit)


def _count_cost(
    plan: Plan, file: MappingFile, hardware: Hardware | None, order: str, formulas: bool | None
) -> PlanCost:
    """Count the cost of a plan whose sites run as a mapping file says.

    Raises:
        Misuse: The machine is missing or is not that of the file, or an option needs a single tile size.
    """
    from explorer.engine.mapping.file_check import check_file  # imports numpy
    from explorer.engine.mapping.site_costs import compute_mapped_plan_cost

    if order != "best":
        raise Misuse(
            "the mapping file has the orders", where="--order", hint="leave out --order or --mapping"
        )
    if formulas:
        hint = "explorer map MODEL --mapping FILE --formulas prints those of a mapping"
        raise Misuse("a mapping has several tiles", where="--formulas", hint=hint)
    machine = (
        find_machine_of_mapping(file.machine, file.path) if hardware is None else find_memories(hardware)
    )
    check_file(file, plan.sites, machine)
    mappings = [build_mapping_from_file(file, site) for site in plan.sites]
    return compute_mapped_plan_cost(plan, machine, mappings)


def _plan_products(products: Products, spec: TileSpec) -> tuple[Plan, list[Site]]:
    """Return the plan of `spec` for the products, and the sites that it selected."""
    return make_plan(
        products.sites,
        products.skipped,
        spec,
        opset=products.bound_model.opset,
        macs_total=products.macs_total,
        dims=products.dims,
        free=products.free,
        decomposed=products.find_decomposed_layers(),
    )


def _drop_origins(plan: Plan) -> Plan:
    """Return the plan as stored in a tiled file: without origins, so that equal tilings give equal files."""
    skipped = [replace(skip, reason="switched off") if skip.switched_off else skip for skip in plan.skipped]
    return replace(plan, skipped=tuple(skipped))


def plan_between(history: History, before: int, after: int) -> Plan | None:
    """Return one plan with all tilings between a state and a later state made from it; None without any."""
    if before not in history.line_to(after):
        return None
    records = [entry.record for entry in list_between(history, before, after)]
    plans = [record.plan for record in records if isinstance(record, TilingRecord) and record.plan]
    if not plans:
        return None
    return replace(
        plans[-1],
        sites=tuple(site for plan in plans for site in plan.sites),
        products=None if any(p.products is None for p in plans) else sum(p.products or 0 for p in plans),
        macs=None if any(p.macs is None for p in plans) else sum(p.macs or 0 for p in plans),
        dims={name: size for plan in plans for name, size in plan.dims.items()},
        free=tuple(dict.fromkeys(name for plan in plans for name in plan.free)),
        decomposed=tuple(dict.fromkeys(name for plan in plans for name in plan.decomposed)),
    )


def _make_steps(spec: TileSpec, work: Work) -> Steps:
    return work.parts.get_part(Tiler).steps(spec, work)


def _write_words(entry: HistoryEntry, config: str) -> tuple[list[str], str]:
    spec = entry.record.spec or _derive_spec(entry)
    proof = scripts.write_proof_words(entry.verification)
    words = None if spec.config else scripts.write_tiling_words(spec)
    if words is not None and sum(map(len, words)) <= scripts.MAX_SITE_CHARACTERS:
        return [*words, *proof], ""
    return ["--config", config, *proof], tiling_settings.write_toml(spec)


def _derive_spec(entry: HistoryEntry) -> TileSpec:
    """Derive the spec from the plan, for a state that was saved without its spec."""
    plan = entry.record.plan
    if plan is None:
        raise Misuse("no record says how this state was made", where=entry.label, hint="save it as ONNX")
    sites = tuple(tiling_settings.escape_glob(site.name) for site in plan.sites)
    return TileSpec(plan.tile, sites, plan.edges, plan.form)


CHANGE = Change("tile", TileSpec, _make_steps, _write_words, lambda spec: (spec.config, spec.mapping))
