"""What a Python program gives is checked when it is given: fields of records, arguments of calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import explorer
from explorer import (
    EditStep,
    ExplorerError,
    FormatSweepSpec,
    Hardware,
    Machine,
    Misuse,
    PartSpec,
    ProfileSpec,
    QuantizeSpec,
    ServingSpec,
    Session,
    SplitSpec,
    SweepSpec,
    TileRule,
    TileSpec,
    Tolerance,
)
from explorer.base.checked import Spec, _resolve_types
from explorer.session.session import argument_type

LENET = str(Path(__file__).parents[2] / "sample_models" / "lenet.onnx")

WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "choice": (
        lambda: QuantizeSpec(calibrator="mean"),
        "QuantizeSpec.calibrator: 'mean'.*'entropy', 'minmax'",
    ),
    "another choice": (
        lambda: SplitSpec(schedule="zigzag"),
        "SplitSpec.schedule: 'zigzag'.*'1f1b' or 'gpipe'",
    ),
    "kind": (lambda: EditStep("insert", "conv1"), "EditStep.kind: 'insert'.*'delete', 'rename'"),
    "type": (lambda: EditStep("rename", 7), "EditStep.name: 7 .*give text"),
    "type of a number": (
        lambda: ServingSpec(prompt="long"),
        "ServingSpec.prompt: 'long'.*whole number of at",
    ),
    "truth as a number": (lambda: ProfileSpec(steps=True), "ProfileSpec.steps: True"),
    "fraction": (lambda: ProfileSpec(threads=1.5), "ProfileSpec.threads: 1.5"),
    "range": (lambda: QuantizeSpec(percentile=150), "QuantizeSpec.percentile: 150.*above 50 of at most 100"),
    "below": (lambda: Tolerance(rtol=-1e-3), "Tolerance.rtol: -0.001.*at least 0"),
    "no number": (lambda: Machine("m", float("nan"), 1e9), "Machine.peak_macs: nan"),
    "inside": (lambda: ServingSpec(batches=(1, 0)), r"ServingSpec.batches: \(1, 0\)"),
    "length": (lambda: TileRule(tile=(8, 8)), r"TileRule.tile: \(8, 8\).*3 values, each a whole number"),
    "field": (
        lambda: ProfileSpec(thread=2),
        "ProfileSpec: has no field 'thread'; its fields: optimize, threads",
    ),
    "missing": (lambda: FormatSweepSpec(), "FormatSweepSpec: missing required argument 'formats'"),
    "too many": (lambda: PartSpec((), (), (), ()), "PartSpec: has no field 'argument 4'"),
    "record": (lambda: SweepSpec(tiles=((8, 8, 8),), base="ragged"), "SweepSpec.base: 'ragged'.*a TileSpec"),
    "long": (lambda: QuantizeSpec(form="x" * 500), r"QuantizeSpec.form: 'x+\.\.\. cannot be taken"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_field_is_named_with_its_value_and_what_is_allowed(name: str) -> None:
    make, message = WRONG[name]
    with pytest.raises(Misuse, match=message):
        make()


def test_what_plainly_means_the_right_thing_is_taken(tmp_path: Path) -> None:
    assert QuantizeSpec(sites="conv*").sites == ("conv*",)
    assert PartSpec(end=["fc2", "fc1"]).end == ("fc2", "fc1")
    assert SweepSpec(tiles=[[8, 8, 8]], forms="scan").forms == ("scan",)
    assert TileSpec(tile=np.array([4, 8, 16])).tile == (4, 8, 16)
    assert ServingSpec(contexts=np.int64(512)).contexts == (512,)
    assert ProfileSpec(input=tmp_path / "x.npz").input == str(tmp_path / "x.npz")
    assert type(Hardware(clock=np.float32(2.0)).clock) is float
    assert type(QuantizeSpec(percentile=99).percentile) is float


def test_a_changed_copy_is_checked_too() -> None:
    with pytest.raises(Misuse, match=r"TileSpec\.edges: 'soft'"):
        msgspec.structs.replace(TileSpec(), edges="soft")


ARGUMENTS: dict[str, tuple[Callable[[Session], Any], str]] = {
    "mapping": (lambda s: s.bind({"batch": "many"}), "bind"),
    "choice": (
        lambda s: s.convert("x.pt", method="guess"),
        r"convert\(method\): 'guess'.*'script', 'trace' or None",
    ),
    "record": (lambda s: s.tile((8, 8, 8)), r"tile\(spec\): \(8, 8, 8\).*a TileSpec"),
    "number": (lambda s: s.verify(draws="three"), r"verify\(draws\): 'three'"),
    "truth": (lambda s: s.save("x.onnx", overwrite="yes"), r"save\(overwrite\): 'yes'.*True or False"),
    "task": (lambda s: s.evaluate("d.npz", task="guessing"), r"evaluate\(task\): 'guessing'"),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_wrong_argument_is_named_with_its_value_and_what_is_allowed(name: str) -> None:
    call, message = ARGUMENTS[name]
    with Session(LENET) as session, pytest.raises(Misuse, match=message):
        call(session)


def test_a_session_is_not_opened_with_a_size_that_is_no_number() -> None:
    with pytest.raises(Misuse, match=r"Session\(dims\): \{'batch': 'x'\}.*from text to a whole number"):
        Session(LENET, dims={"batch": "x"})


def test_paths_and_single_texts_are_taken_as_arguments(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.zeros((2, 1, 28, 28), np.float32), label=np.array([0, 1]))
    with Session(LENET) as session:
        found = session.evaluate(tmp_path / "d.npz", inputs="x", batch=np.int64(2))
        assert found.samples == 2
        session.save(tmp_path / "copy.onnx")
    assert (tmp_path / "copy.onnx").exists()
    with pytest.raises(ExplorerError, match=r"verify_files\(draws\): 0.5"):
        explorer.verify_files(LENET, LENET, draws=0.5)


def test_records_that_a_program_makes_are_all_checked() -> None:
    made = [getattr(explorer, name) for name in explorer.__all__ if name.endswith(("Spec", "Rule", "Step"))]
    assert len(made) >= 10
    for kind in [*made, Hardware, Machine, Tolerance]:
        assert issubclass(kind, Spec), kind


NEVER = [object(), float("nan"), float("-inf"), 10**30, b"x", {"no such field": object()}]
"""What no field and no argument takes."""

NEEDED: dict[str, dict[str, Any]] = {
    "EditSpec": {"steps": (EditStep("rename", "a"),)},
    "EditStep": {"kind": "rename", "name": "a"},
    "FormatSweepSpec": {"formats": ("int8",)},
    "MachineMemory": {"name": "m"},
    "MemoryMachine": {"hardware": Hardware(), "memories": ()},
    "NestLevel": {"order": "mnk", "tile": (1, 1, 1)},
    "SiteMapping": {"site": "s", "size": (1, 1, 1), "levels": ()},
    "Machine": {"name": "m", "peak_macs": 1.0, "bandwidth": 1.0},
    "QuantizeRequest": {"spec": QuantizeSpec()},
    "SweepSpec": {"tiles": ((8, 8, 8),)},
}
"""Fields without a default."""

EMPTY = {
    *("QuantizeSpec.ops", "QuantizeSpec.sites", "TileSpec.sites", "FormatSweepSpec.formats", "EditStep.name"),
    *("PartSpec.layers", "PartSpec.start", "PartSpec.end", "SplitSpec.at", "SplitSpec.cuts"),
    *("ProfileSpec.device", "ProfileSpec.input", "TrainingOptions.save_to"),
    *("ConversionOptions.input_names", "ConversionOptions.output_names"),
}
"""Fields that mean a thing by its name, so that no text is none."""


def fields() -> list[tuple[type[Spec], str]]:
    import explorer.engine.convert.job
    import explorer.engine.evaluate.train  # noqa: F401

    return [
        (kind, field.name)
        for kind in sorted(Spec.__subclasses__(), key=lambda kind: kind.__name__)
        for field in msgspec.structs.fields(kind)
    ]


def refused(call: Callable[[], Any], where: str) -> str:
    """What is wrong with how a call answers that has to be refused; '' for nothing."""
    try:
        call()
    except Misuse as error:
        return "" if f"{where}: " in str(error) else str(error)
    except Exception as error:
        return f"{where}: {error!r}"
    return f"{where}: taken"


def wrong_values(kind: Any, signed: bool, named: bool) -> list[Any]:
    """What a field or an argument of a type may not take."""
    numbers = str(kind)
    return [
        *(value for value in NEVER if not (isinstance(value, int) and "loat" in numbers)),
        *([-1] if not signed and ("int" in numbers.lower() or "loat" in numbers) else []),
        *([""] if named else []),
    ]


def test_every_field_refuses_what_it_cannot_mean() -> None:
    faults, seen = [], 0
    for kind, name in fields():
        where = f"{kind.__name__}.{name}"
        info = next(f.type for f in msgspec.inspect.type_info(kind).fields if f.name == name)
        for value in wrong_values(info, where.endswith((".snr", ".axis")), where in EMPTY):
            given = {**NEEDED.get(kind.__name__, {}), name: value}
            faults.append(f"{refused(lambda kind=kind, given=given: kind(**given), where)} {value!r}")
            seen += 1
    assert [fault for fault in faults if not fault.startswith(" ")] == []
    assert seen > 600


def test_every_choice_is_one_of_those_that_there_are() -> None:
    chosen = 0
    for kind, name in fields():
        described = msgspec.inspect.type_info(kind)
        field = next(field for field in described.fields if field.name == name)
        declared = field.type
        described_type = declared.type if isinstance(declared, msgspec.inspect.Metadata) else declared
        parts = getattr(described_type, "types", (described_type,))
        if any(isinstance(part, msgspec.inspect.LiteralType) for part in parts):
            chosen += 1
            with pytest.raises(Misuse, match=f"{kind.__name__}.{name}: 'sideways' cannot be taken; give '"):
                kind(**{**NEEDED.get(kind.__name__, {}), name: "sideways"})
    assert chosen >= 15


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ProfileSpec(input="a\0b"), "ProfileSpec.input: .*without a null byte"),
        (lambda: TileSpec(tile=(8, 0, 8)), r"TileSpec.tile: \(8, 0, 8\)"),
        (lambda: SweepSpec(tiles=()), r"SweepSpec.tiles: \(\)"),
        (lambda: ServingSpec(contexts=[]), r"ServingSpec.contexts: \[\]"),
        (lambda: Hardware(array=(0, 4)), r"Hardware.array: \(0, 4\)"),
        (lambda: Machine("m", float("inf"), 1.0), "Machine.peak_macs: inf.*not NaN or infinite"),
        (lambda: ProfileSpec(seed=1 << 63), "ProfileSpec.seed: 9223372036854775808.*at most 9,223,372"),
        (lambda: TileSpec(rules=({"sites": "conv*"},)), r"TileSpec.rules: .*'sites'"),
    ],
)
def test_limits_of_fields_are_held(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(Misuse, match=message):
        make()


UNCHECKED = {"source", "overlay", "figures", "options"}
"""Arguments whose types msgspec does not know: modules, records of any change, unions with mappings."""

SIGNED = {
    *("index", "state", "states", "before", "after", "axis", "layer", "place", "places", "snr"),
    *("depth", "steps", "low", "high", "tokens", "unfold"),
}
"""Arguments that may be below zero, or whose own refusal says more."""


def arguments() -> list[tuple[str, str, Any]]:
    found = []
    for name in list(vars(Session)):
        function = getattr(getattr(Session, name), "__wrapped__", None)
        if function is None or name == "__init__":
            continue
        code = function.__code__
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        kinds = _resolve_types(function, names, argument_type)
        found += [
            (name, argument, kinds[argument]) for argument in names if argument not in ("self", "session")
        ]
    return found


def test_every_argument_refuses_what_it_cannot_mean() -> None:
    faults, seen = [], 0
    with Session(LENET) as session:
        for name, argument, kind in arguments():
            if argument in UNCHECKED:
                continue
            for value in wrong_values(kind, argument in SIGNED, False):
                call = partial(getattr(session, name), **{argument: value})
                faults.append(f"{refused(call, f'{name}({argument})')} {value!r}")
                seen += 1
    assert [fault for fault in faults if not fault.startswith(" ")] == []
    assert seen > 900


def test_arguments_that_a_method_lacks_or_needs_are_named() -> None:
    with Session(LENET) as session:
        with pytest.raises(
            Misuse, match=r"verify: has no argument 'drawz'; its arguments: before, after, draws"
        ):
            session.verify(drawz=3)
        with pytest.raises(Misuse, match="tile: needs 'spec'"):
            session.tile()
        with pytest.raises(Misuse, match="undo: takes 1 value without a name, not 2"):
            session.undo(1)
    with pytest.raises(Misuse, match="Session: has no argument 'sed'"):
        explorer.verify_files(LENET, LENET, sed=1)
    with pytest.raises(Misuse, match=r"to_torch\(draws\): 0"):
        explorer.to_torch(LENET, draws=0)


def test_a_mapping_stands_for_the_record_that_it_describes() -> None:
    with Session(LENET) as session:
        assert session.plan({"tile": [8, 8, 8]}).tile == (8, 8, 8)
        with pytest.raises(Misuse, match=r"plan\(spec\): \{'tiles': .*give a TileSpec"):
            session.plan({"tiles": [8, 8, 8]})
        with pytest.raises(Misuse, match=r"overlay\(figures\): 3 cannot be taken"):
            session.layers(overlay=3)
        with pytest.raises(Misuse, match="a target needs a loss"):
            session.activations(target="t.npy")
        with pytest.raises(Misuse, match="there is no number format 'auto'"):
            session.quantize_choice(QuantizeSpec(weight="auto"))


def test_arguments_of_methods_are_checked() -> None:
    seen = 0
    for name in list(vars(Session)):
        function = getattr(getattr(Session, name), "__wrapped__", None)
        if function is None:
            continue
        code = function.__code__
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        for argument, kind in _resolve_types(function, names, argument_type).items():
            seen += 1
            assert kind is not None or argument in {*UNCHECKED, "self", "session"}, f"{name}({argument})"
    assert seen > 200
