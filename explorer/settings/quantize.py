"""Quantization settings: number formats for all layers and for single layers, from a TOML file and options.

    [quantize]
    weight = "int8"           # input and bias have the same syntax; float32 leaves a part unchanged
    form = "qdq"              # QuantizeLinear and DequantizeLinear
    sites = ["*encoder*"]     # quantize only these layers

    [[quantize.site]]         # the first matching table with a value decides that value
    site = "re:fc[12]$"       # a name, a glob or 're:' and a regular expression
    op = "Gemm"               # a glob
    shape = "K>=64"           # conditions on the sizes of the product
    weight = "int4"
    block = 32
    on = false                # leave the layer unchanged

The same file may hold tilings. `settings.tiling` describes precedence and origins, which are the same here.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.base.options import find_option, list_group
from explorer.facts.quantize import PARTS, QuantizeRule, QuantizeSpec
from explorer.settings.option_values import COMMAND_LINE, apply_typed, list_rule_values, read_option
from explorer.settings.tables import read_content, read_spec, write_spec

BY_HAND = "chosen by hand"
"""Origin of a rule from a choice on the screen."""


def build_spec(path: str | None, typed: Mapping[str, Any], formats: str | None = None) -> QuantizeSpec:
    """Builds the effective specification: defaults, then the file, then the command line.

    A typed value holds for every layer and overrides the tables of the file. The same is true of `ops` and
    `sites`, which decide the layers to quantize. A typed percentile selects the calibrator 'percentile'.

    Args:
        path: Path of the file, or None.
        typed: Typed values by field of `QuantizeSpec`.
        formats: Typed number formats, as `parse_formats` reads them. Other parts have the formats of the
            file, or stay unquantized if the file names none.

    Raises:
        Misuse: The file cannot be read or is invalid. The message names file and line.
    """
    spec = QuantizeSpec() if path is None else read_text(read_content(path), path)
    if formats is not None:
        has_blocks = bool(typed.get("block", spec.block))
        typed = {**typed, **parse_formats(formats, blocks=has_blocks, complete=not has_formats(spec))}
    if "percentile" in typed:
        typed = {"calibrator": "percentile", **typed}
    return replace(apply_typed(spec, typed), overridden=tuple(_list_overridden(spec, typed)))


def _list_overridden(spec: QuantizeSpec, typed: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yields the number formats of a file that typed values override, each as part, name and place."""
    parts, origins = [part for part in PARTS if part in typed], dict(spec.origins)
    yield from ((part, getattr(spec, part), origins[part]) for part in parts if part in origins)
    for rule in spec.rules:
        formats = ((part, getattr(rule, part)) for part in parts)
        yield from ((part, name, rule.origin) for part, name in formats if name is not None)


def is_form_open(words: Sequence[str]) -> bool:
    """Whether a command line requests int8 and leaves the form of the operators to the program.

    Args:
        words: Options of the command line, each followed by its value.
    """
    is_default = "--to" not in words or words[words.index("--to") + 1].strip() == QuantizeSpec().weight
    form_flags = {option.flag for option in list_group(QuantizeSpec, "scales", "written")}
    return is_default and form_flags.isdisjoint(words) and not {"--config", "--asymmetric"} & set(words)


def has_formats(spec: QuantizeSpec) -> bool:
    """Whether the file sets a number format for all layers or for some."""
    has_rule = any(getattr(rule, part) is not None for rule in spec.rules for part in PARTS)
    return has_rule or any(name in PARTS and origin != COMMAND_LINE for name, origin in spec.origins)


def parse_formats(
    text: str, where: str = "--to", *, blocks: bool = False, complete: bool = True
) -> dict[str, str]:
    """Parses number formats of weight, input and bias: 'int8', 'weight=fixed8.4,input=fixed8.4,bias=float32'.

    A single format applies to weights and inputs (with `blocks` to weights only), and biases follow. If parts
    are named, all other parts are float32, or missing with `complete=False`. The names of the formats are not
    checked here.

    Raises:
        Misuse: A part is unknown or repeated, or has no format.
    """
    if "=" not in text:
        name = text.strip()
        return {"weight": name, "input": "float32" if blocks else name, "bias": "auto"}
    formats: dict[str, str] = {}
    for part_text in text.split(","):
        part, sign, name = (word.strip() for word in part_text.partition("="))
        if part not in ("weight", "input", "bias") or not sign or not name:
            raise Misuse(
                f"'{part_text}' does not set the format of a part",
                where=where,
                hint="write weight=int8,input=int8",
            )
        if part in formats:
            raise Misuse(f"the {part} has two formats", where=where, hint="name each part once")
        formats[part] = name
    return {**dict.fromkeys(PARTS, "float32"), **formats} if complete else formats


def parse_spec(text: str, where: str) -> QuantizeSpec:
    """Builds a specification from number formats, as `parse_formats` reads them.

    Raises:
        Misuse: A part is unknown or repeated, or has no format.
    """
    formats = parse_formats(text, where)
    return replace(QuantizeSpec(), **formats, origins=tuple((part, where) for part in formats))


def add_layer_choice(
    spec: QuantizeSpec,
    layer: str,
    *,
    weight: str | None = None,
    input: str | None = None,
    bias: str | None = None,
    on: bool | None = None,
) -> QuantizeSpec:
    """Adds a choice on the screen for one layer to a specification, in front of all other rules.

    Args:
        spec: Specification.
        layer: Name of the layer, not a glob. An earlier choice for it is replaced, or removed if no value is
            given.
        weight: Number format of the weight, or None to keep the format in `spec`.
        input: Number format of the input, or None.
        bias: Number format of the bias, or None.
        on: Whether to quantize the layer, or None.
    """
    site = glob.escape(layer)
    rule = QuantizeRule(site=site, weight=weight, input=input, bias=bias, on=on, origin=BY_HAND)
    other_rules = [other for other in spec.rules if (other.site, other.origin) != (site, BY_HAND)]
    sets_value = any(getattr(rule, name) is not None for name in list_rule_values(QuantizeRule))
    return replace(spec, rules=(*([rule] if sets_value else []), *other_rules))


def read_field(name: str, value: Any, where: str) -> Any:
    """Reads the value of a field of `QuantizeSpec` from a text.

    Raises:
        Misuse: The value is invalid.
    """
    return read_option(find_option(QuantizeSpec, name), value, where)


def read_text(toml: bytes | str, path: str) -> QuantizeSpec:
    """Reads the contents of a file: the table `[quantize]` and the tables `[[quantize.site]]`.

    Raises:
        Misuse: The text is not TOML or is invalid.
    """
    spec = read_spec(toml, path, QuantizeSpec, QuantizeRule, table="quantize", rules=("quantize", "site"))
    origins = dict(spec.origins)
    if "percentile" in origins and "calibrator" not in origins:
        origins = {"calibrator": origins["percentile"], **origins}
        spec = replace(spec, calibrator="percentile", origins=tuple(origins.items()))
    return spec


def write_toml(spec: QuantizeSpec) -> str:
    """Writes a specification as a file: the values that differ from the defaults, and the rules."""
    if spec.calibrator != "percentile":
        spec = replace(spec, percentile=QuantizeSpec().percentile)
    return write_spec(spec, table="quantize", rules=("quantize", "site"))
