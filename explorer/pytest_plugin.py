"""pytest plug-in: fixtures that open models and check their figures against budgets.

    def test_size(explorer_model, assert_budget):
        session = explorer_model("models/net.onnx")
        assert_budget(session, max_macs="4.1G", min_coverage="100%")

pytest loads this module in every run, through the entry point `explorer`. Its import therefore needs nothing
but pytest. A fixture imports the program when a test requests it. `-p no:explorer` turns the plug-in off.
"""

from __future__ import annotations

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator
    from typing import Any, Protocol

    from torch import nn

    from explorer import Machine, Session
    from explorer.facts.check import BudgetValue, Check, ModelCheck

    Source = str | os.PathLike[str] | nn.Module

    class AssertBudget(Protocol):
        """Type of the fixture `assert_budget`."""

        def __call__(
            self,
            model: Session | Source,
            *,
            max_macs: BudgetValue = None,
            max_params: BudgetValue = None,
            max_weight_bytes: BudgetValue = None,
            max_peak: BudgetValue = None,
            max_seconds: BudgetValue = None,
            min_coverage: BudgetValue = None,
            no_new_unknown: bool = False,
            against: str | None = None,
            machine: Machine | None = None,
        ) -> Check:
            """Fail the test unless all budgets are met; returns the answer."""


@pytest.fixture
def explorer_model() -> Iterator[Callable[..., Session]]:
    """Function that opens a model as `explorer.Session` does. The sessions close at the end of the test."""
    from contextlib import ExitStack

    import explorer  # imported on demand, like all other modules of the program

    with ExitStack() as stack:

        def open_model(source: Source, **options: Any) -> Session:
            return stack.enter_context(explorer.Session(source, **options))

        yield open_model


@pytest.fixture
def assert_budget() -> AssertBudget:
    """Function that fails the test if a model misses a budget, or if the figure of a budget is unknown.

    A broken model, a broken baseline or a wrong budget also fails the test, with one line.

    Its first argument is a session, a path, a name or an nn.Module. The other arguments are the fields of
    `explorer.CheckSpec`, and `against` and `machine` of `Session.check`. For a path or a name, the budgets of
    `pyproject.toml` apply too.
    """

    def check_budget(
        model: Session | Source,
        *,
        against: str | None = None,
        machine: Machine | None = None,
        **budgets: Any,
    ) -> Check:
        __tracebackhide__ = True
        from os import PathLike

        import explorer
        from explorer.facts.check import Check

        fact, problem = None, ""
        try:
            spec = explorer.CheckSpec(**budgets)
            if isinstance(model, str | PathLike):
                fact = explorer.check_files(model, spec=spec, against=against, machine=machine)
            else:
                fact = _build_check(_check_session(model, spec, against, machine), against, Check)
        except explorer.ExplorerError as error:
            problem = str(error)
        if fact is None or fact.verdict != "met":  # outside of the handler, so that pytest shows one failure
            pytest.fail(problem if fact is None else _write_text(fact), pytrace=False)
        return fact

    return check_budget


def _check_session(model: Any, spec: Any, against: str | None, machine: Any) -> ModelCheck:
    import explorer

    if isinstance(model, explorer.Session):
        return model.check(spec, against=against, machine=machine)
    with explorer.Session(model) as session:
        return session.check(spec, against=against, machine=machine)


def _build_check(model: ModelCheck, against: str | None, kind: type[Check]) -> Check:
    return kind((model,), against or "", False, model.verdict)


def _write_text(fact: Check) -> str:
    from explorer.base.features import load
    from explorer.report.layout import Page

    return "".join(Page(load("words", "check")(fact), fit=False, exact=False).plain()).rstrip()
