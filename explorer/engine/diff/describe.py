"""Describes the differences between two matched nodes, and rates the confidence of the match."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from msgspec import Struct, field

from explorer.base.errors import BadModel
from explorer.base.units import many_text, shape_text
from explorer.engine.diff.def_use import DefUse
from explorer.engine.diff.folded_weights import describe_folded_change
from explorer.engine.diff.forms import Forms, list_body_tensors, list_tensors
from explorer.engine.diff.match import Matching
from explorer.engine.diff.rounding import ABSORBED, MATMUL_NBITS, RoundedNode, RoundedSide, describe_rounding
from explorer.engine.fold.activations import FUSED
from explorer.engine.fold.tensors import Array
from explorer.engine.graph.model import AttributeRef, FileSpan, Graph, Model, Node, Tensor, list_bodies
from explorer.facts import NodeDiff

_MAX_WRITTEN_VALUES = 8
"""Maximum number of values of a list or tensor that are written out. Longer lists show their size."""

_MAX_TEXT_LENGTH, _CUT_TEXT_LENGTH = 60, 57
"""Maximum number of characters of a text that is written out, and the characters of a longer one."""

_SHORT_DIGITS, _FLOAT32_DIGITS, _FLOAT64_DIGITS = 7, 9, 17
"""Significant digits of a number: the usual ones, and those that tell all float32 or all float64 numbers
apart."""

_WINDOWED = frozenset(
    {"AveragePool", "Conv", "ConvInteger", "ConvTranspose", "FusedConv", "LpPool", "MaxPool", "QLinearConv"}
)
"""Operators with a kernel window, whose schemas lack the defaults in `_WINDOW_DEFAULTS`."""
_UNFUSED = {fused: op for op, fused in FUSED.items()}
"""Operators by the names of their forms with a fused activation."""

_WINDOW_DEFAULTS = {"dilations": 1, "pads": 0, "strides": 1}


class NamedDifference(NamedTuple):
    """Description of the difference of one attribute or weight.

    Attributes:
        name: Name of the attribute or weight.
        text: Description of the difference, or '' if there is none.
        is_content: Whether only the content of a body or of a large value differs, which `text` does not
            show.
    """

    name: str
    text: str
    is_content: bool = False


class Describer(Struct):
    """Describes the differences of matched nodes and values.

    In the methods, `a` and `va` are a node index and a value name of the first graph, `b` and `vb` those of
    the second graph.

    Attributes:
        before: The first graph.
        after: The second graph.
        forms: Canonical forms of attributes and weights.
        matching: Pairs of nodes.
        equal_values: Pairs of equal values that matched nodes do not compute: graph inputs and the outputs of
            tiled sites.
        rounded: The quantized graph with its roundings, or None if not exactly one graph is quantized.
        folded_magnitudes: Magnitudes of the weights that the diff folded, by (is second graph, weight name).
            See `folded_weights.describe_folded_change`.
        original_ops: Original operator of each node into which the diff folded other nodes, by node index,
            for the first and the second graph. Such a node has the output names of the folded nodes.
    """

    before: DefUse
    after: DefUse
    forms: Forms
    matching: Matching
    equal_values: set[tuple[str, str]]
    rounded: RoundedSide | None = None
    folded_magnitudes: Mapping[tuple[bool, str], Array | None] = field(default_factory=dict)
    original_ops: tuple[Mapping[int, str], Mapping[int, str]] = field(default_factory=lambda: ({}, {}))
    _functions: dict[tuple[str, str, str], bool] = field(default_factory=dict)

    def describe_pair(self, a: int, b: int) -> NodeDiff | None:
        """Returns the row of a matched pair, or None if the nodes and all their names are equal."""
        first, second = self.before.nodes[a], self.after.nodes[b]
        rounded_node = self.get_rounding(a, b)
        has_block_format = rounded_node is not None and MATMUL_NBITS in (first.op, second.op)
        operator_changes = [] if has_block_format else self.list_operator_changes(first, second)
        contents: list[str] = []
        if operator_changes and first.key == second.key:
            contents = [
                change.name for change in self.list_attribute_changes(first, second) if change.is_content
            ]
        weights, links, agreement, renames = self.compare_inputs(a, b, rounded_node)
        changes = [*operator_changes, *links, *(weight.text for weight in weights)]
        name_change = (
            ""
            if self.has_folded_nodes(a, b) and first.name == second.name
            else self.describe_name_change(first, second)
        )
        name_changes = list(filter(None, (name_change, *renames)))
        if not changes and not name_changes and rounded_node is None:
            return None
        match, confidence = self.rate_match(a, b, not operator_changes, not weights, agreement)
        if rounded_node is not None:
            return self._build_quantized_row(a, b, rounded_node, changes, match, confidence)
        has_changed_function = first.key == second.key and self.function_differs(first.key)
        return NodeDiff(
            status="changed" if changes else "renamed",
            before=first.label,
            after=second.label,
            what="; ".join(changes or name_changes),
            op_before=first.op,
            op_after=second.op,
            match=match,
            confidence=confidence,
            contents=tuple(contents),
            weights=tuple(weight.name for weight in weights),
            has_other_changes=bool(links) or len(operator_changes) > len(contents),
            function=first.key if has_changed_function and len(changes) <= 1 else None,
        )

    def has_folded_nodes(self, a: int, b: int) -> bool:
        """Whether the diff folded another node into a node of the pair."""
        return a in self.original_ops[0] or b in self.original_ops[1]

    def _describe_weight_change(self, va: str, vb: str) -> NamedDifference | None:
        """Returns the difference of two weights if the diff folded one of them, or None for other weights."""
        first, second = self.before.stored[va], self.after.stored[vb]
        if (False, va) in self.folded_magnitudes:
            magnitudes = self.folded_magnitudes[False, va]
            return NamedDifference(va, describe_folded_change(va, first, second, magnitudes))
        if (True, vb) in self.folded_magnitudes:
            magnitudes = self.folded_magnitudes[True, vb]
            return NamedDifference(vb, describe_folded_change(vb, second, first, magnitudes))
        return None

    def get_rounding(self, a: int, b: int) -> RoundedNode | None:
        """Returns the rounding of the pair's quantized node, or None if neither node is quantized."""
        if self.rounded is None:
            return None
        return self.rounded.nodes.get(b if self.rounded.side is self.after else a)

    def _build_quantized_row(
        self, a: int, b: int, rounded_node: RoundedNode, changes: list[str], match: str, confidence: float
    ) -> NodeDiff:
        """Returns the row of a layer that is quantized in one graph, with its rounding nodes as children."""
        assert self.rounded is not None
        is_after_quantized = self.rounded.side is self.after
        plain_side, rounded_side = (
            (self.before, self.after) if is_after_quantized else (self.after, self.before)
        )
        node = plain_side.nodes[a if is_after_quantized else b]
        input_names = plain_side.input_names[a if is_after_quantized else b]
        weights = {
            slot: plain_side.stored[name]
            for slot, name in enumerate(input_names)
            if name in plain_side.stored
        }
        formats = describe_rounding(node, rounded_node, rounded_side, weights)
        text = f"{node.op} -> {formats}" if is_after_quantized else f"{formats} -> {node.op}"
        op_counts = Counter(rounded_side.nodes[i].op for i in sorted(rounded_node.nodes))
        return NodeDiff(
            status="quantized" if is_after_quantized and not changes else "changed",
            before=self.before.nodes[a].label,
            after=self.after.nodes[b].label,
            what="; ".join([text, *changes]),
            op_before=self.before.model.graph.nodes[a].op,
            op_after=self.after.model.graph.nodes[b].op,
            match=match,
            confidence=confidence,
            children=tuple(op_counts.most_common()),
            became=formats if is_after_quantized else node.op,
        )

    def list_operator_changes(self, first: Node, second: Node) -> list[str]:
        """Lists the differences in operator, called function, number of outputs and attributes."""
        if first.key != second.key:
            op_before, op_after = _name_operator(first, second), _name_operator(second, first)
            return [f"operator {op_before} -> {op_after}"]
        differences = []
        if self.function_differs(first.key):
            differences.append(f"function {first.op} differs")
        outputs_before = [bool(name) for name in first.outputs]
        outputs_after = [bool(name) for name in second.outputs]
        if outputs_before != outputs_after and sum(outputs_before) != sum(outputs_after):
            differences.append(f"outputs {sum(outputs_before)} -> {sum(outputs_after)}")
        return differences + [difference.text for difference in self.list_attribute_changes(first, second)]

    def list_attribute_changes(self, first: Node, second: Node) -> list[NamedDifference]:
        """Lists the differences in attributes, with both values if they are short."""
        if _has_same_record(first, second):
            return []
        differences: list[NamedDifference] = []
        attributes_before, attributes_after = first.attributes, second.attributes
        for name in dict.fromkeys((*attributes_before, *attributes_after)):
            is_set_before, is_set_after = name in attributes_before, name in attributes_after
            value_before = (
                attributes_before[name]
                if is_set_before
                else get_default(self.before.model, first, name, attributes_after[name])
            )
            value_after = (
                attributes_after[name]
                if is_set_after
                else get_default(self.after.model, second, name, attributes_before[name])
            )
            if (
                value_before is not None
                and value_after is not None
                and self.has_same_attribute(value_before, value_after)
            ):
                continue
            if _select_shown_part(value_before) == _select_shown_part(value_after):
                differences.append(NamedDifference(name, f"attribute {name}: content differs", True))
                continue
            for digits in (_SHORT_DIGITS, _FLOAT32_DIGITS, _FLOAT64_DIGITS):
                text_before = _describe_attribute(value_before, is_set_before, digits)
                text_after = _describe_attribute(value_after, is_set_after, digits)
                if text_before != text_after:
                    break
            differences.append(NamedDifference(name, f"attribute {name} {text_before} -> {text_after}"))
        return differences

    def has_same_attribute(self, before: Any, after: Any) -> bool:
        """Whether two attribute values are equal; tensors are compared byte by byte."""
        forms = self.forms
        if forms.number_attribute(self.before.model, before) != forms.number_attribute(
            self.after.model, after
        ):
            return False
        # forms contain only samples of tensors, so compare every byte here
        pairs = zip(list_tensors(before), list_tensors(after), strict=True)
        return all(forms.has_equal_content(a, b) for a, b in pairs)

    def function_differs(self, key: tuple[str, str, str]) -> bool:
        """Whether a local function differs between the two models."""
        if key not in self._functions:
            first, second = self.before.model.functions.get(key), self.after.model.functions.get(key)
            forms = self.forms
            if first is None or second is None:
                differs = first is not second  # if both are None, it is a standard operator
            elif forms.number_function(self.before.model, key) != forms.number_function(
                self.after.model, key
            ):
                differs = True
            else:
                pairs = zip(list_body_tensors(first.nodes), list_body_tensors(second.nodes), strict=True)
                callees = {n.key for n in first.nodes if n.key in self.before.model.functions}
                differs = any(not forms.has_equal_content(a, b) for a, b in pairs) or any(
                    self.function_differs(callee) for callee in sorted(callees)
                )
            self._functions[key] = differs
        return self._functions[key]

    def compare_inputs(
        self, a: int, b: int, rounded_node: RoundedNode | None = None
    ) -> tuple[list[NamedDifference], list[str], float, list[str]]:
        """Compares the inputs of a pair. Differences of inputs that `rounded_node` rounds are left out.

        Returns:
            Differences of weights, texts about changed connections, the share of connections that agree
            (0 to 1), and texts about renamed weights.
        """
        weights: list[NamedDifference] = []
        links: list[str] = []
        renames: list[str] = []
        inputs_before, inputs_after = self.before.input_names[a], self.after.input_names[b]
        agreement_count = compared_count = 0
        for slot in range(max(len(inputs_before), len(inputs_after))):
            va = inputs_before[slot] if slot < len(inputs_before) else ""
            vb = inputs_after[slot] if slot < len(inputs_after) else ""
            if va in self.before.stored and vb in self.after.stored:
                if rounded_node is not None and slot in rounded_node.inputs:
                    continue
                folded_change = self._describe_weight_change(va, vb)
                if folded_change is not None:
                    weights += [folded_change] if folded_change.text else []
                    continue
                change = describe_tensor_change(va, self.before.stored[va], self.after.stored[vb], self.forms)
                if change:
                    weights.append(NamedDifference(va, change))
                elif va != vb:
                    renames.append(f"weight {va} is now {vb}")
                continue
            if not va and not vb:
                continue
            compared_count += 1
            if self.is_same_value(va, vb) or self.has_absorbed_activation(va, vb):
                agreement_count += 1
            else:
                prefix = "another " * (va == vb)  # same name, other producer
                links.append(f"input {slot}: {va or 'none'} -> {prefix}{vb or 'none'}")
        for slot in range(min(len(self.before.nodes[a].outputs), len(self.after.nodes[b].outputs))):
            users = self.before.users.get(self.before.nodes[a].outputs[slot], ())
            readers_after = {i for i, _ in self.after.users.get(self.after.nodes[b].outputs[slot], ())}
            compared_count += max(len(users), len(readers_after))
            agreement_count += sum(self.matching.before[i] in readers_after for i, _ in users)
        return weights, links, agreement_count / compared_count if compared_count else 1.0, renames

    def is_same_value(self, va: str, vb: str) -> bool:
        """Whether two values are in `equal_values`, or come from matched nodes or equal Constants."""
        if (va, vb) in self.equal_values:
            return True
        producer_before, producer_after = self.before.producer.get(va), self.after.producer.get(vb)
        if producer_before is None or producer_after is None:
            return False
        if (
            producer_before[1] == producer_after[1]
            and self.matching.before[producer_before[0]] == producer_after[0]
        ):
            return True
        node_before, node_after = self.before.nodes[producer_before[0]], self.after.nodes[producer_after[0]]
        return node_before.op == node_after.op == "Constant" and not self.list_operator_changes(
            node_before, node_after
        )

    def find_equal_constant(self, a: int, *, is_second: bool = False) -> int | None:
        """Finds the Constant of the other graph that replaces Constant `a` for all of its readers.

        Returns:
            Index of the equal Constant. None if `a` is another operator or has no reader, or if the partner
            of a reader reads another value.
        """
        side, opposite = (self.after, self.before) if is_second else (self.before, self.after)
        partners = self.matching.after if is_second else self.matching.before
        if side.nodes[a].op != "Constant":
            return None
        name = side.nodes[a].outputs[0]
        equal_constant = None
        for user, slot in side.users.get(name, ()):
            partner = partners[user]
            input_names = opposite.input_names[partner] if partner is not None else ()
            opposite_name = input_names[slot] if slot < len(input_names) else ""
            pair = (opposite_name, name) if is_second else (name, opposite_name)
            if not self.is_same_value(*pair):
                return None
            equal_constant = opposite.producer[opposite_name][0]
        return equal_constant

    def has_absorbed_activation(self, va: str, vb: str) -> bool:
        """Whether two values differ only by activations that the quantized graph dropped.

        A quantizer can replace an activation such as Relu by the range of its integers. Only activations of
        the first graph are skipped.
        """
        while self.rounded is not None:
            producer = self.before.producer.get(va)
            if producer is None or self.matching.before[producer[0]] is not None:
                return False
            node = self.before.nodes[producer[0]]
            if node.op not in ABSORBED:
                return False
            va = node.inputs[0]
            if self.is_same_value(va, vb):
                return True
        return False

    def describe_name_change(self, first: Node, second: Node) -> str:
        """Describes a new name of the node or of its outputs; '' if they are equal."""
        if first.name != second.name:
            return "another name"  # the row has both
        if first.outputs != second.outputs:
            pairs = zip(first.outputs, second.outputs, strict=False)
            return ", ".join(f"output {x} is now {y}" for x, y in pairs if x != y)
        return ""

    def rate_match(
        self, a: int, b: int, has_same_attributes: bool, has_same_weights: bool, agreement: float
    ) -> tuple[str, float]:
        """Returns the kind of evidence for a match, and a confidence from 0 to 1.

        Equal names give confidence 1, or 0.8 for different operators. Equal output names and operators give
        0.95. Otherwise the confidence is a sum of at most 0.95: 0.5 for equal operators (0.2 for different
        ones), 0.125 for equal attributes, 0.125 for equal weights, and 0.25 times `agreement`, the share of
        connections that agree. A match that only the order of equal nodes decided loses a tenth.
        """
        first, second = self.before.nodes[a], self.after.nodes[b]
        has_same_operator = first.key == second.key
        if first.name and first.name == second.name:
            return "name", 1.0 if has_same_operator else 0.8
        if has_same_operator and first.outputs == second.outputs and any(first.outputs):
            return "outputs", 0.95
        score = (
            (0.5 if has_same_operator else 0.2)
            + 0.125 * has_same_attributes
            + 0.125 * has_same_weights
            + 0.25 * agreement
        )
        if a in self.matching.guessed:
            score *= 0.9
        return "structure", round(min(score, 0.95), 2)


def describe_tensor_change(name: str, before: Tensor, after: Tensor, forms: Forms) -> str:
    """Describes the difference between two weights; '' if every byte is equal."""
    shape_before, shape_after = shape_text(before.shape), shape_text(after.shape)
    if before.dtype != after.dtype:
        return f"weight {name} {shape_before} {before.dtype} -> {shape_after} {after.dtype}"
    if before.shape != after.shape:
        return f"weight {name} {shape_before} {before.dtype} -> {shape_after}"
    return "" if forms.has_equal_content(before, after) else f"weight {name} values differ"


def get_default(model: Model, node: Node, name: str, example: Any) -> Any:
    """Returns the default value of an attribute from the operator's schema, or None if it has no default.

    Some exporters write default values such as auto_pad = 'NOTSET', and others omit them; this is not a
    change. The schemas of window operators lack some defaults, which are in `_WINDOW_DEFAULTS`. Such a
    default has as many elements as `example`, a value of the attribute.
    """
    is_standard = not node.domain or node.op in _UNFUSED
    if node.op in _WINDOWED and name in _WINDOW_DEFAULTS and isinstance(example, tuple) and is_standard:
        return (_WINDOW_DEFAULTS[name],) * len(example)
    from onnx import defs, helper

    op, domain = (_UNFUSED[node.op], "") if node.op in _UNFUSED else (node.op, node.domain)
    version = model.opsets.get(domain, 0)
    if node.key in model.functions or not defs.has(op, domain) or version < 1:
        return None
    try:
        schema = defs.get_schema(op, version, domain)
    except defs.SchemaError:
        return None
    attribute = schema.attributes.get(name)
    if attribute is None or not attribute.default_value.type:
        return None
    value = helper.get_attribute_value(attribute.default_value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return tuple(value) if isinstance(value, list) else value


def _describe_attribute(value: Any, is_set: bool, digits: int) -> str:
    """Describes an attribute; `is_set` is False for a default value that the node omits."""
    if value is None:
        return "not given"
    text = _describe_value(value, digits)
    return text if is_set else f"{text} (default)"


def _name_operator(node: Node, counterpart: Node) -> str:
    """Returns the operator, with domain and overload if the other node has the same operator."""
    if node.op != counterpart.op:
        return node.op
    return f"{node.domain or 'ai.onnx'}::{node.op}" + (f":{node.overload}" if node.overload else "")


def _has_same_record(first: Node, second: Node) -> bool:
    """Whether two nodes have equal attributes for sure: the same encoded bytes, or no attributes.

    The comparison of bytes does not decode the attributes.
    """
    a, b = first.record, second.record
    if not isinstance(a, FileSpan) or not isinstance(b, FileSpan) or a.size != b.size:
        return not first.attributes and not second.attributes
    if list_bodies(first):
        # captured values of the same name may differ, so compare them as inputs and the bodies as forms
        return False
    return a.source.map[a.offset : a.offset + a.size] == b.source.map[b.offset : b.offset + b.size]


def _describe_value(value: Any, digits: int) -> str:
    """Describes an attribute value, with the significant digits of its floating-point numbers."""
    if isinstance(value, float):
        # 0.1 rather than 0.10000000149011612
        return repr(float(f"{value:.{digits}g}"))
    if isinstance(value, (str, bytes)):
        text = _decode(value)
        return f"'{text}'" if len(text) <= _MAX_TEXT_LENGTH else f"'{text[:_CUT_TEXT_LENGTH]}...'"
    if isinstance(value, (tuple, list)):
        head = ", ".join(_describe_value(element, digits) for element in value[:_MAX_WRITTEN_VALUES])
        return f"[{head}, ... {len(value):,} values]" if len(value) > _MAX_WRITTEN_VALUES else f"[{head}]"
    if isinstance(value, Tensor):
        kind, values = f"{value.dtype} {shape_text(value.shape)}", _read_few_values(value)
        if values is None:
            return kind
        return f"{kind} {_describe_value(values if value.shape else values[0], digits)}"
    if isinstance(value, Graph):
        return f"a graph of {many_text(len(value.nodes), 'node')}"
    if isinstance(value, AttributeRef):
        return f"@{value.name}"
    return str(value) if isinstance(value, (int, Mapping)) else "?"


def _select_shown_part(value: Any) -> Any:
    """Returns the part of an attribute value that `_describe_value` shows, for a comparison of two values."""
    if isinstance(value, float):
        return repr(value)  # unlike the number, the text of NaN is equal to itself
    if isinstance(value, (str, bytes)):
        text = _decode(value)
        return text if len(text) <= _MAX_TEXT_LENGTH else text[:_CUT_TEXT_LENGTH], len(
            text
        ) <= _MAX_TEXT_LENGTH
    if isinstance(value, (tuple, list)):
        return len(value), *map(_select_shown_part, value[:_MAX_WRITTEN_VALUES])
    if isinstance(value, Tensor):
        return value.dtype, value.shape, _select_shown_part(_read_few_values(value))
    if isinstance(value, Graph):
        return len(value.nodes)
    return value if isinstance(value, (int, Mapping, AttributeRef)) else type(value)


def _decode(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "backslashreplace")


def _read_few_values(tensor: Tensor) -> list[Any] | None:
    """Returns the values of a small tensor, or None for a large or unreadable one."""
    if tensor.elements > _MAX_WRITTEN_VALUES:
        return None
    try:
        values: list[Any] = tensor.array().reshape(-1).tolist()
    except (BadModel, ImportError):
        return None
    return values
