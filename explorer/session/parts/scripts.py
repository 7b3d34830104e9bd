"""Writes a session as a shell script. Its commands make the same files again, byte for byte.

The script is self-contained. Settings that options cannot express (rules for single sites, very many sites)
go into a file for `--config`, which the script writes first. The script names the model by its absolute path,
accepts another model as its argument, writes into the current folder, and never replaces a file.
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
from explorer.session.parts.models import Models, create_stem
from explorer.settings.option_values import COMMAND_LINE, is_explicit, write_words
from explorer.settings.parse import write_opening_words, write_path_word
from explorer.settings.quantize import has_formats, is_form_open

MAX_SITE_CHARACTERS = 4_000
"""Largest number of characters for the sites in a command. A longer list of sites goes into a file."""
_CONFIG_DELIMITER = "END OF THE TILING"
"""Line that ends the text of a config file in a script."""
_DEFAULT_DRAWS, _DEFAULT_SEED = 3, 0


class Step(Struct, frozen=True):
    """A state and the way to make it.

    Attributes:
        entry: History entry of the state.
        opening: Options with which the parent must be opened, see `settings.parse.write_opening_words`.
        number: Index of the state.
        parent: Index of the parent; 0 is the original.
    """

    entry: HistoryEntry
    opening: Mapping[str, Any]
    number: int
    parent: int


def write_command(models: Models, verb: str, output: str | None, ending: str, *words: str) -> str:
    """Returns the command that makes the same change without the screen, or '' for an nn.Module object.

    Without `output`, the command names the file after the model, with the suffix `ending`.
    """
    if models.module is not None:
        return ""
    target = write_path_word(output or f"{create_stem(models.source)}{ending}")
    head = ["explorer", verb, write_path_word(models.source), "-o", target]
    return shlex.join([*head, *words, *write_opening_words(models.options)])


def write_tiling_words(spec: TileSpec) -> list[str] | None:
    """Returns `spec` as options of `explorer tile`, or None if options cannot express it.

    The options name the config file of `spec`, so they do not repeat the settings in it.
    """
    if spec.rules and not spec.config:
        return None
    # a mapping file sets the tiles, so `explorer tile` refuses a tile beside it
    return write_words(spec, without=("tile",) if spec.mapping else ())


def write_quantize_words(request: QuantizeRequest, *, modules: bool = False) -> list[str] | None:
    """Returns a quantization as options of `explorer quantize`, or None if options cannot express it.

    Args:
        request: Quantization with its calibration samples.
        modules: Whether layers of an nn.Module are quantized, which have only one form.
    """
    spec = request.spec
    if spec.rules and not spec.config:
        return None
    words = ["--config", write_path_word(spec.config)] if spec.config else []
    if not spec.config or is_explicit(spec, *PARTS):
        # if the config file names formats, only the formats of the command line are written
        config_has_formats = spec.config and has_formats(spec)
        origins = dict(spec.origins)
        option_parts = [part for part in PARTS if not config_has_formats or origins.get(part) == COMMAND_LINE]
        formats = [f"{part}={getattr(spec, part)}" for part in option_parts]
        has_single_format = spec.weight == spec.input and spec.bias == "auto" and not spec.block
        if has_single_format and len(option_parts) == len(PARTS):
            words += ["--to", spec.weight]
        else:
            words += ["--to", ",".join(formats)]
    if spec.symmetric is not None and is_explicit(spec, "symmetric"):
        words.append("--symmetric" if spec.symmetric else "--asymmetric")
    omitted = () if spec.calibrator == "percentile" else ("percentile",)
    words += write_words(spec, without=("config", *PARTS, "symmetric", *omitted))
    if is_form_open(words) and not modules:
        words += ["--form", spec.form]  # without it, a later run could choose another form
    return words + write_calibration_words(request)


def write_calibration_words(request: QuantizeRequest) -> list[str]:
    """Returns the calibration samples of a request as options."""
    if request.calibrate:
        return ["--calibrate", write_path_word(request.calibrate)]
    return write_words(request)


def write_script(source: str, steps: Sequence[Step], *, stem: str, tool: str) -> str:
    """Writes the commands that make all `steps` of the model `source`.

    Args:
        source: Path or name of the model, as for `session.Session`.
        steps: States. Each parent precedes its children.
        stem: Base name for the files of states that the session did not save.
        tool: Name and version of the program.

    Raises:
        Misuse: The record of a state does not tell how it was made.
    """
    model = os.path.abspath(source) if os.path.exists(source) else source
    lines = [
        "#!/bin/sh",
        f"# What was done to {_on_one_line(source)}, as commands of {tool}:"
        " every file that this script writes equals the",
        "# session's, byte for byte, if the model and the program are unchanged. It writes into the",
        "# folder where it is started; pass another model as its argument.",
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
        output = _choose_file_name(entry, f"{stem}_{number}{ending}", used_names)
        name_text = f', "{_on_one_line(entry.name)}"' if entry.name else ""
        parent_text = "" if step.parent == last else f", made of {step.parent or 'the model'}"
        lines += ["", f"# {number}: {_on_one_line(entry.label)}{name_text}{parent_text}"]
        if entry.change not in list_offers("changes"):
            raise Misuse("no record says how this state was made", where=entry.label, hint="save it as ONNX")
        words, config = load("changes", entry.change).words(entry, write_path_word(f"{output}.toml"))
        if config:
            _, config_path = words[:2]  # --config FILE
            lines += [
                f"cat > {shlex.quote(config_path)} <<'{_CONFIG_DELIMITER}'",
                *(config.rstrip("\n"), _CONFIG_DELIMITER),
            ]
        opening = dict(step.opening)
        if opening.get("rules") is not None:  # the script may run in another folder
            opening["rules"] = os.path.abspath(opening["rules"])
        words += write_opening_words(opening)
        target = shlex.quote(write_path_word(output))
        lines.append(
            f"$explorer {entry.change} {files[step.parent]} -o {target} {shlex.join(words)}".rstrip()
        )
        files[number], last = target, number
    return "\n".join(lines) + "\n"


def write_quantize_option(request: QuantizeRequest) -> list[str] | None:
    """Returns the formats and samples of a quantization as options of `explorer tile`.

    Returns None if the quantization has other settings.
    """
    spec = request.spec
    expressible = QuantizeRequest(QuantizeSpec(spec.weight, spec.input, spec.bias, origins=spec.origins))
    if replace(request, calibrate="", as_graph=False) != expressible:
        return None
    words = write_quantize_words(request, modules=True) or []
    return ["--quantize" if word == "--to" else word for word in words]


def write_proof_words(proof: Verification | None) -> list[str]:
    """Returns the settings of a proof as options of the verb that made the state."""
    if proof is None:
        return ["--no-verify"]
    words = [] if len(proof.seeds) in (0, _DEFAULT_DRAWS) else ["--draws", str(len(proof.seeds))]
    if proof.seeds and proof.seeds[0] != _DEFAULT_SEED:
        words += ["--seed", str(proof.seeds[0])]
    return words


def _choose_file_name(entry: HistoryEntry, default_name: str, used_names: set[str]) -> str:
    """Chooses a unique file name for a state: the name under which it was saved, or `default_name`."""
    name = os.path.basename(entry.saved) or default_name
    while name in used_names:
        stem, ending = os.path.splitext(name)
        name = f"{stem}_{ending}"
    used_names.add(name)
    return name


def _on_one_line(text: str) -> str:
    """Puts a text on one line, so that it fits into a comment of a script."""
    return printable(" ".join(text.split()))
