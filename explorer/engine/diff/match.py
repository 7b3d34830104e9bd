"""Pairs the nodes of two graphs, first by name and then by structure.

1. Names: the node's name, then the name of its first output. A name that an exporter numbered ('Conv_17')
   shifts when a node is inserted. It counts only if the neighboring nodes agree.
2. Structure: every node gets a color, an integer made from its operator, attributes and weights. The colors
   of the neighbors refine it for a few rounds (Weisfeiler and Lehman, 1968). Two nodes match if no other node
   of their graph has their color. Matching continues with the neighbors of each match. This is done with two
   requirements: everything equal, then weights of equal shape. After that, nodes with equal operators match,
   but only next to matched nodes.
3. Remaining nodes: names again, Constants of equal value, and different operators between equal neighbors.

Each step is linear in the number of nodes and edges.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from explorer.engine.diff.def_use import DefUse, is_numbered
from explorer.engine.diff.forms import Forms
from explorer.engine.graph.model import Node

_REFINEMENT_ROUNDS = 3
"""Number of times that the colors of the neighbors refine the color of a node."""

Colors = tuple[Mapping[int, int], Mapping[int, int]]
"""Colors of the nodes of the first and of the second graph, by node index."""

_ABSENT, _STORED, _OPEN = -1, -2, -3
"""Colors of values without a known counterpart: an absent input, a weight, or any other value."""


class Matching:
    """Pairs of nodes, as node indices.

    Attributes:
        before: Partner of each node of the first graph, or None.
        after: Partner of each node of the second graph, or None.
        guessed: Nodes of the first graph whose partner is one of several equal candidates.
        known_pairs: Names of values that correspond without a node pair: graph inputs, graph outputs, and
            outputs of tiled sites.
    """

    def __init__(self, before: DefUse, after: DefUse) -> None:
        self.before: list[int | None] = [None] * len(before.nodes)
        self.after: list[int | None] = [None] * len(after.nodes)
        self.guessed: set[int] = set()
        self.known_pairs: list[tuple[str, str]] = []

    def add(self, a: int, b: int) -> None:
        """Pairs node `a` of the first graph with node `b` of the second. Both must be unpaired."""
        self.before[a], self.after[b] = b, a

    def swap_graphs(self) -> Matching:
        """Returns the same pairs with the two graphs swapped."""
        swapped = Matching.__new__(Matching)
        swapped.before, swapped.after = self.after, self.before
        swapped.guessed = {b for a in self.guessed if (b := self.before[a]) is not None}
        swapped.known_pairs = [(b, a) for a, b in self.known_pairs]
        return swapped


def match(
    before: DefUse,
    after: DefUse,
    forms: Forms,
    *,
    excluded_nodes: tuple[set[int], set[int]],
    known_pairs: Iterable[tuple[str, str]],
    on_phase: Callable[[str], None] | None = None,
) -> Matching:
    """Pairs the nodes of two graphs.

    Args:
        before: The first graph.
        after: The second graph.
        forms: Canonical forms of attributes and weights.
        excluded_nodes: Nodes of each graph that are not matched, because they belong to a tiled site.
        known_pairs: Names of corresponding values: graph inputs, graph outputs, and outputs of tiled sites.
        on_phase: Receives the phase.

    Returns:
        The pairs. Every node has at most one partner, and swapping the graphs gives the same pairs.
    """
    # the first graph decides between equally good pairs, so always start with the same graph
    is_swapped = _sort_key(after) < _sort_key(before)
    pairs = [(b, a) if is_swapped else (a, b) for a, b in known_pairs]
    sides = (after, before) if is_swapped else (before, after)
    matcher = _Matcher(*sides, forms, excluded_nodes[::-1] if is_swapped else excluded_nodes, pairs)
    report_phase = on_phase or (lambda _: None)
    report_phase("matching names")
    matcher.match_by_name(lambda node: node.name)
    matcher.match_by_name(lambda node: next((o for o in node.outputs if o), ""), same_operator=True)
    for kind in ("everything", "shapes", "operator"):
        if not matcher.has_unmatched():
            break
        report_phase("matching structure")
        matcher.match_by_structure(kind)
    if matcher.has_unmatched():
        # no match contradicts the names, so numbered names count as well
        matcher.match_by_name(lambda node: node.name, same_operator=True, check_numbered=False)
        matcher.match_constants()
        matcher.match_replacements()
    return matcher.matching.swap_graphs() if is_swapped else matcher.matching


def _sort_key(side: DefUse) -> list[tuple[str, str, tuple[str, ...], tuple[str, ...]]]:
    """Returns a sort key of a graph."""
    return [(node.op, node.name, node.inputs, node.outputs) for node in side.nodes]


class _Matcher:
    """Matching in progress; sides 0 and 1 are the first and the second graph."""

    def __init__(
        self,
        before: DefUse,
        after: DefUse,
        forms: Forms,
        excluded_nodes: tuple[set[int], set[int]],
        known_pairs: list[tuple[str, str]],
    ) -> None:
        self.sides = before, after
        self.forms = forms
        self.excluded_nodes = excluded_nodes
        self.matching = Matching(before, after)
        self.matching.known_pairs = known_pairs
        # color of each value of `known_pairs`, by name; corresponding values have the same color
        self.known_colors: tuple[dict[str, int], dict[str, int]] = ({}, {})
        for i, (a, b) in enumerate(known_pairs):
            number = forms.number_form(("tie", i))
            self.known_colors[0].setdefault(a, number)
            self.known_colors[1].setdefault(b, number)

    def list_unmatched(self, side: int) -> list[int]:
        """Returns the nodes of one side that have no partner and may get one."""
        excluded_nodes = self.excluded_nodes[side]
        return [
            i
            for i, partner in enumerate(self.get_partners(side))
            if partner is None and i not in excluded_nodes
        ]

    def has_unmatched(self) -> bool:
        """Whether both sides have nodes that may still get a partner."""
        return bool(self.list_unmatched(0)) and bool(self.list_unmatched(1))

    def match_by_name(
        self, name_of: Callable[[Node], str], *, same_operator: bool = False, check_numbered: bool = True
    ) -> None:
        """Pairs nodes whose name is unique in both graphs and equal.

        Args:
            name_of: Returns the name of a node; '' matches nothing.
            same_operator: Whether the operators must be equal as well.
            check_numbered: Whether a name that an exporter numbered counts only if the neighbors agree.
        """
        before, after = self.sides
        names_before = _index_unique_names(before.nodes, self.list_unmatched(0), name_of)
        names_after = _index_unique_names(after.nodes, self.list_unmatched(1), name_of)
        for name, a in names_before.items():
            b = names_after.get(name)
            if b is None:
                continue
            first, second = before.nodes[a], after.nodes[b]
            if check_numbered and is_numbered(name, first.op):
                # the number may have shifted, so the inputs and outputs must have equal names as well
                if not self.has_same_names(a, b):
                    continue
            elif same_operator and first.key != second.key:
                continue
            self.matching.add(a, b)

    def has_same_names(self, a: int, b: int) -> bool:
        """Whether two nodes have the same operator, names of inputs and outputs, and samples of weights."""
        before, after = self.sides
        first, second = before.nodes[a], after.nodes[b]
        if (first.key, first.outputs, before.input_names[a]) != (
            second.key,
            second.outputs,
            after.input_names[b],
        ):
            return False
        return self.list_weight_forms(0, a, self.forms.get_sample) == self.list_weight_forms(
            1, b, self.forms.get_sample
        )

    def list_weight_forms(
        self, side: int, i: int, get_form: Callable[[Any], Hashable]
    ) -> tuple[Hashable, ...]:
        """Applies `get_form` to each weight of a node; returns (input slot, result) pairs."""
        graph = self.sides[side]
        weights = graph.stored
        return tuple(
            (k, get_form(weights[name])) for k, name in enumerate(graph.input_names[i]) if name in weights
        )

    def compute_signature(self, side: int, i: int, kind: str) -> int:
        """Returns the initial color of a node, without its neighbors.

        `kind` is 'everything', 'shapes' (weights by type and shape only) or 'operator'.
        """
        graph = self.sides[side]
        node = graph.nodes[i]
        if kind == "operator":
            return self.forms.number_form(("op only", *node.key))
        operator = self.forms.number_operator(graph.model, node)
        if kind == "shapes":
            shapes = self.list_weight_forms(side, i, lambda t: (t.dtype, t.shape))
            return self.forms.number_form(("shapes", operator, shapes))
        attributes = self.forms.number_attributes(graph.model, node)
        weights = self.list_weight_forms(side, i, self.forms.get_sample)
        return self.forms.number_form(("everything", operator, attributes, weights, len(node.outputs)))

    def match_by_structure(self, kind: str) -> None:
        """Pairs nodes by their colors, which get more precise in each round.

        `kind` tells which parts of the nodes must be equal; see `compute_signature`.
        """
        signatures: tuple[dict[int, int], dict[int, int]] = ({}, {})
        for side in (0, 1):
            for i in self.list_unmatched(side):
                signatures[side][i] = self.compute_signature(side, i, kind)
        if kind == "operator":
            # an equal operator alone is weak evidence, so it counts only next to matched nodes
            self.propagate(self.list_frontier(), signatures)
            self.propagate(self.list_frontier(), signatures, greedy=True)
            return
        colors = signatures
        for depth in range(_REFINEMENT_ROUNDS + 1):
            if depth:
                open_before = self.filter_unmatched(0, colors[0])
                open_after = self.filter_unmatched(1, colors[1])
                if not open_before or not open_after:
                    return
                colors = self.refine_colors(0, open_before), self.refine_colors(1, open_after)
            # A color that occurs once in both graphs stays unique in later rounds. Matching it early cannot
            # prevent a better match, and leaves fewer nodes to refine.
            classes = (
                _group_by_color(colors[0], self.matching.before),
                _group_by_color(colors[1], self.matching.after),
            )
            pairs = []
            for color, members in classes[0].items():
                members_after = classes[1].get(color, ())
                if len(members) == len(members_after) == 1 and (
                    depth or self.has_distinctive_weight(members[0], kind)
                ):
                    pairs.append((members[0], members_after[0]))
            self.add_pairs(pairs)
            if depth:
                self.propagate(self.list_frontier() if depth == 1 else pairs, signatures)
        # nothing distinguishes the nodes of one color, so pair them in order if both graphs have equally many
        classes = (
            _group_by_color(colors[0], self.matching.before),
            _group_by_color(colors[1], self.matching.after),
        )
        for color, members in classes[0].items():
            members_after = classes[1].get(color, ())
            if len(members) == len(members_after) > 1:
                pairs = list(zip(members, members_after, strict=True))
                self.matching.guessed.update(a for a, _ in pairs)
                self.add_pairs(pairs)
                self.propagate(pairs, signatures)

    def filter_unmatched(self, side: int, colors: Mapping[int, int]) -> dict[int, int]:
        """Returns the colors of the nodes without a partner."""
        partners = self.get_partners(side)
        return {i: color for i, color in colors.items() if partners[i] is None}

    def get_partners(self, side: int) -> Sequence[int | None]:
        return self.matching.after if side else self.matching.before

    def has_distinctive_weight(self, a: int, kind: str) -> bool:
        """Whether a node has a weight of several elements whose content `kind` compares."""
        if kind != "everything":
            return False
        before = self.sides[0]
        return any(
            before.stored[name].elements > 1 for name in before.input_names[a] if name in before.stored
        )

    def add_pairs(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Pairs the nodes of each pair that are both still unpaired."""
        for a, b in pairs:
            if self.matching.before[a] is None and self.matching.after[b] is None:
                self.matching.add(a, b)

    def get_value_color(self, side: int, name: str, colors: Mapping[int, int]) -> Hashable:
        """Returns the color of a value that a node reads."""
        if not name:
            return _ABSENT
        graph = self.sides[side]
        if name in graph.stored:
            return _STORED
        producer = graph.producer.get(name)
        if producer is not None:
            i, slot = producer
            partner = self.get_partners(side)[i]
            if partner is not None:
                return "pair", (partner if side else i), slot
            if i in colors:
                return colors[i], slot
        return self.known_colors[side].get(name, _OPEN)

    def refine_colors(self, side: int, colors: Mapping[int, int]) -> dict[int, int]:
        """Returns the colors of the next round: each color combined with the colors of the neighbors."""
        graph, partners = self.sides[side], self.get_partners(side)
        number = self.forms.number_form
        refined: dict[int, int] = {}
        for i, color in colors.items():
            input_colors = tuple(self.get_value_color(side, name, colors) for name in graph.input_names[i])
            reader_colors = []
            for slot, name in enumerate(graph.nodes[i].outputs):
                readers: list[tuple[int, int, int]] = []
                for user, slot_index in graph.users.get(name, ()):
                    partner = partners[user]
                    if partner is not None:
                        readers.append((0, partner if side else user, slot_index))
                    elif user in colors:
                        readers.append((1, colors[user], slot_index))
                    else:
                        readers.append((2, 0, slot_index))
                readers.sort()
                reader_colors.append((slot, self.known_colors[side].get(name, _OPEN), tuple(readers)))
            refined[i] = number(("round", color, input_colors, tuple(reader_colors)))
        return refined

    def list_frontier(self) -> list[tuple[int, int]]:
        """Returns the pairs with a neighbor in the first graph that has no partner."""
        before = self.sides[0]
        neighbors: dict[int, None] = {}
        for i in self.list_unmatched(0):
            for name in before.input_names[i]:
                producer = before.producer.get(name)
                if producer is not None:
                    neighbors[producer[0]] = None
            for name in before.nodes[i].outputs:
                neighbors.update((user, None) for user, _ in before.users.get(name, ()))
        partners = self.matching.before
        return [(a, b) for a in neighbors if (b := partners[a]) is not None]

    def propagate(
        self, pairs: Sequence[tuple[int, int]], signatures: Colors, *, greedy: bool = False
    ) -> None:
        """Matches the neighbors of pairs, then their neighbors, as long as the signatures agree.

        Several neighbors with the same signature are matched only if `greedy`, and then in order.
        """
        before, after = self.sides
        queue = deque(pairs)

        def add_pair(a: int, b: int) -> None:
            self.matching.add(a, b)
            queue.append((a, b))

        for va, vb in self.matching.known_pairs:
            self.match_producers(va, vb, signatures, add_pair)
            self.match_readers(va, vb, signatures, add_pair, greedy)
        while queue:
            a, b = queue.popleft()
            first, second = before.nodes[a], after.nodes[b]
            for va, vb in zip(first.outputs, second.outputs, strict=False):
                self.match_readers(va, vb, signatures, add_pair, greedy)
            for va, vb in zip(before.input_names[a], after.input_names[b], strict=False):
                self.match_producers(va, vb, signatures, add_pair)

    def match_producers(
        self, va: str, vb: str, signatures: Colors, add_pair: Callable[[int, int], None]
    ) -> None:
        """Matches the producers of two corresponding values."""
        producer_before, producer_after = self.sides[0].producer.get(va), self.sides[1].producer.get(vb)
        if producer_before is None or producer_after is None or producer_before[1] != producer_after[1]:
            return
        a, b = producer_before[0], producer_after[0]
        if self.matching.before[a] is None and self.matching.after[b] is None:
            color = signatures[0].get(a)
            if color is not None and color == signatures[1].get(b):
                add_pair(a, b)

    def match_readers(
        self, va: str, vb: str, signatures: Colors, add_pair: Callable[[int, int], None], greedy: bool
    ) -> None:
        """Matches the nodes that read two corresponding values at the same input."""
        groups_before = self.group_readers(0, va, signatures[0])
        groups_after = self.group_readers(1, vb, signatures[1]) if groups_before else {}
        for key, members in groups_before.items():
            members_after = groups_after.get(key, [])
            is_unique = len(members) == len(members_after) == 1
            if not is_unique and not greedy:
                continue
            for a, b in zip(members, members_after, strict=False):
                # an earlier iteration may have matched one of them at another input
                if self.matching.before[a] is None and self.matching.after[b] is None:
                    if not is_unique:
                        self.matching.guessed.add(a)
                    add_pair(a, b)

    def group_readers(
        self, side: int, name: str, signatures: Mapping[int, int]
    ) -> dict[tuple[int, int], list[int]]:
        """Groups the unpaired readers of a value by their signature and the input slot that reads it."""
        partners = self.get_partners(side)
        groups: dict[tuple[int, int], list[int]] = {}
        for i, slot in self.sides[side].users.get(name, ()):
            if partners[i] is None and i in signatures:
                groups.setdefault((signatures[i], slot), []).append(i)
        return groups

    def match_constants(self) -> None:
        """Matches nodes without inputs, such as Constants, that have equal attributes."""
        classes: list[dict[int, list[int]]] = [{}, {}]
        for side in (0, 1):
            for i in self.list_unmatched(side):
                if not self.sides[side].input_names[i]:
                    signature = self.compute_signature(side, i, "everything")
                    classes[side].setdefault(signature, []).append(i)
        for signature, members in classes[0].items():
            members_after = classes[1].get(signature, [])
            pairs = list(zip(members, members_after, strict=False))
            self.add_pairs(pairs)
            if len(members) > 1 or len(members_after) > 1:
                self.matching.guessed.update(a for a, _ in pairs)

    def match_replacements(self) -> None:
        """Matches nodes with different operators between matched neighbors, as replacements."""
        keys: list[dict[Hashable, list[int]]] = [{}, {}]
        for side in (0, 1):
            graph = self.sides[side]
            for i in self.list_unmatched(side):
                input_colors = [
                    color
                    for name in graph.input_names[i]
                    if (color := self.get_value_color(side, name, {})) not in (_ABSENT, _STORED)
                ]
                reader_colors = set()
                for slot, name in enumerate(graph.nodes[i].outputs):
                    if name in self.known_colors[side]:
                        reader_colors.add((slot, "tie", self.known_colors[side][name]))
                    for user, _ in graph.users.get(name, ()):
                        partner = self.get_partners(side)[user]
                        reader_colors.add(
                            (slot, "pair", -1 if partner is None else (partner if side else user))
                        )
                if (
                    input_colors
                    and reader_colors
                    and _OPEN not in input_colors
                    and all(partner != -1 for _, _, partner in reader_colors)
                ):
                    keys[side].setdefault((tuple(input_colors), frozenset(reader_colors)), []).append(i)
        for key, members in keys[0].items():
            members_after = keys[1].get(key, [])
            if len(members) == len(members_after) == 1:
                self.matching.add(members[0], members_after[0])


def _index_unique_names(
    nodes: Sequence[Node], candidates: Iterable[int], name_of: Callable[[Node], str]
) -> dict[str, int]:
    """Returns the index of the node for each name that exactly one node of `candidates` has."""
    names = [(name_of(nodes[i]), i) for i in candidates]
    counts = Counter(name for name, _ in names)
    return {name: i for name, i in names if name and counts[name] == 1}


def _group_by_color(colors: Mapping[int, int], partners: Sequence[int | None]) -> dict[int, list[int]]:
    """Groups the nodes without a partner by color."""
    classes: dict[int, list[int]] = {}
    for i, color in colors.items():
        if partners[i] is None:
            classes.setdefault(color, []).append(i)
    return classes
