"""Serves a session's models: what of one is opened goes to the engine, with the machine that a user means."""

from __future__ import annotations

from collections.abc import Hashable

from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.engine.costs.decode import module_cache
from explorer.engine.formats.torch_module.loaded_module import LoadedModule
from explorer.engine.progress import Cancel, OnProgress, report
from explorer.engine.serving.fingerprint import module_content
from explorer.engine.serving.passes import Passes
from explorer.engine.serving.serving import check, passes_of, served, stored_types
from explorer.facts.roofline import Machine
from explorer.facts.serving.serving import Serving
from explorer.facts.serving.spec import ServingSpec
from explorer.session.parts.models import Models
from explorer.settings.machine_presets import DEVICES
from explorer.settings.machines import measured_of


class Server:
    """What it costs to run the models of a session."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._known: tuple[Hashable, Passes] | None = None

    def serving(
        self,
        spec: ServingSpec,
        machine: Machine | None,
        index: int | None,
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> Serving:
        """Prompt, steps, cache and times of a state."""
        loaded = self._loaded(index, on_progress)
        check(spec)
        key = loaded.source, self._models.at(index), stored_types(spec).compute, spec.prompt
        with loaded.quiet():
            if self._known is None or self._known[0] != key:
                self._known = key, passes_of(module_cache.of_module(loaded.meta(), loaded.source), spec)
            passes = self._known[1]
            passes.told = lambda done: report(on_progress, cancel, "running on shapes", done)
            found = served(passes, on_machine(spec, machine), machine, measured_of(machine))
        return replace(found, notes=(*loaded.notes, *found.notes))

    def content(self, index: int | None, on_progress: OnProgress) -> str:
        """Digest of what the figures of a state depend on, beside what is asked."""
        return module_content(self._loaded(index, on_progress).meta())

    def _loaded(self, index: int | None, on_progress: OnProgress) -> LoadedModule:
        opened = self._models.opened(self._models.at(index), on_progress)
        loaded: LoadedModule | None = getattr(opened, "loaded", None)
        if loaded is None:
            why = getattr(getattr(opened, "contents", None), "why", "")
            if why:
                raise Misuse(f"no module of it is known: {why}", where=self._models.source)
            raise Misuse(
                "serving counts a module with its own cache, and this is none",
                where=self._models.source,
                hint="explorer decode counts a step of a graph that takes its cache as inputs",
            )
        return loaded


def on_machine(spec: ServingSpec, machine: Machine | None) -> ServingSpec:
    """A question with the memory and the links of a preset, where it names neither."""
    device = DEVICES.get(machine.name) if machine is not None else None
    if device is None:
        return spec
    return replace(spec, card=spec.card or device.memory, links=spec.links or device.links)
