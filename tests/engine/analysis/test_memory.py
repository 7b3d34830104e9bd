"""The peak of activation memory: what is alive at one step, and where."""

from __future__ import annotations

from explorer.engine.analysis.memory import Step, live_peak
from explorer.facts import TensorInfo


def made(name: str, size: int) -> tuple[str, TensorInfo, int]:
    return name, TensorInfo(name, "uint8", (size,)), size


def test_inputs_and_outputs_of_a_step_are_alive_together() -> None:
    steps = [
        Step("", [], [made("x", 10)]),
        Step("a", ["x"], [made("y", 100)]),
        Step("b", ["y"], [made("z", 30)]),
        Step("c", ["z"], [made("out", 1)]),
    ]
    peak = live_peak(steps, keep=["out"])
    assert (peak.bytes, peak.label) == (130, "b")
    assert [t.name for t in peak.tensors] == ["y", "z"]


def test_a_tensor_that_is_needed_later_stays() -> None:
    steps = [
        Step("", [], [made("x", 10)]),
        Step("a", ["x"], [made("y", 10)]),
        Step("b", ["y"], [made("z", 10)]),
        Step("add", ["z", "x"], [made("out", 10)]),
    ]
    peak = live_peak(steps, keep=["out"])
    assert peak.bytes == 30
    assert {t.name for t in peak.tensors} == {"x", "y", "z"}


def test_an_output_of_the_model_is_never_freed() -> None:
    steps = [
        Step("a", [], [made("early", 50)]),
        Step("b", [], [made("late", 60)]),
    ]
    assert live_peak(steps, keep=["early", "late"]).bytes == 110
    assert live_peak(steps, keep=["late"]).bytes == 60


def test_a_view_takes_no_memory_of_its_own() -> None:
    steps = [Step("a", [], [made("x", 50)]), Step("view", ["x"], [made("x", 50)])]
    assert live_peak(steps).bytes == 50


def test_nothing_has_a_peak_of_nothing() -> None:
    assert live_peak([]).bytes == 0
    assert live_peak([Step("a", [], [])]).tensors == ()


def test_only_the_largest_tensors_are_named() -> None:
    outputs = [made(f"t{i}", i + 1) for i in range(40)]
    peak = live_peak([Step("a", [], outputs)])
    assert peak.bytes == sum(range(1, 41))
    assert [t.name for t in peak.tensors] == [f"t{i}" for i in range(39, 23, -1)]
