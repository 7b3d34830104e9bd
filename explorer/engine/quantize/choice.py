"""Choice of number formats: the format of every part of every layer, from a specification and its rules.

Each setting records its origin: a line of a file, a command-line option, or the default.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import Misuse, suggest_name
from explorer.engine.number_formats import find_format
from explorer.engine.number_formats.integer import Integer
from explorer.engine.number_formats.number_format import NumberFormat
from explorer.engine.quantize.layers import QUANTIZED, Part, QuantizableLayer
from explorer.engine.tiling.rules import Rules, apply_rules, make_name_matcher
from explorer.facts import Layer
from explorer.facts.quantize import PARTS, Granularity, QuantizeSpec
from explorer.settings.filter import build_matcher, is_query

RULE_SETTINGS = (*PARTS, "granularity", "symmetric", "block", "on")
"""Names of the settings that a rule can set."""

WrittenForm = Literal["qdq", "chain", "qoperator", "function", "nbits"]
"""Form in which a layer is written to ONNX. 'nbits' is the operator MatMulNBits."""

BIAS = Integer("int32", 32)
"""Format of an int32 bias, whose scale is the product of the scales of input and weight."""


class LayerChoice(Struct, frozen=True):
    """The quantization settings of a layer.

    Attributes:
        layer: The layer, with its weights, inputs and biases.
        weight, input, bias: Number format, or None if the part is unchanged or missing. The scale of a bias
            in the format `BIAS` is the product of the scales of input and weight.
        granularity: Granularity of the weight's scales.
        symmetric: Whether zero points are fixed, as in `QuantizeSpec`.
        block: Number of weights along K, the summed axis, that share a scale, or 0 for no blocks.
        form: Form in which the layer is written; 'auto' is already resolved.
        unsaturated: Whether pairs of products must fit 16 bits, as in `QuantizeSpec`.
        rounded_values: Names of values in a chain that are rounded to this layer's input format.
        scale_sources: For each value in a chain that shares the scale of another value, the name of the other
            value.
        origins: Origin of each setting in `RULE_SETTINGS`: 'npu.toml:12', 'command line', or '' for the
            default.
        reason: Reason why the layer is unchanged, or '' if at least one part takes a format.
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
    rounded_values: tuple[str, ...] = ()
    scale_sources: Mapping[str, str] = {}
    origins: Mapping[str, str] = {}
    reason: str = ""

    def is_symmetric(self, part: Part) -> bool:
        """Whether the zero point of a part is fixed: at 0, or for unsigned codes in the middle."""
        if self.symmetric is not None:
            return self.symmetric
        return part != "input" or getattr(self.input, "signed", True)


_SAFE_TYPES = ("int8", "uint8", "int16", "uint16")
"""Element types that are safe in QuantizeLinear.

With 4-bit and float8 types, onnxruntime 1.31 moves and fuses nodes into graphs that it rejects, or that give
other numbers.
"""


def is_function_call(choice: LayerChoice, part: Part) -> bool:
    """Whether a part of a layer is written as a function call instead of QuantizeLinear.

    This is also true for an input in an unsafe type, and for an input whose layer has a weight in floats or
    in an unsafe type. Otherwise onnxruntime would quantize that weight to 8 bits too, because the nodes
    around it are quantized.
    """
    fmt: NumberFormat | None = getattr(choice, part)
    if fmt is None:
        return False
    if choice.form == "function" or fmt.writing == "function":
        return True
    weight = choice.weight if choice.layer.list_operands("weight") else fmt
    has_safe_weight = weight is not None and weight.element_type in _SAFE_TYPES and weight.writing == "linear"
    is_safe = has_safe_weight and fmt.element_type in _SAFE_TYPES
    return part == "input" and fmt.writing == "linear" and not is_safe


def choose(
    layers: Sequence[QuantizableLayer], spec: QuantizeSpec, rows: Callable[[], Sequence[Layer]] = tuple
) -> tuple[LayerChoice, ...]:
    """Chooses the number formats of every layer by `spec`.

    Args:
        layers: Layers of the model.
        spec: Specification of the user.
        rows: Function that returns the rows of the layer tree; filters in `spec.sites` test them.

    Raises:
        Misuse: A format is unknown, a pattern matches no layer, or no layer takes a format.
    """
    if not layers:
        raise Misuse("no layer multiplies or holds weights", hint="there is nothing to quantize")
    rules, unselected = Rules(spec.rules), _explain_unselected(layers, spec, rows)
    for part, name, origin in _list_named_formats(spec):  # including formats that no layer takes
        if name is not None and (part, name) != ("bias", "auto"):
            _format_by_name(part, name, _describe_location(origin, "--to"))
    return check_choices([_choose_for_layer(layer, spec, rules, unselected) for layer in layers])


def _list_named_formats(spec: QuantizeSpec) -> Iterator[tuple[str, str | None, str]]:
    """Yields the part, the name and the origin of all number formats that a specification names."""
    origins = dict(spec.origins)
    yield from spec.overridden
    yield from ((part, getattr(spec, part), origins.get(part, "")) for part in PARTS)
    yield from ((part, getattr(rule, part), rule.origin) for rule in spec.rules for part in PARTS)


def _format_by_name(part: str, name: str, where: str) -> NumberFormat | None:
    """Returns the format called `name` for a part of a layer, or None for floats.

    Raises:
        Misuse: The format is unknown, or the part cannot take it.
    """
    if name != BIAS.name:
        return find_format(name, where)
    if part != "bias":
        message = f"{name} is only for a bias, whose scale is the product of the scales of weight and input"
        raise Misuse(message, where=where, hint=f"the {part} takes int16, or fixed24.12")
    return BIAS


def check_choices(choices: Sequence[LayerChoice]) -> tuple[LayerChoice, ...]:
    """Returns the choices unchanged, after checking that at least one layer takes a format.

    Raises:
        Misuse: No layer takes a format.
    """
    if all(choice.reason for choice in choices):
        reasons = "; ".join(dict.fromkeys(choice.reason for choice in choices))
        all_quantized = {choice.reason for choice in choices} == {QUANTIZED}
        hint = "explorer blame FLOAT_MODEL MODEL shows what each layer lost" if all_quantized else ""
        raise Misuse(f"no layer takes a number format ({reasons})", hint=hint)
    return tuple(choices)


_SHORT_ORIGINS = {"chosen by hand": "hand"}
"""Short names of origins, for the reason why a layer is switched off."""


def _choose_for_layer(
    layer: QuantizableLayer, spec: QuantizeSpec, rules: Rules[Any], unselected: Mapping[int, str]
) -> LayerChoice:
    """Chooses the formats of a layer from the specification and the rules that match the layer."""
    values: dict[str, Any] = {value: getattr(spec, value, None) for value in RULE_SETTINGS}
    origins = apply_rules(values, spec.origins, rules.find_matching(layer.name, layer.op, layer.sizes))
    is_on, unselected_reason = values.pop("on"), unselected.get(id(layer), "")
    reason = layer.reason
    if not reason and is_on is False:
        reason = f"switched off by {_SHORT_ORIGINS.get(origins['on'], origins['on']) or 'the specification'}"
    elif not reason and unselected_reason and is_on is None:
        reason = unselected_reason
    settings = {name: values[name] for name in ("granularity", "symmetric", "block")}
    if reason:
        return LayerChoice(layer, **settings, origins=origins, reason=reason)
    parts = {
        part: _format_by_name(part, values[part], _describe_location(origins[part], "--to"))
        for part in PARTS
        if (part, values[part]) != ("bias", "auto")
    }
    choice = LayerChoice(layer, **settings, unsaturated=spec.unsaturated, origins=origins)
    return _resolve_choice(choice, parts, spec.form)


def _resolve_choice(choice: LayerChoice, parts: Mapping[str, NumberFormat | None], form: str) -> LayerChoice:
    """Resolves a choice: the formats of the parts that the layer has, and its written form."""
    layer = choice.layer
    formats = {part: fmt for part, fmt in parts.items() if fmt is not None and layer.list_operands(part)}  # type: ignore[arg-type]
    if "bias" in formats and layer.list_operands("bias")[0].tensor is None:
        del formats["bias"]  # the range of a computed bias is unknown before the model runs
    integer_formats = [fmt for part in ("weight", "input") if isinstance(fmt := formats.get(part), Integer)]
    integer_formats = [] if choice.block else integer_formats  # a sum over blocks has no single scale
    if _needs_one_scale(layer, integer_formats):
        choice = replace(choice, granularity="tensor")
    if "bias" not in parts and layer.list_operands("bias") and layer.list_operands("bias")[0].tensor:
        formats["bias"] = BIAS
    if formats.get("bias") is BIAS and (len(integer_formats) != 2 or not _can_scale_bias(choice)):
        del formats["bias"]  # no integer accumulator has the scale of this bias
    if not formats:
        missing_part = next((part for part in ("weight", "bias") if parts.get(part)), "")
        reason = f"it has no stored {missing_part}" if missing_part else "none of its parts is selected"
        return replace(choice, reason=reason)
    choice = replace(choice, **formats)
    dtype = layer.operands[0].dtype
    if dtype != "float32" and (cast := next((f.name for f in formats.values() if f.writing == "cast"), "")):
        return replace(choice, reason=f"onnxruntime drops a Cast of {dtype} to {cast} and back")
    if form == "qoperator":
        return replace(choice, form="qoperator", reason=_explain_no_qoperator(choice))
    if form in ("qdq", "chain") and (
        function_formats := [fmt.name for fmt in formats.values() if fmt.writing == "function"]
    ):
        return replace(choice, reason=f"QuantizeLinear has no {function_formats[0]}: only a function has it")
    if form == "auto" and _fits_nbits(choice):
        return replace(choice, form="nbits")
    forms: Mapping[str, WrittenForm] = {"function": "function", "chain": "chain"}
    return replace(choice, form=forms.get(form, "qdq"))


def _needs_one_scale(layer: QuantizableLayer, integer_formats: Sequence[Integer]) -> bool:
    """Whether onnxruntime needs one scale for the whole 8-bit weight.

    It does if the weight of a matrix product is on the left or has more than two axes, and the input has
    8 bits, too.
    """
    if len(integer_formats) != 2 or any(fmt.element_type not in ("int8", "uint8") for fmt in integer_formats):
        return False
    return layer.op in ("MatMul", "Gemm") and any(
        w.input_index == 0 or len(w.shape) > 2 for w in layer.list_operands("weight")
    )


def _can_scale_bias(choice: LayerChoice) -> bool:
    """Whether the weight's scales give each number of a stored bias one scale.

    This holds if there is one scale for all, or if each number belongs to one output channel.
    """
    (weight, *_), (bias, *_) = choice.layer.list_operands("weight"), choice.layer.list_operands("bias")
    if bias.tensor is None:
        return False
    if choice.granularity == "tensor" or choice.layer.op != "Gemm":
        return True
    return weight.input_index == 1 and bias.shape[-1:] == (weight.shape[weight.channel or 0],)


def _get_gemm_factors(layer: QuantizableLayer) -> tuple[float, float]:
    """Returns alpha and beta of a Gemm, or 1 and 1 for another operator."""
    attributes = layer.node.attributes if layer.op == "Gemm" else {}
    return float(attributes.get("alpha", 1.0)), float(attributes.get("beta", 1.0))


def _explain_no_qoperator(choice: LayerChoice) -> str:
    """Returns the reason why a layer cannot be an integer operator (QOperator), or '' if it can."""
    layer = choice.layer
    if layer.op not in ("Conv", "Gemm", "MatMul"):
        return f"there is no QOperator for {layer.op}"
    factor_formats = [choice.input, choice.weight if layer.list_operands("weight") else choice.input]
    if any(fmt is None or fmt.element_type not in ("int8", "uint8") for fmt in factor_formats):
        return "a QOperator multiplies bytes: its input and its weight need int8 or uint8"
    if layer.list_operands("bias") and choice.bias is not BIAS and not is_bias_added(choice):
        return "the bias of a QOperator must be stored as integers"
    if (dtype := layer.operands[0].dtype) != "float32":
        return f"a QOperator needs float32 inputs and outputs, not {dtype}"
    alpha, beta = _get_gemm_factors(layer)
    # QGemm multiplies the bias by alpha, too
    has_factors = beta != 1 or (alpha != 1 and layer.list_operands("bias"))
    if layer.op == "Gemm" and (not layer.list_operands("weight") or layer.operands[0].tensor or has_factors):
        return "QGemm needs a stored weight on the right, beta = 1, and with a bias alpha = 1"
    factor_types = [fmt.element_type for o in layer.operands if (fmt := getattr(choice, o.part)) is not None]
    if layer.op == "MatMul" and factor_types == ["int8", "uint8"]:
        return "onnxruntime has no QLinearMatMul of int8 on the left and uint8 on the right"
    return ""


def is_bias_added(choice: LayerChoice) -> bool:
    """Whether the bias of a Gemm becomes a separate Add after the operator that replaces the Gemm.

    MatMulNBits needs a bias of a known shape, and QGemm needs an integer bias. Neither accepts a bias that
    the model computes or receives as an input.
    """
    bias = choice.layer.list_operands("bias")
    return choice.layer.op == "Gemm" and bool(bias) and bias[0].tensor is None


def _fits_nbits(choice: LayerChoice) -> bool:
    """Whether MatMulNBits can compute a layer: its right factor is a stored 4-bit weight.

    If a DequantizeLinear precedes such a product, onnxruntime replaces both by a MatMulNBits that rounds the
    activation to 8 bits, even if the specification keeps the activation in floats.
    """
    layer, fmt = choice.layer, choice.weight
    if layer.op not in ("MatMul", "Gemm") or fmt is None or fmt.element_type not in ("int4", "uint4"):
        return False
    if layer.operands[0].dtype != "float32":
        return False
    weights = layer.list_operands("weight")
    if (
        len(weights) != 1
        or weights[0].input_index != 1
        or len(weights[0].shape) != 2
        or _get_gemm_factors(layer) != (1.0, 1.0)
    ):
        return False
    block = choice.block if fmt.scaled and weights[0].shape[weights[0].depth or 0] > choice.block else 0
    is_supported = not block or (block >= 16 and block & (block - 1) == 0)  # a power of two
    return is_supported and not layer.node.attributes.get("transA", 0)


def _explain_unselected(
    layers: Sequence[QuantizableLayer], spec: QuantizeSpec, rows: Callable[[], Sequence[Layer]]
) -> dict[int, str]:
    """Returns the reason why `spec.ops` or `spec.sites` does not select a layer, by the id of the layer."""
    reasons: dict[int, str] = {}
    origins = dict(spec.origins)
    for op in spec.ops:
        if not any(fnmatch.fnmatchcase(layer.op, op) for layer in layers):
            where = _describe_location(origins.get("ops", ""), "--op")
            raise Misuse(
                f"no layer is a '{op}'",
                where=where,
                hint=suggest_name(op, {la.op for la in layers}, listing="explorer quantize MODEL"),
            )
    site_ids = _select_layers(
        layers, spec.sites, rows, _describe_location(origins.get("sites", ""), "--site")
    )
    for layer in layers:
        by_op = any(fnmatch.fnmatchcase(layer.op, op) for op in spec.ops)
        if spec.ops and not by_op:
            reasons[id(layer)] = "its operator is not chosen"
        elif spec.sites and id(layer) not in site_ids:
            reasons[id(layer)] = "it is not chosen"
        elif layer.needs_selection and not by_op and not spec.sites:
            reasons[id(layer)] = f"unchanged unless you select it: --op {layer.op}"
    return reasons


def _describe_location(origin: str, option: str) -> str:
    """Returns the place to name in an error: a line of a file or option in `origin`, else `option`."""
    return origin if ":" in origin or origin.startswith("--") else option


def _select_layers(
    layers: Sequence[QuantizableLayer], sites: Sequence[str], rows: Callable[[], Sequence[Layer]], where: str
) -> set[int]:
    """Returns the ids of the layers that names, globs, regular expressions ('re:…') and filters select."""
    layer_ids: set[int] = set()
    for site in sites:
        matching_ids = {id(layer) for layer in layers if site in (layer.name, layer.node.outputs[0])}
        matches = make_name_matcher(site, where)
        matching_ids = matching_ids or {id(layer) for layer in layers if matches(layer.name)}
        if not matching_ids and not site.startswith("re:") and is_query(site):
            matching_ids = _select_by_filter(layers, site, rows())
        if not matching_ids:
            hint = suggest_name(site, [layer.name for layer in layers], listing="explorer quantize MODEL")
            raise Misuse(f"no layer is called '{site}'", where=where, hint=hint)
        layer_ids |= matching_ids
    return layer_ids


def _select_by_filter(layers: Sequence[QuantizableLayer], query: str, rows: Sequence[Layer]) -> set[int]:
    """Returns the ids of the layers that a filter selects, by the rows that produce the layers' outputs."""
    layers_by_id = {id(layer): layer for layer in layers}
    ids_by_output = {layer.node.outputs[0]: layer_id for layer_id, layer in layers_by_id.items()}
    matches, layer_ids = build_matcher(query), set()
    for row in rows:
        layer_id = next(
            (ids_by_output[output.name] for output in row.outputs if output.name in ids_by_output), None
        )
        if layer_id is not None and not row.group:
            sizes = dict(zip("MKN", layers_by_id[layer_id].sizes or (), strict=False))
            row = replace(row, attributes={**row.attributes, **sizes})
        # the matcher must see every row, because rows may refer to the groups before them
        if matches(row) and layer_id is not None:
            layer_ids.add(layer_id)
    return layer_ids
