"""The arena of a first-fit allocator: nothing overlaps, never below the peak, the optimum on small cases."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explorer.engine.costs.memory import arena
from explorer.engine.costs.memory.arena import Arena, ArenaBlock, place_blocks


def peak(blocks: list[ArenaBlock]) -> int:
    steps = range(max((b.dies for b in blocks), default=-1) + 1)
    return max((sum(b.size for b in blocks if b.born <= s <= b.dies) for s in steps), default=0)


def together(a: ArenaBlock, b: ArenaBlock) -> bool:
    return a.born <= b.dies and b.born <= a.dies


def overlaps(blocks: list[ArenaBlock], offsets: tuple[int, ...]) -> bool:
    spans = [(o, o + b.size) for o, b in zip(offsets, blocks, strict=True)]
    return any(
        together(blocks[i], blocks[j]) and spans[i][0] < spans[j][1] and spans[j][0] < spans[i][1]
        for i in range(len(blocks))
        for j in range(i)
    )


def optimum(blocks: list[ArenaBlock]) -> int:
    """By brute force: any packing, pushed down, is what first fit makes of its blocks in order of offset."""
    best = sum(b.size for b in blocks)
    for order in permutations(range(len(blocks))):
        offsets: dict[int, int] = {}
        for index in order:
            at = 0
            for start, other in sorted(
                (offsets[o], o) for o in offsets if together(blocks[o], blocks[index])
            ):
                if start - at >= blocks[index].size:
                    break
                at = max(at, start + blocks[other].size)
            offsets[index] = at
        best = min(best, max((offsets[i] + blocks[i].size for i in offsets), default=0))
    return best


def test_a_chain_needs_two_neighbours_at_a_time() -> None:
    # x 10 | y 100 | z 30 | out 1: y lies behind x, z before y would have to be at most 10
    blocks = [ArenaBlock(10, 0, 1), ArenaBlock(100, 1, 2), ArenaBlock(30, 2, 3), ArenaBlock(1, 3, 3)]
    assert place_blocks(blocks) == Arena(130, (100, 0, 100, 0))


def test_a_hole_is_used_again() -> None:
    # b is freed between a and c; d fits where b was
    blocks = [ArenaBlock(4, 0, 9), ArenaBlock(6, 0, 1), ArenaBlock(2, 0, 9), ArenaBlock(6, 2, 9)]
    found = place_blocks(blocks)
    assert found.size == 12 == peak(blocks)
    assert not overlaps(blocks, found.offsets)


def test_a_hole_at_the_end_is_no_hole() -> None:
    """What is freed last in the arena can be grown over by something larger."""
    assert arena._place_by_birth([ArenaBlock(10, 0, 0), ArenaBlock(20, 1, 1)])[0] == Arena(20, (0, 0))
    assert arena._place_by_birth([ArenaBlock(5, 0, 2), ArenaBlock(10, 0, 0), ArenaBlock(20, 1, 2)])[
        0
    ] == Arena(25, (0, 5, 5))


def test_where_birth_order_fragments_placing_by_size_does_better() -> None:
    # in order of birth: a 0-2, b 2-4, then c (4) fits behind b only: 8; by size: c 0-4, b 4-6, a 0-2
    blocks = [ArenaBlock(2, 0, 0), ArenaBlock(2, 0, 1), ArenaBlock(4, 1, 1)]
    assert arena._place_by_birth(blocks)[0].size == 8
    assert place_blocks(blocks).size == 6 == optimum(blocks)


def test_where_size_order_wastes_birth_order_is_taken() -> None:
    blocks = [ArenaBlock(3, 0, 1), ArenaBlock(2, 1, 2), ArenaBlock(3, 2, 3), ArenaBlock(1, 0, 3)]
    assert place_blocks(blocks).size == optimum(blocks) == peak(blocks)


def test_no_arena_may_reach_the_peak() -> None:
    """The gap between peak and optimum is real: no order of placement closes it."""
    blocks = [
        ArenaBlock(s, b, d) for s, b, d in ((1, 2, 3), (2, 0, 2), (3, 1, 1), (1, 1, 4), (2, 3, 4), (3, 4, 4))
    ]
    found = place_blocks(blocks)
    assert peak(blocks) <= optimum(blocks) <= found.size


def test_nothing_needs_nothing() -> None:
    assert place_blocks([]) == Arena(0, ())


def test_everything_alive_at_once_is_the_sum_even_for_many() -> None:
    blocks = [ArenaBlock(1 + i % 7, i // 3, 20_000) for i in range(30_000)]
    assert place_blocks(blocks).size == sum(b.size for b in blocks)


block = st.tuples(st.integers(1, 9), st.integers(0, 5), st.integers(0, 4)).map(
    lambda t: ArenaBlock(t[0], t[1], t[1] + t[2])
)
some_blocks = st.lists(block, max_size=24).map(lambda found: sorted(found, key=lambda b: b.born))


@given(some_blocks)
@settings(deadline=None, max_examples=300)
def test_no_two_that_live_together_overlap_in_either_order(blocks: list[ArenaBlock]) -> None:
    for found in (arena._place_by_birth(blocks)[0], arena._place_by_size(blocks), place_blocks(blocks)):
        assert not overlaps(blocks, found.offsets)
        assert found.size == max((o + b.size for o, b in zip(found.offsets, blocks, strict=True)), default=0)
        assert peak(blocks) <= found.size <= sum(b.size for b in blocks)
    assert arena._place_by_birth(blocks)[1] == peak(blocks)


@given(some_blocks.filter(lambda blocks: len(blocks) <= 6))
@settings(deadline=None, max_examples=60)
def test_small_arenas_against_brute_force(blocks: list[ArenaBlock]) -> None:
    best, found = optimum(blocks), place_blocks(blocks).size
    assert best <= found
    assert found <= 3 * max(best, 1) // 2, "first fit in the better of two orders"


@pytest.mark.parametrize("pairs", [0, 10**9])
def test_too_many_pairs_fall_back_to_birth_order(monkeypatch: pytest.MonkeyPatch, pairs: int) -> None:
    monkeypatch.setattr(arena, "MAX_PAIRS", pairs)
    blocks = [ArenaBlock(2, 0, 0), ArenaBlock(2, 0, 1), ArenaBlock(4, 1, 1)]
    assert place_blocks(blocks).size == (8 if pairs == 0 else 6)


@given(some_blocks)
@settings(deadline=None, max_examples=60)
def test_few_and_many_neighbours_are_placed_alike(blocks: list[ArenaBlock]) -> None:
    by_loop = arena._place_by_size(blocks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arena, "SMALL_COUNT", 1)
        assert arena._place_by_size(blocks) == by_loop


def test_sizes_beyond_any_machine_are_placed_all_the_same() -> None:
    blocks = [ArenaBlock(2 << 70, 0, 0), ArenaBlock(2 << 70, 0, 1), ArenaBlock(4 << 70, 1, 1)]
    assert place_blocks(blocks).size == 8 << 70
