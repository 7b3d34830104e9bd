"""Short names of layers, tensors and matmuls: keeps what differs between the names in one view.

A name that is cut at a fixed place loses the part by which it differs from its neighbors. Here a name is
split into parts at its slashes, dots and underscores. A part stays if the names of the view differ there, as
at `query` and `key` after `attention.`. The other parts are left out one by one, until the name fits. The
tree, all tables and the plots use these names.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, takewhile
from typing import NamedTuple

from rich.cells import cell_len, chop_cells

from explorer.report.pieces import cut_ends

_SEPARATORS = "/.:_-"
_PARTS = re.compile(r"[/.:_-]*[^/.:_-]+|[/.:_-]+$")
"""Parts of a name. Each part starts with the separators before it."""
_MAX_PARTS = 64
"""Maximum number of parts of a name. Only manipulated files have names with more."""
_MIN_PIECE = 4
"""Minimum cells of a part that is cut."""
_MIN_PREFIX = 4
"""A common prefix with fewer cells is not left out. A heading needs more cells to show a prefix."""

_Trie = dict[str, "_Trie"]
"""Names as a tree of their parts. The key '' marks the end of a name."""


class ShortNames(NamedTuple):
    """Short forms of names.

    Attributes:
        prefix: Common start that the short forms lack, so that a heading must show it; '' for none.
        texts: Short form by name. Different names have different forms, if the cells suffice at all.
    """

    prefix: str
    texts: Mapping[str, str]


def collapse_repeats(name: str) -> str:
    """Leave out the modules that an exporter repeats, and the leading slash.

    `/features/features.2/features.2.0/Conv` becomes `features.2.0 Conv`.
    """
    if "/" not in name:
        return name
    parts = name.strip("/").split("/")
    following = [*parts[1:], ""]
    kept_parts = [
        part
        for part, next_part in zip(parts, following, strict=True)
        if part != next_part and not next_part.startswith(f"{part}.")
    ]
    if not kept_parts:
        return name
    end = " " if len(kept_parts) > 1 and kept_parts[-1][:1].isupper() else "/"
    return end.join(filter(None, ("/".join(kept_parts[:-1]), kept_parts[-1])))


class NameSet:
    """The names in one view. They are compared once; then they can be shortened to any widths.

    Args:
        names: The names. A text in place of a name, such as '(inputs)' or '-', is not compared, only cut.
        paths: Whether the names are paths of files, in which no folder repeats a module.
    """

    def __init__(self, names: Iterable[str], *, paths: bool = False) -> None:
        distinct = dict.fromkeys(name for name in names if name[:1] != "(" and any(map(str.isalnum, name)))
        collapsed = {name: name if paths else collapse_repeats(name) for name in distinct}
        counts = Counter(collapsed.values())
        self._texts = {name: text if counts[text] == 1 else name for name, text in collapsed.items()}
        self._parts = {name: _split(text) for name, text in self._texts.items()}
        self._root: _Trie = {}
        for parts in self._parts.values():
            node = self._root
            for part in (*parts, ""):
                node = node.setdefault(part, {})

    @property
    def least_width(self) -> int:
        """Cells in which each name keeps the parts by which it differs from the others."""
        needed = [
            _join(
                parts,
                [branches or i == len(parts) - 1 for i, branches in enumerate(self._find_branches(parts))],
            )
            for parts in self._parts.values()
        ]
        return max(map(cell_len, needed), default=0)

    @property
    def collapsed_width(self) -> int:
        """Cells in which no name is cut, but repeated modules are left out."""
        return max(map(cell_len, self._texts.values()), default=0)

    @property
    def prefix(self) -> str:
        """Common start of all names, without repeated modules; '' if it is too short to be left out."""
        prefix = "".join(next(iter(self._parts.values()), ())[: self._count_common_parts()])
        return prefix if cell_len(prefix) >= _MIN_PREFIX else ""

    def drop_prefix(self, widths: Mapping[str, int], prefix: str) -> dict[str, str]:
        """Return short forms without `prefix`, which a heading shows already.

        A name that does not begin with the prefix keeps its start. A form that is still too wide is replaced
        by that of `shorten`. `widths` has the cells for each name.
        """
        texts: dict[str, str] = {}
        for name, width in widths.items():
            parts = self._parts.get(name)
            if parts is None:
                texts[name] = _cut(name, width)
                continue
            starts = accumulate(parts[:-1])
            count = next((i for i, start in enumerate(starts, 1) if start == prefix), 0)
            remaining_parts = _strip_start(parts[count:]) if count else parts
            texts[name] = _elide(remaining_parts, list(self._find_branches(parts))[count:], width)
            if cell_len(texts[name]) > width:
                texts[name] = self.shorten({name: width}).texts[name]
        return texts

    def shorten(
        self, widths: Mapping[str, int], prefix_width: int = 0, *, collapsed: bool = False
    ) -> ShortNames:
        """Return short forms of names in this set, in the first of these forms in which every name fits.

        1. Full names.
        2. Names without repeated modules.
        3. Names without repeated modules and their common prefix.
        4. The same, with ellipses in place of further parts.

        Args:
            widths: Cells for each name.
            prefix_width: Cells of the heading for the common prefix; with too few it is not dropped.
            collapsed: Whether repeated modules are left out even if all full names fit.
        """
        names = [name for name in widths if name in self._parts]
        others = {name: _cut(name, width) for name, width in widths.items() if name not in self._parts}
        if not collapsed and all(cell_len(name) <= widths[name] for name in names):
            return ShortNames("", {**others, **{name: name for name in names}})
        if all(cell_len(self._texts[name]) <= widths[name] for name in names):
            return ShortNames("", {**others, **{name: self._texts[name] for name in names}})
        count = self._count_common_parts()
        prefix = "".join(next(iter(self._parts.values()))[:count])
        if not cell_len(prefix) >= _MIN_PREFIX or prefix_width <= _MIN_PREFIX:
            count, prefix = 0, ""
        texts: dict[str, str] = {}
        used: set[str] = set()
        for name in names:
            parts = self._parts[name]
            branches = list(self._find_branches(parts))
            text = _elide(_strip_start(parts[count:]) if count else parts, branches[count:], widths[name])
            if cell_len(text) > widths[name]:
                text = self._reduce_branches(parts, branches, widths[name])
            if cell_len(text) > widths[name] and len(parts) > 1:
                abbreviated = self._abbreviate_branches(parts, branches, widths[name])
                text = abbreviated if abbreviated and abbreviated not in used else text
            text = _fill_end(text, self._texts[name], widths[name])
            forms = [*_fit_forms(text, widths[name])]
            if self._may_cut_end(text, widths[name]):
                forms.insert(0, chop_cells(text, widths[name] - 1)[0] + "…")
            texts[name] = next((form for form in forms if form not in used), text)
            used.add(texts[name])
        return ShortNames(prefix, {**others, **texts})

    def _may_cut_end(self, text: str, width: int) -> bool:
        """Whether a text is one word that is too long, and no other name has the start that fits."""
        if width < _MIN_PIECE or cell_len(text) <= width or not text.isalpha():
            return False
        start = chop_cells(text, width - 1)[0]
        return not any(
            name_text != text and name_text.startswith(start) for name_text in self._texts.values()
        )

    def _reduce_branches(self, parts: Sequence[str], branches: Sequence[bool], width: int) -> str:
        """Join the parts at which names branch. Cut the start that all branches share until the text fits.

        `stage1_unit2` beside `stage3_unit4` becomes `…1_unit2`, or `…1…2`. If that does not fit either, drop
        parts from the left, as long as no other name has the same remaining parts.
        """
        node, reduced, cut = self._root, list(parts), [False] * len(parts)
        text = _join(parts, branches)
        for index, part in enumerate(parts):
            if branches[index] and cell_len(text) > width:
                alternatives = [alternative for alternative in node if alternative]
                # the first and the last in sorted order share only the start that all of them share
                start = _share_start(min(alternatives), max(alternatives))
                start = start.rstrip("0123456789")  # a number stays whole
                if 0 < len(start) < len(part):
                    reduced[index], cut[index] = part[len(start) :], True
                    shorter = _join(reduced, branches, cut)
                    if cell_len(shorter) < cell_len(text):
                        text = shorter
                    else:  # an ellipsis in place of a dot gains nothing
                        reduced[index], cut[index] = part, False
            node = node[part]
        if cell_len(text) <= width:
            return text
        kept_indices = [index for index, branch in enumerate(branches) if branch]
        for count in range(1, len(kept_indices)):
            kept_parts = tuple(parts[index] for index in kept_indices[count:])
            if self._end_counts[count, kept_parts] > 1:
                break
            shorter = _join(reduced, [index in kept_indices[count:] for index in range(len(parts))], cut)
            if cell_len(shorter) <= width:
                return shorter
        return text

    @cached_property
    def _end_counts(self) -> Counter[tuple[int, tuple[str, ...]]]:
        """Number of names by (n, parts): the parts at which a name branches, without the first n of them."""
        ends: Counter[tuple[int, tuple[str, ...]]] = Counter()
        for parts in self._parts.values():
            kept_parts = [
                part for part, branch in zip(parts, self._find_branches(parts), strict=True) if branch
            ]
            ends.update((count, tuple(kept_parts[count:])) for count in range(1, len(kept_parts)))
        return ends

    def _abbreviate_branches(self, parts: Sequence[str], branches: Sequence[bool], width: int) -> str:
        """Join the parts at which names branch, each cut to the start that tells the names apart.

        `Relu_1_output_0_quantized` beside `..._dequantized` becomes `Relu_1…q…`. Returns '' if that does not
        fit either.
        """
        node, texts, sizes = self._root, list(parts), {}
        for index, part in enumerate(parts):
            if branches[index]:
                # in sorted order, the names beside this one share most with it
                before = max((other for other in node if other < part), default="")
                after = min((other for other in node if other > part), default="")
                size = 1 + max(len(_share_start(part, other)) for other in (before, after))
                while part[size - 1 : size].isdigit() and part[size : size + 1].isdigit():
                    size += 1  # a number stays whole
                sizes[index] = size
            node = node[part]
        for index in sorted(sizes, key=lambda index: sizes[index] - len(parts[index])):
            for size in range(len(parts[index]) - 2, sizes[index] - 1, -1):
                start = parts[index][:size]
                texts[index] = f"{start if start.strip(_SEPARATORS + ' ') else ''}…"
                text = _join(texts, branches).replace("……", "…")
                if cell_len(text) <= width:
                    return text
        return ""

    def _find_branches(self, parts: Sequence[str]) -> Iterator[bool]:
        """Yield for each part of a name whether another name differs at it, with the same parts before it."""
        node = self._root
        for part in parts:
            yield len(node) > 1
            node = node[part]

    def _count_common_parts(self) -> int:
        """Return the number of first parts that all names have in common. Each name keeps its last part."""
        if len(self._parts) < 2:
            return 0
        count, node = 0, self._root
        while len(node) == 1 and "" not in node:
            node = next(iter(node.values()))
            count += 1
        return min(count, *(len(parts) - 1 for parts in self._parts.values()))


def shorten_name(name: str, width: int, others: Iterable[str] = ()) -> str:
    """Return a name in `width` cells, with the parts by which it differs from `others`."""
    return NameSet([name, *others]).shorten({name: width}).texts[name] if cell_len(name) > width else name


def _fill_end(text: str, name: str, width: int) -> str:
    """Lengthen a form that shows only a few cells of the end of a name: '…Pool_1' for '…1'.

    Other forms are returned unchanged.
    """
    end = text.removeprefix("…")
    if text == end or cell_len(end) >= _MIN_PIECE or not name.endswith(end) or not name.isascii():
        return text
    longer = name[-max(1, width - 1) :].lstrip(_SEPARATORS)
    return f"…{longer}" if len(longer) > len(end) else text


def _share_start(first: str, second: str) -> str:
    """Return the start that two texts share."""
    pairs = zip(first, second, strict=False)
    return "".join([char for char, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)])


def _split(text: str) -> tuple[str, ...]:
    """Split a name into parts. The operator after a space is a part of its own."""
    start, space, operator = text.partition(" ")
    parts = _PARTS.findall(start)
    if len(parts) > _MAX_PARTS:
        parts[_MAX_PARTS - 1 :] = ["".join(parts[_MAX_PARTS - 1 :])]
    return (*parts, *([space + operator] if space else []))


def _strip_start(parts: Sequence[str]) -> list[str]:
    """Remove the separators before the first part, unless it consists of separators only."""
    return [parts[0].lstrip(_SEPARATORS + " ") or parts[0], *parts[1:]]


def _elide(parts: Sequence[str], branches: Sequence[bool], width: int) -> str:
    """Join parts to a text of at most `width` cells, if possible with all parts at which names branch.

    The other parts fill the remaining cells in this order:

    1. The last part, unless it is an operator.
    2. The parts after the first branch, from left to right.
    3. The parts of the common start, from right to left.
    """
    text = "".join(parts)
    if cell_len(text) <= width:
        return text
    is_part_kept = list(branches)
    if True not in is_part_kept and cell_len(parts[-1]) < width // 2:
        return "…" + cut_ends(text, width, 0).lstrip(f"…{_SEPARATORS} ")
    first = is_part_kept.index(True) if True in is_part_kept else len(is_part_kept)
    last = [] if parts[-1].startswith(" ") else [len(is_part_kept) - 1]  # the operator has a space before it
    for index in (*last, *range(first, len(is_part_kept)), *reversed(range(first))):
        if not is_part_kept[index]:
            is_part_kept[index] = True
            is_part_kept[index] = cell_len(_join(parts, is_part_kept)) <= width
    text, spare = _join(parts, is_part_kept), width - cell_len(_join(parts, is_part_kept))
    if spare >= _MIN_PIECE and text.endswith("…") and True in is_part_kept:
        # the part after the last one that is kept fills the remaining cells, and is cut there
        piece = parts[len(is_part_kept) - is_part_kept[::-1].index(True)]
        text = text[:-1] + chop_cells(piece, spare)[0] + "…"
    return text


def _join(parts: Sequence[str], are_kept: Sequence[bool], cut: Sequence[bool] = ()) -> str:
    """Join the parts that are kept. An ellipsis replaces the others, and the start of parts that are cut."""
    text, is_gap = "", False
    for part, is_kept, is_cut in zip(parts, are_kept, cut or [False] * len(parts), strict=True):
        if not is_kept:
            is_gap = True
            continue
        is_gap = is_gap or is_cut
        text += f"…{part.lstrip(_SEPARATORS + ' ') or part}" if is_gap else part
        is_gap = False
    return text + "…" * is_gap


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else cut_ends(text, width, width // 2)


def _fit_forms(text: str, width: int) -> Iterator[str]:
    """Yield the text if it fits. Otherwise yield it with its middle cut out: at first with equal ends.

    Forms that cut a number come last, because the rest of a number looks like another number.
    """
    if cell_len(text) <= width:
        yield text
        return
    half = width // 2
    forms = {first: cut_ends(text, width, first) for first in range(max(1, width))}
    for first in sorted(forms, key=lambda first: (_cuts_number(text, forms[first]), abs(first - half))):
        yield forms[first].replace("……", "…")


def _cuts_number(text: str, form: str) -> bool:
    """Whether a form of a text with a part cut out shows only some digits of a number."""
    if len(form) > len(text):
        return False
    start = len(_share_start(text, form))
    end = len(form) - start - 1
    return text[start - 1 : start].isdigit() * text[start : start + 1].isdigit() > 0 or (
        end > 0 and text[-end].isdigit() and text[-end - 1 : -end].isdigit()
    )
