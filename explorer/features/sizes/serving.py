"""Session method that counts the cost of serving a language model on a machine."""

from __future__ import annotations

from collections.abc import Hashable

from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.engine.costs.decode import module_cache
from explorer.engine.formats.torch_module.loaded_module import LoadedModule
from explorer.engine.progress import report
from explorer.engine.serving.fingerprint import compute_module_digest
from explorer.engine.serving.passes import Passes
from explorer.engine.serving.serving import check_spec, compute_serving, create_passes, resolve_types
from explorer.facts.roofline import Machine
from explorer.facts.serving.serving import Serving
from explorer.facts.serving.spec import ServingSpec
from explorer.session.methods.facade import Facade
from explorer.session.parts.models import Cancel, Models, OnProgress
from explorer.settings.machine_presets import DEVICES
from explorer.settings.machines import find_measured


class Server:
    """Count the cost of serving the models of a session; keeps the forward passes of the last request."""

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
        """Return the figures of prompt, decode steps and cache of a state, with times on `machine`."""
        loaded = self._get_module(index, on_progress)
        check_spec(spec)
        key = loaded.source, self._models.resolve_index(index), resolve_types(spec).compute, spec.prompt
        with loaded.quiet():
            if self._last_passes is None or self._last_passes[0] != key:
                self._last_passes = (
                    key,
                    create_passes(module_cache.find_own_cache(loaded.meta(), loaded.source), spec),
                )
            passes = self._last_passes[1]
            passes.on_pass = lambda done: report(on_progress, cancel, "running on shapes", done)
            fact = compute_serving(passes, apply_preset(spec, machine), machine, find_measured(machine))
        return replace(fact, notes=(*loaded.notes, *fact.notes))

    def content(self, index: int | None, on_progress: OnProgress) -> str:
        """Return a digest of everything in a state that its figures depend on."""
        return compute_module_digest(self._get_module(index, on_progress).meta())

    def _get_module(self, index: int | None, on_progress: OnProgress) -> LoadedModule:
        opened = self._models.open_state(self._models.resolve_index(index), on_progress)
        loaded: LoadedModule | None = getattr(opened, "loaded", None)
        if loaded is None:
            reason = getattr(getattr(opened, "contents", None), "why", "")
            if reason:
                raise Misuse(f"the model has no known module: {reason}", where=self._models.source)
            raise Misuse(
                "serving counts a module with its own cache, and this model is not one",
                where=self._models.source,
                hint="explorer decode counts a step of a graph that takes its cache as inputs",
            )
        return loaded


def apply_preset(spec: ServingSpec, machine: Machine | None) -> ServingSpec:
    """Fill in the memory and links of the machine's preset if `spec` does not set them."""
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
    """Count the cost of running a language model: parameters, prompt, decode step, cache, times, layouts.

    Args:
        spec: Prompt, contexts, batches, devices and data types.
        machine: Machine of each device, for the times, or None to leave out times.
        index: Index of the state in the history, or None for the current state.
        on_progress: Callback that receives the progress.
        cancel: Callback that is polled regularly; the work stops when it returns True.

    Raises:
        Misuse: The model does not manage a KV cache itself, or a size or type is not possible.
        BadModel: The model cannot process a prompt, or cannot continue from its cache.
        Cancelled: `cancel` returned True.
    """
    return session.parts.get_part(Server).serving(spec, machine, index, on_progress, cancel)
