"""Timed sessions: one set as a user's, and one under onnxruntime's profiler; their runs alternate.

A run right behind one of the other session finds threads that still spin, and caches of the other; so short
runs are made in blocks, and the first of a block is not counted.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from typing import Any

import onnxruntime

from explorer.base.errors import BadModel, Misuse
from explorer.engine.formats.onnx import reader
from explorer.engine.formats.onnx.writer import skeleton
from explorer.engine.graph.model import Graph, Model
from explorer.engine.profile.runs import TimedRuns
from explorer.engine.runtime.onnxruntime import Array, one_line
from explorer.facts.profile.profile import ProfileSpec

_Level = onnxruntime.GraphOptimizationLevel
LEVELS: Mapping[str, Any] = {
    "none": _Level.ORT_DISABLE_ALL,
    "basic": _Level.ORT_ENABLE_BASIC,
    "extended": _Level.ORT_ENABLE_EXTENDED,
    "all": _Level.ORT_ENABLE_ALL,
}
"""Levels of graph optimisation by the word for `--optimize`."""

_WEIGHTS = "optimised.data"
_FULL = 1 << 20
"""Bytes below which a disk is full."""


class TimedSessions(TimedRuns):
    """A session without the profiler and one with it."""

    def __init__(
        self,
        model: Model,
        feeds: Mapping[str, Array],
        spec: ProfileSpec,
        level: str,
        providers: Sequence[str],
        place: str,
    ) -> None:
        super().__init__(spec.record)
        self._feeds, self._level, self._place = feeds, level, place
        folder = os.path.dirname(os.path.abspath(model.path)) if model.path else os.getcwd()
        self._model_bytes = skeleton(model, folder=folder)

        def session(**more: Any) -> Any:
            options = _options(spec, level, folder)
            for name, value in more.items():
                setattr(options, name, value)
            return self._loaded(options, providers)

        self._target = os.path.join(place, "optimised.onnx")
        prefix = os.path.join(place, "profile")
        self._observed = session(
            enable_profiling=True, profile_file_prefix=prefix, optimized_model_filepath=self._target
        )
        self._plain = session()

    def _loaded(self, options: Any, providers: Sequence[str]) -> Any:
        try:
            session = onnxruntime.InferenceSession(
                self._model_bytes, options, providers=[*providers], enable_fallback=0
            )
        except Exception as error:  # onnxruntime's own classes share no base below Exception
            if shutil.disk_usage(self._place).free < _FULL:
                raise Misuse(
                    "the disk is full", where=self._place, hint="make room, or name a folder in TMPDIR"
                ) from None
            hint = "--optimize none loads it" if self._loads_plain(options, providers) else ""
            raise BadModel(f"onnxruntime cannot load the model: {one_line(error)}", hint=hint) from None
        if providers[0] not in session.get_providers():  # onnxruntime has it, but goes on without the device
            raise Misuse(
                f"onnxruntime cannot use {providers[0]} here",
                where="--device",
                hint="leave it out for the processor",
            )
        return session

    def _loads_plain(self, options: Any, providers: Sequence[str]) -> bool:
        """Whether it is the optimization that fails."""
        options.graph_optimization_level = LEVELS["none"]
        options.enable_profiling = False
        options.optimized_model_filepath = ""
        try:
            onnxruntime.InferenceSession(
                self._model_bytes, options, providers=[*providers], enable_fallback=0
            )
        except Exception:  # as above
            return False
        return self._level != "none"

    def optimised(self) -> Graph:
        """The graph to which the runtime optimized the model; it can be read once."""
        graph = reader.read(self._target).graph
        os.unlink(self._target)
        with contextlib.suppress(FileNotFoundError):  # as large as the model, and not needed
            os.unlink(os.path.join(self._place, _WEIGHTS))
        return graph

    def once(self, observed: bool) -> float:
        """See `TimedRuns`."""
        session = self._observed if observed else self._plain
        began = time.perf_counter()
        session.run(None, self._feeds)
        return time.perf_counter() - began

    def end(self) -> str:
        """The path of the profile."""
        path: str = self._observed.end_profiling()
        return path


def _options(spec: ProfileSpec, level: str, folder: str) -> Any:
    """A user's session: nothing is switched off that he would have."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = spec.threads or 0
    options.graph_optimization_level = LEVELS[level]
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    weights = "session.optimized_model_external_initializers_"
    options.add_session_config_entry(f"{weights}file_name", _WEIGHTS)
    options.add_session_config_entry(f"{weights}min_size_in_bytes", "1024")
    return options
