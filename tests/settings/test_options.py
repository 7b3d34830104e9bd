"""Declared options: what a headless command says of a record, the command line reads as the same record."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import asdict, replace

from explorer.base.errors import ExplorerError
from explorer.base.options import DeclaredOption, find_option, list_declared_options
from explorer.cli.arguments import parser
from explorer.cli.arguments.declared import record_of
from explorer.cli.arguments.records import read_quantize_spec, read_tile_spec
from explorer.cli.commands import VERBS
from explorer.facts import TileRule, TileSpec
from explorer.facts.check import CheckSpec
from explorer.facts.conversion import ConversionOptions, RebatchSpec
from explorer.facts.cost import OrderSpec
from explorer.facts.evaluate.evaluation import EvaluateSpec, SampleSpec
from explorer.facts.evaluate.training_run import TrainSpec
from explorer.facts.profile.profile import ProfileSpec
from explorer.facts.quantize import PARTS, FormatSweepSpec, QuantizeRequest, QuantizeRule, QuantizeSpec
from explorer.facts.serving.spec import ServingSpec
from explorer.facts.split.fold import FoldSpec
from explorer.facts.split.infer import InferSpec
from explorer.facts.split.make import MakeSpec
from explorer.facts.split.part import PartSpec
from explorer.facts.split.split import SplitSpec
from explorer.facts.training import TrainingStepSpec
from explorer.facts.user_pass import PassSpec
from explorer.facts.values import StatisticsSpec
from explorer.facts.verification import Tolerance
from explorer.features.graph.graph_record import GraphSpec
from explorer.features.values.values_record import ValuesSpec
from explorer.process.saved_sessions import Opening
from explorer.session.parts.scripts import write_quantize_words
from explorer.settings import quantize as formats
from explorer.settings import tiling
from explorer.settings.option_values import build_table_readers, read_option, write_words
from explorer.settings.parse import write_opening_words, write_path_word

RECORDS: dict[str, type[Struct]] = {
    "check": CheckSpec,
    "tile": TileSpec,
    "verify": Tolerance,
    "convert": ConversionOptions,
    "rebatch": RebatchSpec,
    "fold": FoldSpec,
    "infer": InferSpec,
    "apply": PassSpec,
    "make": MakeSpec,
    "evaluate": EvaluateSpec,
    "train": TrainSpec,
    "training": TrainingStepSpec,
    "split": SplitSpec,
    "extract": PartSpec,
    "profile": ProfileSpec,
    "serving": ServingSpec,
    "sweep": FormatSweepSpec,
    "plan": OrderSpec,
    "weights": StatisticsSpec,
    "graph": GraphSpec,
    "values": ValuesSpec,
}
NEEDED = {
    "apply": ("my-pass", "-o", "other.onnx"),
    "convert": ("-o", "other.onnx"),
    "extract": ("-o", "part.onnx"),
    "make": ("-o", "small.onnx"),
    "rebatch": ("8", "-o", "other.onnx"),
    "train": ("--data", "samples.npz"),
    "values": ("fc1.weight",),
    "verify": ("other.onnx",),
}
"""Options without which a verb is refused."""
RULES = {TileSpec: TileRule, QuantizeSpec: QuantizeRule}
NAMES = st.text(
    st.characters(codec="ascii", exclude_characters=",\0", categories=("L", "N", "P", "S")), min_size=1
)
AXES = st.integers(-9, 9)
BY_READER: dict[str, st.SearchStrategy[Any]] = {
    "accumulator": st.just(0) | st.integers(2, 64),
    "assignments": st.dictionaries(NAMES.filter(lambda name: "=" not in name), NAMES, max_size=3),
    "axes": st.dictionaries(NAMES, AXES, max_size=3),
    "axis": AXES,
    "batch": st.integers(1, 10**9 - 1) | st.sampled_from(("N", "batch_2")),
    "block": st.just(0) | st.integers(2, 1 << 16),
    "bytes_budget": st.sampled_from(("25MiB", "8k", "0", "+5%")),
    "count_budget": st.sampled_from(("4.1G", "12", "+0%", "-5%")),
    "coverage_budget": st.sampled_from(("95%", "0.5", "1")),
    "dynamic": st.dictionaries(
        NAMES, st.dictionaries(AXES, st.sampled_from(("batch", "h_2")), min_size=1, max_size=3), max_size=3
    ),
    "map_size": st.tuples(*[st.integers(1, 1000)] * 2),
    "memory_size": st.integers(1, 1 << 50),
    "names": st.lists(NAMES, unique=True, max_size=3).map(tuple),
    "percentile": st.floats(50, 100, exclude_min=True),
    "place": st.lists(st.integers(0, 1 << 30), min_size=1, max_size=3).map(tuple),
    "rate": st.integers(1, 10**15).map(float),
    "sizes": st.lists(st.integers(1, 1 << 30), min_size=1, unique=True, max_size=3).map(tuple),
    "token_count": st.integers(1, 1 << 40),
    "tokens": st.lists(st.integers(1, 1 << 40), min_size=1, unique=True, max_size=3).map(tuple),
    "share": st.floats(0, 1, exclude_min=True, exclude_max=True),
    "seconds": st.integers(1, 10**5).map(float),
    "seconds_budget": st.sampled_from(("20ms", "0.02", "+10%")),
    "span": st.tuples(*[st.integers(0, 1 << 30)] * 2),
    "statistics": st.sampled_from(("var", "absmax,range:3sigma", "quantile:0.97")),
    "tile": st.tuples(*[st.integers(1, 1 << 16)] * 3),
    "words": st.lists(NAMES, min_size=1, unique=True, max_size=3).map(tuple),
}


def values(option: DeclaredOption) -> st.SearchStrategy[Any]:
    """Values that an option may have."""
    if option.declared.reader:
        strategy = BY_READER[option.declared.reader]
    elif option.choices:
        strategy = st.sampled_from(option.choices)
    elif option.kind is bool:
        strategy = st.booleans()
    elif option.kind is int:
        strategy = st.integers(int(option.least or 0), 1 << 30)
    elif option.kind is float:
        strategy = st.floats(0, 1e9, exclude_min=True)
    else:
        strategy = NAMES
    if option.many and option.declared.joined and option.choices:
        return st.lists(strategy, min_size=1, unique=True).map(tuple)
    if option.many and not option.declared.joined and not option.is_mapping:
        return st.lists(strategy, max_size=3).map(tuple)
    return st.just(option.default) | strategy


def specs(record: type[Struct]) -> st.SearchStrategy[Any]:
    """Records of this kind, without a settings file."""
    fields = {one.name: values(one) for one in list_declared_options(record) if one.name != "config"}
    fields = {name: values for name, values in fields.items() if "dtype" not in name}  # several with --sweep
    fields |= dict.fromkeys(fields.keys() & {*PARTS}, st.sampled_from(("int8", "fixed8.4", "float32")))
    if "data" in fields:  # a verb that reads samples is refused without a file
        fields["data"] = NAMES
    if "formats" in fields:  # the only option without a default
        fields["formats"] = BY_READER["words"]
    return st.builds(record, **fields)


@pytest.mark.parametrize("verb", [verb for verb in RECORDS if verb in VERBS])
def test_the_words_of_a_record_are_read_as_the_same_record(verb: str) -> None:
    record = RECORDS[verb]

    @settings(max_examples=50, deadline=None)
    @given(specs(record))
    def same(spec: Any) -> None:
        typed = parser.read([verb, "model.onnx", *NEEDED.get(verb, ()), *write_words(spec)], VERBS)[1]
        read = read_tile_spec(typed) if record is TileSpec else record_of(typed, record)
        assert (replace(read, origins=()) if record is TileSpec else read) == spec

    same()


PLAIN_NAMES = NAMES.filter(lambda name: ":" not in name)
SHAPES = st.tuples(st.sampled_from((None, "float32", "int64")), st.lists(st.integers(0, 99)).map(tuple))


@settings(max_examples=50, deadline=None)
@given(
    st.builds(
        Opening,
        weights=st.none() | NAMES,
        weights_file=st.none() | NAMES,
        dims=st.dictionaries(NAMES, st.integers(1, 10**9), max_size=3),
        input_shapes=st.dictionaries(PLAIN_NAMES, SHAPES, max_size=3),
        trust=st.booleans(),
        rules=st.none() | NAMES,
        observe=st.booleans(),
        past=st.none() | st.integers(0, 10**9),
    )
)
def test_the_words_of_an_opening_are_read_as_the_same_opening(opening: Opening) -> None:
    typed = parser.read(["info", "m", *write_opening_words(asdict(opening))], VERBS)[1]
    read = Opening(**typed.opening)
    paths = {
        name: write_path_word(path) for name in ("weights_file", "rules") if (path := getattr(opening, name))
    }
    assert read == replace(opening, **paths)


@settings(max_examples=50, deadline=None)
@given(specs(QuantizeSpec))
def test_the_words_of_a_quantization_are_read_as_the_same(spec: QuantizeSpec) -> None:
    if spec.calibrator != "percentile":  # which a percentile alone asks for
        spec = replace(spec, percentile=QuantizeSpec().percentile)
    words = write_quantize_words(QuantizeRequest(spec))
    assert words is not None
    typed = parser.read(["quantize", "model.onnx", *words], VERBS)[1]
    assert replace(read_quantize_spec(typed), origins=()) == spec


@pytest.mark.parametrize(("record", "module"), [(TileSpec, tiling), (QuantizeSpec, formats)])
def test_a_settings_file_says_the_same_record(record: Any, module: Any) -> None:
    def rules() -> st.SearchStrategy[Any]:
        rule = RULES[record]
        asked = {
            one.name: values(one) for one in list_declared_options(rule) if one.name not in ("shape", "on")
        }
        return st.builds(rule, on=st.booleans(), **asked)

    @settings(max_examples=30, deadline=None)
    @given(specs(record), st.lists(rules(), max_size=2))
    def same(spec: Any, asked: list[Any]) -> None:
        spec = replace(spec, rules=tuple(asked))
        if record is QuantizeSpec and spec.calibrator != "percentile":
            spec = replace(spec, percentile=QuantizeSpec().percentile)
        read = module.read_text(module.write_toml(spec), "x.toml")
        plain = tuple(replace(rule, origin="") for rule in read.rules)
        assert replace(read, rules=plain, origins=(), config="") == spec

    same()


@pytest.mark.parametrize("record", [*RECORDS.values(), SampleSpec, QuantizeSpec, QuantizeRequest])
def test_every_option_says_what_it_is_for_and_refuses_what_it_cannot_be(record: type[Struct]) -> None:
    for option in list_declared_options(record):
        assert option.declared.help, option.name
        assert option.is_switch or option.choices or option.declared.metavar or option.kind is bool, (
            option.name
        )
        if option.kind is not str:
            with pytest.raises(ExplorerError) as refused:
                read_option(option, "no such value", "--here")
            assert str(refused.value).startswith("--here: "), option.name


def test_a_setting_is_read_from_toml_as_from_the_command_line() -> None:
    readers = build_table_readers(TileSpec)
    assert readers["tile"]([64, 32, 16], "x:1") == readers["tile"]("64x32x16", "x:1") == (64, 32, 16)
    assert "config" not in readers
    assert find_option(TileSpec, "accumulator") == find_option(QuantizeSpec, "accumulator")
