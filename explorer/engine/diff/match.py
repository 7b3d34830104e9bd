"""Graph matching: pairs the nodes of two graphs.

Names decide first, as for a reader: the node's name, then its output's. Numbers from an exporter ('Conv_17')
shift when a node is inserted, so such a name counts only if the nodes around it agree. The remaining nodes
are matched by structure. Every node gets a color from its operator, attributes and weights; the color is
refined by the neighbors' colors for a few rounds (Weisfeiler and Lehman, 1968), with matched nodes as fixed
points; colors that occur once on both sides match. From every match its neighbors are matched in turn. That
is done three times with falling demands: everything equal; weights of the same shape; only the operator. Each
step is linear in the number of nodes and edges.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from explorer.engine.diff.def_use import DefUse, is_counted
from explorer.engine.diff.forms import Forms
from explorer.engine.graph.model import Node

_ROUNDS = 3

Colors = tuple[Mapping[int, int], Mapping[int, int]]
"""Colors of the nodes of either graph."""

_ABSENT, _STORED, _OPEN = -1, -2, -3
"""Colors of inputs that are no node's output: absent, a weight, unknown."""


class Matching:
    """Pairs of nodes.

    Attributes:
        before: By node of the first graph: its partner, or None.
        after: By node of the second graph: its partner, or None.
        guessed: Nodes of the first graph with equal candidates: another pairing would be as good.
        ties: Values that correspond although no node makes them: graph inputs, outputs, sites.
    """

    def __init__(self, before: DefUse, after: DefUse) -> None:
        self.before: list[int | None] = [None] * len(before.nodes)
        self.after: list[int | None] = [None] * len(after.nodes)
        self.guessed: set[int] = set()
        self.ties: list[tuple[str, str]] = []

    def add(self, a: int, b: int) -> None:
        """Pairs node `a` of the first graph with `b` of the second; neither may have a partner."""
        self.before[a], self.after[b] = b, a

    def turned(self) -> Matching:
        """The same pairs from the second graph's side."""
        reverse = Matching.__new__(Matching)
        reverse.before, reverse.after = self.after, self.before
        reverse.guessed = {b for a in self.guessed if (b := self.before[a]) is not None}
        reverse.ties = [(b, a) for a, b in self.ties]
        return reverse


def match(
    before: DefUse,
    after: DefUse,
    forms: Forms,
    *,
    closed: tuple[set[int], set[int]],
    ties: Iterable[tuple[str, str]],
    on_phase: Callable[[str], None] | None = None,
) -> Matching:
    """Pairs up the nodes of two graphs.

    Args:
        before: The first graph.
        after: The second graph.
        forms: Forms that are equal for equal attributes and weights.
        closed: Nodes of each graph that are not matched: they belong to a tiled site.
        ties: Values that correspond: inputs and outputs of the graphs, outputs of tiled sites.
        on_phase: Receives the phase.

    Returns:
        The matching; every node has at most one partner. Pairs are the same whichever graph comes first.
    """
    # the first side decides between equally good pairings: always begin with the same side
    turned = _order(after) < _order(before)
    pairs = [(b, a) if turned else (a, b) for a, b in ties]
    sides = (after, before) if turned else (before, after)
    work = _Work(*sides, forms, closed[::-1] if turned else closed, pairs)
    tell = on_phase or (lambda _: None)
    tell("matching names")
    work.by_name(lambda node: node.name)
    work.by_name(lambda node: next((o for o in node.outputs if o), ""), same_operator=True)
    for kind in ("everything", "shapes", "operator"):
        if not work.unfinished():
            break
        tell("matching structure")
        work.by_structure(kind)
    if work.unfinished():
        work.by_name(lambda node: node.name, same_operator=True, doubted=False)  # no match contradicts them
        work.leftover_constants()
        work.in_place()
    return work.matching.turned() if turned else work.matching


def _order(side: DefUse) -> list[tuple[str, str, tuple[str, ...], tuple[str, ...]]]:
    """A key that orders two graphs."""
    return [(node.op, node.name, node.inputs, node.outputs) for node in side.nodes]


class _Work:
    def __init__(
        self,
        before: DefUse,
        after: DefUse,
        forms: Forms,
        closed: tuple[set[int], set[int]],
        ties: list[tuple[str, str]],
    ) -> None:
        self.sides = before, after
        self.forms = forms
        self.closed = closed
        self.matching = Matching(before, after)
        self.matching.ties = ties
        # a tie is a color on both sides
        self.tied: tuple[dict[str, int], dict[str, int]] = ({}, {})
        for i, (a, b) in enumerate(ties):
            number = forms.number(("tie", i))
            self.tied[0].setdefault(a, number)
            self.tied[1].setdefault(b, number)

    def open(self, side: int) -> list[int]:
        """Nodes of one side that have no partner and may get one."""
        closed = self.closed[side]
        return [i for i, partner in enumerate(self.partners(side)) if partner is None and i not in closed]

    def unfinished(self) -> bool:
        return bool(self.open(0)) and bool(self.open(1))

    def by_name(
        self, name_of: Callable[[Node], str], *, same_operator: bool = False, doubted: bool = True
    ) -> None:
        """Pairs nodes of the same name; if numbered names are `doubted`, only where all neighbors agree."""
        before, after = self.sides
        names_before = _unique(before.nodes, self.open(0), name_of)
        names_after = _unique(after.nodes, self.open(1), name_of)
        for name, a in names_before.items():
            b = names_after.get(name)
            if b is None:
                continue
            first, second = before.nodes[a], after.nodes[b]
            if doubted and is_counted(name, first.op):
                # the number may have shifted: the neighbors must have the same names as well
                if not self.looks_same(a, b):
                    continue
            elif same_operator and first.key != second.key:
                continue
            self.matching.add(a, b)

    def looks_same(self, a: int, b: int) -> bool:
        before, after = self.sides
        first, second = before.nodes[a], after.nodes[b]
        if (first.key, first.outputs, before.takes[a]) != (second.key, second.outputs, after.takes[b]):
            return False
        return self.weights(0, a, self.forms.sample) == self.weights(1, b, self.forms.sample)

    def weights(self, side: int, i: int, of: Callable[[Any], Hashable]) -> tuple[Hashable, ...]:
        """The result of `of` for each weight of a node, with the input's position."""
        graph = self.sides[side]
        weights = graph.stored
        return tuple((k, of(weights[name])) for k, name in enumerate(graph.takes[i]) if name in weights)

    def signature(self, side: int, i: int, kind: str) -> int:
        """A number for the node without its neighbors, as detailed as `kind` asks."""
        graph = self.sides[side]
        node = graph.nodes[i]
        if kind == "operator":
            return self.forms.number(("op only", *node.key))
        operator = self.forms.operator(graph.model, node)
        if kind == "shapes":
            shapes = self.weights(side, i, lambda t: (t.dtype, t.shape))
            return self.forms.number(("shapes", operator, shapes))
        attributes = self.forms.attributes(graph.model, node)
        weights = self.weights(side, i, self.forms.sample)
        return self.forms.number(("everything", operator, attributes, weights, len(node.outputs)))

    def by_structure(self, kind: str) -> None:
        signatures: tuple[dict[int, int], dict[int, int]] = ({}, {})
        for side in (0, 1):
            for i in self.open(side):
                signatures[side][i] = self.signature(side, i, kind)
        if kind == "operator":
            # an operator alone is too weak: it counts only beside matched nodes
            self.spread(self.frontier(), signatures)
            self.spread(self.frontier(), signatures, greedy=True)
            return
        colors = signatures
        for depth in range(_ROUNDS + 1):
            if depth:
                open_before, open_after = self.still_open(0, colors[0]), self.still_open(1, colors[1])
                if not open_before or not open_after:
                    return
                colors = self.refine(0, open_before), self.refine(1, open_after)
            # A color that occurs once on both sides stays unique in later rounds: coarse colors
            # cannot take a partner away from finer colors, and leave fewer nodes to refine.
            classes = _classes(colors[0], self.matching.before), _classes(colors[1], self.matching.after)
            pairs = []
            for color, members in classes[0].items():
                others = classes[1].get(color, ())
                if len(members) == len(others) == 1 and (depth or self.is_telling(members[0], kind)):
                    pairs.append((members[0], others[0]))
            self.take(pairs)
            if depth:
                self.spread(self.frontier() if depth == 1 else pairs, signatures)
        # equally many nodes on both sides, and nothing distinguishes them: any pairing is right
        classes = _classes(colors[0], self.matching.before), _classes(colors[1], self.matching.after)
        for color, members in classes[0].items():
            others = classes[1].get(color, ())
            if len(members) == len(others) > 1:
                pairs = list(zip(members, others, strict=True))
                self.matching.guessed.update(a for a, _ in pairs)
                self.take(pairs)
                self.spread(pairs, signatures)

    def still_open(self, side: int, colors: Mapping[int, int]) -> dict[int, int]:
        partners = self.partners(side)
        return {i: color for i, color in colors.items() if partners[i] is None}

    def partners(self, side: int) -> Sequence[int | None]:
        return self.matching.after if side else self.matching.before

    def is_telling(self, a: int, kind: str) -> bool:
        """Whether a node is identified alone: it has a weight, equal in every bit, that no other node has."""
        if kind != "everything":
            return False
        before = self.sides[0]
        return any(before.stored[name].elements > 1 for name in before.takes[a] if name in before.stored)

    def take(self, pairs: Iterable[tuple[int, int]]) -> None:
        for a, b in pairs:
            if self.matching.before[a] is None and self.matching.after[b] is None:
                self.matching.add(a, b)

    def color(self, side: int, name: str, colors: Mapping[int, int]) -> Hashable:
        """The color of a value that a node reads."""
        if not name:
            return _ABSENT
        graph = self.sides[side]
        if name in graph.stored:
            return _STORED
        place = graph.producer.get(name)
        if place is not None:
            i, slot = place
            partner = self.partners(side)[i]
            if partner is not None:
                return "pair", (partner if side else i), slot
            if i in colors:
                return colors[i], slot
        return self.tied[side].get(name, _OPEN)

    def refine(self, side: int, colors: Mapping[int, int]) -> dict[int, int]:
        """The colors of a round, from those of the round before."""
        graph, partners = self.sides[side], self.partners(side)
        number = self.forms.number
        refined: dict[int, int] = {}
        for i, color in colors.items():
            above = tuple(self.color(side, name, colors) for name in graph.takes[i])
            below = []
            for slot, name in enumerate(graph.nodes[i].outputs):
                readers: list[tuple[int, int, int]] = []
                for user, at in graph.users.get(name, ()):
                    partner = partners[user]
                    if partner is not None:
                        readers.append((0, partner if side else user, at))
                    elif user in colors:
                        readers.append((1, colors[user], at))
                    else:
                        readers.append((2, 0, at))
                readers.sort()
                below.append((slot, self.tied[side].get(name, _OPEN), tuple(readers)))
            refined[i] = number(("round", color, above, tuple(below)))
        return refined

    def frontier(self) -> list[tuple[int, int]]:
        """Pairs that have a neighbor without a partner."""
        before = self.sides[0]
        near: dict[int, None] = {}
        for i in self.open(0):
            for name in before.takes[i]:
                place = before.producer.get(name)
                if place is not None:
                    near[place[0]] = None
            for name in before.nodes[i].outputs:
                near.update((user, None) for user, _ in before.users.get(name, ()))
        partners = self.matching.before
        return [(a, b) for a in near if (b := partners[a]) is not None]

    def spread(self, pairs: Sequence[tuple[int, int]], signatures: Colors, *, greedy: bool = False) -> None:
        """Matches the neighbors of pairs, and their neighbors, as long as signatures agree.

        Among several neighbors with one signature none is matched, unless `greedy`: then in order.
        """
        before, after = self.sides
        queue = deque(pairs)

        def record(a: int, b: int) -> None:
            self.matching.add(a, b)
            queue.append((a, b))

        for va, vb in self.matching.ties:
            self.spread_up(va, vb, signatures, record)
            self.spread_down(va, vb, signatures, record, greedy)
        while queue:
            a, b = queue.popleft()
            first, second = before.nodes[a], after.nodes[b]
            for va, vb in zip(first.outputs, second.outputs, strict=False):
                self.spread_down(va, vb, signatures, record, greedy)
            for va, vb in zip(before.takes[a], after.takes[b], strict=False):
                self.spread_up(va, vb, signatures, record)

    def spread_up(self, va: str, vb: str, signatures: Colors, record: Callable[[int, int], None]) -> None:
        """Matches the nodes that make two corresponding values."""
        maker_before, maker_after = self.sides[0].producer.get(va), self.sides[1].producer.get(vb)
        if maker_before is None or maker_after is None or maker_before[1] != maker_after[1]:
            return
        a, b = maker_before[0], maker_after[0]
        if self.matching.before[a] is None and self.matching.after[b] is None:
            color = signatures[0].get(a)
            if color is not None and color == signatures[1].get(b):
                record(a, b)

    def spread_down(
        self, va: str, vb: str, signatures: Colors, record: Callable[[int, int], None], greedy: bool
    ) -> None:
        """Matches the nodes that read two corresponding values at the same input."""
        groups_before = self.users(0, va, signatures[0])
        groups_after = self.users(1, vb, signatures[1]) if groups_before else {}
        for key, members in groups_before.items():
            others = groups_after.get(key, [])
            alone = len(members) == len(others) == 1
            if not alone and not greedy:
                continue
            for a, b in zip(members, others, strict=False):
                # another input may just have matched one of them
                if self.matching.before[a] is None and self.matching.after[b] is None:
                    if not alone:
                        self.matching.guessed.add(a)
                    record(a, b)

    def users(self, side: int, name: str, signatures: Mapping[int, int]) -> dict[tuple[int, int], list[int]]:
        partners = self.partners(side)
        groups: dict[tuple[int, int], list[int]] = {}
        for i, slot in self.sides[side].users.get(name, ()):
            if partners[i] is None and i in signatures:
                groups.setdefault((signatures[i], slot), []).append(i)
        return groups

    def leftover_constants(self) -> None:
        """Matches nodes without inputs by their use: a Constant of equal value."""
        classes: list[dict[int, list[int]]] = [{}, {}]
        for side in (0, 1):
            for i in self.open(side):
                if not self.sides[side].takes[i]:
                    signature = self.signature(side, i, "everything")
                    classes[side].setdefault(signature, []).append(i)
        for signature, members in classes[0].items():
            others = classes[1].get(signature, [])
            pairs = list(zip(members, others, strict=False))
            self.take(pairs)
            if len(members) > 1 or len(others) > 1:
                self.matching.guessed.update(a for a, _ in pairs)

    def in_place(self) -> None:
        """Matches different operators between the same neighbors: replaced, not removed and added."""
        keys: list[dict[Hashable, list[int]]] = [{}, {}]
        for side in (0, 1):
            graph = self.sides[side]
            for i in self.open(side):
                above = [
                    color
                    for name in graph.takes[i]
                    if (color := self.color(side, name, {})) not in (_ABSENT, _STORED)
                ]
                below = set()
                for slot, name in enumerate(graph.nodes[i].outputs):
                    if name in self.tied[side]:
                        below.add((slot, "tie", self.tied[side][name]))
                    for user, _ in graph.users.get(name, ()):
                        partner = self.partners(side)[user]
                        below.add((slot, "pair", -1 if partner is None else (partner if side else user)))
                if above and below and _OPEN not in above and all(end[2] != -1 for end in below):
                    keys[side].setdefault((tuple(above), frozenset(below)), []).append(i)
        for key, members in keys[0].items():
            others = keys[1].get(key, [])
            if len(members) == len(others) == 1:
                self.matching.add(members[0], others[0])


def _unique(nodes: Sequence[Node], among: Iterable[int], name_of: Callable[[Node], str]) -> dict[str, int]:
    """Names that exactly one node of `among` has, with the node."""
    names = [(name_of(nodes[i]), i) for i in among]
    counts = Counter(name for name, _ in names)
    return {name: i for name, i in names if name and counts[name] == 1}


def _classes(colors: Mapping[int, int], partners: Sequence[int | None]) -> dict[int, list[int]]:
    """Nodes without a partner, by their color."""
    classes: dict[int, list[int]] = {}
    for i, color in colors.items():
        if partners[i] is None:
            classes.setdefault(color, []).append(i)
    return classes
