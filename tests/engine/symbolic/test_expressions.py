"""Dimensions that are not numbers: one text for one meaning, and arithmetic that brute force agrees with."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explorer.engine.symbolic import dimensions as dims


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (dims.add("N", 3), "N+3"),
        (dims.multiply("N", 2), "2*N"),
        (dims.product(("N", "H")), "H*N"),
        (dims.product(("H", "N")), "H*N"),
        (dims.subtract("N", "N"), 0),
        (dims.subtract(dims.add("N", "M"), "M"), "N"),
        (dims.add(dims.multiply("N", 2), dims.multiply("N", 3)), "5*N"),
        (dims.floor_div("N", 2), "floor(N/2)"),
        (dims.ceil_div("N", 2), "floor((N+1)/2)"),
        (dims.floor_div(dims.multiply("N", 6), 3), "2*N"),
        (dims.floor_div(dims.multiply("N", 6), 4), "N+floor(N/2)"),
        (dims.quotient(dims.product(("N", "H", 12)), dims.product(("N", 4))), "3*H"),
        (dims.quotient(dims.multiply(dims.add("N", 1), "H"), dims.add("N", 1)), "H"),
        (dims.greatest("N", 1), "N"),
        (dims.greatest(dims.add("N", 2), "N"), "N+2"),
        (dims.greatest("N", "M"), "max(M,N)"),
        (dims.greatest("N", dims.find_smaller("N", 64)), "N"),
        (dims.find_smaller("N", 0), 0),
        (dims.add(None, 1), None),
        (dims.multiply(None, 0), 0),
    ],
)
def test_one_meaning_has_one_text(value: Any, text: Any) -> None:
    assert value == text


def test_five_halvings_of_a_picture_are_one_division() -> None:
    size: Any = "H"
    seen = []
    for _ in range(5):
        # a convolution 3x3 of stride 2 with padding 1: floor((H + 2 - 3) / 2) + 1
        size = dims.add(dims.floor_div(dims.subtract(dims.add(size, 2), 3), 2), 1)
        seen.append(size)
    assert seen[0] == "floor((H+1)/2)"
    assert seen[-1] == "floor((H+31)/32)"
    assert dims.substitute_sizes(size, {"H": 224}) == 7


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("batch", "batch"),
        ("past_sequence_length + 1", "past_sequence_length+1"),
        ("s0//2", "floor(s0/2)"),
        ("2*s0", "2*s0"),
        ("Max(1, s0)", "s0"),
        ("batch-size", "'batch-size'"),
        ("batch size", "'batch size'"),
        ("?", "'?'"),
        ("floor(", "'floor('"),
        ("N*", "'N*'"),
        ("#1", "'1'"),
        ("(" * 100 + "N", "'" + "(" * 100 + "N'"),
        ("x" * 1000, "x" * 1000),
    ],
)
def test_names_in_a_file_are_arithmetic_only_if_they_are_written_so(written: str, read: str) -> None:
    assert dims.canonicalize_name(written) == read


def test_a_name_alone_is_shown_without_quotes() -> None:
    assert dims.format_for_display("'batch-size'") == "batch-size"
    assert dims.add("'batch-size'", 1) == "'batch-size'+1"
    assert dims.substitute_sizes("'batch-size'+1", {"batch-size": 4}) == 5


def test_an_expression_too_long_to_read_is_unknown() -> None:
    size: Any = "N"
    for at in range(40):
        size = dims.add(size, f"a_rather_long_name_{at}")
    assert size is None


def test_a_bound_holds_only_for_what_grows_with_it() -> None:
    count = dims.create_name(1)
    limits: dict[str, Any] = {count: "H*N"}
    assert dims.find_upper_bound(dims.add(dims.multiply(count, 3), "N"), limits) == "3*H*N+N"
    assert dims.find_upper_bound(dims.floor_div(count, 2), limits) == "floor(H*N/2)"
    assert dims.find_upper_bound(dims.subtract("N", count), limits) is None
    assert dims.find_upper_bound(dims.add(count, 1), {count: None}) is None


Tree = Any
NUMBERS = st.integers(0, 9)
LEAVES = st.one_of(NUMBERS, st.sampled_from(["N", "M", "H"]))
TREES: st.SearchStrategy[Tree] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["+", "-", "*", "max", "min"]), inner, inner),
        st.tuples(st.sampled_from(["floor", "ceil"]), inner, st.integers(1, 7)),
    ),
    max_leaves=8,
)


def symbolic(tree: Tree) -> Any:
    if not isinstance(tree, tuple):
        return tree
    sign, a, b = tree
    a, b = symbolic(a), symbolic(b)
    return {
        "+": dims.add,
        "-": dims.subtract,
        "*": dims.multiply,
        "max": dims.greatest,
        "min": dims.find_smaller,
        "floor": dims.floor_div,
        "ceil": dims.ceil_div,
    }[sign](a, b)


def counted(tree: Tree, sizes: dict[str, int]) -> int:
    if not isinstance(tree, tuple):
        return sizes.get(tree, tree)
    sign, a, b = tree[0], counted(tree[1], sizes), counted(tree[2], sizes)
    if sign in "+-*":
        return {"+": a + b, "-": a - b, "*": a * b}[sign]
    if sign in ("max", "min"):
        return max(a, b) if sign == "max" else min(a, b)
    return a // b if sign == "floor" else -(-a // b)


@settings(max_examples=400, deadline=None)
@given(TREES, st.tuples(st.integers(1, 50), st.integers(1, 50), st.integers(1, 50)))
def test_arithmetic_on_names_is_arithmetic_on_their_sizes(tree: Tree, sizes: tuple[int, int, int]) -> None:
    named = dict(zip("NMH", sizes, strict=True))
    found = symbolic(tree)
    if found is None:
        return
    assert dims.substitute_sizes(found, named) == counted(tree, named)
    if isinstance(found, str):
        # the text says all that there is to say
        assert dims.dim(dims.parse_expression(found)) == found
        least = dims.find_minimum(found)
        assert least is None or least <= counted(tree, named)


def test_a_bound_from_below_is_one() -> None:
    assert dims.find_minimum("N") == 1
    assert dims.find_minimum("N-1") == 0
    assert dims.find_minimum(dims.create_name(1)) == 0
    assert dims.find_minimum("1-N") is None
    assert math.prod((dims.find_minimum("2*N") or 0, 1)) == 2
