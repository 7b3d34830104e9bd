"""What a session leaves behind: its models, and what was done as commands, a script, a file of tilings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.facts import TileSpec
from explorer.session import scripts
from explorer.session.comparing import Comparing
from explorer.session.states import OnProgress, stem
from explorer.settings.parse import opening_words, path_word

__all__ = ["Keeping"]


class Keeping(Comparing):
    """The methods of `explorer.session.Session` that write down what it has."""

    def save(self, path: str, *, overwrite: bool = False, on_progress: OnProgress = None) -> str:
        """Writes the current model to `path` as ONNX.

        Returns:
            The path.

        Raises:
            Misuse: The file exists and `overwrite` is False, it is the opened model, or it cannot be
                written.
        """
        from explorer.engine.formats.onnx import writer
        from explorer.host import output_files

        self._check_target(path, overwrite)
        model = self._model(self._history.current, on_progress)
        with output_files.replacing(path, overwrite=overwrite) as temporary:
            writer.write(model, temporary, on_progress=on_progress)
        self._amend(self._history.current, saved=path)
        return path

    def command(self, spec: TileSpec, output: str | None = None) -> str:
        """The command that does headless what `tile` does to the opened model.

        '' where no command can: an nn.Module object has no name, rules that stand in no file no option.
        """
        words = scripts.tiling_words(spec)
        if self._module is not None or words is None:
            return ""
        import shlex

        target = output or f"{stem(self.source)}_tiled.onnx"
        head = ["explorer", "tile", path_word(self.source), "-o", path_word(target)]
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
        self._write(path, self.script_text(index), overwrite, executable=True)
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

    def keep_choices(self, path: str, *, overwrite: bool = False, on_progress: OnProgress = None) -> str:
        """Writes what was tiled, and how, as a file for `--config`: a rule for every site, by its name.

        Returns:
            The path.

        Raises:
            Misuse: Nothing was tiled yet, or `path` cannot be written.
        """
        from explorer.settings import tiling

        plans = [entry.plan for entry in self._history.entries[1 : self._history.current + 1] if entry.plan]
        if not plans:
            raise Misuse("nothing was tiled yet", where=path, hint="tile a layer or more first")
        specs = [entry.spec for entry in self._history.entries[1 : self._history.current + 1]]
        packed = any(spec is not None and spec.grouped == "pack" for spec in specs)
        asked = TileSpec(grouped="pack" if packed else "leave")
        every = [site.name for site in self._plan_of(0, asked, on_progress)[0].sites]
        spec = replace(tiling.chosen_by_hand(plans, every), grouped=asked.grouped)
        said = [f"What was tiled of {self.source}, and how: explorer tile MODEL --config THIS"]
        self._write(path, tiling.as_toml(spec, said), overwrite)
        return path

    # inside

    def _reopening(self, at: int) -> Mapping[str, Any]:
        """With which options a state has to be opened for the next one to come out the same."""
        bound = self._history.entries[at + 1].dims
        bound = self._options["dims"] if bound is None else bound
        if at == 0:
            return {**self._options, "dims": bound}
        from explorer.engine.models.opened import dims_of

        kept = {name: self._options[name] for name in ("input_shapes", "rules")}
        trust = self._options["trust"] and self._options["rules"] is not None
        return {**kept, "trust": trust, "dims": dims_of(self._model(at), bound)}

    def _write(self, path: str, text: str, overwrite: bool, *, executable: bool = False) -> None:
        """Writes a file of text."""
        from explorer.host import output_files

        self._check_target(path, overwrite)
        with output_files.replacing(path, overwrite=overwrite) as temporary:
            with open(temporary, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(text)
            if executable:
                scripts.make_executable(temporary)
