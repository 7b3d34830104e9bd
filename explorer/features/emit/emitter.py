"""Emits mapped matrix products as C code, and proves emitted code.

An epilogue is the operators after a product, such as bias and activation, that the code fuses with it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import replace

from explorer.base.checked import Natural, PathText
from explorer.base.errors import BadModel, Misuse, suggest_name
from explorer.base.units import many_text
from explorer.base.version import __version__
from explorer.facts import SitePlan
from explorer.facts.emission import (
    MANIFEST,
    MANIFEST_VERSION,
    CodeCounter,
    CodeForm,
    CodeFusion,
    CodeManifest,
    CodeProof,
    CodeRunner,
    CodeSite,
)
from explorer.facts.mapping import (
    Epilogue,
    GroupForm,
    MappedSite,
    MappingCost,
    MemoryMachine,
    ModelMapping,
    Sizes,
    build_products_spec,
)
from explorer.features.emit import code_folder
from explorer.features.emit.machine_check import check_counts, check_manifest_machine, compute_machine_digest
from explorer.features.tiling.tiling import Tiler
from explorer.host import input_files
from explorer.session.methods.facade import Facade
from explorer.session.parts.models import Cancel, OnProgress
from explorer.settings.mapping_file import read_mapping

if TYPE_CHECKING:
    from explorer.engine.graph.model import Model
    from explorer.engine.mapping.epilogue import FusedEpilogue
    from explorer.engine.mapping.proof import RunInputs, RunResult
    from explorer.engine.tiling.sites import Site


def emit(
    session: Facade,
    output: PathText,
    *,
    mapping: PathText | None = None,
    machine: str | MemoryMachine | None = None,
    form: CodeForm = "c",
    fuse: CodeFusion = "",
    grouped: GroupForm | None = None,
    sites: tuple[str, ...] = (),
    overwrite: bool = False,
    verify: bool = True,
    seed: Natural = 0,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> CodeProof:
    """Write mapped matrix products of the current model as C code, and prove the code.

    The code runs on the values of a run of the model and on dense random values. Its numbers must equal the
    product, and its counters of bytes must equal the plan.

    Args:
        output: Path of the folder to write: a C file for each site, a driver, and `mapping.json`.
        mapping: Path of a mapping file, or None to search for the best mapping of `machine`.
        machine: Name or file of a machine, or a machine. None takes the machine of the mapping file.
        form: 'c' for C files with `mapping.json`, 'json' for `mapping.json` alone.
        fuse: 'epilogue' to apply the operators after a product to its finished sums: bias, activation,
            requantization and residual.
        grouped: Handling of grouped and depthwise convolutions: 'batch' (one product for each group), 'pack'
            (groups block-diagonally in one unit of the array) or 'leave' (no code). None takes that of the
            mapping file, or 'batch'.
        sites: Globs of the names of matrix products. Empty emits all.
        overwrite: Whether to replace emitted code in `output`.
        verify: Whether to prove the code. Code that differs is not written.
        seed: Seed of the random values.
        on_progress: Callback that receives the progress.
        cancel: Callback that is polled between sites; the work stops when it returns True.

    Raises:
        Misuse: The mapping file belongs to another model or machine, the folder cannot be written, C has no
            type for a number type, or the compiler rejects the code.
        BadModel: onnxruntime cannot run the model.
        Cancelled: `cancel` returned True.
    """
    started = time.perf_counter()
    code_folder.check(output, overwrite)
    mapped = session.map(
        machine if machine is not None else _read_machine_name(mapping),
        # a search includes the fused operators; a given mapping is not changed
        fuse=fuse if mapping is None else "",
        grouped=grouped,
        mapping=mapping,
        sites=sites,
        on_progress=on_progress,
    )
    check_counts(mapped.machine, "--machine")
    where = mapping or "--machine"
    for site in mapped.sites:
        _check_fit(site.cost, where)
    names = tuple(site.name for site in mapped.sites)
    task = _Task(session, names, mapped.grouped, mapped.machine.unit, on_progress)
    epilogue_by_site = task.epilogues() if fuse else {}
    code_sites = tuple(
        _build_site(
            number, site, task.sites[site.name], epilogue_by_site.get(site.name), mapped.machine, form, where
        )
        for number, site in enumerate(mapped.sites, 1)
    )
    manifest = _build_manifest(session, mapped, code_sites, mapping, fuse)
    proof = _prove_and_write(task, manifest, epilogue_by_site, output, form, overwrite, verify, seed, cancel)
    return replace(proof, form=form, seconds=time.perf_counter() - started)


def _prove_and_write(
    task: _Task,
    manifest: CodeManifest,
    epilogue_by_site: Mapping[str, FusedEpilogue],
    output: str,
    form: CodeForm,
    overwrite: bool,
    verify: bool,
    seed: int,
    cancel: Cancel,
) -> CodeProof:
    """Prove the code of a manifest, and write it unless the proof found a difference."""
    fused = {
        site.mapping.site: epilogue_by_site[site.mapping.site]
        for site in manifest.sites
        if site.mapping.epilogue.ops
    }
    files = _emit_sources(manifest, fused) if form == "c" else {}
    if form == "json" or not verify:
        proof = CodeProof("", form, manifest.machine.hardware.name, len(files), "", (), None, "", 0.0)
    else:
        keep_rejected = partial(code_folder.keep_rejected, output, files)
        proof = task.prove(manifest, files, fused, keep_rejected, seed, cancel)
    if proof.verdict_kind != "different":
        code_folder.write(output, files, manifest, overwrite)
        proof = replace(proof, output=output)
    return proof


def _read_machine_name(mapping: str | None) -> str:
    """Return the name of the machine that a mapping file is for.

    Raises:
        Misuse: There is no mapping file, or it cannot be read.
    """
    if mapping is None:
        hint = "add --mapping FILE, as explorer map MODEL --machine NAME -o FILE writes it, or --machine NAME"
        raise Misuse("code needs a mapping", where="emit", hint=hint)
    return read_mapping(mapping).machine


def _build_manifest(
    session: Facade,
    mapped: ModelMapping,
    code_sites: tuple[CodeSite, ...],
    mapping: str | None,
    fuse: CodeFusion,
) -> CodeManifest:
    """Return the manifest of the code: versions and digests of its sources, the machine, and the sites."""
    return CodeManifest(
        MANIFEST_VERSION,
        f"explorer {__version__}",
        session.parts.models.source,
        _digest_model(session),
        _compute_digest(mapping) if mapping is not None else "",
        mapped.machine,
        fuse,
        code_sites,
        compute_machine_digest(mapped.machine),
        mapped.grouped,
    )


def epilogues(
    session: Facade, *, grouped: GroupForm = "batch", unit: Sizes = (1, 1, 1), on_progress: OnProgress = None
) -> dict[str, Epilogue]:
    """Find the operators that can be fused into the matrix products of the current model.

    Args:
        grouped: Handling of grouped convolutions.
        unit: M, K and N of the unit of the array, into which groups are packed.
        on_progress: Callback that receives the progress.

    Returns:
        Epilogue of each matrix product that has one, by the name of the site.
    """
    epilogues = _Task(session, (), grouped, unit, on_progress).epilogues()
    return {name: epilogue.record for name, epilogue in epilogues.items()}


def verify_code(
    session: Facade,
    folder: PathText,
    *,
    seed: Natural = 0,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> CodeProof:
    """Prove the code in a folder again: compile its C files, run them, and compare numbers and counters.

    Args:
        folder: Path of the folder, as `emit` writes it. C files that were changed run only if the session
            trusts code.
        seed: Seed of the random values.
        on_progress: Callback that receives the progress.
        cancel: Callback that is polled between sites; the work stops when it returns True.

    Raises:
        Misuse: The folder belongs to another model or contains no code, a changed C file is not trusted, or
            the compiler rejects the code.
        BadModel: The manifest is damaged, or onnxruntime cannot run the model.
        Cancelled: `cancel` returned True.
    """
    started = time.perf_counter()
    manifest = code_folder.read(folder)
    check_manifest_machine(manifest, folder)
    names = [site.file for site in manifest.sites if site.file]
    if not names:
        hint = f"explorer emit {session.parts.models.source} --mapping FILE -o FOLDER writes code"
        raise Misuse("the folder holds no code", where=folder, hint=hint)
    digest = _digest_model(session)
    if manifest.model_sha256 and digest and manifest.model_sha256 != digest:
        raise Misuse(
            "the code belongs to another model: the digests of the files differ",
            where=folder,
            hint=f"it was emitted from {manifest.model}",
        )
    site_names = tuple(site.mapping.site for site in manifest.sites)
    task = _Task(session, site_names, manifest.grouped, manifest.machine.unit, on_progress)
    for site in manifest.sites:
        _check_site(site, task.sites[site.mapping.site], folder)
    manifest = replace(
        manifest, sites=tuple(_add_plan(site, manifest.machine, folder) for site in manifest.sites)
    )
    fused = _find_epilogues(manifest, task, folder)
    files = {name: code_folder.read_code(folder, name) for name in (*names, "driver.c")}
    _check_code(
        files, _emit_sources(manifest, fused), folder, trust=bool(session.parts.models.options["trust"])
    )
    proof = task.prove(manifest, files, fused, partial(os.path.join, folder), seed, cancel)
    return replace(proof, output=folder, seconds=time.perf_counter() - started)


class _Task:
    """The matrix products of a session's model, their epilogues, and the proof of their code.

    Args:
        session: Session with the model.
        names: Names of matrix products that the model must have.
        grouped: Handling of grouped convolutions.
        unit: M, K and N of the unit of the array, into which groups are packed.
        on_progress: Callback that receives the progress.

    Raises:
        Misuse: The model has no matrix product of a name in `names`.
    """

    def __init__(
        self, session: Facade, names: Sequence[str], grouped: GroupForm, unit: Sizes, on_progress: OnProgress
    ) -> None:
        self._session, self._on_progress = session, on_progress
        spec = build_products_spec(grouped, unit)
        plan, products, sites = session.parts.get_part(Tiler).plan(spec, on_progress, will_write=True)
        self._model: Model = products.bound_model
        self._dims = products.dims
        self.sites: dict[str, Site] = {site.name: site for site in sites}
        self._plans: dict[str, SitePlan] = {site.name: site for site in plan.sites}
        for name in names:
            if name not in self.sites:
                raise Misuse(
                    f"the model has no matmul '{name}'",
                    hint=suggest_name(name, self.sites, listing="explorer plan MODEL"),
                )

    def epilogues(self) -> dict[str, FusedEpilogue]:
        """Return the epilogue of each site that has one, by name."""
        from explorer.engine.mapping.epilogue import Epilogues  # imports numpy
        from explorer.engine.shapes import Inference

        shapes = self._session.parts.models.name_input_shapes(self._model)
        finder = Epilogues(self._model, Inference(self._model, self._dims, shapes).main.values)
        epilogues = {name: finder.find(site, self._plans[name]) for name, site in self.sites.items()}
        return {name: epilogue for name, epilogue in epilogues.items() if epilogue is not None}

    def prove(
        self,
        manifest: CodeManifest,
        files: Mapping[str, str],
        fused: Mapping[str, FusedEpilogue],
        keep: Callable[[str], str],
        seed: int,
        cancel: Cancel,
    ) -> CodeProof:
        """Prove the code of a manifest.

        Args:
            manifest: Manifest of the code.
            files: Text of each file by name.
            fused: Epilogues by name of the site.
            keep: Function that returns the path of a C file which the compiler rejects.
            seed: Seed of the random values.
            cancel: Callback that is polled between sites.
        """
        from explorer.engine.mapping.evidence import decide_verdict, prove_sites  # imports numpy
        from explorer.engine.mapping.proof import Programs, find_compiler
        from explorer.engine.runtime.random_inputs import plan_inputs

        shapes = self._session.parts.models.name_input_shapes(self._model)
        input_plan = plan_inputs(self._model, self._dims, shapes)
        program = find_compiler()
        runner: CodeRunner = "numpy" if program is None else "cc"
        programs = None if program is None else Programs(program, files["driver.c"])
        try:
            run = (
                partial(_run_nest, manifest.machine, fused)
                if programs is None
                else partial(_run_compiled, programs, files, keep)
            )
            names = [site.mapping.site for site in manifest.sites]
            evidence = tuple(
                prove_sites(
                    self._model,
                    [self.sites[name] for name in names],
                    [self._plans[name] for name in names],
                    manifest.sites,
                    [fused.get(name) for name in names],
                    run,
                    input_plan,
                    seed,
                    self._on_progress,
                    cancel,
                )
            )
        finally:
            if programs is not None:
                programs.close()
        kind, verdict = decide_verdict(evidence, runner)
        unpacked = sum(
            bool(self._plans[site.mapping.site].right) and not site.mapping.right for site in manifest.sites
        )
        if unpacked and kind != "different":
            verdict += f"; the weights of {many_text(unpacked, 'matmul')} are unpacked, and planned as floats"
        half_types = {site.mapping.dtype for site in manifest.sites} & {"float16", "bfloat16"}
        if half_types and kind != "different":
            types_text = " and ".join(sorted(half_types))
            verdict += f"; {types_text} operands are multiplied as float32, and sums stay float32"
        name = manifest.machine.hardware.name
        return CodeProof("", "c", name, len(files), runner, evidence, kind, verdict, 0.0)


def _run_compiled(
    programs: Any, files: Mapping[str, str], keep: Callable[[str], str], site: CodeSite, inputs: RunInputs
) -> RunResult:
    """Compile and run the C file of a site."""
    from explorer.engine.mapping.proof import CompilerError

    try:
        result: RunResult = programs.run(files[site.file], site.mapping, inputs, site.file)
    except CompilerError as error:
        path = keep(site.file)
        raise Misuse(error.what, where=path, hint="the file was kept; no other file was written") from None
    return result


def _run_nest(
    machine: MemoryMachine, fused: Mapping[str, FusedEpilogue], site: CodeSite, inputs: RunInputs
) -> RunResult:
    """Run the loop nest of a site in NumPy."""
    from explorer.engine.mapping.walk import walk_nest

    epilogue = fused.get(site.mapping.site)
    return walk_nest(site.mapping, machine, inputs, () if epilogue is None else epilogue.steps)


def _build_site(
    number: int,
    mapped: MappedSite,
    site: Site,
    epilogue: FusedEpilogue | None,
    machine: MemoryMachine,
    form: CodeForm,
    where: str,
) -> CodeSite:
    """Return the description of a site's code: its file, mapping, types, memories and counters.

    Raises:
        Misuse: The tiles do not fit a memory.
    """
    cost = _compute_plain_cost(mapped, site, machine)
    cost = cost if epilogue is None else _compute_fused_cost(cost, epilogue, machine)
    unpacks = mapped.cost.mapping.right != cost.mapping.right
    _check_fit(cost, where, unpacks=unpacks)
    return CodeSite(
        op=mapped.op,
        file=f"site_{number:03}.c" if form == "c" else "",
        mapping=cost.mapping,
        right_dtype=site.right_dtype,
        memories=_name_levels(machine),
        counters=_list_counters(cost),
    )


def _compute_plain_cost(mapped: MappedSite, site: Site, machine: MemoryMachine) -> MappingCost:
    """Return the cost of a site's code without an epilogue.

    The code multiplies dequantized weights, which are larger than the stored weights. If the mapping comes
    from a search, the search is repeated for these weights, so that the tiles fit the memories.
    """
    from explorer.engine.mapping.cost import compute_mapping_cost
    from explorer.engine.mapping.search import search_mappings

    plain = replace(mapped.cost.mapping, right=site.other_right_dtype, epilogue=Epilogue())
    if plain == mapped.cost.mapping:
        return mapped.cost
    if mapped.search is not None and plain.right != mapped.cost.mapping.right:
        return search_mappings(replace(plain, levels=()), machine, mapped.search.objective).best[0]
    return compute_mapping_cost(plain, machine)


def _check_fit(cost: MappingCost, where: str, *, unpacks: bool = False) -> None:
    """Refuse a mapping whose tiles do not fit a memory.

    Raises:
        Misuse: A memory has too few bytes.
    """
    for memory in cost.memories:
        if memory.missing:
            unpacked = " (the code unpacks its weights)" if unpacks else ""
            raise Misuse(
                f"the tiles of '{cost.mapping.site}'{unpacked} do not fit: {memory.name} needs"
                f" {memory.missing:,} bytes more",
                where=where,
                hint="choose smaller tiles; explorer map MODEL -o FILE writes the best that fit",
            )


def _add_plan(site: CodeSite, machine: MemoryMachine, folder: str) -> CodeSite:
    """Return a site with the counters of its plan beside those of the manifest, if they differ.

    Raises:
        BadModel: The manifest has a counter that the plan does not have.
    """
    from explorer.engine.mapping.cost import compute_mapping_cost

    planned = _list_counters(compute_mapping_cost(site.mapping, machine))
    places = {(counter.level, counter.operand, counter.direction) for counter in planned}
    for counter in site.counters:
        if (counter.level, counter.operand, counter.direction) not in places:
            raise BadModel(
                f"'{site.mapping.site}' has no counter of level {counter.level}, {counter.operand}"
                f" {counter.direction}",
                where=os.path.join(folder, MANIFEST),
                hint="emit the code again",
            )
    extra = tuple(counter for counter in planned if counter not in site.counters)
    return replace(site, counters=(*site.counters, *extra), memories=_name_levels(machine))


def _name_levels(machine: MemoryMachine) -> tuple[str, ...]:
    """List the names of the memories of each level, separated by spaces; the last level is the array."""
    from explorer.engine.mapping.cost import group_memories
    from explorer.settings.site_mappings import ARRAY

    return (*(" ".join(memory.name for memory in group) for group in group_memories(machine)[1:]), ARRAY)


def _compute_fused_cost(cost: MappingCost, epilogue: FusedEpilogue, machine: MemoryMachine) -> MappingCost:
    """Return the cost of a mapping with an epilogue, or without it if the mapping allows none."""
    from explorer.engine.mapping.cost import compute_mapping_cost

    try:
        return compute_mapping_cost(replace(cost.mapping, epilogue=epilogue.record), machine)
    except Misuse:  # cores divide K and add their sums in the outermost memory
        return cost


def _find_epilogues(manifest: CodeManifest, task: _Task, folder: str) -> dict[str, FusedEpilogue]:
    """Return the model's epilogues at the sites where the code of a folder fuses one.

    Raises:
        Misuse: The model has another epilogue at a site.
    """
    planned = {
        site.mapping.site: site.mapping.epilogue for site in manifest.sites if site.mapping.epilogue.ops
    }
    epilogues = task.epilogues() if planned else {}
    for name, record in planned.items():
        if name not in epilogues or epilogues[name].record != record:
            raise Misuse(f"the model has other operators after '{name}' than the code", where=folder)
    return {name: epilogues[name] for name in planned}


_DIRECTIONS: tuple[tuple[Literal["loads", "stores", "reads", "writes"], str], ...] = (
    ("loads", "loads"),
    ("stores", "stores"),
    ("reads", "outside_reads"),
    ("writes", "outside_writes"),
)
"""Directions of a counter, each with the field of a move that has its bytes."""


def _list_counters(cost: MappingCost) -> tuple[CodeCounter, ...]:
    """List the bytes that the code of a site must move, by level and operand.

    The code stores and writes only C. It reads the inputs of an epilogue without loading tiles of them.
    """
    return tuple(
        CodeCounter(move.level, move.operand, direction, getattr(move, field))
        for move in cost.moves
        for direction, field in _DIRECTIONS
        if move.operand == "C"
        or direction == "reads"
        or (direction == "loads" and move.operand in ("A", "B"))
    )


def _emit_sources(manifest: CodeManifest, fused: Mapping[str, FusedEpilogue]) -> dict[str, str]:
    """Return the text of each file of the code, by file name."""
    from explorer.engine.mapping.emit_c import DRIVER, emit_site

    files = {}
    for site in manifest.sites:
        epilogue = fused.get(site.mapping.site)
        steps = () if epilogue is None else epilogue.steps
        code = emit_site(site.mapping, manifest.machine, right_dtype=site.right_dtype, steps=steps)
        files[site.file] = code.source
    return {**files, "driver.c": DRIVER}


def _check_code(files: Mapping[str, str], sources: Mapping[str, str], folder: str, *, trust: bool) -> None:
    """Refuse C files that differ from those that `emit` writes, unless the user trusts them.

    Raises:
        Misuse: A file differs, and it is not trusted or no compiler can compile it.
    """
    from explorer.engine.mapping.proof import find_compiler

    changed = next((name for name in sorted(files) if files[name] != sources[name]), None)
    if changed is None:
        return
    path = os.path.join(folder, changed)
    if not trust:
        hint = "to run it, read it and add --trust"
        raise Misuse("the code differs from what emit writes; verify does not run it", where=path, hint=hint)
    if find_compiler() is None:
        raise Misuse("changed code cannot be proved without a C compiler", where=path, hint="install cc")


def _check_site(code: CodeSite, site: Site, folder: str) -> None:
    """Refuse code whose matrix product differs from the model's in size or type.

    Raises:
        Misuse: The size or a type differs.
    """
    code_figures = *code.mapping.size, code.mapping.batch, code.mapping.dtype, code.right_dtype
    model_figures = site.M, site.K, site.N, site.batch, site.dtype, site.right_dtype
    if code_figures != model_figures:
        texts = (
            " x ".join(map(str, figures[:3])) + f", batch {figures[3]}, {figures[4]}"
            for figures in (code_figures, model_figures)
        )
        in_code, in_model = texts
        raise Misuse(
            f"'{code.mapping.site}' is {in_code} in the code, but {in_model} in the model", where=folder
        )


def _digest_model(session: Facade) -> str:
    """Return the digest of the opened ONNX file, or '' if the model was changed or is not an ONNX file."""
    models = session.parts.models
    is_file = models.current == 0 and models.is_graph and os.path.isfile(models.source)
    return _compute_digest(models.source) if is_file else ""


def _compute_digest(path: str) -> str:
    import hashlib

    with input_files.open_binary(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
