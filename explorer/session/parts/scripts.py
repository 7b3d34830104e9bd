"""A session as a shell script: the commands that make its files again, byte for byte.

A script says everything itself: what a command line cannot (rules for single sites, very many sites) it
writes into a file for `--config` first. It names the model with its whole path, takes another one as its
argument, and writes into the folder where it is started, never over a file that is there.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.base.features import load, offered
from explorer.base.units import printable
from explorer.facts import HistoryEntry, TileSpec, Verification
from explorer.facts.quantize import PARTS, QuantizeRequest, QuantizeSpec
from explorer.session.parts.models import Models, stem
from explorer.settings.option_values import COMMAND_LINE, is_said, words_of
from explorer.settings.parse import opening_words, path_word
from explorer.settings.quantize import is_fast, names_formats

MOST_CHARACTERS = 4_000
"""Of a command's sites; more go into a file."""
_END = "END OF THE TILING"
_USUAL_DRAWS, _USUAL_SEED = 3, 0


class Step(Struct, frozen=True):
    """A state and how it was made.

    Attributes:
        entry: The state.
        opening: With which options the state before it has to be opened; see `arguments.opening_words`.
        number: Of the state.
        before: Of the state that it was made of; 0 is the model.
    """

    entry: HistoryEntry
    opening: Mapping[str, Any]
    number: int
    before: int


def headless(models: Models, verb: str, output: str | None, ending: str, *words: str) -> str:
    """The command that does to the opened model what was done; '' where it has no name to be opened by.

    Without an `output` its file is called as the model is, with this `ending`.
    """
    if models.module is not None:
        return ""
    target = path_word(output or f"{stem(models.source)}{ending}")
    head = ["explorer", verb, path_word(models.source), "-o", target]
    return shlex.join([*head, *words, *opening_words(models.options)])


def tiling_words(spec: TileSpec) -> list[str] | None:
    """`spec` as options of `explorer tile`; None where options cannot say it.

    What stands in the file that the specification was read from is left to that file.
    """
    if spec.rules and not spec.config:
        return None
    return words_of(spec)


def quantize_words(request: QuantizeRequest, *, modules: bool = False) -> list[str] | None:
    """A quantization as options of `explorer quantize`; None where options cannot say it.

    Args:
        request: It.
        modules: Layers of an nn.Module take the formats, which are written in one way.
    """
    spec = request.spec
    if spec.rules and not spec.config:
        return None
    words = ["--config", path_word(spec.config)] if spec.config else []
    if not spec.config or is_said(spec, *PARTS):
        # above a file that names no format, parts that are not named would stay as they are
        merged = spec.config and names_formats(spec)
        named = [part for part in PARTS if not merged or dict(spec.origins).get(part) == COMMAND_LINE]
        parts = [f"{part}={getattr(spec, part)}" for part in named]
        alike = spec.weight == spec.input and spec.bias == "auto" and not spec.block and len(named) == 3
        words += ["--to", spec.weight if alike else ",".join(parts)]
    if spec.symmetric is not None and is_said(spec, "symmetric"):
        words.append("--symmetric" if spec.symmetric else "--asymmetric")
    unused = () if spec.calibrator == "percentile" else ("percentile",)
    words += words_of(spec, without=("config", *PARTS, "symmetric", *unused))
    if is_fast(words) and not modules:
        words += ["--form", spec.form]  # a replay chooses nothing by itself
    return words + calibration_words(request)


def calibration_words(request: QuantizeRequest) -> list[str]:
    """What ranges are chosen on, as options."""
    if request.calibrate:
        return ["--calibrate", path_word(request.calibrate)]
    return words_of(request)


def as_script(source: str, steps: Sequence[Step], *, stem: str, tool: str) -> str:
    """The commands that make all `steps` of the model `source`, each of the one that it was made of.

    Args:
        source: A path or a name, as for `session.Session`.
        steps: States, none before that which it was made of.
        stem: What files are called that were saved under no name.
        tool: The program and its version.

    Raises:
        Misuse: A state does not say how it was made.
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
    taken: set[str] = set()
    files, last = {0: '"$model"'}, 0
    for step in steps:
        entry, number = step.entry, step.number
        ending = ".pt2" if entry.path is None else ".onnx"
        output = _output(entry, f"{stem}_{number}{ending}", taken)
        named = f', "{_comment(entry.name)}"' if entry.name else ""
        branch = "" if step.before == last else f", made of {step.before or 'the model'}"
        lines += ["", f"# {number}: {_comment(entry.label)}{named}{branch}"]
        if entry.change not in offered("changes"):
            raise Misuse("this state does not say how it was made", where=entry.label, hint="save it as ONNX")
        words, config = load("changes", entry.change).words(entry, path_word(f"{output}.toml"))
        if config:
            lines += [f"cat > {shlex.quote(words[1])} <<'{_END}'", config.rstrip("\n"), _END]
        opening = dict(step.opening)
        if opening.get("rules") is not None:  # the script runs elsewhere: what it reads has to be found
            opening["rules"] = os.path.abspath(opening["rules"])
        words += opening_words(opening)
        target = shlex.quote(path_word(output))
        lines.append(
            f"$explorer {entry.change} {files[step.before]} -o {target} {shlex.join(words)}".rstrip()
        )
        files[number], last = target, number
    return "\n".join(lines) + "\n"


def quantize_option(request: QuantizeRequest) -> list[str] | None:
    """A quantization as options of `explorer tile`: its formats, its samples; None for one that has more."""
    spec = request.spec
    plain = QuantizeRequest(QuantizeSpec(spec.weight, spec.input, spec.bias, origins=spec.origins))
    if replace(request, calibrate="", as_graph=False) != plain:
        return None
    words = quantize_words(request, modules=True) or []
    return ["--quantize" if word == "--to" else word for word in words]


def proof_words(proof: Verification | None) -> list[str]:
    """How a state was proved, as options of the verb that made it."""
    if proof is None:
        return ["--no-verify"]
    words = [] if len(proof.seeds) in (0, _USUAL_DRAWS) else ["--draws", str(len(proof.seeds))]
    if proof.seeds and proof.seeds[0] != _USUAL_SEED:
        words += ["--seed", str(proof.seeds[0])]
    return words


def _output(entry: HistoryEntry, otherwise: str, taken: set[str]) -> str:
    """A name of its own for the file of a state: that under which it was saved, if it is free."""
    name = os.path.basename(entry.saved) or otherwise
    while name in taken:
        stem, ending = os.path.splitext(name)
        name = f"{stem}_{ending}"
    taken.add(name)
    return name


def _comment(text: str) -> str:
    """A text on one line of a comment."""
    return printable(" ".join(text.split()))
