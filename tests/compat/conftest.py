"""These tests run where somebody names this folder: the suite has longer tests of the same subjects."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves the folder out, unless the command line names it or a file in it."""
    if not collection_path.is_relative_to(HERE):
        return None
    named = [(config.invocation_params.dir / word.partition("::")[0]).resolve() for word in config.args]
    return None if any(path.is_relative_to(HERE) for path in named) else True
