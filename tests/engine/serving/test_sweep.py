"""A sweep of serving: a row is what its question alone is answered, and what is kept is not made again."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from explorer import ServingSpec, ServingSweepSpec, Session, sweep_serving
from explorer.base.errors import Misuse
from explorer.facts.roofline import Machine
from explorer.facts.serving.sweep import ServingRow
from tests.engine.formats.transformers import folders

CHIP = Machine("chip", 500e12, 2e12)
SMALL = {
    **folders.LLAMA_3_8B,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "vocab_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "dtype": "bfloat16",
}
BASE = ServingSpec(24, (50, 300), (1, 4), (1, 2, 3), card=3 * 10**5, links=1e9)
SPEC = ServingSweepSpec(BASE, ("", "int8"), ("fp8",))
_LAYOUT = (
    "tensor",
    "pipeline",
    "expert",
    "weight_bytes",
    "cache_bytes",
    "link_bytes",
    "fits",
    "token",
    "rate",
)


def configured(path: Path, **changed: Any) -> str:
    """A folder of a configuration alone."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({**SMALL, **changed}))
    return str(path)


@pytest.mark.slow
def test_each_row_is_what_its_question_alone_is_answered(tmp_path: Path) -> None:
    source = configured(tmp_path / "model")
    rows = sweep_serving(source, spec=SPEC, machine=CHIP).rows
    assert len(SPEC.list_questions()) == SPEC.count_questions() == 24
    assert sum(row.layouts for row in rows if row.key.endswith(".0")) == len(rows)
    found: list[tuple[Any, ...]] = []
    with Session(source) as session:
        for question in SPEC.list_questions():
            fact = session.serving(question, machine=CHIP)
            asked = question.dtype, question.kv_dtype, question.contexts[0], question.batches[0]
            (alone,) = fact.times
            if question.devices == (1,):
                held = fact.weight_bytes, alone.memory - fact.weight_bytes
                found.append((*asked, 1, 1, 1, 1, *held, 0, alone.fits, alone.token, alone.rate))
            for one in fact.layouts:
                found.append((*asked, one.devices, *[getattr(one, name) for name in _LAYOUT]))
    names = ("dtype", "kv_dtype", "context", "batch", "devices", *_LAYOUT)
    assert [tuple(getattr(row, name) for name in names) for row in rows if not row.error] == found
    refused = {row.error for row in rows if row.error}
    assert refused == {"no layout over 3 devices: 4 heads do not divide by 3"}
    assert any(row.fits is False for row in rows)
    assert any(row.pareto for row in rows)
    assert not any(row.pareto and _beaten(row, other) for row in rows for other in rows)


def _beaten(row: ServingRow, other: ServingRow) -> bool:
    """Whether another one of the same context that fits is at least as good in both, and not the same."""
    if other.context != row.context or not other.fits or other.token is None or other.rate is None:
        return False
    assert row.token is not None
    assert row.rate is not None
    mine, its = (row.token, -row.rate / row.devices), (other.token, -other.rate / other.devices)
    return its != mine and all(b <= a for a, b in zip(mine, its, strict=True))


@pytest.mark.slow
def test_what_a_file_of_results_holds_is_not_counted_again(tmp_path: Path) -> None:
    source, kept = configured(tmp_path / "model"), str(tmp_path / "results.db")
    first = sweep_serving(source, spec=SPEC, machine=CHIP, output=kept)
    again = sweep_serving(source, spec=SPEC, machine=CHIP, output=kept)
    assert (again.made, again.kept, again.rows) == (0, len(first.rows), first.rows)
    more = replace(SPEC, base=replace(BASE, batches=(1, 2, 4)))
    wider = sweep_serving(source, spec=more, machine=CHIP, output=kept)
    assert wider.kept == len(first.rows)
    assert {row.batch for row in wider.rows} == {1, 2, 4}
    assert wider.made == sum(row.batch == 2 for row in wider.rows)
    # a question of which a row is gone is answered anew, and so is that of another machine or module
    with contextlib.closing(sqlite3.connect(kept)) as file, file:
        key = next(row.key for row in first.rows if row.layouts > 1)
        file.execute("delete from servings where key = ?", (f"{key.partition('.')[0]}.1",))
    assert 0 < sweep_serving(source, spec=SPEC, machine=CHIP, output=kept).made <= 3
    other = replace(CHIP, bandwidth=1e12)
    assert sweep_serving(source, spec=SPEC, machine=other, output=kept).made == len(first.rows)
    configured(tmp_path / "model", intermediate_size=80)
    assert sweep_serving(source, spec=SPEC, machine=CHIP, output=kept).made == len(first.rows)


@pytest.mark.slow
def test_a_model_that_cannot_be_opened_does_not_keep_others_from_their_rows(tmp_path: Path) -> None:
    good = configured(tmp_path / "good")
    bad = configured(tmp_path / "bad", model_type="nosuch")
    spec = ServingSweepSpec(replace(BASE, devices=(1,)))
    found = sweep_serving(bad, good, spec=spec)
    assert [bool(row.error) for row in found.rows] == [True] * 4 + [False] * 4
    assert "knows no architecture 'nosuch'" in found.failed[bad]
    assert list(found.failed) == [bad]
    assert all(row.token is None and row.weight_bytes for row in found.rows[4:])


def test_a_sweep_without_a_context_cannot_be_asked_for() -> None:
    with pytest.raises(Misuse, match=r"contexts: \(\) cannot be taken"):
        replace(BASE, contexts=())


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (ServingSweepSpec(BASE, ("bf16", "float7")), "--dtype: there is no number format 'float7'"),
        (ServingSweepSpec(BASE, kv_dtypes=("fp9",)), "--kv-dtype: there is no number format 'fp9'"),
        (ServingSweepSpec(replace(BASE, contexts=tuple(range(1, 60_000)))), "these are 359,994 combinations"),
        # none of the combinations is built: these fit into no memory
        (
            ServingSweepSpec(
                replace(BASE, contexts=tuple(range(1, 60_000)), batches=tuple(range(1, 40_000))),
                ("", "int8"),
                ("fp8", "fp8"),
            ),
            "these are 14,399,400,006 combinations",
        ),
    ],
)
def test_what_cannot_be_swept_is_one_line_and_leaves_no_file(
    tmp_path: Path, spec: ServingSweepSpec, says: str
) -> None:
    kept = tmp_path / "results.db"
    with pytest.raises(Misuse, match=says):
        sweep_serving(configured(tmp_path / "model"), spec=spec, output=str(kept))
    assert not kept.exists()
