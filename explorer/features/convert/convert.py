"""Export of a session: its models as files of other kinds, what was done as commands, script, tiling file."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.base.version import __version__
from explorer.engine import convert
from explorer.engine.convert.job import ConversionJob, ConversionOptions, ExporterName, ScriptMethod
from explorer.engine.formats.onnx import writer
from explorer.engine.models.opened_model import dims_of
from explorer.facts import TileSpec
from explorer.facts.conversion import Conversion
from explorer.host import output_files
from explorer.session.parts import history as states
from explorer.session.parts import scripts
from explorer.session.parts.models import Models, OnProgress, stem
from explorer.settings import tiling
from explorer.settings.parse import dynamic_words, opening_words, option_words, path_word

if TYPE_CHECKING:
    from explorer.session.parts.tiling import Tiler


class Exporter:
    """Writes down what a session has."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def save(self, path: str, overwrite: bool, on_progress: OnProgress) -> str:
        """Writes the current model as ONNX, or a quantized module by the name's ending; and says where."""
        models = self._models
        as_module = self.check(path, overwrite)
        model = None if as_module else models.graph(models.current, on_progress)
        with output_files.atomic_write(path, overwrite=overwrite) as temporary:
            if model is None:
                self._write_module(temporary, path, on_progress)
            else:
                writer.write(model, temporary, on_progress=on_progress)
        models.history = states.amend(models.history, models.current, saved=path)
        return path

    def check(self, path: str, overwrite: bool) -> bool:
        """Whether the current model would be written there as a module; refuses what it cannot become."""
        models = self._models
        if not models.is_module(models.current) or path.lower().endswith(".onnx"):
            models.check_onnx(path, overwrite)
            return False
        models.check_target(path, overwrite)
        convert.check_name(path, "onnx", "torchscript", "torch.export")
        return True

    def _write_module(self, path: str, target: str, on_progress: OnProgress) -> None:
        from explorer.engine.convert.module_twin import write_twin  # torch

        models = self._models
        opened: Any = models.opened(models.current)
        job = ConversionJob(
            opened=opened,
            source=models.source,
            path=path,
            target=target,
            dims=models.options["dims"],
            input_shapes=models.options["input_shapes"],
            on_progress=on_progress,
        )
        write_twin(opened.loaded, opened.format, job)

    def convert(
        self,
        output: str,
        *,
        exporter: ExporterName | None,
        opset: int | None,
        input_names: tuple[str, ...],
        output_names: tuple[str, ...],
        dynamic: Mapping[str, Mapping[int, str]],
        method: ScriptMethod | None,
        fold: bool,
        overwrite: bool,
        on_progress: OnProgress,
        **how: Any,
    ) -> Conversion:
        """Writes the opened model as another kind of file; `how` as for `ConversionJob`."""
        models = self._models
        if models.current:
            raise Misuse(
                "the current model was quantized: the model as opened is converted"
                if models.is_module(models.current)
                else "the current model was tiled: it is ONNX already",
                where=models.source,
                hint="save it as it is",
            )
        request = ConversionOptions(
            exporter=exporter,
            opset=opset,
            input_names=input_names,
            output_names=output_names,
            dynamic=dynamic,
            method=method,
            fold=fold,
        )
        job = ConversionJob(
            target=output,
            dims=models.options["dims"],
            input_shapes=models.options["input_shapes"],
            asked=request,
            trust=bool(models.options["trust"]),
            on_progress=on_progress,
            **how,
        )
        path = models.source if models.module is None else None
        fact = convert.write(lambda: models.opened(0, on_progress), path, job, overwrite=overwrite)
        return replace(fact, command=scripts.headless(models, "convert", output, "", *convert.words(request)))

    def rebatch(
        self,
        batch: int | str,
        output: str,
        *,
        axes: Mapping[str, int],
        overwrite: bool,
        on_progress: OnProgress,
        **how: Any,
    ) -> Conversion:
        """Writes the current model for another batch; `how` as for `ConversionJob`."""
        models = self._models
        models.check_onnx(output, overwrite)
        model = models.graph(models.current, on_progress)
        job = ConversionJob(
            target=output,
            source=models.label(models.current),
            dims=dims_of(model, models.options["dims"]),
            on_progress=on_progress,
            **how,
        )
        fact = convert.rebatch(model, batch, job, axes=axes, overwrite=overwrite)
        if models.module is not None or models.current:
            return fact
        words = ["explorer", "rebatch", path_word(models.source), str(batch), "-o", path_word(output)]
        for name, axis in axes.items():
            words += option_words("--axis", f"{name}:{axis}")
        return replace(fact, command=shlex.join([*words, *opening_words(models.options)]))

    def conversions(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """What the opened model can become."""
        return convert.kinds(self._models.opened())

    def command(self, spec: TileSpec, output: str | None) -> str:
        """The command that does headless what `tile` does to the opened model; '' where no command can."""
        words = scripts.tiling_words(spec)
        if words is None:
            return ""
        history, said = self._models.history, list[str]()
        first = history.entries[history.current].quantize
        if first is not None:
            of_original = history.parent(history.current) == 0
            formats = scripts.quantize_option(first) if of_original else None
            if formats is None:
                return ""
            said = formats
        return scripts.headless(self._models, "tile", output, "_tiled.onnx", *said, *words)

    def module_command(
        self, spec: TileSpec, output: str | None, dynamic: Mapping[str, Mapping[int, str]] | None
    ) -> str:
        """The command that does headless what `tile_module` does; '' where no command can."""
        words = scripts.tiling_words(replace(spec, form="auto"))
        if self._models.module is not None or self._models.current or words is None:
            return ""
        target = ["-o", path_word(output)] if output else []
        head = ["explorer", "tile", path_word(self._models.source), "--to", "torch", *target, *words]
        return shlex.join([*head, *dynamic_words(dynamic or {}), *opening_words(self._models.options)])

    def script(self, path: str, index: int | None, branches: bool, overwrite: bool) -> str:
        """Writes `script_text`, and says where."""
        self._write(path, self.script_text(index, branches), overwrite, executable=True)
        return path

    def script_text(self, index: int | None, branches: bool) -> str:
        """The commands that make a state and those that lead to it; with `branches` every state."""
        models = self._models
        at = models.at(index)
        if at == 0 and not (branches and models.history.entries[1:]):
            raise Misuse("nothing was done to the model yet", where="script", hint="tile it first")
        if models.module is not None:
            raise Misuse("no command opens an nn.Module object", where=models.source, hint="save it as ONNX")
        if models.options["seed"]:
            raise Misuse("no option asks for weights of another seed", where=models.source)
        wanted = range(len(models.history.entries)) if branches else models.history.line_to(at)
        steps = [self._step(i) for i in wanted if i]
        tool = f"explorer {__version__}"
        return scripts.as_script(models.source, steps, stem=stem(models.source), tool=tool)

    def keep_choices(self, path: str, overwrite: bool, tiler: Tiler, on_progress: OnProgress) -> str:
        """Writes what was tiled, and how, as a file for `--config`."""
        history = self._models.history
        done = [history.entries[at] for at in history.line_to(history.current)]
        plans = [entry.plan for entry in done if entry.plan]
        if not plans:
            raise Misuse("nothing was tiled yet", where=path, hint="tile a layer or more first")
        packed = any(entry.spec is not None and entry.spec.grouped == "pack" for entry in done)
        asked = TileSpec(grouped="pack" if packed else "leave")
        every = [site.name for site in tiler.plan(asked, on_progress, at=0)[0].sites]
        spec = replace(tiling.chosen_by_hand(plans, every), grouped=asked.grouped)
        said = [f"What was tiled of {self._models.source}, and how: explorer tile MODEL --config THIS"]
        self._write(path, tiling.as_toml(spec, said), overwrite)
        return path

    def _step(self, at: int) -> scripts.Step:
        """A state, and with which options the one before has to be opened for it to come out the same."""
        history, options = self._models.history, self._models.options
        entry, before = history.entries[at], history.parent(at) or 0
        if self._models.is_module(before):
            what = f"'{entry.label}' was made of a quantized nn.Module, whose layers no command opens"
            raise Misuse(what, where="script", hint="save it as it is")
        bound = options["dims"] if entry.dims is None else entry.dims
        if before == 0:
            return scripts.Step(entry, {**options, "dims": bound}, at, before)
        kept = {name: options[name] for name in ("input_shapes", "rules")}
        trust = options["trust"] and options["rules"] is not None
        sizes = dims_of(self._models.graph(before), bound)
        return scripts.Step(entry, {**kept, "trust": trust, "dims": sizes}, at, before)

    def _write(self, path: str, text: str, overwrite: bool, *, executable: bool = False) -> None:
        self._models.check_target(path, overwrite)
        with output_files.atomic_write(path, overwrite=overwrite, executable=executable) as temporary:
            with output_files.text(temporary, errors="surrogateescape") as file:
                file.write(text)
