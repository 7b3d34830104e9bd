"""Creates two sessions of a model: a user's normal session, and one with onnxruntime's profiler."""

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
from explorer.engine.formats.onnx.writer import encode_skeleton
from explorer.engine.graph.model import Graph, Model
from explorer.engine.profile.runs import TimedRuns
from explorer.engine.runtime.onnxruntime import Array, shorten_error
from explorer.facts.profile.profile import ProfileSpec

_Level = onnxruntime.GraphOptimizationLevel
LEVELS: Mapping[str, Any] = {
    "none": _Level.ORT_DISABLE_ALL,
    "basic": _Level.ORT_ENABLE_BASIC,
    "extended": _Level.ORT_ENABLE_EXTENDED,
    "all": _Level.ORT_ENABLE_ALL,
}
"""Levels of graph optimization, by the value of `--optimize`."""

_WEIGHTS = "optimized.data"
"""Name of the file with the weights of the optimized graph."""
_MIN_FREE_BYTES = 1 << 20
"""Free bytes below which a disk counts as full."""


class TimedSessions(TimedRuns):
    """A session without the profiler and a session with it."""

    def __init__(
        self,
        model: Model,
        feeds: Mapping[str, Array],
        spec: ProfileSpec,
        level: str,
        providers: Sequence[str],
        workdir: str,
    ) -> None:
        super().__init__(spec.record)
        self._feeds, self._level, self._workdir = feeds, level, workdir
        folder = os.path.dirname(os.path.abspath(model.path)) if model.path else os.getcwd()
        self._model_bytes = encode_skeleton(model, folder=folder)

        def create_session(**more: Any) -> Any:
            options = _build_options(spec, level, folder)
            for name, value in more.items():
                setattr(options, name, value)
            return self._create_session(options, providers)

        self._target = os.path.join(workdir, "optimized.onnx")
        prefix = os.path.join(workdir, "profile")
        self._observed = create_session(
            enable_profiling=True, profile_file_prefix=prefix, optimized_model_filepath=self._target
        )
        self._plain = create_session()

    def _create_session(self, options: Any, providers: Sequence[str]) -> Any:
        try:
            session = onnxruntime.InferenceSession(
                self._model_bytes, options, providers=[*providers], enable_fallback=0
            )
        except Exception as error:  # onnxruntime's own classes share no base below Exception
            if shutil.disk_usage(self._workdir).free < _MIN_FREE_BYTES:
                raise Misuse(
                    "the disk is full", where=self._workdir, hint="make room, or name a folder in TMPDIR"
                ) from None
            hint = "--optimize none loads it" if self._loads_unoptimized(options, providers) else ""
            raise BadModel(f"onnxruntime cannot load the model: {shorten_error(error)}", hint=hint) from None
        if (
            providers[0] not in session.get_providers()
        ):  # onnxruntime has the provider, but created the session without it
            message = f"onnxruntime cannot use {providers[0]} here"
            raise Misuse(message, where="--device", hint="leave it out for the processor")
        return session

    def _loads_unoptimized(self, options: Any, providers: Sequence[str]) -> bool:
        """Whether the model loads without optimization, and so the optimization failed."""
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

    def read_optimized_graph(self) -> Graph:
        """Returns the graph after the runtime has optimized it.

        Call it only once: it deletes the file.
        """
        graph = reader.read(self._target).graph
        os.unlink(self._target)
        with contextlib.suppress(FileNotFoundError):  # not needed, and as large as the model
            os.unlink(os.path.join(self._workdir, _WEIGHTS))
        return graph

    def run_once(self, observed: bool) -> float:
        """See `TimedRuns`."""
        session = self._observed if observed else self._plain
        began = time.perf_counter()
        session.run(None, self._feeds)
        return time.perf_counter() - began

    def end(self) -> str:
        """Ends the profiler; returns the path of its file."""
        path: str = self._observed.end_profiling()
        return path


def _build_options(spec: ProfileSpec, level: str, folder: str) -> Any:
    """Returns the options of a user's normal session, with nothing disabled."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = spec.threads or 0
    options.graph_optimization_level = LEVELS[level]
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    weights = "session.optimized_model_external_initializers_"
    options.add_session_config_entry(f"{weights}file_name", _WEIGHTS)
    options.add_session_config_entry(f"{weights}min_size_in_bytes", "1024")
    return options
