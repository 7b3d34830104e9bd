"""The closed form of a nest counts what walking all its loops counts."""

from hypothesis import given, settings

from explorer.engine.mapping.nest import Nest, count_moved
from explorer.facts.mapping import NestLevel
from tests.engine.mapping.nests import nests, walk


@settings(max_examples=300, deadline=None)
@given(nests(registers=False))
def test_closed_form_equals_walking_the_loops(nest):
    counts = walk(nest)
    for operand in "ABC":
        for level in nest.list_holders(operand):
            result = count_moved(nest, operand, level)
            place = operand, level
            assert result.loads == counts.loads[place], (place, "loads")
            assert result.stores == counts.stores[place], (place, "stores")
            assert result.outside_reads == (
                counts.outside_reads[place] if operand != "C" or _adds(nest, level) else counts.loads[place]
            ), (place, "outside reads")
            assert result.outside_writes == counts.outside_writes[place], (place, "outside writes")


def _adds(nest, level):
    split = next((index for index, step in enumerate(nest.levels) if step.split[1] > 1), None)
    return split is not None and level == min(index for index in nest.list_holders("C") if index >= split)


def _cube(size, order, tile):
    return Nest((size,) * 3, (NestLevel(order, (tile,) * 3),), ("ABC",))


def test_counts_of_zigzag():
    words = {operand: count_moved(_cube(128, "mkn", 8), operand, 0).loads // 64 for operand in "ABC"}
    assert words == {"A": 256, "B": 4096, "C": 3840}
    assert count_moved(_cube(128, "mkn", 8), "C", 0, reads_initial_sum=True).loads // 64 == 4096
    assert count_moved(_cube(128, "mkn", 8), "C", 0).stores // 64 == 4096
    levels = NestLevel("mnk", (32, 32, 32)), NestLevel("mkn", (8, 8, 8))
    nest = Nest((128,) * 3, levels, ("ABC", "ABC"))
    assert [count_moved(nest, operand, 1, reads_initial_sum=True).loads // 64 for operand in "ABC"] == [
        1024,
        4096,
        4096,
    ]
    assert [count_moved(nest, operand, 0).outside_reads // 64 for operand in "AB"] == [1024, 1024]
