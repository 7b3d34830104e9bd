"""A count of a model whose calls differ, by chance, by the time or by earlier calls, is not called exact."""

from __future__ import annotations

import builtins
import contextlib
import datetime
import io
import itertools
import os
import random
import secrets
import sqlite3
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from time import perf_counter_ns
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from explorer import Session  # noqa: E402
from explorer.facts import Info  # noqa: E402

ONE = 6 * 4 * 4
CALLS = [0]
NUMBERS = itertools.count()


class Two(nn.Module):
    """Runs one product of 6 rows of 4, and a second one if `condition` says so."""

    def __init__(self, condition: Callable[[Any], Any]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.condition = condition
        self.calls = 0
        self.generator = random.Random(7)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        return self.second(x) if self.condition(self) else x


def count(condition: Callable[[Any], Any]) -> Info:
    with Session(Two(condition), inputs=(torch.rand(6, 4),), cache=False) as session:
        return session.info()


def third_call(model: Two) -> bool:
    model.calls += 1
    return model.calls == 3


def later_calls(model: Two) -> bool:
    CALLS[0] += 1
    return CALLS[0] > 1


def first_call(model: Two) -> bool:
    model.calls += 1
    return model.calls == 1


def count_in_a_buffer(model: Two) -> bool:
    model.register_buffer("steps", model._buffers.get("steps", torch.zeros((), dtype=torch.long)))
    model.steps += 1
    return bool(model.steps == 4)


class Slotted:
    """Keeps its number outside of `__dict__`."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0

    def count(self) -> bool:
        self.number += 1
        return self.number == 2


SLOTTED, TEXT, NUMBER = Slotted(), io.StringIO(), ContextVar("number", default=0)
TURNS = (turn == 2 for turn in itertools.cycle(range(3)))
HELD: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
THREAD = threading.local()
BYTES = bytearray(1)
FOLDER = tempfile.TemporaryDirectory()
OPEN_FILE = tempfile.TemporaryFile()  # noqa: SIM115 (open between calls)


def count_in_a_thread(model: Two) -> bool:
    THREAD.number = getattr(THREAD, "number", 0) + 1
    return THREAD.number == 3


def count_in_a_context(model: Two) -> bool:
    NUMBER.set(NUMBER.get() + 1)
    return NUMBER.get() == 2


def count_for_a_key(model: Two) -> bool:
    HELD[Two] = HELD.get(Two, 0) + 1
    return HELD[Two] == 2


def count_in_bytes(model: Two) -> bool:
    BYTES[0] += 1
    return BYTES[0] == 2


def count_at_a_weight(model: Two) -> bool:
    weight = model.first.weight
    weight.number = getattr(weight, "number", 0) + 1
    return weight.number == 2


def count_at_a_layer(model: Two) -> bool:
    model.second.number = getattr(model.second, "number", 0) + 1
    return model.second.number == 2


def count_in_the_environment(model: Two) -> bool:
    os.environ["CALLS_OF_A_TEST"] = str(int(os.environ.get("CALLS_OF_A_TEST", "0")) + 1)
    return os.environ["CALLS_OF_A_TEST"] == "2"


def count_in_python_itself(model: Two) -> bool:
    sys.calls_of_a_test = getattr(sys, "calls_of_a_test", 0) + 1  # type: ignore[attr-defined]
    return bool(sys.calls_of_a_test == 2)  # type: ignore[attr-defined]


def count_among_builtins(model: Two) -> bool:
    vars(builtins)["calls_of_a_test"] = vars(builtins).get("calls_of_a_test", 0) + 1
    return bool(vars(builtins)["calls_of_a_test"] == 2)


def flip_its_mode(model: Two) -> bool:
    model.training = not model.training
    return not model.training


def flip_the_mode_of_a_layer(model: Two) -> bool:
    layer = model.second
    (layer.eval if layer.training else layer.train)()
    return layer.training


def count_in_a_file(model: Two) -> bool:
    path = Path(FOLDER.name) / "calls"
    calls = int(path.read_text()) if path.exists() else 0
    path.write_text(str(calls + 1))
    return calls == 1


def count_in_a_folder(model: Two) -> bool:
    folder = f"{FOLDER.name}/folders"
    os.makedirs(f"{folder}/{len(os.listdir(folder)) if os.path.exists(folder) else 0}")
    return len(os.listdir(folder)) == 2


def count_in_a_database(model: Two) -> bool:
    with contextlib.closing(sqlite3.connect(f"{FOLDER.name}/calls.db")) as database, database:
        database.execute("create table if not exists calls (number)")
        database.execute("insert into calls values (1)")
        return bool(database.execute("select count(*) from calls").fetchone()[0] == 2)


def count_in_an_open_file(model: Two) -> bool:
    OPEN_FILE.write(b"x")
    return OPEN_FILE.tell() == 2


def log_into_a_file(model: Two) -> bool:
    with open(f"{FOLDER.name}/log", "a") as file:
        return bool(file.write("called"))


def with_a_budget(model: Two) -> bool:
    end = time.monotonic() + 0.002
    rounds = 0
    while time.monotonic() < end and rounds < 5:
        rounds += 1
    return rounds == 5


@pytest.mark.parametrize(
    "condition",
    [
        lambda model: random.random() < 0.01,
        lambda model: random.uniform(0, 1) > 0.99,
        lambda model: random.choice("ab") == "a",
        lambda model: np.random.rand() < 0.001,
        lambda model: np.random.randint(2),
        lambda model: np.random.default_rng().random() < 0.5,
        lambda model: random.Random().random() < 0.01,
        lambda model: model.generator.random() < 0.5,
        lambda model: torch.rand(()).item() < 0.01,
        lambda model: torch.zeros(()).uniform_().item() < 0.01,
        lambda model: torch.randint(0, 9, (1,)).item() == 4,
        lambda model: int(model.first.weight.sum()) in (30, 41),
        lambda model: os.urandom(1)[0] % 2,
        lambda model: secrets.randbelow(2),
        lambda model: uuid.uuid4().int % 2,
        lambda model: time.time_ns() // 1000 % 2,
        lambda model: time.localtime().tm_hour < 12,
        lambda model: perf_counter_ns() % 2,
        lambda model: next(NUMBERS) % 2,
        third_call,
        later_calls,
        first_call,
        count_in_a_buffer,
        lambda model: SLOTTED.count(),
        lambda model: TEXT.write("x") and TEXT.tell() == 2,
        lambda model: next(TURNS),
        count_in_a_thread,
        count_in_a_context,
        count_for_a_key,
        count_in_bytes,
        count_at_a_weight,
        count_at_a_layer,
        count_in_the_environment,
        count_in_python_itself,
        count_among_builtins,
        flip_its_mode,
        flip_the_mode_of_a_layer,
        count_in_a_file,
        count_in_a_folder,
        count_in_a_database,
        count_in_an_open_file,
    ],
)
def test_the_call_that_costs_more_counts_and_is_called_assumed(condition: Callable[[Any], Any]) -> None:
    fact = count(condition)
    assert (fact.totals.macs, fact.totals.status, fact.totals.sign) == (2 * ONE, "assumed", "~ ")
    assert [note for note in fact.model.notes if note.startswith("assumed: ")]


def test_a_model_that_reads_the_date_is_not_exact() -> None:
    fact = count(lambda model: datetime.datetime.now().year > 9000)
    assert (fact.totals.macs, fact.totals.status) == (ONE, "assumed")
    assert "assumed: the model reads the date, and a branch on it takes the path of today" in fact.model.notes


def logs_its_time(model: Two) -> bool:
    begin = time.perf_counter()
    model.calls += 1
    model.seconds = time.perf_counter() - begin
    return random.random() < 2


@pytest.mark.parametrize(
    "condition",
    [
        logs_its_time,
        log_into_a_file,
        lambda model: os.environ.get("A_VARIABLE_THAT_IS_NOT_SET") is None,
        lambda model: hash(model) is not None and id(model),
        lambda model: torch.rand(3).shape[0] == 3,
        lambda model: CALLS.append(1) or True,
        lambda model: next(NUMBERS) % 1000 != 999 or True,
    ],
)
def test_a_model_whose_calls_do_the_same_work_is_exact(condition: Callable[[Any], Any]) -> None:
    totals = count(condition).totals
    assert (totals.macs, totals.status) == (2 * ONE, "exact")


def is_called_by(name: str) -> bool:
    """Whether a function of this name waits for the result."""
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_name != name:
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None


def on_behalf_of_an_epoch(condition: Callable[[Any], Any]) -> Info:
    return count(condition)


def test_a_branch_on_the_caller_goes_as_in_this_run() -> None:
    def condition(model: Two) -> bool:
        return is_called_by("on_behalf_of_an_epoch")

    totals = [run(condition).totals for run in (count, on_behalf_of_an_epoch)]
    assert [(total.macs, total.status) for total in totals] == [(ONE, "exact"), (2 * ONE, "exact")]


def every_hundredth_call(model: Two) -> bool:
    model.calls += 1
    return model.calls % 100 == 0


def every_call_but_one_in_thirty(model: Two) -> bool:
    model.calls += 1
    return model.calls % 30 != 0


@pytest.mark.parametrize(
    ("condition", "products"), [(every_hundredth_call, 1), (every_call_but_one_in_thirty, 2)]
)
def test_work_in_rarer_calls_than_those_that_run_is_not_in_the_count(
    condition: Callable[[Any], Any], products: int
) -> None:
    model = Two(condition)
    with Session(model, inputs=(torch.rand(6, 4),), cache=False) as session:
        totals = session.info().totals
    assert (totals.macs, totals.status) == (products * ONE, "exact")
    assert {bool(condition(model)) for _ in range(100)} == {True, False}


def test_a_run_keeps_the_random_numbers_of_the_user() -> None:
    random.seed(3)
    np.random.seed(3)
    expected = random.random(), np.random.rand()
    random.seed(3)
    np.random.seed(3)
    count(lambda model: random.random() + np.random.rand() < 0.5)
    assert (random.random(), np.random.rand()) == expected


def test_a_run_leaves_no_replaced_clock_behind() -> None:
    names = perf_counter_ns, time.time, os.urandom, random.Random.seed
    count(lambda model: perf_counter_ns() % 2)
    assert names == (globals()["perf_counter_ns"], time.time, os.urandom, random.Random.seed)


class Merged(nn.Module):
    """Multiplies its two matrices in the first call, and stores the product for later calls."""

    def __init__(self, in_dictionary: bool) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 10, bias=False), nn.Linear(10, 4, bias=False)
        self.products: dict[str, list[Any]] = {"all": []}
        self.in_dictionary = in_dictionary

    def forward(self, x: Any) -> Any:
        stored = self.products["all"] if self.in_dictionary else getattr(self, "product", [])
        if not stored:
            product = self.one.weight.T @ self.two.weight.T
            if self.in_dictionary:
                self.products["all"].append(product)
            else:
                self.product = [product]
            stored = [product]
        return x @ stored[0]


@pytest.mark.parametrize("in_dictionary", [False, True])
def test_figures_do_not_depend_on_what_was_asked_before(in_dictionary: bool) -> None:
    first, forward, backward = 6 * 10 * 4, 3 * 6 * 4, 2 * 3 * 6 * 4 + 2 * 6 * 10 * 4
    x = torch.zeros(3, 6, requires_grad=True)  # its gradient needs the stored product
    questions: dict[str, Any] = {
        "info": lambda session: (session.info().totals.macs, session.info().totals.status),
        "training": lambda session: (session.training().forward_macs, session.training().backward_macs),
        "memory": lambda session: session.training_memory().steps[0].kept_bytes,
    }
    answers = {
        "info": (first + forward, "assumed"),
        "training": (first + forward, backward),
        "memory": 4 * 6 * 4,
    }
    for order in (("info", "training", "memory"), ("memory", "training", "info")):
        with Session(Merged(in_dictionary), inputs=x, cache=False) as session:
            assert {name: questions[name](session) for name in order} == answers
