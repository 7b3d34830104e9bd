"""The one door to the engine.

The command line, the screen and a Python program all go through `Session`: none of them may grow its
own way to open, count, tile or compare. A session keeps a history of models; every entry is an ONNX
file, so "before" is never touched by making "after", undo is a step back in a tuple, and a session
whose process died is restored from the history alone.

Importing this module is cheap; onnx, numpy and torch are imported by the methods that need them.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from explorer import scripts
from explorer.arguments import opening_words
from explorer.errors import Misuse
from explorer.facts import Diff, HistoryEntry, Plan, TileResult, TileSpec, Verification
from explorer.module_tiling import ModuleTiling
from explorer.pairs import blame_files, compare_files, diff_files, verify_files
from explorer.states import Cancel, OnProgress, stem

if TYPE_CHECKING:
    from explorer.engine.graph import Model
    from explorer.engine.transforms.products import Products
    from explorer.engine.transforms.sites import Site
    from explorer.facts.blame import Blame
    from explorer.facts.conversion import Conversion
    from explorer.facts.cost import Hardware, PlanCost
    from explorer.facts.settings import Settings
    from explorer.facts.sweep import Sweep, SweepSpec

__all__ = ["Session", "blame_files", "compare_files", "diff_files", "verify_files"]


class Session(ModuleTiling):
    """A model, what is known of it, and what was made of it.

    Args:
        source: An ONNX file, a torchvision model's name, or `package.module:callable`; or an nn.Module
            object, which is never changed. (A session in a process of its own, `worker.Engine`, takes paths
            and names only: an object would have to be sent there.)
        inputs: What to call an nn.Module object with: a tensor or array, a tuple of them, or a dict of
            keyword inputs; tensors may lie in nested tuples, lists and dicts. None: guessed from the model.
        weights: torchvision's name of trained weights; None for random, seeded ones.
        dims: Sizes for symbolic dimensions: {'batch': 8}.
        input_shapes: Input name to (dtype or None, shape), in place of what the model says.
        seed: Of random weights.
        trust: Code in the model file may run.
        rules: A Python file with rules for operators of the user's own (needs `trust`).
        observe: Shapes that inference cannot find are taken from a run on random inputs.
        past: Decode mode: one new token behind this many in the key-value cache; None for a whole pass.
        workdir: Where transformed models are kept until they are saved; a temporary folder of the
            session's own by default, which `close` removes.
    """

    def plan(self, spec: TileSpec, *, on_progress: OnProgress = None) -> Plan:
        """What `tile` would do to the current model, without doing it.

        Raises:
            Misuse: The tile size is impossible, a glob matches nothing, or nothing can be tiled.
        """
        return self._plan(spec, on_progress)[0]

    def tiling(self) -> Plan | None:
        """The plan by which the current model was tiled; None for one that is not.

        A file that was tiled before says so itself, and what it says is a claim: `verify` proves it.
        """
        from explorer.engine.verify.recovery import recover_plan

        if self.info().tiled is None:
            return None
        at = self._history.current
        return self._history.entries[at].plan or recover_plan(self._model(at))

    def cost(
        self,
        spec: TileSpec,
        hardware: Hardware | None = None,
        *,
        order: str = "best",
        formulas: bool | None = None,
        on_progress: OnProgress = None,
    ) -> PlanCost:
        """What a tiling of the current model would cost on a machine, without doing it.

        Args:
            spec: See `plan`.
            hardware: The machine (see `explorer.machines.hardware`); None leaves out cycles and time.
            order: 'best' for the loop order with the least traffic at each site, or the one for all: 'mnk',
                'output-stationary'.
            formulas: Say at every site how its figures come about; None: where there is one site only.
            on_progress: Told where the job stands.

        Raises:
            Misuse: See `plan`; or there is no such order, or the machine contradicts itself.
        """
        from explorer.engine.transforms.cost import plan_cost
        from explorer.engine.transforms.formulas import explained

        cost = plan_cost(self.plan(spec, on_progress=on_progress), hardware, order=order)
        return explained(cost) if formulas or (formulas is None and len(cost.sites) == 1) else cost

    def tile(
        self,
        spec: TileSpec,
        *,
        output: str | None = None,
        overwrite: bool = False,
        verify: bool = True,
        draws: int = 3,
        seed: int = 0,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> TileResult:
        """Tiles the current model; the result becomes the current one.

        Args:
            spec: Tile size, sites, edges, form.
            output: Where to write it; None keeps it in the session's folder until `save`.
            overwrite: Whether an existing `output` may be replaced.
            verify: Prove the result before it gets its name. A result that fails is not kept: then
                `TileResult.output` is empty and the history unchanged.
            draws: Random inputs for the proof.
            seed: Of the first draw.
            on_progress: Told where the job stands.
            cancel: Asked now and then; True stops the job and leaves nothing behind.

        Raises:
            Misuse: See `plan`; or `output` cannot be written or exists.
            Cancelled: `cancel` said so.
        """
        from explorer import targets
        from explorer.engine.formats import onnx_reader, onnx_writer
        from explorer.engine.transforms import tile as transform
        from explorer.engine.validate import validate

        started = time.perf_counter()
        if output is not None:
            self._check_target(output, overwrite)
        plan, found, sites = self._plan(spec, on_progress)
        tiled = transform.tile(found.bound, _without_origins(plan), sites)
        target = output or self._unused_name()
        evidence: Verification | None = None
        ours = overwrite or output is None
        with contextlib.suppress(_Disproved), targets.replacing(target, overwrite=ours) as temporary:
            onnx_writer.write(tiled, temporary, on_progress=on_progress, cancel=cancel)
            if verify:
                after = validate(onnx_reader.read(temporary))
                evidence = self._verify(found.whole, after, plan, draws, seed, on_progress, cancel)
                evidence = replace(evidence, before=self._label(self._history.current), after=target)
                if not evidence.passed:
                    raise _Disproved
        kept = evidence is None or evidence.passed
        command = self.command(spec, output)
        if kept:
            entry = HistoryEntry(
                label=f"tile {'x'.join(map(str, plan.tile))}",
                path=target,
                command=command,
                plan=plan,
                verification=evidence,
                saved=output or "",
                spec=spec,
            )
            self._append(entry)
        seconds = time.perf_counter() - started
        return TileResult(plan, (output or target) if kept else "", evidence, seconds, command)

    def sweep(
        self,
        spec: SweepSpec,
        *,
        hardware: Hardware | None = None,
        order: str = "best",
        verify: bool = False,
        draws: int = 3,
        seed: int = 0,
        output: str | None = None,
        scheduler: str | None = None,
        workers: int | None = None,
        layers: bool = False,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Sweep:
        """A row for every combination of `spec`, of the current model; `sweep_files` takes several models.

        Args:
            spec: Tiles, edges and forms to combine.
            hardware: The machine; without one there are no cycles.
            order: Of the loops over tiles, as for `cost`.
            verify: Tile, write and prove each combination, too; the tiled files do not stay.
            draws: Random inputs for each proof.
            seed: Of the first draw.
            output: A file that keeps the rows as they are made: what it holds already is not done again.
            scheduler: Of a Dask cluster that does the work: 'tcp://host:port'.
            workers: Processes on this machine; 1 is this one, None as many as there are processors where
                that saves time and Dask is installed.
            layers: Whether the answer lists the products of the model, too.
            on_progress: Told how many rows are done.
            cancel: Asked now and then; True stops, and what is done is kept.

        Raises:
            Misuse: No combination can be tiled, or `output` is no file of results.
            MissingExtra: `scheduler` or `workers` need Dask, which is not installed.
            Cancelled: `cancel` said so.
        """
        from explorer.sweeping import sweep_session

        return sweep_session(
            self,
            spec,
            hardware=hardware,
            order=order,
            verify=verify,
            draws=draws,
            seed=seed,
            output=output,
            scheduler=scheduler,
            workers=workers,
            layers=layers,
            on_progress=on_progress,
            cancel=cancel,
        )

    def verify(
        self,
        before: int = 0,
        after: int | None = None,
        *,
        draws: int = 3,
        seed: int = 0,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Verification:
        """Evidence that two models of the history compute the same."""
        a, b = self._at(before), self._at(after)
        evidence = self._verify(
            self._model(a, on_progress),
            self._model(b, on_progress),
            self._plan_between(a, b),
            draws,
            seed,
            on_progress,
            cancel,
        )
        return replace(evidence, before=self._label(a), after=self._label(b))

    def blame(
        self,
        before: int = 0,
        after: int | None = None,
        *,
        spec: TileSpec | None = None,
        draws: int = 3,
        seed: int = 0,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Blame:
        """The first layer in which one model of the history departs from another, and how the error grows.

        Args:
            before: The original.
            after: The other model; None is the current one.
            spec: In place of both: the current model, and what `tile` makes of it, which is looked at only.
            draws: Random inputs to run both on.
            seed: Of the first draw.
            on_progress: Told where the job stands.
            cancel: Asked now and then; True stops.

        Raises:
            BadModel: onnxruntime cannot run one of them.
            Cancelled: `cancel` said so.
        """
        from explorer.engine.verify.blame import blame

        with contextlib.ExitStack() as stack:
            if spec is None:
                a, b = self._at(before), self._at(after)
                first, second = self._model(a, on_progress), self._model(b, on_progress)
                labels = self._label(a), self._label(b)
            else:
                first, second = stack.enter_context(self._tried(spec, on_progress, cancel))
                labels = self._label(self._history.current), f"tile {'x'.join(map(str, spec.tile))}"
            fact = blame(
                first,
                second,
                draws=draws,
                seed=seed,
                dims=self._options["dims"],
                input_shapes=self._options["input_shapes"],
                on_progress=on_progress,
                cancel=cancel,
            )
        return replace(fact, before=labels[0], after=labels[1])

    @contextlib.contextmanager
    def _tried(
        self, spec: TileSpec, on_progress: OnProgress, cancel: Cancel
    ) -> Iterator[tuple[Model, Model]]:
        """The current model as the plan sees it, and what tiling makes of it, in a file that goes again."""
        import tempfile

        from explorer.engine.formats import onnx_reader, onnx_writer
        from explorer.engine.transforms import tile as transform
        from explorer.engine.validate import validate

        plan, found, sites = self._plan(spec, on_progress)
        tiled = transform.tile(found.bound, _without_origins(plan), sites)
        with tempfile.TemporaryDirectory(prefix="tried-", dir=self.workdir) as folder:
            path = os.path.join(folder, "tiled.onnx")
            onnx_writer.write(tiled, path, on_progress=on_progress, cancel=cancel)
            yield found.whole, validate(onnx_reader.read(path))

    def diff(
        self,
        before: int = 0,
        after: int | None = None,
        *,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Diff:
        """What changed between two models of the history, as ONNX graphs."""
        from explorer.engine.diff import diff

        a, b = self._at(before), self._at(after)
        changes = diff(
            self._model(a, on_progress),
            self._model(b, on_progress),
            before_analysis=self._comparable_analysis(a, b, on_progress, cancel),
            after_analysis=self._comparable_analysis(b, a, on_progress, cancel),
            on_progress=on_progress,
            cancel=cancel,
        )
        return replace(changes, before=self._label(a), after=self._label(b))

    def save(self, path: str, *, overwrite: bool = False, on_progress: OnProgress = None) -> str:
        """Writes the current model to `path` as ONNX.

        Returns:
            The path.

        Raises:
            Misuse: The file exists and `overwrite` is False, it is the opened model, or it cannot be
                written.
        """
        from explorer import targets
        from explorer.engine.formats import onnx_writer

        self._check_target(path, overwrite)
        model = self._model(self._history.current, on_progress)
        with targets.replacing(path, overwrite=overwrite) as temporary:
            onnx_writer.write(model, temporary, on_progress=on_progress)
        self._amend(self._history.current, saved=path)
        return path

    def conversions(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """What the opened model can become: for each kind what it is, and how files of it are called."""
        from explorer.engine import convert

        return convert.kinds(self._open(None))

    def convert(
        self,
        output: str,
        *,
        exporter: str | None = None,
        opset: int | None = None,
        input_names: Sequence[str] = (),
        output_names: Sequence[str] = (),
        dynamic: Mapping[str, Mapping[int, str]] | None = None,
        method: str | None = None,
        overwrite: bool = False,
        verify: bool = True,
        draws: int = 3,
        seed: int = 0,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> Conversion:
        """Writes the opened model as another kind of file, and shows that it is the same.

        Args:
            output: The file; its ending says what it is to be (see `engine.convert.CONVERTERS`).
            exporter: Which of torch's ONNX exporters: 'torchscript' or 'dynamo'; None takes what works.
            opset: Version of ONNX's operators; None takes what the exporter does best.
            input_names: Names in the file, one for each input; empty for the model's own.
            output_names: The same of the outputs.
            dynamic: Input to axis to the name of a dimension that is left open: {'x': {0: 'batch'}}.
            method: How TorchScript is made: 'trace' (None too) or 'script'.
            overwrite: Whether an existing `output` may be replaced.
            verify: Compare the result with the source before it gets its name. A result that fails is not
                kept: then `Conversion.output` is empty.
            draws: Random inputs to run both on.
            seed: Of the first draw.
            on_progress: Told where the job stands.
            cancel: Asked now and then; True stops the job and leaves nothing behind.

        Raises:
            Misuse: The model cannot become that; the message lists what it can become. Or an option does
                not fit, or `output` cannot be written.
            BadModel: The source is broken, or its framework cannot write it so.
            MissingExtra: It needs a package that is not installed.
            Cancelled: `cancel` said so.
        """
        from explorer.engine import convert

        if self._history.current:
            raise Misuse(
                "the current model was tiled: it is ONNX already", where=self.source, hint="save it as it is"
            )
        asked = convert.Asked(
            exporter=exporter,
            opset=opset,
            input_names=tuple(input_names),
            output_names=tuple(output_names),
            dynamic={name: dict(axes) for name, axes in (dynamic or {}).items()},
            method=method,
        )
        fact = convert.write(
            lambda: self._open(on_progress),
            self.source if self._module is None else None,
            output,
            asked,
            dims=self._options["dims"],
            input_shapes=self._options["input_shapes"],
            trust=bool(self._options["trust"]),
            overwrite=overwrite,
            verify=verify,
            draws=draws,
            seed=seed,
            on_progress=on_progress,
            cancel=cancel,
        )
        if self._module is not None:
            return fact
        import shlex

        words = ["explorer", "convert", self.source, "-o", output, *convert.words(asked)]
        return replace(fact, command=shlex.join([*words, *opening_words(self._options)]))

    def command(self, spec: TileSpec, output: str | None = None) -> str:
        """The command that does headless what `tile` does to the opened model.

        '' where no command can: an nn.Module object has no name, rules that stand in no file no option.
        """
        words = scripts.tiling_words(spec)
        if self._module is not None or words is None:
            return ""
        import shlex

        head = ["explorer", "tile", self.source, "-o", output or f"{stem(self.source)}_tiled.onnx"]
        return shlex.join([*head, *words, *opening_words(self._options)])

    def script(self, path: str, *, index: int | None = None, overwrite: bool = False) -> str:
        """Writes the commands that make a state, and those before it, as a shell script.

        Run in an empty folder it makes files that are the session's, byte for byte.

        Args:
            path: Of the script.
            index: Which state of the history; None is the current one.
            overwrite: Whether an existing file may be replaced.

        Returns:
            The path.

        Raises:
            Misuse: Nothing was done yet, no command can open the model, or `path` cannot be written.
        """
        self._write(path, self.script_text(index), overwrite)
        scripts.make_executable(path)
        return path

    def script_text(self, index: int | None = None) -> str:
        """What `script` writes; it opens no model that is not ONNX, so nothing of its code runs.

        Raises:
            Misuse: Nothing was done yet, or no command can open the model.
        """
        at = self._at(index)
        if at == 0:
            raise Misuse("nothing was done to the model yet", where="script", hint="tile it first")
        if self._module is not None:
            raise Misuse("no command opens an nn.Module object", where=self.source, hint="save it as ONNX")
        if self._options["seed"]:
            raise Misuse("no option asks for weights of another seed", where=self.source)
        import explorer

        steps = [scripts.Step(self._history.entries[i], self._reopening(i - 1)) for i in range(1, at + 1)]
        tool = f"explorer {explorer.__version__}"
        return scripts.as_script(self.source, steps, stem=stem(self.source), tool=tool)

    def settings(self, spec: TileSpec, *, on_progress: OnProgress = None) -> Settings:
        """What `spec` asks of every site of the current model, and who said so.

        Raises:
            Misuse: See `plan`.
        """
        from explorer.engine.transforms.settings import in_force

        # groups are packed into the tiles that are asked for; else what is asked decides nothing here
        found = self._found(self._history.current, on_progress, spec)
        every = _decided(found, TileSpec())[0].sites
        chosen = _decided(found, TileSpec(sites=spec.sites, origins=spec.origins))[0].sites
        return in_force(spec, every, chosen)

    def keep_choices(self, path: str, *, overwrite: bool = False, on_progress: OnProgress = None) -> str:
        """Writes what was tiled, and how, as a file for `--config`: a rule for every site, by its name.

        Returns:
            The path.

        Raises:
            Misuse: Nothing was tiled yet, or `path` cannot be written.
        """
        from explorer import tiling_file

        plans = [entry.plan for entry in self._history.entries[1 : self._history.current + 1] if entry.plan]
        if not plans:
            raise Misuse("nothing was tiled yet", where=path, hint="tile a layer or more first")
        every = [site.name for site in self._plan_of(0, TileSpec(), on_progress)[0].sites]
        spec = tiling_file.chosen_by_hand(plans, every)
        said = [f"What was tiled of {self.source}, and how: explorer tile MODEL --config THIS"]
        self._write(path, tiling_file.as_toml(spec, said), overwrite)
        return path

    # inside

    def _plan(self, spec: TileSpec, on_progress: OnProgress) -> tuple[Plan, Products, list[Site]]:
        """As `_plan_of`, of the current model."""
        return self._plan_of(self._history.current, spec, on_progress)

    def _plan_of(
        self, at: int, spec: TileSpec, on_progress: OnProgress, apart: tuple[str, ...] | None = None
    ) -> tuple[Plan, Products, list[Site]]:
        """The plan, the products that it chose from, and its sites among them."""
        found = self._found(at, on_progress, spec, apart)
        plan, chosen = _decided(found, spec)
        if plan.decomposed != found.decomposed and apart is None:
            # what holds none of the chosen sites stays whole
            return self._plan_of(at, spec, on_progress, plan.decomposed)
        return plan, found, chosen

    def _reopening(self, at: int) -> Mapping[str, Any]:
        """With which options a state has to be opened for a transform to come out the same."""
        if at == 0:
            return self._options
        from explorer.engine.formats.opening import dims_of

        kept = {name: self._options[name] for name in ("input_shapes", "rules")}
        trust = self._options["trust"] and self._options["rules"] is not None
        return {**kept, "trust": trust, "dims": dims_of(self._model(at), self._options["dims"])}

    def _write(self, path: str, text: str, overwrite: bool) -> None:
        """Writes a file of text."""
        from explorer import targets

        self._check_target(path, overwrite)
        with targets.replacing(path, overwrite=overwrite) as temporary:
            with open(temporary, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(text)


def _decided(found: Products, spec: TileSpec) -> tuple[Plan, list[Site]]:
    """What `spec` makes of the products that were found, and which of them it chose."""
    from explorer.engine.transforms.plan import make_plan

    return make_plan(
        found.sites,
        found.skipped,
        spec,
        opset=found.bound.opset,
        macs_total=found.macs_total,
        dims=found.dims,
        free=found.free,
        decomposed=found.decomposed,
    )


def _without_origins(plan: Plan) -> Plan:
    """The plan as a tiled file keeps it: two files that ask for the same make the same file."""
    skipped = [
        replace(skip, reason="switched off") if skip.reason.startswith("switched off by ") else skip
        for skip in plan.skipped
    ]
    return replace(plan, skipped=tuple(skipped))


class _Disproved(Exception):
    """Leaves the block that would have moved the result into place."""
