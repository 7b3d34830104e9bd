"""The ten questions of the manual are answered by the keys that stand there, at most twelve."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import tasks

pytestmark = pytest.mark.slow
TASKS = tasks.tasks()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tasks")
    tasks.prepare(made)
    return made


def test_there_are_ten_and_each_has_a_picture() -> None:
    assert len(TASKS) == 10
    assert all((tasks.ROOT / "screenshots" / task.picture).is_file() for task in TASKS)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.picture.removesuffix(".svg"))
def test_a_question_is_answered_by_at_most_twelve_keys(task: tasks.Task, folder: Path) -> None:
    assert len(task.keys) <= 12
    with tasks.play(task, folder) as terminal:
        assert all(said in terminal.text() for said in task.seen)
