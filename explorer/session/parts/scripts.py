"""Writes a session as a shell script, whose commands make the same files again, byte for byte.

The script is self-contained. Settings that options cannot express (rules for single sites, very many sites)
go into a file for `--config`, which the script writes first. It names the model by its absolute path, accepts
another one as its argument, writes into the current folder, and never replaces a file.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.base.features import list_offers, load
from explorer.base.units import printable
from explorer.facts import HistoryEntry, TileSpec, Verification
from explorer.facts.quantize import PARTS, QuantizeRequest, QuantizeSpec
from explorer.session.parts.models import Models, stem
from explorer.settings.option_values import COMMAND_LINE, is_explicit, words_of
from explorer.settings.parse import opening_words, path_word
from explorer.settings.quantize import is_fast, names_formats

MOST_CHARACTERS = 4_000
"""Largest number of characters for the sites of a command. More sites go into a file."""
_END = "END OF THE TILING"
_DEFAULT_DRAWS, _DEFAULT_SEED = 3, 0


class Step(Struct, frozen=True):
    """A state and the way to make it.

    Attributes:
        entry: History entry of the state.
        opening: Options with which the parent must be opened, see `settings.parse.opening_words`.
        number: Index of the state.
        before: Index of the parent; 0 is the original.
    """

    entry: HistoryEntry
    opening: Mapping[str, Any]
    number: int
    before: int


def headless(models: Models, verb: str, output: str | None, ending: str, *words: str) -> str:
    """Returns the command that makes the same change from the opened model, or '' for an nn.Module object.

    Without `output`, the file has the name of the model with the suffix `ending`.
    """
    if models.module is not None:
        return ""
    target = path_word(output or f"{stem(models.source)}{ending}")
    head = ["explorer", verb, path_word(models.source), "-o", target]
    return shlex.join([*head, *words, *opening_words(models.options)])


def tiling_words(spec: TileSpec) -> list[str] | None:
    """Writes `spec` as options of `explorer tile`, or returns None if options cannot express it.

    Settings from the config file of the specification are not repeated.
    """
    if spec.rules and not spec.config:
        return None
    return words_of(spec)


def quantize_words(request: QuantizeRequest, *, modules: bool = False) -> list[str] | None:
    """Writes a quantization as options of `explorer quantize`, or returns None if options cannot express it.

    Args:
        request: Request of the quantization.
        modules: Whether layers of an nn.Module are quantized, which have only one form.
    """
    spec = request.spec
    if spec.rules and not spec.config:
        return None
    words = ["--config", path_word(spec.config)] if spec.config else []
    if not spec.config or is_explicit(spec, *PARTS):
        # with a config file without formats, parts without an option stay unquantized
        merged = spec.config and names_formats(spec)
        named = [part for part in PARTS if not merged or dict(spec.origins).get(part) == COMMAND_LINE]
        parts = [f"{part}={getattr(spec, part)}" for part in named]
        is_plain = spec.weight == spec.input and spec.bias == "auto" and not spec.block and len(named) == 3
        words += ["--to", spec.weight if is_plain else ",".join(parts)]
    if spec.symmetric is not None and is_explicit(spec, "symmetric"):
        words.append("--symmetric" if spec.symmetric else "--asymmetric")
    omitted = () if spec.calibrator == "percentile" else ("percentile",)
    words += words_of(spec, without=("config", *PARTS, "symmetric", *omitted))
    if is_fast(words) and not modules:
        words += ["--form", spec.form]  # a replay must not choose the form again
    return words + calibration_words(request)


def calibration_words(request: QuantizeRequest) -> list[str]:
    """Writes the calibration samples of a request as options."""
    if request.calibrate:
        return ["--calibrate", path_word(request.calibrate)]
    return words_of(request)


def write_script(source: str, steps: Sequence[Step], *, stem: str, tool: str) -> str:
    """Writes the commands that make all `steps` of the model `source`.

    Args:
        source: Path or name of the model, as for `session.Session`.
        steps: States. Each parent precedes its children.
        stem: Base name of files that were not saved.
        tool: Name and version of the program.

    Raises:
        Misuse: The record of a state does not tell how it was made.
    """
    model = os.path.abspath(source) if os.path.exists(source) else source
    lines = [
        "#!/bin/sh",
        f"# What was done to {_comment(source)}, as commands of {tool}: every file that this writes is the",
        "# session's, byte for byte, as long as the model and the program are the same. It writes into the",
        "# folder where it is started; another model may be given as its argument.",
        "set -euC",
        f"model={shlex.quote(model)}",
        "[ $# -eq 0 ] || model=$1",
        "case $model in -*) model=./$model ;; esac",
        "explorer=${EXPLORER:-explorer}",
    ]
    used_names: set[str] = set()
    files, last = {0: '"$model"'}, 0
    for step in steps:
        entry, number = step.entry, step.number
        ending = ".pt2" if entry.path is None else ".onnx"
        output = _output(entry, f"{stem}_{number}{ending}", used_names)
        named = f', "{_comment(entry.name)}"' if entry.name else ""
        branch = "" if step.before == last else f", made of {step.before or 'the model'}"
        lines += ["", f"# {number}: {_comment(entry.label)}{named}{branch}"]
        if entry.change not in list_offers("changes"):
            raise Misuse("this state does not say how it was made", where=entry.label, hint="save it as ONNX")
        words, config = load("changes", entry.change).words(entry, path_word(f"{output}.toml"))
        if config:
            lines += [f"cat > {shlex.quote(words[1])} <<'{_END}'", config.rstrip("\n"), _END]
        opening = dict(step.opening)
        if opening.get("rules") is not None:  # the script may run in another folder
            opening["rules"] = os.path.abspath(opening["rules"])
        words += opening_words(opening)
        target = shlex.quote(path_word(output))
        lines.append(
            f"$explorer {entry.change} {files[step.before]} -o {target} {shlex.join(words)}".rstrip()
        )
        files[number], last = target, number
    return "\n".join(lines) + "\n"


def quantize_option(request: QuantizeRequest) -> list[str] | None:
    """Writes a quantization as options of `explorer tile`: its formats and samples.

    None if it has other settings.
    """
    spec = request.spec
    plain = QuantizeRequest(QuantizeSpec(spec.weight, spec.input, spec.bias, origins=spec.origins))
    if replace(request, calibrate="", as_graph=False) != plain:
        return None
    words = quantize_words(request, modules=True) or []
    return ["--quantize" if word == "--to" else word for word in words]


def proof_words(proof: Verification | None) -> list[str]:
    """Writes the settings of a proof as options of the verb that made the state."""
    if proof is None:
        return ["--no-verify"]
    words = [] if len(proof.seeds) in (0, _DEFAULT_DRAWS) else ["--draws", str(len(proof.seeds))]
    if proof.seeds and proof.seeds[0] != _DEFAULT_SEED:
        words += ["--seed", str(proof.seeds[0])]
    return words


def _output(entry: HistoryEntry, otherwise: str, used_names: set[str]) -> str:
    """Chooses a unique file name for a state: the name under which it was saved, if it is free."""
    name = os.path.basename(entry.saved) or otherwise
    while name in used_names:
        stem, ending = os.path.splitext(name)
        name = f"{stem}_{ending}"
    used_names.add(name)
    return name


def _comment(text: str) -> str:
    """Puts a text on one line of a comment."""
    return printable(" ".join(text.split()))
