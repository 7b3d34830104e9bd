"""Verbs that try tilings: what one costs, one made and proved, many side by side, and what was done."""

from __future__ import annotations

import os

from explorer.base.errors import BadModel, ExplorerError, Misuse
from explorer.base.units import dims_text
from explorer.base.verdicts import EXIT_CODES, weakest
from explorer.cli.output.answer import BAD_INPUT, DONE, Answer, asked, document, pages, session_options, tool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from explorer.cli.arguments.parser import Given
    from explorer.cli.output.progress import ProgressLine
    from explorer.facts import Diff, Info, TileSpec
    from explorer.facts.sweep import Sweep, SweepSpec
    from explorer.session import Session

__all__ = ["RUN"]

_ASKED = {"tile": "tile", "site": "sites", "edges": "edges", "form": "form", "grouped": "grouped"}
"""Options of a tiling, and the fields of `TileSpec` that they are."""


def _tile_spec(given: Given) -> TileSpec:
    """The tiling that is asked for: by default, in the file of `--config`, by what was typed."""
    from explorer.settings import tiling

    typed = {field: getattr(given, key) for key, field in _ASKED.items() if key in given.typed}
    return tiling.spec_of(given.config, typed)


def _plan(given: Given, line: ProgressLine) -> Answer:
    from explorer.settings import machines

    spec, fixed = _tile_spec(given), ""
    hardware = None if given.profile is None else machines.hardware(given.profile)

    def cost(session: Session, info: Info) -> tuple[Any, ...]:
        nonlocal fixed
        fixed = _fixed(info, given)
        formulas = given.formulas or None
        return info, session.cost(spec, hardware, order=given.order, formulas=formulas, on_progress=line)

    answer = asked(given, line, cost, "plan_cost", "planning", "sites")
    answer.warning = fixed
    return answer


def _fixed(info: Info, given: Given) -> str:
    """Sizes that a program leaves open and its graph has fixed, unless they were asked for; '' for none."""
    if info.model.format != "torch.export" or given.input_shape:
        return ""
    sizes = {name: size for name, size in info.assumptions["dims"].items() if name not in given.dim}
    if not sizes:
        return ""
    return f"the graph is for {dims_text(sizes)} as the program was exported; --dim binds another size"


def _tile(given: Given, line: ProgressLine) -> Answer:
    from explorer.facts import TileResult
    from explorer.session import Session
    from explorer.settings.parse import opening_words

    if given.to == "torch":
        return _tile_module(given, line)
    if given.dynamic:
        raise Misuse("says nothing of an ONNX file's own axes", where="--dynamic", hint="add --to torch")
    spec = _tile_spec(given)
    source, change, warning = given.models[0], None, ""
    with Session(source, **session_options(given)) as session:
        info = session.open(on_progress=line)
        model, fixed = info.model, _fixed(info, given)
        digest = session.sha256() if given.json else None
        idle = _idle_rules(session, spec)
        if given.output is None:
            result = TileResult(session.plan(spec, on_progress=line), "", None, 0.0, session.command(spec))
        else:
            try:
                result = session.tile(
                    spec,
                    output=given.output,
                    overwrite=given.force,
                    verify=not given.no_verify,
                    draws=given.draws or 1,
                    seed=given.seed,
                    input=given.input,
                    on_progress=line,
                )
            except BadModel as error:
                # the runtime lacks an operator: then the model cannot be run, but it can be tiled
                if given.no_verify or error.hint:
                    raise
                raise BadModel(error.what, where=error.where, hint=_UNPROVED) from None
            if result.output and not given.json and not given.no_verify:
                change, warning = _change(session, line)
    return Answer(
        DONE if result.verification is None else EXIT_CODES[result.verification.verdict_kind],
        lambda: document().tile(result, model, tool(), digest),
        lambda: pages("tiling").tile(result, source, change, opening_words(session_options(given))),
        warning="; ".join(filter(None, (fixed, idle, warning))),
    )


def _idle_rules(session: Session, spec: TileSpec) -> str:
    """Which rules mean no product here: right for a file that serves several models, or a mistyped name."""
    unused = session.settings(spec).unused if spec.rules else ()
    if not unused:
        return ""
    first, more = unused[0], f", and {len(unused) - 1:,} more" if len(unused) > 1 else ""
    near = f"; did you mean '{first.near}'?" if first.near else ""
    return f"{first.origin}{more} means no product here: {first.says}{near}"


def _tile_module(given: Given, line: ProgressLine) -> Answer:
    """`--to torch`: the layers of an nn.Module are tiled, not the nodes of a graph."""
    from explorer.facts import TileResult
    from explorer.session import Session
    from explorer.settings.parse import opening_words

    spec, source = _tile_spec(given), given.models[0]
    with Session(source, **session_options(given)) as session:
        model = session.open(on_progress=line).model
        if given.output is None:
            plan = session.plan_module(spec, on_progress=line)
            result = TileResult(plan, "", None, 0.0, session.module_command(spec, None, given.dynamic))
        else:
            _, result = session.tile_module(
                spec,
                output=given.output,
                overwrite=given.force,
                dynamic=given.dynamic,
                verify=not given.no_verify,
                draws=given.draws or 3,
                seed=given.seed,
                on_progress=line,
            )
    return Answer(
        DONE if result.verification is None else EXIT_CODES[result.verification.verdict_kind],
        lambda: document().tile(result, model, tool(), None),
        lambda: pages("tiling").tile(result, source, None, opening_words(session_options(given))),
    )


_UNPROVED = "nothing was written; --no-verify tiles it without the proof"


def _change(session: Session, line: ProgressLine) -> tuple[Diff | None, str]:
    """What changed; from here on the file exists, so no failure may say that nothing was written."""
    try:
        return session.diff(on_progress=line), ""
    except ExplorerError as error:
        return None, f"what changed cannot be shown: {error}"


def _layout_beside(path: str) -> str:
    """Where the layout for a topology of SCALE-Sim goes: 'gemm.csv' -> 'gemm_layout.csv'."""
    stem, ending = os.path.splitext(path)
    return f"{stem}_layout{ending}"


def _sweep(given: Given, line: ProgressLine) -> Answer:
    from explorer.report.text import sweep as text
    from explorer.session import sweeping
    from explorer.settings import machines

    if len(given.models) == 1 and sweeping.is_results(given.models[0]):
        if idle := sorted(given.typed - _OF_RESULTS):
            flag = "--" + idle[0].replace("_", "-")
            raise Misuse("says nothing of results that are only shown", where=flag, hint="name the model")
        fact, bad = sweeping.results(given.models[0]), {}
    else:
        if given.scalesim is not None:
            from explorer.host.output_files import check_target

            for target in (given.scalesim, _layout_beside(given.scalesim)):
                check_target(target, overwrite=given.force, models=given.models, weights=())
        fact = _swept(
            given,
            line,
            spec=_combined(given),
            hardware=None if given.profile is None else machines.hardware(given.profile),
            order=given.order,
            verify=given.verify,
            draws=given.draws or 1,
            first_seed=given.seed,
            output=given.output,
            scheduler=given.scheduler,
            workers=given.workers,
            layers=given.scalesim is not None,
            **session_options(given),
        )
        bad = fact.failed
    if given.sort is not None:
        fact = sweeping.sorted_by(fact, given.sort)
    if given.scalesim is not None:
        from explorer.host.output_files import replacing

        written = {
            given.scalesim: text.scalesim(fact.layers),
            _layout_beside(given.scalesim): text.scalesim_layout(fact.layers),
        }
        for target, lines in written.items():
            with replacing(target, overwrite=given.force) as temporary:
                with open(temporary, "w", encoding="utf-8") as file:
                    file.write(lines)
    proofs = [row.verdict_kind for row in fact.rows if row.verdict_kind is not None]
    return Answer(
        BAD_INPUT if bad else EXIT_CODES[weakest(proofs)],
        lambda: document().sweep(fact, tool()),
        lambda: text.sweep(fact),
        "rows",
        warning=_without(fact, bad),
    )


def _without(fact: Sweep, bad: Mapping[str, str]) -> str:
    """What there are no figures of: whole models, and why, and single tilings; '' if there are all."""
    said = [why if why.startswith(f"{name}:") else f"{name}: {why}" for name, why in bad.items()]
    single = sum(bool(row.error) and row.model not in bad for row in fact.rows)
    if single:
        said.append(f"{single:,} of {len(fact.rows):,} rows have no figures")
    return "; ".join(said)


_OF_RESULTS = {"sort", "json", "csv", "quiet", "memory"}
"""Options that mean something for the rows of an earlier sweep."""


def _swept(given: Given, line: ProgressLine, **how: Any) -> Sweep:
    """A sweep; one that is stopped says what became of what was done."""
    from explorer.process import supervisor
    from explorer.session.sweeping import sweep_files

    kept = f"what was done is kept in {given.output}; the same command goes on from there"
    supervisor.if_stopped(
        f"stopped; {kept if given.output else 'nothing was kept; with -o FILE it would be'}"
    )
    return sweep_files(*given.models, on_progress=line, **how)


def _combined(given: Given) -> SweepSpec:
    """What is combined: what was typed, on top of the file of `--config`."""
    from explorer.facts.sweep import SweepSpec, tiles_of
    from explorer.settings import tiling

    tiles = tiles_of(given.tile, given.tile_m, given.tile_k, given.tile_n)
    typed = {"tile": tiles[0], "sites": given.site, "edges": given.edges[0], "form": given.form[0]}
    kept = {name: value for name, value in typed.items() if name == "tile" or name[:4] in given.typed}
    if "grouped" in given.typed:
        kept["grouped"] = given.grouped
    base = tiling.spec_of(given.config, kept)
    edges, forms = (
        values if name in given.typed else (getattr(base, name),)
        for name, values in (("edges", given.edges), ("form", given.form))
    )
    return SweepSpec(tiles, edges, forms, base=base)


def _settings(given: Given, line: ProgressLine) -> Answer:
    spec = _tile_spec(given)
    return asked(
        given,
        line,
        lambda session, info: (info, session.settings(spec, on_progress=line)),
        "settings",
        "settings",
        "sites",
    )


def _history(given: Given, line: ProgressLine) -> Answer:
    """What a kept session did; nothing of the model is opened but what the session made itself."""
    import contextlib
    import os

    from msgspec.structs import asdict

    from explorer.host import output_files
    from explorer.process import saved_sessions
    from explorer.session import Session, scripts

    output = given.output and os.path.abspath(given.output)
    model = given.models[0] if given.models else None
    kept, saved = saved_sessions.find(model, os.environ, trust=True)
    folder = saved.cwd if os.path.isdir(saved.cwd) else os.curdir
    try:
        with (
            contextlib.chdir(folder),  # where the model was named from
            Session(saved.source, **asdict(saved.opening), workdir=kept.folder) as session,
        ):
            history = session.restore(saved.history) if saved.history is not None else session.history()
            if output is not None:
                text = session.script_text()
                output_files.check_target(output, overwrite=given.force, models=[saved.source], weights=())
                with output_files.replacing(output, overwrite=given.force) as temporary:
                    with open(temporary, "w", encoding="utf-8", errors="surrogateescape") as file:
                        file.write(text)
                    scripts.make_executable(temporary)
    finally:
        kept.release()
    return Answer(
        DONE,
        lambda: document().history(history, saved.source, given.output, tool()),
        lambda: pages("history").history(history, saved.source, given.output),
    )


RUN: dict[str, Callable[[Given, ProgressLine], Answer]] = {
    "plan": _plan,
    "tile": _tile,
    "sweep": _sweep,
    "settings": _settings,
    "history": _history,
}
