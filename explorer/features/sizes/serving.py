"""Costs of serving a session's models: the engine counts an opened module, for the machine of the user."""

from __future__ import annotations

from collections.abc import Hashable

from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.engine.costs.decode import module_cache
from explorer.engine.formats.torch_module.loaded_module import LoadedModule
from explorer.engine.progress import report
from explorer.engine.serving.fingerprint import module_content
from explorer.engine.serving.passes import Passes
from explorer.engine.serving.serving import check, passes_of, served, stored_types
from explorer.facts.roofline import Machine
from explorer.facts.serving.serving import Serving
from explorer.facts.serving.spec import ServingSpec
from explorer.session.methods.facade import Facade
from explorer.session.parts.models import Cancel, Models, OnProgress
from explorer.settings.machine_presets import DEVICES
from explorer.settings.machines import measured_of


class Server:
    """Counts what serving the models of a session costs; keeps the passes of the last question."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._last_passes: tuple[Hashable, Passes] | None = None

    def serving(
        self,
        spec: ServingSpec,
        machine: Machine | None,
        index: int | None,
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> Serving:
        """Figures of prompt, decode steps and cache of a state, with times on `machine`."""
        loaded = self._loaded(index, on_progress)
        check(spec)
        key = loaded.source, self._models.at(index), stored_types(spec).compute, spec.prompt
        with loaded.quiet():
            if self._last_passes is None or self._last_passes[0] != key:
                self._last_passes = key, passes_of(module_cache.of_module(loaded.meta(), loaded.source), spec)
            passes = self._last_passes[1]
            passes.told = lambda done: report(on_progress, cancel, "running on shapes", done)
            fact = served(passes, on_machine(spec, machine), machine, measured_of(machine))
        return replace(fact, notes=(*loaded.notes, *fact.notes))

    def content(self, index: int | None, on_progress: OnProgress) -> str:
        """Digest of everything in a state that its figures depend on."""
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
    """`spec` with the memory and links of the machine's preset, where `spec` names none."""
    device = DEVICES.get(machine.name) if machine is not None else None
    if device is None:
        return spec
    return replace(spec, card=spec.card or device.memory, links=spec.links or device.links)


def serving(
    session: Facade,
    spec: ServingSpec,
    *,
    machine: Machine | None = None,
    index: int | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Serving:
    """What it costs to run a language model: parameters, prompt and step, cache, times, layouts.

    Args:
        spec: Prompt, contexts, batches, devices and types.
        machine: Of the times, and of each device; None leaves them out.
        index: Which model of the history; None is the current one.
        on_progress: Told where the work stands.
        cancel: Asked meanwhile; True stops.

    Raises:
        Misuse: The model has no cache of its own, or a size or type cannot be.
        BadModel: It does not run over a prompt, or behind its cache.
        Cancelled: `cancel` said so.
    """
    return session.parts.of(Server).serving(spec, machine, index, on_progress, cancel)
