"""What a Python program gives is checked when it is given: fields of records, arguments of calls."""

from __future__ import annotations

from collections.abc import Callable
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
from explorer.base.checked import Spec, _kinds
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


UNCHECKED = {
    "source",
    "overlay",
    "figures",
    "unfold",
    "read",
    "a",
    "b",
    "before",
    "after",
    "on_progress",
    "cancel",
}
"""Arguments whose types msgspec does not know: sessions' sources, functions, unions of texts and tuples."""


def test_arguments_of_methods_are_checked() -> None:
    seen = 0
    for name, member in vars(Session).items():
        function = getattr(member, "__wrapped__", None)
        if function is None:
            continue
        code = function.__code__
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        for argument, kind in _kinds(function, names, argument_type).items():
            seen += 1
            assert kind is not None or argument in {*UNCHECKED, "self", "session"}, f"{name}({argument})"
    assert seen > 200
