"""How a session's models would be tiled, before anything is: plans, their cost, who said what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.facts import Plan, TileSpec
from explorer.session.module_tiling import ModuleTiling
from explorer.session.states import OnProgress

if TYPE_CHECKING:
    from explorer.engine.tiling.products import Products
    from explorer.engine.tiling.sites import Site
    from explorer.facts.cost import Hardware, PlanCost
    from explorer.facts.settings import Settings

__all__ = ["Planning"]


class Planning(ModuleTiling):
    """The methods of `explorer.session.Session` that say what a tiling would do."""

    def plan(self, spec: TileSpec, *, on_progress: OnProgress = None) -> Plan:
        """What `tile` would do to the current model, without doing it.

        Raises:
            Misuse: The tile size is impossible, a glob matches nothing, or nothing can be tiled.
        """
        return self._plan(spec, on_progress)[0]

    def tiling(self) -> Plan | None:
        """The plan by which the current model was tiled; None for one that is not.

        A file that was tiled before says so itself, and what it says is a claim: `verify` proves it. Of a
        model that was tiled several times it is the last plan, with the sites of the earlier ones behind
        its own.
        """
        from explorer.engine.proof.sites.recovery import recover_plan, with_earlier

        if self.info().tiled is None:
            return None
        at = self._history.current
        model, plan = self._model(at), self._history.entries[at].plan
        return recover_plan(model) if plan is None else with_earlier(plan, model)

    def cost(
        self,
        spec: TileSpec,
        hardware: Hardware | None = None,
        *,
        order: str = "best",
        formulas: bool | None = None,
        on_progress: OnProgress = None,
    ) -> PlanCost:
        """What a tiling of the current model would cost on a machine, without doing it.

        Args:
            spec: See `plan`.
            hardware: The machine (see `explorer.settings.machines.hardware`); None leaves out cycles and
                time.
            order: 'best' for the loop order with the least traffic at each site, or the one for all: 'mnk',
                'output-stationary'.
            formulas: Say at every site how its figures come about; None: where there is one site only.
            on_progress: Told where the job stands.

        Raises:
            Misuse: See `plan`; or there is no such order, or the machine contradicts itself.
        """
        from explorer.engine.tiling.cost import plan_cost
        from explorer.engine.tiling.formulas import explained

        cost = plan_cost(self.plan(spec, on_progress=on_progress), hardware, order=order)
        return explained(cost) if formulas or (formulas is None and len(cost.sites) == 1) else cost

    def settings(self, spec: TileSpec, *, on_progress: OnProgress = None) -> Settings:
        """What `spec` asks of every site of the current model, and who said so.

        Raises:
            Misuse: See `plan`.
        """
        from explorer.engine.tiling.settings import in_force

        # groups are packed into the tiles that are asked for; else what is asked decides nothing here
        found = self._found(self._history.current, on_progress, spec)
        every = _decided(found, TileSpec())[0].sites
        chosen = _decided(found, TileSpec(sites=spec.sites, origins=spec.origins))[0].sites
        return in_force(spec, every, chosen)

    # inside

    def _plan(self, spec: TileSpec, on_progress: OnProgress) -> tuple[Plan, Products, list[Site]]:
        """As `_plan_of`, of the current model."""
        return self._plan_of(self._history.current, spec, on_progress)

    def _plan_of(
        self, at: int, spec: TileSpec, on_progress: OnProgress, apart: tuple[str, ...] | None = None
    ) -> tuple[Plan, Products, list[Site]]:
        """The plan, the products that it chose from, and its sites among them."""
        found = self._found(at, on_progress, spec, apart)
        plan, chosen = _decided(found, spec)
        if plan.decomposed != found.decomposed and apart is None:
            # what holds none of the chosen sites stays whole
            return self._plan_of(at, spec, on_progress, plan.decomposed)
        return plan, found, chosen


def _decided(found: Products, spec: TileSpec) -> tuple[Plan, list[Site]]:
    """What `spec` makes of the products that were found, and which of them it chose."""
    from explorer.engine.tiling.plan import make_plan

    return make_plan(
        found.sites,
        found.skipped,
        spec,
        opset=found.bound.opset,
        macs_total=found.macs_total,
        dims=found.dims,
        free=found.free,
        decomposed=found.decomposed,
    )
