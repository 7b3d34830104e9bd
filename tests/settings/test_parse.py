"""What a user types as a tile, a dimension or an input's shape is read as meant, or refused in one line."""

from __future__ import annotations

import pytest

from explorer.base.errors import Misuse
from explorer.engine.number_formats import find_format
from explorer.settings.parse import (
    parse_choice,
    parse_choices,
    parse_count,
    parse_dim_sizes,
    parse_dims,
    parse_dynamic,
    parse_input_shapes,
    parse_names,
    parse_sizes,
    parse_tile,
    parse_tiles,
)
from explorer.settings.statistics import parse_statistics


@pytest.mark.parametrize(
    ("text", "tile"),
    [
        ("64", (64, 64, 64)),
        ("64x32x16", (64, 32, 16)),
        ("64,32,16", (64, 32, 16)),
        (" 64 X 32 x 16 ", (64, 32, 16)),
        ("1×2×3", (1, 2, 3)),
    ],
)
def test_a_tile_may_be_written_in_every_usual_way(text: str, tile: tuple[int, int, int]) -> None:
    assert parse_tile(text) == tile


def test_lists_stand_between_commas_and_hold_each_once() -> None:
    assert parse_tiles("16, 32x8x4,16") == ((16, 16, 16), (32, 8, 4))
    assert parse_sizes("16, 8,16", "--tile-m") == (16, 8)
    assert parse_choices("b, a,b", ("a", "b"), "--letters") == ("b", "a")
    for wrong in ("", "16,", "16,,32", "16;32"):
        with pytest.raises(Misuse, match="--tile"):
            parse_tiles(wrong)
        with pytest.raises(Misuse, match="--tile-m"):
            parse_sizes(wrong, "--tile-m")
    with pytest.raises(Misuse, match="'c' is not known"):
        parse_choices("a,c", ("a", "b"), "--letters")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0", "below 1"),
        ("64x0x64", "below 1"),
        ("-64", "below 1"),
        ("-64x64x64", "below 1"),
        ("64x64", "2 sizes"),
        ("1x2x3x4", "4 sizes"),
        ("big", "not a tile size"),
        ("", "not a tile size"),
        ("64x", "not a tile size"),
        ("6.4", "not a tile size"),
        ("٦٤", "not a tile size"),
        ("9" * 40, "not a tile size"),
    ],
)
def test_what_is_no_tile_is_refused_and_the_spelling_shown(text: str, said: str) -> None:
    with pytest.raises(Misuse, match=said) as caught:
        parse_tile(text)
    assert "64x64x64" in str(caught.value)
    assert str(caught.value).startswith("--tile:")


def test_dimensions_may_come_one_by_one_or_together() -> None:
    assert parse_dims(["batch=8", "seq=128,heads = 4"]) == {"batch": 8, "seq": 128, "heads": 4}
    assert parse_dims(["a=b=3"]) == {"a=b": 3}, "the size follows the last '='"
    assert parse_dims(["n=2", "n=2"]) == {"n": 2}


def test_one_dimension_may_have_several_sizes_where_they_are_wanted() -> None:
    assert parse_dim_sizes(["seq=5,16,64,batch=2", "heads=4"]) == {"seq": (5, 16, 64), "batch": 2, "heads": 4}
    assert parse_dim_sizes(["n=2,2"]) == {"n": 2}
    for text in ("seq=5,", "seq=5,x", "seq=5,0", "5,seq=3"):
        with pytest.raises(Misuse, match="--dim"):
            parse_dim_sizes([text])
    with pytest.raises(Misuse, match="'seq' has the sizes 5, 16; give one"):
        parse_dims(["seq=5,16"])


@pytest.mark.parametrize("text", ["batch", "=8", "batch=", "batch=0", "batch=-1", "batch=x", "batch=1.5", ""])
def test_what_binds_no_dimension_is_refused(text: str) -> None:
    with pytest.raises(Misuse, match="--dim"):
        parse_dims([text])


def test_one_dimension_cannot_have_two_sizes() -> None:
    with pytest.raises(Misuse, match="'n' is bound to 1 and to 2"):
        parse_dims(["n=1", "n=2"])


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("x:1,3,224,224", {"x": (None, (1, 3, 224, 224))}),
        ("x:[1,3,224,224]", {"x": (None, (1, 3, 224, 224))}),
        ("x:[1, 3, 224, 224]", {"x": (None, (1, 3, 224, 224))}),
        ("x:f32:1x3x224x224", {"x": ("float32", (1, 3, 224, 224))}),
        ("ids:i64:1x128", {"ids": ("int64", (1, 128))}),
        ("ids:int64:[1,128]", {"ids": ("int64", (1, 128))}),
        ("input:0:1,3", {"input:0": (None, (1, 3))}),
        ("input:0:f16:1,3", {"input:0": ("float16", (1, 3))}),
        ("f32:1,3", {"f32": (None, (1, 3))}),
        ("x:7", {"x": (None, (7,))}),
        ("x:(7,)", {"x": (None, (7,))}),
        ("x:[]", {"x": (None, ())}),
        ("past:1x12x0x64", {"past": (None, (1, 12, 0, 64))}),
    ],
)
def test_an_input_shape_has_three_spellings_and_names_may_hold_colons(text: str, shapes: object) -> None:
    assert parse_input_shapes([text]) == shapes


def test_several_inputs_have_a_shape_each() -> None:
    assert parse_input_shapes(["a:1,2", "b:i32:3"]) == {"a": (None, (1, 2)), "b": ("int32", (3,))}
    with pytest.raises(Misuse, match="'a' is given twice"):
        parse_input_shapes(["a:1", "a:2"])


@pytest.mark.parametrize("text", [":1,3", "x:", "x:1,a", "x:1,-3", "x:[1,3", "x", "", "x:f99:1,3x"])
def test_what_is_no_input_shape_is_refused_and_the_spellings_shown(text: str) -> None:
    with pytest.raises(Misuse, match="x:1,3,224,224"):
        parse_input_shapes([text])


@pytest.mark.parametrize("text", ["-1", "two", "1.0", ""])
def test_a_count_is_a_whole_number(text: str) -> None:
    with pytest.raises(Misuse, match=r"--draws: .* is not a whole number of 1 or more"):
        parse_count(text, "--draws", 1)


def test_open_dimensions_one_by_one_or_several() -> None:
    assert parse_dynamic(["x:0=batch", "x:2=height, 3=width", "input:0:-1=n"]) == {
        "x": {0: "batch", 2: "height", 3: "width"},
        "input:0": {-1: "n"},
    }
    assert parse_dynamic([]) == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0=batch", "names no input"),
        (":0=batch", "names no input"),
        ("x:batch", "names no axis"),
        ("x:a=batch", "names no axis"),
        ("x:0=", "'' is not a name for a dimension"),
        ("x:0=1st", "'1st' is not a name for a dimension"),
        ("x:0=a,0=b", "axis 0 has two names, 'a' and 'b'"),
    ],
)
def test_open_dimensions_that_cannot_be_read(text: str, says: str) -> None:
    with pytest.raises(Misuse, match=says):
        parse_dynamic([text])


def test_names_between_commas() -> None:
    assert parse_names("image, mask:0", "--input-names") == ("image", "mask:0")
    for text, says in (("a,,b", "an empty name"), ("", "an empty name"), ("a,b,a", "'a' is listed twice")):
        with pytest.raises(Misuse, match=says):
            parse_names(text, "--input-names")


def test_the_case_of_a_choice_does_not_matter_unless_two_choices_differ_by_it() -> None:
    assert parse_choice("ADAM", ("sgd", "adam"), "--optimizer") == "adam"
    assert parse_choices("Mnk, kNM", ("mnk", "knm"), "--orders") == ("mnk", "knm")
    assert parse_choice("b", ("B", "b"), "--x") == "b"
    with pytest.raises(Misuse, match="is not known"):
        parse_choice("Ab", ("AB", "ab"), "--x")


def test_an_unknown_choice_lists_all_choices() -> None:
    choices = tuple(f"choice_{index}" for index in range(20))
    with pytest.raises(Misuse) as error:
        parse_choice("zzz", choices, "--what")
    assert all(choice in error.value.hint for choice in choices)
    assert "more" not in error.value.hint


@pytest.mark.parametrize("name", ["INT8", "Fixed8.4", "MXFP8", "BFloat16", "UINT4"])
def test_the_case_of_a_number_format_does_not_matter(name: str) -> None:
    lower = find_format(name.lower())
    assert lower is not None
    assert find_format(name) == lower


@pytest.mark.parametrize("word", ["range:minmax", "low:x", "high:"])
def test_an_invalid_statistic_is_named_as_it_was_typed(word: str) -> None:
    with pytest.raises(Misuse) as error:
        parse_statistics(word)
    assert f"'{word}'" in error.value.what
    assert error.value.hint == f"write {word.partition(':')[0]}:3sigma"


@pytest.mark.parametrize("text", ["1,3,32,32", "[1,3,32,32]", "1x3x32x32"])
def test_a_shape_without_a_name_is_that_of_the_only_input(text: str) -> None:
    assert parse_input_shapes([text]) == {"": (None, (1, 3, 32, 32))}
