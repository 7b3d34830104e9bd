"""The one door to the engine.

The command line, the screen and a Python program all go through `Session`: none of them may grow its
own way to open, count, tile or compare. A session keeps a history of models; every entry is an ONNX
file, so "before" is never touched by making "after", undo is a step back in a tuple, and a session
whose process died is restored from the history alone.

Importing this module is cheap; onnx, numpy and torch are imported by the methods that need them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.facts import HistoryEntry, TileResult, TileSpec, Verification, states_text
from explorer.session.comparing import without_origins
from explorer.session.keeping import Keeping
from explorer.session.pairs import blame_files, compare_files, diff_files, verify_files
from explorer.session.states import Cancel, OnProgress
from explorer.settings.parse import opening_words, path_word

if TYPE_CHECKING:
    from explorer.facts.conversion import Conversion
    from explorer.facts.cost import Hardware
    from explorer.facts.sweep import Sweep, SweepSpec

__all__ = ["Session", "blame_files", "compare_files", "diff_files", "verify_files"]


class Session(Keeping):
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

    def tile(
        self,
        spec: TileSpec,
        *,
        output: str | None = None,
        overwrite: bool = False,
        verify: bool = True,
        draws: int = 1,
        seed: int = 0,
        input: str | None = None,
        discard: bool = False,
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
            input: An .npy or .npz file with the inputs for the proof, in place of random ones.
            discard: Whether states that were undone and never saved may go: the result takes their place.
            on_progress: Told where the job stands.
            cancel: Asked now and then; True stops the job and leaves nothing behind.

        Raises:
            Misuse: See `plan`; or `output` cannot be written or exists; or a state would be lost.
            Cancelled: `cancel` said so.
        """
        from explorer.engine.formats.onnx import reader, writer
        from explorer.engine.formats.onnx.validate import validate
        from explorer.engine.tiling import tile as transform
        from explorer.host import output_files

        started = time.perf_counter()
        if output is not None:
            self._check_target(output, overwrite)
        if not discard and (lost := self._history.at_stake):
            raise Misuse(
                f"this would drop {states_text(lost)}, which was undone and not saved",
                where=self.source,
                hint="redo and save it, or tile with discard=True",
            )
        plan, found, sites = self._plan(spec, on_progress)
        tiled = transform.tile(found.bound, without_origins(plan), sites)
        target = output or self._unused_name()
        evidence: Verification | None = None
        ours = overwrite or output is None
        with contextlib.suppress(_Disproved), output_files.replacing(target, overwrite=ours) as temporary:
            writer.write(tiled, temporary, on_progress=on_progress, cancel=cancel)
            if verify:
                after = validate(reader.read(temporary))
                evidence = self._verify(
                    found.whole, after, plan, draws, seed, on_progress, cancel, None, input
                )
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
                dims=dict(self._options["dims"]),
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
        draws: int = 1,
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
                that saves time.
            layers: Whether the answer lists the products of the model, too.
            on_progress: Told how many rows are done.
            cancel: Asked now and then; True stops, and what is done is kept.

        Raises:
            Misuse: No combination can be tiled, or `output` is no file of results.
            MissingExtra: `scheduler` needs Dask, which is not installed.
            Cancelled: `cancel` said so.
        """
        from explorer.session.sweeping import sweep_session

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
        asked = convert.ConversionOptions(
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

        files = [path_word(self.source), "-o", path_word(output)]
        words = ["explorer", "convert", *files, *convert.words(asked)]
        return replace(fact, command=shlex.join([*words, *opening_words(self._options)]))


class _Disproved(Exception):
    """Leaves the block that would have moved the result into place."""
