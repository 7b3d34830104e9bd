"""Choice of number formats: the formats of every layer from a specification and its rules, with origins."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import Misuse, nearest
from explorer.engine.number_formats import format_of
from explorer.engine.number_formats.integer import Integer
from explorer.engine.number_formats.number_format import NumberFormat
from explorer.engine.quantize.layers import QUANTIZED, Part, QuantizableLayer
from explorer.engine.tiling.rules import Rules, decide, name_matcher
from explorer.facts import Layer
from explorer.facts.quantize import PARTS, Granularity, QuantizeSpec
from explorer.settings.filter import is_query, matcher

VALUES = (*PARTS, "granularity", "symmetric", "block", "on")
"""Settings that a rule decides."""

WrittenForm = Literal["qdq", "chain", "qoperator", "function", "nbits"]
"""How a layer is written: 'nbits' is MatMulNBits."""

BIAS = Integer("int32", 32)
"""Format of a bias: integers of the accumulator; its scale is that of the input times that of the weight."""


class LayerChoice(Struct, frozen=True):
    """The settings of a layer.

    Attributes:
        layer: The layer, with its weight, inputs and bias.
        weight, input, bias: Number formats; None for a part that is unchanged or missing. A bias of `BIAS`
            has the product of the two scales.
        granularity: Granularity of the weight's scales.
        symmetric: As in `QuantizeSpec`.
        block: Weights along the depth that share a scale; 0 for none.
        form: Its written form, with 'auto' resolved.
        unsaturated: As in `QuantizeSpec`.
        rounds: In a chain, the values that this layer has rounded to the format of its inputs.
        scale_sources: In a chain, values that take the scale of another value, with that value.
        origins: Origins of settings, by the names of `VALUES`: 'npu.toml:12', 'command line', or '' for the
            default.
        reason: Why the layer is unchanged; '' where a part of it takes a format.
    """

    layer: QuantizableLayer
    weight: NumberFormat | None = None
    input: NumberFormat | None = None
    bias: NumberFormat | None = None
    granularity: Granularity = "channel"
    symmetric: bool | None = None
    block: int = 0
    form: WrittenForm = "qdq"
    unsaturated: bool = False
    rounds: tuple[str, ...] = ()
    scale_sources: Mapping[str, str] = {}
    origins: Mapping[str, str] = {}
    reason: str = ""

    def symmetric_of(self, part: Part) -> bool:
        """Whether the zero point of a part's integers is 0 (or, unsigned, in the middle)."""
        if self.symmetric is not None:
            return self.symmetric
        return part != "input" or getattr(self.input, "signed", True)


_PASSING = ("int8", "uint8", "int16", "uint16")
"""Element types of values that pass a QuantizeLinear safely: onnxruntime 1.31 moves and fuses those of 4 bits
and of float8 into graphs that it then refuses, or that give other numbers."""


def is_called(choice: LayerChoice, part: Part) -> bool:
    """Whether a part of a layer is written as the call of a function.

    Beside a weight of floats, or of other types, the input is, too: onnxruntime would make the weight one of
    bytes by itself, where it sees that all around it is.
    """
    fmt: NumberFormat | None = getattr(choice, part)
    if fmt is None:
        return False
    if choice.form == "function" or fmt.writing == "function":
        return True
    weight = choice.weight if choice.layer.of("weight") else fmt
    sound = weight is not None and weight.element_type in _PASSING and weight.writing == "linear"
    return part == "input" and fmt.writing == "linear" and not (sound and fmt.element_type in _PASSING)


def choose(
    layers: Sequence[QuantizableLayer], spec: QuantizeSpec, rows: Callable[[], Sequence[Layer]] = tuple
) -> tuple[LayerChoice, ...]:
    """The choice for every layer by `spec`.

    Args:
        layers: Layers of the model.
        spec: The user's specification.
        rows: Rows of the analysis, which filters test.

    Raises:
        Misuse: A format is unknown, a pattern matches no layer, or no layer takes a format.
    """
    if not layers:
        raise Misuse("no layer multiplies or holds weights", hint="there is nothing to quantize")
    rules, meant = Rules(spec.rules), _meant(layers, spec, rows)
    for rule in spec.rules:  # also rules that match no layer
        for part in PARTS:
            name = getattr(rule, part)
            if name is not None and (part, name) != ("bias", "auto"):
                _named(part, name, _where(rule.origin, "--to"))
    return effective_choices([_choice(layer, spec, rules, meant) for layer in layers])


def _named(part: str, name: str, where: str) -> NumberFormat | None:
    """The format with this name, for a part of a layer."""
    if name != BIAS.name:
        return format_of(name, where)
    if part != "bias":
        message = f"{name} is for a bias, whose scale is the product of two"
        raise Misuse(message, where=where, hint=f"the {part} takes int16, or fixed24.12")
    return BIAS


def effective_choices(choices: Sequence[LayerChoice]) -> tuple[LayerChoice, ...]:
    """The choices, if a layer of them takes a format.

    Raises:
        Misuse: None does.
    """
    if all(choice.reason for choice in choices):
        reasons = "; ".join(dict.fromkeys(choice.reason for choice in choices))
        whole = {choice.reason for choice in choices} == {QUANTIZED}
        hint = "blame it against the float model to see what each layer lost" if whole else ""
        raise Misuse(f"no layer takes a number format ({reasons})", hint=hint)
    return tuple(choices)


_SHORTENED = {"chosen by hand": "hand"}
"""Origins of a choice as the reason of a layer that is switched off names them."""


def _choice(
    layer: QuantizableLayer, spec: QuantizeSpec, rules: Rules[Any], meant: Mapping[int, str]
) -> LayerChoice:
    values: dict[str, Any] = {value: getattr(spec, value, None) for value in VALUES}
    origins = decide(values, spec.origins, rules.matching(layer.name, layer.op, layer.sizes))
    on, named = values.pop("on"), meant.get(id(layer), "")
    reason = layer.reason
    if not reason and on is False:
        reason = f"switched off by {_SHORTENED.get(origins['on'], origins['on']) or 'the specification'}"
    elif not reason and named and on is None:
        reason = named
    settings = {name: values[name] for name in ("granularity", "symmetric", "block")}
    if reason:
        return LayerChoice(layer, **settings, origins=origins, reason=reason)
    parts = {
        part: _named(part, values[part], _where(origins[part], "--to"))
        for part in PARTS
        if (part, values[part]) != ("bias", "auto")
    }
    choice = LayerChoice(layer, **settings, unsaturated=spec.unsaturated, origins=origins)
    return _fitting(choice, parts, spec.form)


def _fitting(choice: LayerChoice, parts: Mapping[str, NumberFormat | None], form: str) -> LayerChoice:
    """The choice with the formats of the parts that the layer has, and with its written form."""
    layer = choice.layer
    taken = {part: fmt for part, fmt in parts.items() if fmt is not None and layer.of(part)}  # type: ignore[arg-type]
    if "bias" in taken and layer.of("bias")[0].tensor is None:
        del taken["bias"]  # its range is not known before the model runs
    scaled = [fmt for part in ("weight", "input") if isinstance(fmt := taken.get(part), Integer)]
    scaled = [] if choice.block else scaled  # no one scale is that of a sum over blocks
    if _in_one_scale(layer, scaled):
        choice = replace(choice, granularity="tensor")
    if "bias" not in parts and layer.of("bias") and layer.of("bias")[0].tensor:
        taken["bias"] = BIAS
    if taken.get("bias") is BIAS and (len(scaled) != 2 or not _of_channels(choice)):
        del taken["bias"]  # there is no accumulator of integers, or none with the scale of its numbers
    if not taken:
        missing = next((part for part in ("weight", "bias") if parts.get(part)), "")
        why = f"it has no stored {missing}" if missing else "no part of it is asked for"
        return replace(choice, reason=why)
    choice = replace(choice, **taken)
    dtype = layer.operands[0].dtype
    if dtype != "float32" and (cast := next((f.name for f in taken.values() if f.writing == "cast"), "")):
        return replace(choice, reason=f"onnxruntime drops a Cast of {dtype} to {cast} and back")
    if form == "qoperator":
        return replace(choice, form="qoperator", reason=_no_qoperator(choice))
    if form in ("qdq", "chain") and (
        named := [fmt.name for fmt in taken.values() if fmt.writing == "function"]
    ):
        return replace(choice, reason=f"QuantizeLinear has no {named[0]}: only a function says it")
    if form == "auto" and _in_blocks(choice):
        return replace(choice, form="nbits")
    written: Mapping[str, WrittenForm] = {"function": "function", "chain": "chain"}
    return replace(choice, form=written.get(form, "qdq"))


def _in_one_scale(layer: QuantizableLayer, scaled: Sequence[Integer]) -> bool:
    """Whether onnxruntime needs one scale for a weight of bytes, because it is no matrix on the right."""
    if len(scaled) != 2 or any(fmt.element_type not in ("int8", "uint8") for fmt in scaled):
        return False
    return layer.op in ("MatMul", "Gemm") and any(w.at == 0 or len(w.shape) > 2 for w in layer.of("weight"))


def _of_channels(choice: LayerChoice) -> bool:
    """Whether each number of a stored bias belongs to an output channel, or all have one scale."""
    (weight, *_), (bias, *_) = choice.layer.of("weight"), choice.layer.of("bias")
    if bias.tensor is None:
        return False
    if choice.granularity == "tensor" or choice.layer.op != "Gemm":
        return True
    return weight.at == 1 and bias.shape[-1:] == (weight.shape[weight.channel or 0],)


def _factors(layer: QuantizableLayer) -> tuple[float, float]:
    """Alpha and beta of a Gemm."""
    attributes = layer.node.attributes if layer.op == "Gemm" else {}
    return float(attributes.get("alpha", 1.0)), float(attributes.get("beta", 1.0))


def _no_qoperator(choice: LayerChoice) -> str:
    """Why a layer cannot be an operator of integers; '' where it can."""
    layer = choice.layer
    if layer.op not in ("Conv", "Gemm", "MatMul"):
        return f"there is no QOperator for {layer.op}"
    of = [choice.input, choice.weight if layer.of("weight") else choice.input]
    if any(fmt is None or fmt.element_type not in ("int8", "uint8") for fmt in of):
        return "a QOperator multiplies bytes: its input and its weight need int8 or uint8"
    if layer.of("bias") and choice.bias is not BIAS and not is_bias_added(choice):
        return "the bias of a QOperator is of integers, and stored"
    if (dtype := layer.operands[0].dtype) != "float32":
        return f"a QOperator stands between floats of 32 bits, not {dtype}"
    alpha, beta = _factors(layer)
    factors = beta != 1 or (alpha != 1 and layer.of("bias"))  # QGemm multiplies the bias by alpha, too
    if layer.op == "Gemm" and (not layer.of("weight") or layer.operands[0].tensor or factors):
        return "QGemm takes a stored weight on the right, no beta, and no alpha beside a bias"
    sides = [fmt.element_type for o in layer.operands if (fmt := getattr(choice, o.part)) is not None]
    if layer.op == "MatMul" and sides == ["int8", "uint8"]:
        return "onnxruntime has no QLinearMatMul of int8 on the left and uint8 on the right"
    return ""


def is_bias_added(choice: LayerChoice) -> bool:
    """Whether the bias of a Gemm goes into an Add behind the operator that replaces the Gemm.

    MatMulNBits needs a bias of a known shape, and QGemm one of integers: neither takes a bias that the model
    computes, or that is an input of it.
    """
    bias = choice.layer.of("bias")
    return choice.layer.op == "Gemm" and bool(bias) and bias[0].tensor is None


def _in_blocks(choice: LayerChoice) -> bool:
    """Whether MatMulNBits can compute a layer: a stored weight of 4 bits, as the right factor.

    From a DequantizeLinear in front of such a product, onnxruntime itself makes a MatMulNBits that rounds the
    activation to 8 bits, whatever the specification says.
    """
    layer, fmt = choice.layer, choice.weight
    if layer.op not in ("MatMul", "Gemm") or fmt is None or fmt.element_type not in ("int4", "uint4"):
        return False
    if layer.operands[0].dtype != "float32":
        return False
    weights = layer.of("weight")
    if len(weights) != 1 or weights[0].at != 1 or len(weights[0].shape) != 2 or _factors(layer) != (1.0, 1.0):
        return False
    block = choice.block if fmt.scaled and weights[0].shape[weights[0].depth or 0] > choice.block else 0
    is_supported = not block or (block >= 16 and block & (block - 1) == 0)
    return is_supported and not layer.node.attributes.get("transA", 0)


def _meant(
    layers: Sequence[QuantizableLayer], spec: QuantizeSpec, rows: Callable[[], Sequence[Layer]]
) -> dict[int, str]:
    """Reasons why layers are not selected by `spec.ops` and `spec.sites`, by the layer's id."""
    reasons: dict[int, str] = {}
    origins = dict(spec.origins)
    for op in spec.ops:
        if not any(fnmatch.fnmatchcase(layer.op, op) for layer in layers):
            where = _where(origins.get("ops", ""), "--op")
            raise Misuse(f"no layer is a '{op}'", where=where, hint=nearest(op, {la.op for la in layers}))
    site_ids = _sites(layers, spec.sites, rows, _where(origins.get("sites", ""), "--site"))
    for layer in layers:
        by_op = any(fnmatch.fnmatchcase(layer.op, op) for op in spec.ops)
        if spec.ops and not by_op:
            reasons[id(layer)] = "its operator is not chosen"
        elif spec.sites and id(layer) not in site_ids:
            reasons[id(layer)] = "it is not chosen"
        elif layer.asked and not by_op and not spec.sites:
            reasons[id(layer)] = f"left unless it is named: --op {layer.op}"
    return reasons


def _where(origin: str, option: str) -> str:
    return origin if ":" in origin or origin.startswith("--") else option


def _sites(
    layers: Sequence[QuantizableLayer], sites: Sequence[str], rows: Callable[[], Sequence[Layer]], where: str
) -> set[int]:
    """The ids of the layers that names, globs, 're:…' and filters select."""
    layer_ids: set[int] = set()
    for site in sites:
        hits = {id(layer) for layer in layers if site in (layer.name, layer.node.outputs[0])}
        matches = name_matcher(site, where)
        hits = hits or {id(layer) for layer in layers if matches(layer.name)}
        if not hits and not site.startswith("re:") and is_query(site):
            hits = _filtered_ids(layers, site, rows())
        if not hits:
            hint = nearest(site, [layer.name for layer in layers])
            raise Misuse(f"no layer is called '{site}'", where=where, hint=hint)
        layer_ids |= hits
    return layer_ids


def _filtered_ids(layers: Sequence[QuantizableLayer], query: str, rows: Sequence[Layer]) -> set[int]:
    """The ids of the layers that a filter selects; it tests the row that makes a layer's output."""
    layers_by_id = {id(layer): layer for layer in layers}
    of_output = {layer.node.outputs[0]: at for at, layer in layers_by_id.items()}
    matches, layer_ids = matcher(query), set()
    for row in rows:
        at = next((of_output[out.name] for out in row.outputs if out.name in of_output), None)
        if at is not None and not row.group:
            sizes = dict(zip("MKN", layers_by_id[at].sizes or (), strict=False))
            row = replace(row, attributes={**row.attributes, **sizes})
        if matches(row) and at is not None:
            layer_ids.add(at)
    return layer_ids
