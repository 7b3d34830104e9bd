"""Session: the only entrance to the engine (`session.session`), its parts, and reading headers alone.

Names are resolved when they are first used (PEP 562), because a command that needs only `session.headers`
must finish within the time of a key press.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from explorer.session.cache.analysis_cache import cache_usage, clear_cache
    from explorer.session.headers import list_models
    from explorer.session.machine import measure_machine
    from explorer.session.methods.public_api import (
        blame_files,
        check_files,
        compare_files,
        count,
        diff_files,
        evaluate_files,
        make_model,
        progress_bar,
        run_pipeline,
        summary,
        sweep_files,
        sweep_formats,
        sweep_serving,
        tree_diff_files,
        verify_files,
    )
    from explorer.session.session import Session

_HOMES = {
    "Session": "session",
    "cache_usage": "cache.analysis_cache",
    "clear_cache": "cache.analysis_cache",
    "list_models": "headers",
    "measure_machine": "machine",
}
"""Module in the session package that defines each name. All other names are defined by features."""
__all__ = [
    "Session",
    "blame_files",
    "cache_usage",
    "check_files",
    "clear_cache",
    "compare_files",
    "count",
    "diff_files",
    "evaluate_files",
    "list_models",
    "make_model",
    "measure_machine",
    "progress_bar",
    "run_pipeline",
    "summary",
    "sweep_files",
    "sweep_formats",
    "sweep_serving",
    "tree_diff_files",
    "verify_files",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from importlib import import_module

        from explorer.host.system import check_supported

        check_supported(f"explorer.{name}")
        if name in _HOMES:
            attribute = getattr(import_module(f"explorer.session.{_HOMES[name]}"), name)
        else:
            from explorer.base.features import load

            attribute = load("functions", name)
        if not isinstance(attribute, type):
            from explorer.base.checked import wrap_checked
            from explorer.session.session import argument_type

            attribute = wrap_checked(attribute, argument_type)
        globals()[name] = attribute
        return attribute
    raise AttributeError(f"module 'explorer.session' has no attribute '{name}'")
