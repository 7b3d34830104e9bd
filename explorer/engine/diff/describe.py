"""Differences between two matched nodes, in words, and the confidence of the match."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from msgspec import Struct, field

from explorer.base.errors import BadModel
from explorer.base.units import many_text, shape_text
from explorer.engine.diff.def_use import DefUse
from explorer.engine.diff.folded_weights import folded_change
from explorer.engine.diff.forms import Forms, body_tensors, tensors
from explorer.engine.diff.match import Matching
from explorer.engine.diff.rounding import ABSORBED, BLOCKED, RoundedNode, RoundedSide, rounded_text
from explorer.engine.fold.activations import FUSED
from explorer.engine.fold.tensors import Array
from explorer.engine.graph.model import AttributeRef, FileSpan, Graph, Model, Node, Tensor, subgraphs
from explorer.facts import NodeDiff

_SHOWN = 8
"""Most values of a list or tensor that are written out; a longer one is described by its size."""


_WINDOWED = frozenset(
    {"AveragePool", "Conv", "ConvInteger", "ConvTranspose", "FusedConv", "LpPool", "MaxPool", "QLinearConv"}
)
_UNFUSED = {fused: op for op, fused in FUSED.items()}

_WINDOW_DEFAULTS = {"dilations": 1, "pads": 0, "strides": 1}


class NamedDifference(NamedTuple):
    """A difference of one attribute or weight, in words.

    Attributes:
        name: Of the attribute or weight.
        text: What differs; '' if nothing does.
        is_content: Both sides look alike, and differ in what a body or a large value contains.
    """

    name: str
    text: str
    is_content: bool = False


class Describer(Struct):
    """Describes the differences of matched nodes and values.

    Attributes:
        before: The first graph.
        after: The second graph.
        forms: Forms that are equal for equal attributes and weights.
        matching: The pairs of nodes.
        equal_values: Pairs of equal values that no matched nodes make: graph inputs and the outputs of tiled
            sites.
        rounded: The graph that is a quantized form of the other, if one is.
        folded: By side (the second is True) and name, weights that only the diff folded; see
            `folded_weights`.
        targets: Nodes of either side into which others were folded, and the operators of those: their outputs
            have the names of the others' outputs.
    """

    before: DefUse
    after: DefUse
    forms: Forms
    matching: Matching
    equal_values: set[tuple[str, str]]
    rounded: RoundedSide | None = None
    folded: Mapping[tuple[bool, str], Array | None] = field(default_factory=dict)
    targets: tuple[Mapping[int, str], Mapping[int, str]] = field(default_factory=lambda: ({}, {}))
    _functions: dict[tuple[str, str, str], bool] = field(default_factory=dict)

    def row(self, a: int, b: int) -> NodeDiff | None:
        """The row of a matched pair; None if nothing differs, names included."""
        first, second = self.before.nodes[a], self.after.nodes[b]
        quantized = self.quantized(a, b)
        blocked = quantized is not None and BLOCKED in (first.op, second.op)
        itself = [] if blocked else self.operator(first, second)
        contents: list[str] = []
        if itself and first.key == second.key:
            contents = [change.name for change in self.attributes(first, second) if change.is_content]
        weights, links, agreeing, renames = self.inputs(a, b, quantized)
        changes = [*itself, *links, *(weight.text for weight in weights)]
        renamed = "" if self.is_target(a, b) and first.name == second.name else self.names(first, second)
        named = list(filter(None, (renamed, *renames)))
        if not changes and not named and quantized is None:
            return None
        match, confidence = self.evidence(a, b, not itself, not weights, agreeing)
        if quantized is not None:
            return self._quantized_row(a, b, quantized, changes, match, confidence)
        return NodeDiff(
            status="changed" if changes else "renamed",
            before=first.label,
            after=second.label,
            what="; ".join(changes or named),
            op_before=first.op,
            op_after=second.op,
            match=match,
            confidence=confidence,
            contents=tuple(contents),
            weights=tuple(weight.name for weight in weights),
            otherwise=bool(links) or len(itself) > len(contents),
        )

    def is_target(self, a: int, b: int) -> bool:
        """Whether the diff folded a node into a pair."""
        return a in self.targets[0] or b in self.targets[1]

    def _weight_change(self, va: str, vb: str) -> NamedDifference | None:
        """The difference of two weights if the diff folded one of them; None for other weights."""
        first, second = self.before.stored[va], self.after.stored[vb]
        if (False, va) in self.folded:
            return NamedDifference(va, folded_change(va, first, second, self.folded[False, va]))
        if (True, vb) in self.folded:
            return NamedDifference(vb, folded_change(vb, second, first, self.folded[True, vb]))
        return None

    def quantized(self, a: int, b: int) -> RoundedNode | None:
        """The rounding of a pair that only one side has."""
        if self.rounded is None:
            return None
        return self.rounded.nodes.get(b if self.rounded.side is self.after else a)

    def _quantized_row(
        self, a: int, b: int, rounded_node: RoundedNode, changes: list[str], match: str, confidence: float
    ) -> NodeDiff:
        """The row of a layer that is quantized on one side, including its rounding nodes."""
        assert self.rounded is not None
        forth = self.rounded.side is self.after
        plain_side, rounded_side = (self.before, self.after) if forth else (self.after, self.before)
        node = plain_side.nodes[a if forth else b]
        takes = plain_side.takes[a if forth else b]
        weights = {
            slot: plain_side.stored[name] for slot, name in enumerate(takes) if name in plain_side.stored
        }
        formats = rounded_text(node, rounded_node, rounded_side, weights)
        text = f"{node.op} -> {formats}" if forth else f"{formats} -> {node.op}"
        inside = Counter(rounded_side.nodes[i].op for i in sorted(rounded_node.nodes))
        return NodeDiff(
            status="quantized" if forth and not changes else "changed",
            before=self.before.nodes[a].label,
            after=self.after.nodes[b].label,
            what="; ".join([text, *changes]),
            op_before=self.before.model.graph.nodes[a].op,
            op_after=self.after.model.graph.nodes[b].op,
            match=match,
            confidence=confidence,
            children=tuple(inside.most_common()),
            became=formats if forth else node.op,
        )

    def operator(self, first: Node, second: Node) -> list[str]:
        """Differences of operator and attributes."""
        if first.key != second.key:
            there, here = _operator_name(first, second), _operator_name(second, first)
            return [f"operator {there} -> {here}"]
        differences = []
        if self.function_differs(first.key):
            differences.append(f"function {first.op} differs")
        outputs_before, outputs_after = (
            [bool(name) for name in first.outputs],
            [bool(name) for name in second.outputs],
        )
        if outputs_before != outputs_after and sum(outputs_before) != sum(outputs_after):
            differences.append(f"outputs {sum(outputs_before)} -> {sum(outputs_after)}")
        return differences + [difference.text for difference in self.attributes(first, second)]

    def attributes(self, first: Node, second: Node) -> list[NamedDifference]:
        """Differences of attributes, each with both values where they are short."""
        if _same_record(first, second):
            return []
        differences: list[NamedDifference] = []
        attributes_before, attributes_after = first.attributes, second.attributes
        for name in dict.fromkeys((*attributes_before, *attributes_after)):
            was_given, now_given = name in attributes_before, name in attributes_after
            was = (
                attributes_before[name]
                if was_given
                else default_of(self.before.model, first, name, attributes_after[name])
            )
            now = (
                attributes_after[name]
                if now_given
                else default_of(self.after.model, second, name, attributes_before[name])
            )
            if was is not None and now is not None and self.same_attribute(was, now):
                continue
            texts = _attribute_text(was, was_given), _attribute_text(now, now_given)
            if texts[0] != texts[1]:
                differences.append(NamedDifference(name, f"attribute {name} {texts[0]} -> {texts[1]}"))
            else:
                differences.append(NamedDifference(name, f"attribute {name}: content differs", True))
        return differences

    def same_attribute(self, before: Any, after: Any) -> bool:
        """Whether two attribute values are the same; tensors by every byte."""
        forms = self.forms
        if forms.attribute(self.before.model, before) != forms.attribute(self.after.model, after):
            return False
        # forms hold samples of tensors: now every byte is compared
        pairs = zip(tensors(before), tensors(after), strict=True)
        return all(forms.equal_content(a, b) for a, b in pairs)

    def function_differs(self, key: tuple[str, str, str]) -> bool:
        """Whether a local function has different meanings on the two sides."""
        if key not in self._functions:
            first, second = self.before.model.functions.get(key), self.after.model.functions.get(key)
            forms = self.forms
            if first is None or second is None:
                differs = first is not second  # neither: a plain operator
            elif forms.function(self.before.model, key) != forms.function(self.after.model, key):
                differs = True
            else:
                pairs = zip(body_tensors(first.nodes), body_tensors(second.nodes), strict=True)
                called = {n.key for n in first.nodes if n.key in self.before.model.functions}
                differs = any(not forms.equal_content(a, b) for a, b in pairs) or any(
                    self.function_differs(callee) for callee in sorted(called)
                )
            self._functions[key] = differs
        return self._functions[key]

    def inputs(
        self, a: int, b: int, quantized: RoundedNode | None = None
    ) -> tuple[list[NamedDifference], list[str], float, list[str]]:
        """Differences of weights, of connections, the share of links that agree, and renamed weights."""
        weights: list[NamedDifference] = []
        links: list[str] = []
        renames: list[str] = []
        takes_before, takes_after = self.before.takes[a], self.after.takes[b]
        agreeing = compared = 0
        for slot in range(max(len(takes_before), len(takes_after))):
            va = takes_before[slot] if slot < len(takes_before) else ""
            vb = takes_after[slot] if slot < len(takes_after) else ""
            if va in self.before.stored and vb in self.after.stored:
                if quantized is not None and slot in quantized.inputs:
                    continue
                folded = self._weight_change(va, vb)
                if folded is not None:
                    weights += [folded] if folded.text else []
                    continue
                change = tensor_change(va, self.before.stored[va], self.after.stored[vb], self.forms)
                if change:
                    weights.append(NamedDifference(va, change))
                elif va != vb:
                    renames.append(f"weight {va} is now {vb}")
                continue
            if not va and not vb:
                continue
            compared += 1
            if self.same_value(va, vb) or self.absorbed(va, vb):
                agreeing += 1
            else:
                another = "another " * (va == vb)  # same name, other producer
                links.append(f"input {slot}: {va or 'none'} -> {another}{vb or 'none'}")
        for slot in range(min(len(self.before.nodes[a].outputs), len(self.after.nodes[b].outputs))):
            users = self.before.users.get(self.before.nodes[a].outputs[slot], ())
            others = {i for i, _ in self.after.users.get(self.after.nodes[b].outputs[slot], ())}
            compared += max(len(users), len(others))
            agreeing += sum(self.matching.before[i] in others for i, _ in users)
        return weights, links, agreeing / compared if compared else 1.0, renames

    def same_value(self, va: str, vb: str) -> bool:
        """Whether two values come from matched nodes or equal Constants, or are one input of the graph."""
        if (va, vb) in self.equal_values:
            return True
        maker_before, maker_after = self.before.producer.get(va), self.after.producer.get(vb)
        if maker_before is None or maker_after is None:
            return False
        if maker_before[1] == maker_after[1] and self.matching.before[maker_before[0]] == maker_after[0]:
            return True
        node_before, node_after = self.before.nodes[maker_before[0]], self.after.nodes[maker_after[0]]
        return node_before.op == node_after.op == "Constant" and not self.operator(node_before, node_after)

    def shared(self, a: int, *, later: bool = False) -> int | None:
        """The equal Constant that all readers of Constant `a` read on the other side; None without one."""
        side, opposite = (self.after, self.before) if later else (self.before, self.after)
        partners = self.matching.after if later else self.matching.before
        twin = None
        for user, slot in (
            side.users.get(side.nodes[a].outputs[0], ()) if side.nodes[a].op == "Constant" else ()
        ):
            partner = partners[user]
            takes = opposite.takes[partner] if partner is not None else ()
            pair = side.nodes[a].outputs[0], takes[slot] if slot < len(takes) else ""
            if not self.same_value(*(pair[::-1] if later else pair)):
                return None
            twin = opposite.producer[pair[1]][0]
        return twin

    def absorbed(self, va: str, vb: str) -> bool:
        """Whether two values are equal but for a dropped activation that a range of integers replaces."""
        while self.rounded is not None:
            maker = self.before.producer.get(va)
            if maker is None or self.matching.before[maker[0]] is not None:
                return False
            node = self.before.nodes[maker[0]]
            if node.op not in ABSORBED:
                return False
            va = node.inputs[0]
            if self.same_value(va, vb):
                return True
        return False

    def names(self, first: Node, second: Node) -> str:
        """The renames of the node itself, as text."""
        if first.name != second.name:
            return "another name"  # the row has both
        if first.outputs != second.outputs:
            pairs = zip(first.outputs, second.outputs, strict=False)
            return ", ".join(f"output {x} is now {y}" for x, y in pairs if x != y)
        return ""

    def evidence(
        self, a: int, b: int, same_self: bool, same_weights: bool, agreeing: float
    ) -> tuple[str, float]:
        """The kind and the confidence of a match.

        A name shared with the same operator is certain. Without one: half for the operator, an eighth
        each for equal attributes and equal weights, a quarter times the share of links that agree, and
        a tenth off where only the order distinguished equal nodes.
        """
        first, second = self.before.nodes[a], self.after.nodes[b]
        same_operator = first.key == second.key
        if first.name and first.name == second.name:
            return "name", 1.0 if same_operator else 0.8
        if same_operator and first.outputs == second.outputs and any(first.outputs):
            return "outputs", 0.95
        score = (0.5 if same_operator else 0.2) + 0.125 * same_self + 0.125 * same_weights + 0.25 * agreeing
        if a in self.matching.guessed:
            score *= 0.9
        return "structure", round(min(score, 0.95), 2)


def tensor_change(name: str, before: Tensor, after: Tensor, forms: Forms) -> str:
    """What differs between two weights in words; '' if every byte is the same."""
    was, now = shape_text(before.shape), shape_text(after.shape)
    if before.dtype != after.dtype:
        return f"weight {name} {was} {before.dtype} -> {now} {after.dtype}"
    if before.shape != after.shape:
        return f"weight {name} {was} {before.dtype} -> {now}"
    return "" if forms.equal_content(before, after) else f"weight {name} values differ"


def default_of(model: Model, node: Node, name: str, example: Any) -> Any:
    """The default value of an attribute, by the operator's schema; None without one.

    Exporters differ in whether they write defaults: auto_pad = 'NOTSET' is no change. For window
    operators the specification gives some defaults in prose; `example` says how many axes they have.
    """
    plain = not node.domain or node.op in _UNFUSED
    if node.op in _WINDOWED and name in _WINDOW_DEFAULTS and isinstance(example, tuple) and plain:
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


def _attribute_text(value: Any, is_given: bool) -> str:
    if value is None:
        return "not given"
    return _value_text(value) if is_given else f"{_value_text(value)} (default)"


def _operator_name(node: Node, beside: Node) -> str:
    """The operator, with its domain if the domains differ."""
    if node.op != beside.op:
        return node.op
    return f"{node.domain or 'ai.onnx'}::{node.op}" + (f":{node.overload}" if node.overload else "")


def _same_record(first: Node, second: Node) -> bool:
    """Whether two nodes have the same encoded bytes, names included: then decoding is unnecessary."""
    a, b = first.record, second.record
    if not isinstance(a, FileSpan) or not isinstance(b, FileSpan) or a.size != b.size:
        return not first.attributes and not second.attributes
    if subgraphs(first):
        # captured values of the same name may differ; they are compared as inputs, bodies as forms
        return False
    return a.source.map[a.offset : a.offset + a.size] == b.source.map[b.offset : b.offset + b.size]


def _value_text(value: Any) -> str:
    if isinstance(value, float):
        # as float32 has it: 0.1, not 0.10000000149011612
        short = float(f"{value:.7g}")
        return repr(short)
    if isinstance(value, (str, bytes)):
        text = value if isinstance(value, str) else value.decode("utf-8", "backslashreplace")
        return f"'{text}'" if len(text) <= 60 else f"'{text[:57]}...'"
    if isinstance(value, (tuple, list)):
        head = ", ".join(map(_value_text, value[:_SHOWN]))
        return f"[{head}, ... {len(value):,} values]" if len(value) > _SHOWN else f"[{head}]"
    if isinstance(value, Tensor):
        return _tensor_text(value)
    if isinstance(value, Graph):
        return f"a graph of {many_text(len(value.nodes), 'node')}"
    if isinstance(value, AttributeRef):
        return f"@{value.name}"
    return str(value) if isinstance(value, (int, Mapping)) else "?"


def _tensor_text(tensor: Tensor) -> str:
    kind = f"{tensor.dtype} {shape_text(tensor.shape)}"
    if tensor.elements > _SHOWN:
        return kind
    try:
        values = tensor.array().reshape(-1).tolist()
    except (BadModel, ImportError):
        return kind
    return f"{kind} {_value_text(values)}" if tensor.shape else f"{kind} {_value_text(values[0])}"
