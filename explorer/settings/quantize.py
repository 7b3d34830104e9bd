"""Quantization file: number formats in a file of the user's own, for all layers and for some of them.

    [quantize]
    weight = "int8"           # so are input and bias; float32 leaves a part as it is
    form = "qdq"              # QuantizeLinear and DequantizeLinear
    sites = ["*encoder*"]     # only these; all without it

    [[quantize.site]]         # the first table that means a layer and has a value decides that value
    site = "re:fc[12]$"       # a name, a glob or 're:' and a regular expression; op is a glob
    op = "Gemm"
    shape = "K>=64"           # conditions on the sizes of the product
    weight = "int4"
    block = 32
    on = false                # leave it as it is

The same file may hold tilings. Precedence and lines are as there (`settings.tiling`).
"""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.base.options import group_of, option_of
from explorer.facts.quantize import PARTS, QuantizeRule, QuantizeSpec
from explorer.settings.option_values import COMMAND_LINE, read_option, rule_values, with_typed
from explorer.settings.tables import content, read_spec, written_spec

BY_HAND = "chosen by hand"
"""The origin of a rule that no file has."""


def spec_of(path: str | None, typed: Mapping[str, Any], formats: str | None = None) -> QuantizeSpec:
    """The specification that holds: default < file < command line, field by field.

    What was typed holds for every layer, over the file's own tables too; so do `ops` and `sites`, which
    decide what is switched on. A percentile alone asks for the calibrator that it is of.

    Args:
        path: Of the file; None for none.
        typed: Fields of `QuantizeSpec` that were really typed.
        formats: Number formats that were typed, as `parse_formats` reads them. Parts that it does not name
            are those of the file; where that names no format, they stay as they are.

    Raises:
        Misuse: The file cannot be read, or says something that cannot be; file and line are named.
    """
    spec = QuantizeSpec() if path is None else read_text(content(path), path)
    if formats is not None:
        blocks, in_file = bool(typed.get("block", spec.block)), names_formats(spec)
        typed = {**typed, **parse_formats(formats, blocks=blocks, complete=not in_file)}
    if "percentile" in typed:
        typed = {"calibrator": "percentile", **typed}
    return with_typed(spec, typed)


def is_fast(words: Sequence[str]) -> bool:
    """Whether a command line asks for int8 and leaves it to the program how that is written.

    Args:
        words: Its options, each with its value behind it.
    """
    alone = "--to" not in words or words[words.index("--to") + 1].strip() == QuantizeSpec().weight
    written = {option.flag for option in group_of(QuantizeSpec, "scales", "written")}
    return alone and written.isdisjoint(words) and not {"--config", "--asymmetric"} & set(words)


def names_formats(spec: QuantizeSpec) -> bool:
    """Whether a file gives a part of all layers, or of some, the number format that it has in `spec`."""
    ruled = any(getattr(rule, part) is not None for rule in spec.rules for part in PARTS)
    return ruled or any(name in PARTS and origin != COMMAND_LINE for name, origin in spec.origins)


def parse_formats(
    text: str, where: str = "--to", *, blocks: bool = False, complete: bool = True
) -> dict[str, str]:
    """Number formats of weight, input and bias: 'int8', 'weight=fixed8.4,input=fixed8.4,bias=float32'.

    A format by itself is that of weights and inputs (with `blocks` of weights alone), and the bias follows
    them; where parts are named, the others stay float32, or with `complete=False` are left out. Which formats
    there are is not known here.

    Raises:
        Misuse: A part is not known, or stands there twice.
    """
    if "=" not in text:
        name = text.strip()
        return {"weight": name, "input": "float32" if blocks else name, "bias": "auto"}
    formats: dict[str, str] = {}
    for piece in text.split(","):
        part, sign, name = (word.strip() for word in piece.partition("="))
        if part not in ("weight", "input", "bias") or not sign or not name:
            raise Misuse(
                f"'{piece}' is no format of a part", where=where, hint="write weight=int8,input=int8"
            )
        if part in formats:
            raise Misuse(f"the {part} has two formats", where=where, hint="name each part once")
        formats[part] = name
    return {**dict.fromkeys(PARTS, "float32"), **formats} if complete else formats


def of_text(text: str, where: str) -> QuantizeSpec:
    """The specification that number formats alone make, as `parse_formats` reads them.

    Raises:
        Misuse: A part is not known, or stands there twice.
    """
    formats = parse_formats(text, where)
    return replace(QuantizeSpec(), **formats, origins=tuple((part, where) for part in formats))


def for_layer(
    spec: QuantizeSpec,
    layer: str,
    *,
    weight: str | None = None,
    input: str | None = None,
    bias: str | None = None,
    on: bool | None = None,
) -> QuantizeSpec:
    """The specification with a choice made by hand for one layer, before all other rules.

    Args:
        spec: What was asked.
        layer: Its name, no glob. What was chosen for it by hand before is forgotten.
        weight: A number format; None leaves it as `spec` has it.
        input: Likewise.
        bias: Likewise.
        on: False leaves the layer as it is.
    """
    site = glob.escape(layer)
    rule = QuantizeRule(site=site, weight=weight, input=input, bias=bias, on=on, origin=BY_HAND)
    rest = [
        rule_before for rule_before in spec.rules if (rule_before.site, rule_before.origin) != (site, BY_HAND)
    ]
    asks = any(getattr(rule, name) is not None for name in rule_values(QuantizeRule))
    return replace(spec, rules=(*([rule] if asks else []), *rest))


def checked(name: str, value: Any, where: str) -> Any:
    """The value of a field of `QuantizeSpec`, typed wherever it may be.

    Raises:
        Misuse: It cannot be.
    """
    return read_option(option_of(QuantizeSpec, name), value, where)


def read_text(toml: bytes | str, path: str) -> QuantizeSpec:
    """What stands in the file `path`: its `[quantize]`, with defaults, and its `[[quantize.site]]` tables.

    Raises:
        Misuse: It is no TOML, or says something that cannot be.
    """
    spec = read_spec(toml, path, QuantizeSpec, QuantizeRule, table="quantize", rules=("quantize", "site"))
    origins = dict(spec.origins)
    if "percentile" in origins and "calibrator" not in origins:
        origins = {"calibrator": origins["percentile"], **origins}
        spec = replace(spec, calibrator="percentile", origins=tuple(origins.items()))
    return spec


def as_toml(spec: QuantizeSpec) -> str:
    """A file that says what `spec` says: only what differs from the defaults, and the rules."""
    if spec.calibrator != "percentile":
        spec = replace(spec, percentile=QuantizeSpec().percentile)
    return written_spec(spec, table="quantize", rules=("quantize", "site"))
