"""Exports a session: its states as files, and its history as a shell script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from explorer.base.errors import Misuse
from explorer.base.version import __version__
from explorer.engine import convert
from explorer.engine.convert.job import ConversionJob
from explorer.engine.formats.onnx import writer
from explorer.engine.models.opened_model import select_dims
from explorer.engine.shapes.declarations import declare_inferred
from explorer.host import output_files
from explorer.session.parts import history as states
from explorer.session.parts import scripts
from explorer.session.parts.models import create_stem

if TYPE_CHECKING:
    from explorer.session.parts.models import Models, OnProgress


class Exporter:
    """Writes the states and the script of a session."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def save(self, path: str, overwrite: bool, on_progress: OnProgress) -> str:
        """Writes the current model as ONNX, or a quantized module in the format of the path's extension.

        Returns the path.
        """
        models = self._models
        as_module = self.check(path, overwrite)
        model = None if as_module else models.load_graph(models.current, on_progress)
        with output_files.write_atomically(path, overwrite=overwrite) as temporary:
            if model is None:
                self._write_module(temporary, path, on_progress)
            else:
                model = declare_inferred(model) if models.options["shapes"] else model
                writer.write(model, temporary, on_progress=on_progress)
        models.history = states.amend(models.history, models.current, saved=path)
        return path

    def check(self, path: str, overwrite: bool) -> bool:
        """Refuses a path to which the current model cannot be written.

        Returns:
            Whether the model would be written as a module, not as ONNX.
        """
        models = self._models
        if not models.is_module(models.current) or path.lower().endswith(".onnx"):
            models.check_onnx(path, overwrite)
            return False
        models.refuse_shapes()
        models.check_output_path(path, overwrite)
        convert.check_name(path, "onnx", "torchscript", "torch.export")
        return True

    def _write_module(self, path: str, target: str, on_progress: OnProgress) -> None:
        from explorer.engine.convert.module_twin import write_twin  # imports torch

        models = self._models
        opened: Any = models.open_state(models.current)
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

    def script(self, path: str, index: int | None, branches: bool, overwrite: bool) -> str:
        """Writes `script_text` to a file and returns its path."""
        write_text(self._models, path, self.script_text(index, branches), overwrite, executable=True)
        return path

    def script_text(self, index: int | None, branches: bool) -> str:
        """Returns the commands that make a state and the states before it, or with `branches` every state."""
        models = self._models
        state = models.resolve_index(index)
        if state == 0 and not (branches and models.history.entries[1:]):
            raise Misuse("nothing was done to the model yet", where="script", hint="tile it first")
        if models.module is not None:
            raise Misuse("no command opens an nn.Module object", where=models.source, hint="save it as ONNX")
        if models.options["seed"]:
            raise Misuse("no option asks for weights of another seed", where=models.source)
        script_states = range(len(models.history.entries)) if branches else models.history.line_to(state)
        steps = [self._describe_step(index) for index in script_states if index]
        tool = f"explorer {__version__}"
        return scripts.write_script(models.source, steps, stem=create_stem(models.source), tool=tool)

    def _describe_step(self, index: int) -> scripts.Step:
        """Describes a state, and the options with which its parent must be opened to make the state again."""
        history, options = self._models.history, self._models.options
        entry, parent = history.entries[index], history.parent(index) or 0
        if self._models.is_module(parent):
            message = f"'{entry.label}' was made of a quantized nn.Module, whose layers no command opens"
            raise Misuse(message, where="script", hint="save it as it is")
        dims = options["dims"] if entry.dims is None else entry.dims
        if parent == 0:
            return scripts.Step(entry, {**options, "dims": dims}, index, parent)
        # the files of later states have the other options already applied
        reopening = {name: options[name] for name in ("input_shapes", "rules", "shapes")}
        trust = options["trust"] and options["rules"] is not None
        sizes = select_dims(self._models.load_graph(parent), dims)
        return scripts.Step(entry, {**reopening, "trust": trust, "dims": sizes}, index, parent)


def write_text(models: Models, path: str, text: str, overwrite: bool, *, executable: bool = False) -> None:
    """Writes a text file atomically.

    Raises:
        Misuse: The file exists and `overwrite` is False, it is an input of the session, or it cannot be
            written.
    """
    models.check_output_path(path, overwrite)
    with output_files.write_atomically(path, overwrite=overwrite, executable=executable) as temporary:
        with output_files.open_text(temporary, errors="surrogateescape") as file:
            file.write(text)
